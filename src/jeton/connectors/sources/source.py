"""Source and Reader: a partitioned source, and one of its partitions open on a worker.

A source is opened once for each of its partitions, on the worker that the partition belongs to. Its
reader is polled for records and never blocks: it returns records, reports that there are none now,
or that there will be no more.

A query with checkpoints also asks readers for their *position*, and opens partitions there again
after a restart. The position belongs to the partition, so any worker may read it then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa


class Reader(ABC):
    """One partition of a source, open on one worker."""

    ended = False
    """Whether no more records will come."""
    floor: int | None = None
    """A time below which no more records will come, if the source knows one."""
    ready_at: float | None = None
    """When to read again after there was nothing, as ``time.monotonic()`` counts, if known."""

    @abstractmethod
    def read(self) -> Any | None:
        """Records (a table, a batch, columns), or ``None`` if there are none now."""

    @property
    def position(self) -> Any | None:
        """The position after the records read so far: any value that JSON can hold.

        ``None`` if the source does not know it: then the query cannot have checkpoints.
        """
        return None


class Source(ABC):
    """The origin of an input's records, divided into partitions."""

    @abstractmethod
    def partitions(self, workers: int) -> int:
        """The number of partitions for a query of ``workers`` workers."""

    @abstractmethod
    def open(self, partition: int, partitions: int, position: Any | None = None) -> Reader:
        """Open a partition at its beginning, or at a position that its reader has reported.

        From there on the reader must give the same records again.
        """

    def typed(self, schema: pa.Schema) -> Source:
        """The source for an input that declares some columns, which may help to read them."""
        return self
