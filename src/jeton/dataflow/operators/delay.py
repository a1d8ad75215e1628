"""delay: move records to later times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jeton.columns import time_columns
from jeton.columns.batch import Batch
from jeton.core.errors import TimeError
from jeton.dataflow.operators.stateless import require_function, stateless
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_delay(stream: StreamBase, to: Callable[[Batch], Any], *, name: str) -> Stream:
    """Add the operator of `Stream.delay`."""
    require_function(to, name, "times")
    kind = stream.kind

    def change(batch: Batch) -> Batch:
        times = time_columns.as_times(kind, to(batch))
        if len(times) != len(batch):
            raise TimeError(f"delay gave {len(times)} times for {len(batch)} records")
        for index in time_columns.earlier(batch.times, times)[:1]:
            raise TimeError(
                f"delay would move a record from {time_columns.one(batch.times, index)} "
                f"back to {time_columns.one(times, index)}"
            )
        return batch.at(times)

    stream.learn(to, operator=name)
    return stateless(stream, change, name, schema=stream.schema)
