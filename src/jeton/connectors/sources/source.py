"""Source and Reader: a partitioned source, and one of its partitions open on a worker.

The driver asks a source for its partitions once, when a query begins, and deals them to workers. A
partition has a name and the position to start at, so any worker can open it, again and again. Its
reader is polled for records and never blocks: it returns records, reports that there are none now,
or that there will be no more.

A query with checkpoints also asks readers for their *position*, and opens partitions there again
after a restart. If partitions may appear while a query runs, the source is asked for new ones.

`jeton.testing.check_source` tests whether a source keeps these promises.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from jeton.columns.conditions import Condition
from jeton.core.errors import GraphError

_NUMBERED: Final = re.compile(r"(\d+)/(\d+)")


class Reader(ABC):
    """One partition of a source, open on one worker."""

    ended = False
    """Whether no more records will come."""
    floor: int | None = None
    """A time below which no more records will come, if the source knows one."""
    ready_at: float | None = None
    """When to read again after there was nothing, as ``time.monotonic()`` counts, if known."""
    rejected = 0
    """Records that could not be read, and have been put elsewhere."""

    @abstractmethod
    def read(self) -> Any | None:
        """Records (a table, a batch, columns), or ``None`` if there are none now.

        It returns at once. A record's place is part of the position as soon as it is returned.
        """

    @property
    def position(self) -> Any | None:
        """The position after the records read so far: any value that JSON can hold.

        ``None`` if the source does not know it: then the query cannot have checkpoints.
        """
        return None

    def close(self) -> None:  # noqa: B027
        """Release connections and files; nothing is read afterwards."""


class Source(ABC):
    """The origin of an input's records, divided into partitions.

    Two methods make a source: `partitions` names them, and `open` reads one.

    >>> class Squares(Source):
    ...     def partitions(self, workers):
    ...         return {"even": 0, "odd": 1}  # the numbers to begin with
    ...
    ...     def open(self, partition, position):
    ...         return SquaresReader(position)
    >>> class SquaresReader(Reader):
    ...     def __init__(self, position):
    ...         self._next = position
    ...
    ...     def read(self):
    ...         if self._next >= 20:
    ...             self.ended = True
    ...             return None
    ...         number, self._next = self._next, self._next + 2
    ...         return {"time": [number], "square": [number * number]}
    ...
    ...     @property
    ...     def position(self):
    ...         return self._next
    >>> from jeton.testing import check_source
    >>> check_source(Squares())
    20
    """

    discover_every: float | None = None
    """Seconds between calls of `discover` while a query runs; ``None`` if nothing new appears.

    An input whose source may grow never ends, also if all partitions of now have.
    """

    endless: bool = False
    """Whether records may come forever, so that no batch can read them all."""

    @abstractmethod
    def partitions(self, workers: int) -> Mapping[str, Any]:
        """The partitions at the start of a query of ``workers`` workers, at the driver.

        Each name has the position to start at, for `open`: anything that JSON can hold. A query
        that goes on from a checkpoint has the names and positions from there instead.
        """

    def discover(self, known: Collection[str]) -> Mapping[str, Any]:
        """Partitions that have appeared since, at the driver: those whose names are not ``known``.

        It is called when a query goes on from a checkpoint, and while it runs. It may block.
        """
        return {}

    @abstractmethod
    def open(self, partition: str, position: Any | None) -> Reader:
        """Open a partition on a worker at a position: of `partitions`, or of an earlier reader.

        From there on the reader must give the same records again. Another reader of the same
        partition may still be open, of an attempt that was given up.
        """

    def typed(self, schema: pa.Schema, time: str) -> Source:
        """The source for an input that declares its columns, which may help to read them.

        Others are not used, but for the one of ``time``, which may be undeclared.
        """
        return self

    def narrowed(
        self, columns: Sequence[str] | None, condition: Condition | None, time: str
    ) -> Source:
        """The source for a batch that does not need everything; by default it is this one.

        ``columns`` are the only ones that the flow uses, besides the time; ``None`` means all. A
        source that returns another one gives records with no other columns. ``condition`` is false
        for records that the flow drops at once: blocks of which `Condition.may_hold` says so need
        not be read. Records that are read nevertheless change no answer.
        """
        return self

    def schema(self) -> pa.Schema | None:
        """The columns of its records, at the driver; ``None`` if they are not known beforehand."""
        return None

    def about(self) -> str:
        """How much there is to read, at the driver, for people; empty if that is not known."""
        return ""


def numbered(count: int) -> dict[str, None]:
    """The names of ``count`` partitions that differ by their numbers only.

    >>> numbered(2)
    {'0/2': None, '1/2': None}
    """
    return {f"{number}/{count}": None for number in range(count)}


def number_of(partition: str) -> tuple[int, int]:
    """The number of such a partition, and the count of them.

    >>> number_of("1/2")
    (1, 2)
    """
    found = _NUMBERED.fullmatch(partition)
    if found is None:
        raise GraphError(
            f"{partition!r} is not a partition of this source, whose names are such as '0/2': has "
            "the checkpoint positions of another source for this input?"
        )
    return int(found[1]), int(found[2])
