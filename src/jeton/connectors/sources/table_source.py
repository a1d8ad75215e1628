"""Table sources: the rows of a table that has versions, and of each version that follows."""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from jeton.columns.conditions import Condition
from jeton.columns.durations import Duration, seconds
from jeton.connectors.sources.source import Reader, Source, number_of, numbered
from jeton.connectors.tables import TableFailed
from jeton.core.checks import require_one_of, suggestion
from jeton.core.errors import MissingColumn

Start: TypeAlias = Literal["earliest", "latest"] | int
_AT_ONCE: Final = 20
"""Versions without files of its own that a reader passes at once."""


@dataclass(frozen=True)
class DataFile:
    """A file of a table."""

    path: str
    partition: Mapping[str, Any] = field(default_factory=dict)
    """The values of columns that are not in the file."""
    detail: Any = field(default=None, compare=False)
    """The other settings that reading the table needs."""


class VersionedTable(ABC):
    """The versions of a table, and the files of each, for one reader."""

    name: str
    """The table in messages."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns that are read."""

    @abstractmethod
    def names(self) -> list[str]:
        """All columns of the table."""

    @abstractmethod
    def newest(self) -> int:
        """The newest version."""

    @abstractmethod
    def contents(self, version: int) -> Sequence[DataFile]:
        """All files of the table at a version, always in the same order."""

    @abstractmethod
    def after(self, version: int) -> int | None:
        """The version that follows another one, if there is one yet."""

    @abstractmethod
    def added(self, version: int) -> Sequence[DataFile]:
        """The files that a version added, always in the same order."""

    @abstractmethod
    def batches(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file."""

    def close(self) -> None:  # noqa: B027
        """Release connections."""


class TableSource(Source):
    """A source that follows the versions of a table: the base of `Delta` and `Iceberg`."""

    def __init__(
        self,
        *,
        start: Start,
        end: bool,
        changes: Literal["fail", "skip"],
        partitions: int | None,
        every: float | Duration,
    ) -> None:
        if not isinstance(start, int):
            require_one_of(start, "start=, unless it is a number,", ("earliest", "latest"))
        require_one_of(changes, "changes=", ("fail", "skip"))
        self.start = start
        self.end = end
        self.endless = not end
        self.changes = changes
        self.number_of_partitions = partitions
        self.every = seconds(every, "every=")
        self.columns: tuple[str, ...] | None = None
        """The columns that are read, the time first; all of them by default."""

    @abstractmethod
    def table(self) -> VersionedTable:
        """The table, opened for one reader."""

    @abstractmethod
    def before(self, table: VersionedTable, start: int) -> int:
        """The version before the one to start with."""

    def partitions(self, workers: int) -> Mapping[str, Any]:
        """Those of the source: the files of all versions are dealt to them in turn."""
        with closing(self.table()) as table:
            self._require_time(table)
            begin = self._begin(table)
        return dict.fromkeys(numbered(self.number_of_partitions or workers), begin)

    def _begin(self, table: VersionedTable) -> dict[str, Any]:
        """The position of a new query."""
        newest = table.newest()
        begin: dict[str, Any] = {"version": newest, "whole": False, "file": None, "rows": 0}
        if self.start == "earliest":
            begin |= {"whole": True, "file": 0}
        elif self.start != "latest":
            begin["version"] = self.before(table, self.start)
        begin["end"] = newest if self.end else None
        return begin

    def open(self, partition: str, position: Any | None) -> Reader:
        """Read files from a position on."""
        assert position is not None
        table = self.table()
        self._require_time(table)
        return _TableReader(self, table, *number_of(partition), position)

    def _require_time(self, table: VersionedTable) -> None:
        """An error if the table has no time column: its rows might have no columns at all then."""
        if self.columns is not None and self.columns[0] not in table.names():
            time, names = self.columns[0], table.names()
            raise MissingColumn(
                f"{table.name} has no time column {time!r}{suggestion(time, names)} (there are: "
                f"{', '.join(map(repr, names))})"
            )

    def typed(self, schema: pa.Schema, time: str) -> Source:
        """The source that reads only the columns which an input declares."""
        return self.narrowed(schema.names, None, time)

    def narrowed(
        self, columns: Sequence[str] | None, condition: Condition | None, time: str
    ) -> Source:
        """The source that reads only some columns."""
        if columns is None:
            return self
        made = copy.copy(self)
        made.columns = tuple(dict.fromkeys([time, *columns]))
        return made

    def schema(self) -> pa.Schema:
        """The columns that are read."""
        with closing(self.table()) as table:
            return table.schema()


class _TableReader(Reader):
    """Reads every so-manyth file of each version.

    A position has the version, whether it is read whole or only what it added, the number of the
    file that is being read, if not all of them have been, and the rows read of that.
    """

    def __init__(
        self,
        source: TableSource,
        table: VersionedTable,
        number: int,
        count: int,
        position: Mapping[str, Any],
    ) -> None:
        self._table = table
        self._every = source.every
        self._number, self._count = number, count
        self._end: int | None = position["end"]
        if source.end and self._end is None:
            # The query began without an end, and is to come to one now.
            self._end = table.newest()
        self._version: int = position["version"]
        self._whole: bool = position["whole"]
        self._file: int | None = position["file"]
        self._rows = 0
        self._files: Sequence[DataFile] = ()
        self._batches: Iterator[pa.RecordBatch] | None = None
        self.ready_at = 0.0
        if self._file is not None:
            made = table.contents if self._whole else table.added
            self._files = made(self._version)
            if position["rows"]:
                self._skip(position["rows"])

    def read(self) -> Any | None:
        for _ in range(_AT_ONCE):
            if self._batches is not None:
                for batch in self._batches:
                    if batch.num_rows:
                        self._rows += batch.num_rows
                        return batch
                assert self._file is not None
                self._batches, self._rows, self._file = None, 0, self._file + 1
            if self._find():
                self._begin()
            elif not self._advance():
                return None
        # There is more, but others have their turn first.
        self.ready_at = 0.0
        return None

    @property
    def position(self) -> dict[str, Any]:
        return {
            "version": self._version,
            "whole": self._whole,
            "file": self._file,
            "rows": self._rows,
            "end": self._end,
        }

    def close(self) -> None:
        self._batches = None
        self._table.close()

    def _find(self) -> bool:
        """Go to the next file of this partition in the version; returns whether there is one."""
        if self._file is None:
            return False
        # From one version to the next the first file goes to another partition.
        ahead = (self._number - self._version - self._file) % self._count
        if self._file + ahead >= len(self._files):
            self._file = None
            return False
        self._file += ahead
        return True

    def _advance(self) -> bool:
        """Go on to the next version; returns whether there is one."""
        if self._end is not None and self._version >= self._end:
            self.ended = True
            return False
        now = time.monotonic()
        if self.ready_at is not None and now < self.ready_at:
            return False
        found = self._table.after(self._version)
        if found is None:
            self.ready_at = now + self._every
            return False
        # Before the position says so.
        self._files = self._table.added(found)
        self._version, self._whole, self._file = found, False, 0
        return True

    def _begin(self) -> None:
        assert self._file is not None
        self._batches = self._table.batches(self._files[self._file])

    def _skip(self, rows: int) -> None:
        self._begin()
        assert self._batches is not None
        for batch in self._batches:
            left = rows - self._rows
            self._rows += min(batch.num_rows, left)
            if batch.num_rows > left:
                self._batches = chain([batch.slice(left)], self._batches)
            if self._rows == rows:
                return
        raise TableFailed(
            f"{self._table.name} has fewer rows in file {self._files[self._file or 0].path} than "
            f"have been read: {self._rows} instead of {rows}. Was the file replaced?"
        )


def rows_of(
    file: Any, partition: Mapping[str, Any], schema: pa.Schema, wanted: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file with the columns of a table; what it lacks is null.

    ``partition`` has values for columns that are not in the file.
    """
    fields = [each for each in schema if wanted is None or each.name in wanted]
    with pq.ParquetFile(file) as opened:
        there = [each.name for each in fields if each.name in opened.schema_arrow.names]
        for batch in opened.iter_batches(columns=there):
            columns = [
                batch.column(each.name).cast(each.type)
                if each.name in there
                else pa.repeat(pa.scalar(partition.get(each.name), each.type), batch.num_rows)
                for each in fields
            ]
            yield pa.RecordBatch.from_arrays(columns, [each.name for each in fields])
