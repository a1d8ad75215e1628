"""Sinks of long-lived queries: where the rows of an output go while the query runs.

Without checkpoints rows are handed over as they come. With checkpoints they are handed over once
the version that covers them is committed, and never twice: a `StagedSink` prepares them on the
workers and makes them visible at the driver; a `DriverSink` gets them then.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq

from jeton.core.errors import JetonError

log = logging.getLogger(__name__)


class Writer(Protocol):
    """One worker's end of a sink."""

    def write(self, table: pa.Table) -> None:
        """Take rows."""
        ...

    def close(self) -> None:
        """No more rows will come."""
        ...


@runtime_checkable
class WorkerSink(Protocol):
    """A sink that each worker writes to by itself."""

    def open(self, worker: int, run: str) -> Writer:
        """One worker's end, for one run of the query."""
        ...


class StagedWriter(Writer, Protocol):
    """One worker's end of a sink that commits with checkpoints.

    What was written since the last `stage` counts for nothing if the writer is closed.
    """

    def stage(self, version: int) -> list[Any]:
        """Put what was written since the last time where it is safe but cannot be seen yet.

        Returns what `StagedSink.commit` has to know, such as names of files: anything that JSON
        can hold.
        """
        ...


@runtime_checkable
class StagedSink(Protocol):
    """A sink that each worker writes to by itself, and that commits with checkpoints.

    All that it writes for a query and a version must be recognisable as such, so that it can be
    found again by `roll_back`.
    """

    def open_staged(self, worker: int, query: str, attempt: int) -> StagedWriter:
        """One worker's end, for one attempt at a query, which keeps its name for ever."""
        ...

    def commit(self, query: str, version: int, staged: Sequence[Any]) -> None:
        """At the driver: make what all workers staged for a version visible.

        After a crash it is called again for the version that the query goes on from.
        """
        ...

    def roll_back(self, query: str, version: int) -> None:
        """At the driver, before an attempt: undo all that is not part of a version up to this.

        That is what was staged and not committed, and what later versions made visible, which
        there are if their checkpoints cannot be read any more.
        """
        ...


@runtime_checkable
class DriverSink(Protocol):
    """A sink at the driver, to which workers send their rows.

    What it got cannot be taken back: if a committed version cannot be read any more, a query does
    not go on from the one before by itself.
    """

    def receive(self, table: pa.Table) -> None:
        """Take rows; called by one thread at a time."""
        ...


Sink: TypeAlias = WorkerSink | StagedSink | DriverSink


class Parquet:
    """Parquet files in a folder; each appears whole, under its own name, once it is complete.

    A file is closed after ``rows`` rows, or when the query ends. With checkpoints, each version has
    files of its own, which appear when it is committed.
    """

    def __init__(self, path: str | Path, *, rows: int = 1_000_000) -> None:
        self.path = Path(path)
        self.rows = rows

    def open(self, worker: int, run: str) -> Writer:
        """Write on this worker."""
        return _ParquetWriter(self, worker, run)

    def open_staged(self, worker: int, query: str, attempt: int) -> StagedWriter:
        """Write on this worker, for checkpoints."""
        return _StagedParquetWriter(self, f"{query}-{attempt}-{worker:04}")

    def commit(self, query: str, version: int, staged: Sequence[Any]) -> None:
        """Give files their names."""
        for name in staged:
            hidden, visible = self.path / f".{name}", self.path / name
            try:
                hidden.rename(visible)
            except FileNotFoundError:
                if not visible.exists():
                    raise JetonError(
                        f"{visible}, which belongs to version {version} of the checkpoint, is gone"
                    ) from None
        if staged:
            _make_durable(self.path)

    def roll_back(self, query: str, version: int) -> None:
        """Delete hidden files, and those of later versions."""
        if not self.path.is_dir():
            return
        ours = re.compile(rf"(\.?)part-{re.escape(query)}-\d+-\d+-(\d+)-\d+\.parquet")
        for path in self.path.iterdir():
            found = ours.fullmatch(path.name)
            if found is None:
                continue
            if not found[1] and int(found[2]) > version:
                log.warning("%s is deleted: its rows will be made again", path)
            elif not found[1]:
                continue
            path.unlink(missing_ok=True)


class _ParquetWriter:
    def __init__(self, sink: Parquet, worker: int, run: str) -> None:
        self._sink = sink
        self._name = f"part-{run}-{worker:04}"
        self._number = 0
        self._tables: list[pa.Table] = []
        self._rows = 0
        sink.path.mkdir(parents=True, exist_ok=True)

    def write(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows >= self._sink.rows:
            self._commit()

    def close(self) -> None:
        if self._rows:
            self._commit()

    def _commit(self) -> None:
        name = f"{self._name}-{self._number:05}.parquet"
        hidden = self._sink.path / f".{name}.{os.getpid()}"
        pq.write_table(pa.concat_tables(self._tables), hidden)
        hidden.rename(self._sink.path / name)
        self._tables, self._rows = [], 0
        self._number += 1


class _StagedParquetWriter:
    def __init__(self, sink: Parquet, name: str) -> None:
        self._sink = sink
        self._name = name
        self._number = 0
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._early: list[tuple[int, Path]] = []
        """Files that were full before it was known what version they are for."""
        sink.path.mkdir(parents=True, exist_ok=True)

    def write(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows >= self._sink.rows:
            self._fill()

    def stage(self, version: int) -> list[Any]:
        if self._rows:
            self._fill()
        names = []
        for number, hidden in self._early:
            names.append(f"part-{self._name}-{version:08}-{number:05}.parquet")
            hidden.rename(self._sink.path / f".{names[-1]}")
        self._early = []
        return names

    def close(self) -> None:
        self._tables, self._rows = [], 0

    def _fill(self) -> None:
        hidden = self._sink.path / f".part-{self._name}-{0:08}-{self._number:05}.parquet"
        pq.write_table(pa.concat_tables(self._tables), hidden)
        _make_durable(hidden)
        self._early.append((self._number, hidden))
        self._number += 1
        self._tables, self._rows = [], 0


def _make_durable(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class Callback:
    """A function at the driver, called with each table of rows as it arrives."""

    def __init__(self, function: Callable[[pa.Table], Any]) -> None:
        self._function = function

    def receive(self, table: pa.Table) -> None:
        """Call the function."""
        self._function(table)


class Memory:
    """A table at the driver that grows; ``query.table(name)`` makes a DataFrame of it.

    >>> memory = Memory()
    >>> memory.receive(pa.table({"n": [1, 2]}))
    >>> memory.table().num_rows
    2
    """

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._lock = threading.Lock()

    def receive(self, table: pa.Table) -> None:
        """Keep the rows."""
        with self._lock:
            self._tables.append(table)

    def table(self) -> pa.Table | None:
        """All rows so far, or nothing if none has come."""
        with self._lock:
            return pa.concat_tables(self._tables) if self._tables else None
