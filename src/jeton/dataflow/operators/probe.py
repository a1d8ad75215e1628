"""probe: watch a stream's frontier from outside."""

from __future__ import annotations

from jeton.core.tokens import TimestampToken
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.stream_base import StreamBase


def add_probe(stream: StreamBase, name: str) -> None:
    """Add the operator of `Stream.probe`."""
    stream.flow.reserve("probe", name)
    builder = stream.operator(name)
    builder.input(stream, observes=True)

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> None:
        info.publish(info.inputs[0])

    builder.build(build, notify="never")
