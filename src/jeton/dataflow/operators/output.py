"""output: records that the host collects as a result of the flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jeton.columns.batch import Batch
from jeton.core.tokens import TimestampToken
from jeton.dataflow.plan import OperatorInfo, Step
from jeton.dataflow.ports import Input, Output

if TYPE_CHECKING:
    from jeton.dataflow.stream_base import StreamBase


def add_output(stream: StreamBase, name: str) -> None:
    """Add the operator of `Flow.output`: it collects a stream's records on each worker."""
    builder = stream.operator(name)
    builder.input(stream)

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        collected: list[Batch] = []
        info.publish(collected)

        def step(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            collected.extend(batch for _, batch in inputs[0])

        return step

    builder.build(build, notify="never")
