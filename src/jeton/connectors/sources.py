"""Sources of long-lived queries: partitioned, and read by the workers themselves.

A source is opened once for each of its partitions, on the worker that the partition belongs to. Its
reader is asked for records again and again and never blocks: it says that there are none now, or
that there will be none any more.

A query with checkpoints also asks readers for their *position*, and opens partitions there again
after a restart. The position belongs to the partition, so that it does not matter which worker
reads it then.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from jeton.connectors.paths import shared_folder
from jeton.core.errors import GraphError


class Reader(ABC):
    """One partition of a source, open on one worker."""

    ended = False
    """Whether no more records will come."""
    floor: int | None = None
    """A time below which no more records will come, if the source knows one."""
    ready_at: float | None = None
    """When to ask again (as ``time.monotonic()`` has it) after there was nothing, if known."""

    @abstractmethod
    def read(self) -> Any | None:
        """Records (a table, a batch, columns), or ``None`` if there are none now."""

    @property
    def position(self) -> Any | None:
        """After what has been read so far: anything that JSON can hold.

        ``None`` says that this source cannot tell, so that there can be no checkpoints.
        """
        return None


class Source(ABC):
    """Where records of an input come from."""

    @abstractmethod
    def partitions(self, workers: int) -> int:
        """How many partitions there are, for a query of so many workers."""

    @abstractmethod
    def open(self, partition: int, partitions: int, position: Any | None = None) -> Reader:
        """Open one of them: at its beginning, or at a position that its reader told before.

        From there on the reader must give the same records again.
        """


class Batches(Source):
    """Tables from a function: ``make(partition, partitions)`` returns an iterator of them.

    The iterator may yield ``None`` where it has nothing now; when it ends, the partition does.
    Plain Python rows (lists of dictionaries) will do as well as Arrow tables.

    The position is the number of tables taken. After a restart the iterator is made anew and that
    many are skipped: it must yield the same ones again.

    >>> source = Batches(lambda partition, partitions: iter([{"time": [1], "n": [partition]}]), 1)
    >>> reader = source.open(0, 1)
    >>> reader.read(), reader.read(), reader.ended
    ({'time': [1], 'n': [0]}, None, True)
    >>> reader.position
    1
    """

    def __init__(
        self, make: Callable[[int, int], Iterable[Any]], partitions: int | None = None
    ) -> None:
        self._make = make
        self._partitions = partitions

    def partitions(self, workers: int) -> int:
        """As many as were asked for, or one for each worker."""
        return self._partitions or workers

    def open(self, partition: int, partitions: int, position: Any | None = None) -> Reader:
        """Start the iterator."""
        return _IteratorReader(iter(self._make(partition, partitions)), position or 0)


class _IteratorReader(Reader):
    def __init__(self, items: Iterator[Any], skip: int) -> None:
        self._items = items
        self._skip = skip
        self._taken = 0

    def read(self) -> Any | None:
        for item in self._items:
            if item is None:
                return None
            self._taken += 1
            if self._taken > self._skip:
                return item
        self.ended = True
        return None

    @property
    def position(self) -> int:
        # What is still to be skipped has been taken before.
        return max(self._taken, self._skip)


class Rate(Source):
    """Records at a steady rate, made when they are due, whether or not the flow keeps up.

    ``make(positions)`` gets the numbers of the records that are due and returns their columns.
    Record *n* is due ``n / rate`` seconds after the start, and its time is when it was due: in
    nanoseconds since the start. Worker *w* of *k* makes records *w*, *w + k*, and so on.

    The position is the number of the next record. After a restart that one is due at once: what
    would have been due while the query was down is not made up for.

    >>> source = Rate(1e6, lambda positions: {"n": positions}, limit=3)
    >>> reader = source.open(0, 1)
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
        if rate <= 0:
            raise GraphError(f"a rate must be above zero, not {rate}")
        self.rate = rate
        self.make = make
        self.limit = limit
        self.time = time
        self.most = most

    def partitions(self, workers: int) -> int:
        """One for each worker."""
        return workers

    def open(self, partition: int, partitions: int, position: Any | None = None) -> Reader:
        """Start the clock."""
        return _RateReader(self, partition, partitions, position)


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


class Files(Source):
    """Files of a folder, as they appear: Parquet, CSV, JSON lines or Arrow, by name in order.

    A file is read once. Write it under another name and rename it, so that it appears whole.
    Worker *w* of *k* reads the files whose name hashes to it.

    The position has the names of the files that have been read, so clear the folder out now and
    then: what is gone from it is forgotten.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: str = "parquet",
        every: float = 0.2,
        end: bool = False,
    ) -> None:
        self.path = shared_folder(path)
        self.format = format
        self.every = every
        self.end = end
        """Whether to end once all files that are there have been read."""

    def partitions(self, workers: int) -> int:
        """One for each worker."""
        return workers

    def open(self, partition: int, partitions: int, position: Any | None = None) -> Reader:
        """Start looking."""
        return _FileReader(self, partition, partitions, position or {})


class _FileReader(Reader):
    def __init__(
        self, source: Files, partition: int, partitions: int, position: dict[str, Any]
    ) -> None:
        self._source = source
        self._partition = partition
        self._partitions = partitions
        self._done: set[str] = set(position.get("done", ()))
        self._seen: set[str] = set(self._done)
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._fresh: deque[Path] = deque()
        self._reading: str | None = None
        self._rows = 0
        self.ready_at = 0.0
        if position.get("reading") is not None:
            self._begin(source.path / position["reading"])
            self._skip(int(position["rows"]))

    def read(self) -> Any | None:
        while True:
            for batch in self._batches:
                if batch.num_rows:
                    self._rows += batch.num_rows
                    return batch
            if self._reading is not None:
                self._done.add(self._reading)
                self._reading = None
            if not self._fresh and not self._look():
                return None
            self._begin(self._fresh.popleft())

    @property
    def position(self) -> dict[str, Any]:
        return {"done": sorted(self._done), "reading": self._reading, "rows": self._rows}

    def _begin(self, path: Path) -> None:
        self._seen.add(path.name)
        self._reading, self._rows = path.name, 0
        self._batches = ds.dataset(path, format=self._source.format).to_batches()

    def _skip(self, rows: int) -> None:
        while self._rows < rows:
            batch = next(self._batches)
            left = rows - self._rows
            self._rows += min(batch.num_rows, left)
            if batch.num_rows > left:
                self._batches = chain([batch.slice(left)], self._batches)

    def _look(self) -> bool:
        """Whether there are files of this partition that were not seen yet: by name, in order."""
        now = time.monotonic()
        if self.ended or (self.ready_at is not None and now < self.ready_at):
            return False
        folder = self._source.path
        there = sorted(folder.iterdir()) if folder.is_dir() else []
        self._done &= {path.name for path in there}
        for path in there:
            if path.name.startswith((".", "_")) or path.name in self._seen or not path.is_file():
                continue
            self._seen.add(path.name)
            if _stable_hash(path.name) % self._partitions == self._partition:
                self._fresh.append(path)
        self.ended = self._source.end and not self._fresh
        self.ready_at = now + self._source.every if not self._fresh else 0.0
        return bool(self._fresh)


def _stable_hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value * 131 + byte) % (1 << 32)
    return value
