"""Rate: generated records at a steady rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from jeton.connectors.sources.source import Reader, Source, number_of, numbered
from jeton.core.checks import described, require_function
from jeton.core.errors import GraphError


class Rate(Source):
    """Records at a steady rate, made when they are due, whether or not the flow keeps up.

    ``make(positions)`` gets the numbers of the records that are due and returns their columns.
    Record *n* is due ``n / rate`` seconds after the start, and its time is when it was due: in
    nanoseconds since the start. Worker *w* of *k* makes records *w*, *w + k*, and so on.

    The position is the number of the next record. After a restart that one is due at once: what
    would have been due while the query was down is not made up for.

    >>> source = Rate(1e6, lambda positions: {"n": positions}, limit=3)
    >>> reader = source.open("0/1", None)
    >>> while (records := reader.read()) is None:
    ...     pass
    >>> list(records)
    ['time', 'n']
    """

    def __init__(
        self,
        rate: float,
        make: Callable[[npt.NDArray[np.int64]], dict[str, Any]],
        *,
        limit: int | None = None,
        time: str = "time",
        most: int = 65_536,
    ) -> None:
        given: Any = rate
        if not isinstance(given, Real) or given <= 0:
            raise GraphError(f"a rate is a number above zero, not {described(given)}")
        require_function(make, "a source with a rate", "lambda positions: {'n': positions}")
        self.rate = rate
        self.make = make
        self.limit = limit
        self.endless = limit is None
        self.time = time
        self.most = most

    def partitions(self, workers: int) -> Mapping[str, Any]:
        """One for each worker."""
        return numbered(workers)

    def open(self, partition: str, position: Any | None) -> Reader:
        """Start the clock."""
        return _RateReader(self, *number_of(partition), position)


class _RateReader(Reader):
    def __init__(self, source: Rate, partition: int, partitions: int, position: int | None) -> None:
        self._source = source
        self._next = partition if position is None else position
        self._step = partitions
        self._start = time.monotonic() - (0.0 if position is None else position / source.rate)
        self.floor = 0 if position is None else self._time_of(position)

    def read(self) -> Any | None:
        source = self._source
        due = int((time.monotonic() - self._start) * source.rate)
        if source.limit is not None:
            due = min(due, source.limit)
        end = min(due, self._next + source.most * self._step)
        if end <= self._next:
            self.ended = source.limit is not None and self._next >= source.limit
            # Record n is due as soon as n + 1 of them should have been made.
            self.ready_at = self._start + (self._next + 1) / source.rate
            return None
        positions = np.arange(self._next, end, self._step)
        times = (positions * (1e9 / source.rate)).astype(np.int64)
        self._next = int(positions[-1]) + self._step
        self.floor = self._time_of(self._next)
        return {source.time: times, **source.make(positions)}

    @property
    def position(self) -> int:
        return self._next

    def _time_of(self, record: int) -> int:
        return int(record * (1e9 / self._source.rate))
