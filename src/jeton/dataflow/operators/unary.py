"""unary, unary_frontier: an operator of the user's own with one input and one output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jeton.columns.schema import SchemaLike
from jeton.core.checks import require_function, require_step
from jeton.core.summaries import SummaryLike
from jeton.core.tokens import TimestampToken
from jeton.dataflow.column_use import ColumnUse
from jeton.dataflow.pacts import Pact
from jeton.dataflow.plan import Notify, OperatorInfo, Step
from jeton.dataflow.ports import Input, Output
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream

UnaryBuild = Callable[[TimestampToken, OperatorInfo], Callable[[Input, Output], None]]


def add_unary(
    stream: StreamBase,
    build: UnaryBuild,
    *,
    name: str,
    notify: Notify,
    pact: Pact | None = None,
    step: SummaryLike = 0,
    schema: SchemaLike | None = None,
    use: ColumnUse | None = None,
    waits: bool = False,
) -> Stream:
    """Add the operator of `Stream.unary`, or of `Stream.unary_frontier`: ``notify`` decides."""
    require_function(build, name, "build(token, info), which returns step(input, output)")
    builder = stream.operator(name)
    builder.input(stream, pact)
    builder.output({0: step}, schema=schema)

    def build_all(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        logic = build(tokens.pop(), info)
        require_step(logic, "step(input, output)")

        def run(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            logic(inputs[0], outputs[0])

        return run

    return builder.build(build_all, notify=notify, use=use, waits=waits)[0]
