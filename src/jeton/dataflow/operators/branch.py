"""branch: split a stream in two by a condition on its records or their times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jeton.core.tokens import TimestampToken
from jeton.dataflow.operators.stateless import Condition, mask_function
from jeton.dataflow.plan import OperatorInfo, Step
from jeton.dataflow.ports import Input, Output
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_branch(stream: StreamBase, condition: Condition, *, name: str) -> tuple[Stream, Stream]:
    """Add the operator of `Stream.branch`."""
    mask_of = mask_function(stream, condition, name)
    builder = stream.operator(name)
    builder.input(stream)
    builder.output(schema=stream.schema)
    builder.output(schema=stream.schema)

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        while tokens:
            tokens.pop().drop()

        def step(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            for ref, batch in inputs[0]:
                mask = mask_of(batch)
                outputs[0].session(ref).give(batch.filter(~mask))
                outputs[1].session(ref).give(batch.filter(mask))

        return step

    no, yes = builder.build(build, notify="never")
    return no, yes
