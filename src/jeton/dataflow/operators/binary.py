"""binary, binary_frontier: an operator of the user's own with two inputs and one output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jeton.columns.schema import SchemaLike
from jeton.core.checks import require_function, require_step
from jeton.core.tokens import TimestampToken
from jeton.dataflow.pacts import Pact
from jeton.dataflow.plan import Notify, OperatorInfo, Step
from jeton.dataflow.ports import Input, Output
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream

BinaryBuild = Callable[[TimestampToken, OperatorInfo], Callable[[Input, Input, Output], None]]


def add_binary(
    left: StreamBase,
    right: StreamBase,
    build: BinaryBuild,
    *,
    name: str,
    notify: Notify,
    pact: Pact | None = None,
    other_pact: Pact | None = None,
    schema: SchemaLike | None = None,
) -> Stream:
    """Add the operator of `Stream.binary`, or of `Stream.binary_frontier`: ``notify`` decides."""
    require_function(build, name, "build(token, info), which returns step(left, right, output)")
    builder = left.operator(name)
    builder.input(left, pact)
    builder.input(right, other_pact or pact)
    builder.output(schema=schema)

    def build_all(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        logic = build(tokens.pop(), info)
        require_step(logic, "step(left, right, output)")

        def run(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            logic(inputs[0], inputs[1], outputs[0])

        return run

    return builder.build(build_all, notify=notify)[0]
