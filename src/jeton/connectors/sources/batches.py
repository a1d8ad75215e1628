"""Batches: tables from a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jeton.connectors.sources.source import Reader, Source, number_of, numbered
from jeton.core.checks import require_function
from jeton.core.errors import GraphError


class Batches(Source):
    """Tables from a function: ``make(partition, partitions)`` returns an iterator of them.

    The iterator may yield ``None`` where it has nothing now; when it ends, the partition does.
    Plain Python rows (lists of dictionaries) will do as well as Arrow tables.

    The position is the number of tables taken. After a restart the iterator is made anew and that
    many are skipped: it must yield the same ones again.

    >>> source = Batches(lambda partition, partitions: iter([{"time": [1], "n": [partition]}]), 1)
    >>> reader = source.open("0/1", None)
    >>> reader.read(), reader.read(), reader.ended
    ({'time': [1], 'n': [0]}, None, True)
    >>> reader.position
    1
    """

    def __init__(
        self, make: Callable[[int, int], Iterable[Any]], partitions: int | None = None
    ) -> None:
        example = "lambda partition, partitions: [table]"
        require_function(make, "a source of batches", example)
        if partitions is not None and partitions < 1:
            raise GraphError(f"a source of batches has one partition or more, not {partitions}")
        self._make = make
        self._partitions = partitions

    def partitions(self, workers: int) -> Mapping[str, Any]:
        """As many as were asked for, or one for each worker."""
        return numbered(self._partitions or workers)

    def open(self, partition: str, position: Any | None) -> Reader:
        """Start the iterator."""
        return _IteratorReader(iter(self._make(*number_of(partition))), position or 0)


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
        # Batches still to be skipped have been taken before.
        return max(self._taken, self._skip)
