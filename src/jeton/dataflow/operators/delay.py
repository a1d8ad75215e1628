"""delay: move records to later times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jeton.columns.batch import Batch
from jeton.dataflow.operators.stateless import later_times, require_function, stateless
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_delay(stream: StreamBase, to: Callable[[Batch], Any], *, name: str) -> Stream:
    """Add the operator of `Stream.delay`."""
    require_function(to, name, "times")
    stream.learn(to, operator=name)
    kind = stream.kind

    def change(batch: Batch) -> Batch:
        return batch.at(later_times(batch.times, to(batch), kind, "delay"))

    return stateless(stream, change, name, schema=stream.schema)
