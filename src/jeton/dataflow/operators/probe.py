"""probe: watch a stream's frontier from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jeton.core.tokens import TimestampToken
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from typing import Self


class Probes(StreamBase):
    """Adds `probe` to streams."""

    def probe(self, name: str = "probe") -> Self:
        """Name this place, so that ``run.probe(name)`` tells its frontier; returns the stream.

        A probe is never invoked and gets no data: asking it costs a comparison or two.

        >>> import jeton as jt
        >>> flow = jt.Flow("watched")
        >>> _ = flow.input("n").probe("seen")
        >>> with flow.open() as run:
        ...     numbers = run.input("n")
        ...     numbers.advance_to(3)
        ...     run.run_to_rest()
        ...     run.probe("seen").frontier
        Antichain([3])
        """
        self.flow.reserve("probe", name)
        builder = self.operator(name)
        builder.input(self, observes=True)

        def build(tokens: list[TimestampToken], info: OperatorInfo) -> None:
            info.publish(info.inputs[0])

        builder.build(build, notify="never")
        return self
