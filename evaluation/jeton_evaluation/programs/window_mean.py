"""Means over tumbling windows by key, emitted at the windows' ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton.errors import BatchError, GraphError, TimeError
from jeton.idioms.watermarks import MarkedStream
from jeton_evaluation.programs.keyed_rows import DueRows
from jeton_evaluation.programs.mechanisms import (
    Between,
    Mechanism,
    Times,
    add_stage,
    marked_for,
    plain,
    plain_stream,
)


def window_mean(
    stream: jt.Stream,
    size: int,
    *,
    key: str = "key",
    value: str = "value",
    mechanism: Mechanism = "tokens",
) -> jt.Stream:
    """The ``mean`` of a column by key over windows ``[n * size, (n + 1) * size)``, at their ends.

    >>> flow = jt.Flow("means")
    >>> rows = flow.input("rows")
    >>> flow.output("means", window_mean(rows, 10, mechanism="notifications"))
    >>> table = {"time": [3, 7, 12], "key": [1, 1, 1], "value": [1.0, 2.0, 4.0]}
    >>> flow.run({"rows": table}, workers=2)["means"].to_pylist()
    [{'time': 10, 'key': 1, 'mean': 1.5}, {'time': 20, 'key': 1, 'mean': 4.0}]
    """
    _check(stream, size, key, value)
    marked = marked_for(stream, mechanism)
    return plain_stream(_stage(marked, stream, size, key, value, jt.Exchange(key), mechanism))


def marked_window_mean(
    marked: MarkedStream,
    size: int,
    *,
    key: str = "key",
    value: str = "value",
    pact: jt.Pact | None = None,
) -> MarkedStream:
    """The same for a stream that has marks already; without a pact, keys stay where they are.

    Records whose window the watermark has closed are in the result's ``late``.

    >>> from jeton.idioms.watermark_sources import marks_from_frontier
    >>> flow = jt.Flow("means")
    >>> rows = marks_from_frontier(flow.input("rows"))
    >>> flow.output("means", plain_stream(marked_window_mean(rows, 10, pact=jt.Exchange("key"))))
    >>> table = {"time": [3, 7], "key": [1, 1], "value": [1.0, 2.0]}
    >>> flow.run({"rows": table}, workers=2)["means"].to_pylist()
    [{'time': 10, 'key': 1, 'mean': 1.5}]
    """
    _check(marked.stream, size, key, value)
    means = _stage(marked, marked.stream, size, key, value, pact, "watermarks-x")
    assert isinstance(means, MarkedStream), "marks in, marks out"
    return means


def _check(stream: jt.Stream, size: int, key: str, value: str) -> None:
    """Refuse arguments that make no sense before anything runs."""
    stream.require_columns(key, value, operator="window mean")
    if not 1 <= size <= jt.END_OF_TIME:
        raise GraphError(f"a window must be from 1 to {jt.END_OF_TIME} long, not {size}").located(
            operator="window mean"
        )
    if key == stream.time_name:
        raise GraphError(
            f"{key!r} is when windows end in the result, so it cannot be their key too: add a "
            "column with the times, and use that"
        ).located(operator="window mean")


def _stage(
    rows: Between,
    stream: jt.Stream,
    size: int,
    key: str,
    value: str,
    pact: jt.Pact | None,
    mechanism: Mechanism,
) -> Between:
    schema = stream.schema
    if schema is not None:
        schema = pa.schema([(key, schema.field(key).type), ("mean", pa.float64())])
    return add_stage(
        [rows],
        lambda: WindowSums(size, key, value, time_name=stream.time_name),
        pacts=[pact],
        mechanism=mechanism,
        name="window mean",
        schema=schema,
        shape=f"mean of {value} by {key}, tumbling {size}",
        due=lambda times: window_ends(times, size),
    )


class WindowSums(DueRows):
    """A stage: sums and counts by window and key, emitted as means at the windows' ends.

    >>> sums = WindowSums(10, "key", "value")
    >>> sums.add(0, jt.Batch({"key": [1, 1, 1], "value": [2.0, 4.0, 5.0]}, times=[3, 7, 12]))
    array([10, 20])
    >>> sums.take(10).rows(), sums.least
    ([{'time': 10, 'key': 1, 'mean': 3.0}], 20)
    """

    inclusive = True

    def __init__(self, size: int, key: str, value: str, *, time_name: str = "time") -> None:
        super().__init__("sum", "count", dtype=np.float64)
        self._size = size
        self._key = key
        self._value = value
        self._time_name = time_name

    def add(self, port: int, batch: jt.Batch) -> Times:
        """Add records to their windows; returns the ends of windows that have new keys."""
        values = batch.column(self._value)
        if not isinstance(values, np.ndarray):
            raise BatchError(f"column {self._value!r} has nulls or no numbers: no mean of it")
        ends = window_ends(batch.times, self._size)
        slots, new = self.find(batch.column(self._key), ends)
        _add(self.rows, slots, plain(values, np.float64))
        return np.unique(ends[new])

    def take(self, limit: int | None) -> jt.Batch | None:
        """Take out the means of windows that end at ``limit`` or before; all if it is ``None``."""
        found = self.due(limit)
        if found is None:
            return None
        ends, keys, sums = found
        means = sums[:, 0] / sums[:, 1]
        return jt.Batch.trusted({self._key: keys, "mean": means}, ends, self._time_name)


def window_ends(times: Times, size: int) -> Times:
    """The end of each time's window ``[n * size, (n + 1) * size)``.

    >>> window_ends(np.array([-3, 3, 12]), 10)
    array([ 0, 10, 20])
    """
    ends: Times = (times // size + 1) * size
    late = ends <= times  # wrapped around: the end of time comes before that of the window
    if late.any():
        raise TimeError(
            f"a record is at {times[late.argmax()]}: its window of {size} would end after "
            f"{jt.END_OF_TIME}, the last time there is"
        )
    return ends


@jt.njit(cache=True)
def _add(sums: Any, slots: Any, values: Any) -> None:
    for i in range(len(slots)):
        sums[slots[i], 0] += values[i]
        sums[slots[i], 1] += 1.0
