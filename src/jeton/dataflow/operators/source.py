"""source: an operator of the user's own without inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jeton.core.times import Time
from jeton.core.tokens import TimestampToken
from jeton.dataflow.plan import OperatorInfo, Step
from jeton.dataflow.ports import Input, Output

if TYPE_CHECKING:
    from jeton.dataflow.scope import Scope
    from jeton.dataflow.stream import Stream

SourceBuild = Callable[[TimestampToken, OperatorInfo], Callable[[Output], None]]


def add_source(
    scope: Scope, build: SourceBuild, *, name: str, time: str, start: Time | None
) -> Stream:
    """Add the operator of `Scope.source`."""
    builder = scope.operator(name, time=time)
    builder.output()
    first = scope.kind.origin if start is None else scope.kind.check(start)

    def build_all(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        token = tokens.pop()
        token.downgrade(first)
        logic = build(token, info)
        del token

        def run(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            logic(outputs[0])

        return run

    return builder.build(build_all)[0]
