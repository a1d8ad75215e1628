"""Sinks of long-lived queries: where the rows of an output go while the query runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq


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


@runtime_checkable
class DriverSink(Protocol):
    """A sink at the driver, to which workers send their rows."""

    def receive(self, table: pa.Table) -> None:
        """Take rows; called by one thread at a time."""
        ...


Sink: TypeAlias = WorkerSink | DriverSink


class Parquet:
    """Parquet files in a folder; each appears whole, under its own name, once it is complete.

    A file is closed after ``rows`` rows, or when the query ends.
    """

    def __init__(self, path: str | Path, *, rows: int = 1_000_000) -> None:
        self.path = Path(path)
        self.rows = rows

    def open(self, worker: int, run: str) -> Writer:
        """Write on this worker."""
        return _ParquetWriter(self, worker, run)


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
