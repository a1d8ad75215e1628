"""delay: move records to later times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from jeton.columns.batch import Batch
from jeton.columns.durations import Length, is_duration, is_number
from jeton.columns.time_arithmetic import MOST, later
from jeton.core.errors import GraphError
from jeton.dataflow.column_use import ColumnUse
from jeton.dataflow.operators.stateless import later_times, require_function, stateless
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_delay(stream: StreamBase, to: Callable[[Batch], Any] | Length, *, name: str) -> Stream:
    """Add the operator of `Stream.delay`."""
    kind = stream.kind
    if is_number(to) or is_duration(to):
        if not kind.total:
            raise GraphError(f"delay({to!r}) needs integer times: inside a loop, pass a function")
        step = stream.flow.domain.length(to, "delay({})", "length")
        if not 0 <= step <= MOST:
            raise GraphError(f"delay({to!r}) would move records back in time")
        return stateless(
            stream,
            lambda batch: batch.at(later(batch.times, step, "its delay")),
            name,
            schema=stream.schema,
            use=ColumnUse(),
        )
    require_function(to, name, "times")
    function = cast("Callable[[Batch], Any]", to)
    stream.learn(function, operator=name)

    def change(batch: Batch) -> Batch:
        return batch.at(later_times(batch, batch.times, function(batch), kind, "delay"))

    return stateless(stream, change, name, schema=stream.schema)
