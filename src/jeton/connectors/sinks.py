"""Sinks of long-lived queries: where the rows of an output go while the query runs.

Without checkpoints rows are handed over as they come. With checkpoints they are handed over once
the version that covers them is committed: a `StagedSink` prepares them on the workers and makes
them visible at the driver, exactly once; a `DriverSink` gets them then, at least once, each table
with the number by which it can be told whether it came before.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq

from jeton.connectors.paths import shared_folder
from jeton.core.errors import JetonError
from jeton.storage.files import make_durable

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

        It is called again, before the next attempt, if it failed or the driver died meanwhile.
        """
        ...

    def roll_back(self, query: str, version: int, attempt: int) -> None:
        """At the driver, before an attempt: undo what earlier ones left beyond a version.

        That is what they staged and did not commit, and what later versions made visible, which
        there are if their checkpoints cannot be read any more. What this attempt or a later one
        wrote must stay: a driver may be stopped right here while its successor goes on.
        """
        ...


@dataclass(frozen=True)
class Delivery:
    """Which table of rows a sink at the driver is handed."""

    version: int | None = None
    """The version of the checkpoint that covers the rows, if the query takes any."""
    number: int = 0
    """Which table it is of those for this version and output."""
    again: bool = False
    """Whether the sink may have got it before: then it was the same table."""


@dataclass(frozen=True)
class Retry:
    """How often a table is handed to a sink at the driver before that fails the query.

    >>> list(Retry(times=3, first_wait=0.5).waits())
    [0.5, 1.0, 2.0]
    """

    times: int = 5
    """How many times it is handed over again after an exception."""
    first_wait: float = 0.1
    """Seconds before the first of them; before each further one it is twice as long."""
    longest_wait: float = 30.0

    def waits(self) -> list[float]:
        """Seconds before each of them."""
        return [min(self.first_wait * 2.0**at, self.longest_wait) for at in range(self.times)]


@runtime_checkable
class DriverSink(Protocol):
    """A sink at the driver, to which workers send their rows.

    If it raises, it is handed the same table again, as its attribute ``retry`` (a `Retry`) says or
    by default; then the query fails. With checkpoints a table is handed over again after the query
    was restarted, or started again, unless it was taken: at least once, in the same order, with the
    same `Delivery.version` and `Delivery.number`. No two tables of an output have the same.

    What it got cannot be taken back: if a committed version cannot be read any more, a query does
    not go on from the one before by itself.
    """

    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        """Take rows; called by one thread at a time."""
        ...


Sink: TypeAlias = WorkerSink | StagedSink | DriverSink


class Parquet:
    """Parquet files in a folder; each appears whole, under its own name, once it is complete.

    A file is closed after ``rows`` rows, or when the query ends. With checkpoints, each version has
    files of its own, which appear when it is committed; from then on they can be moved or deleted.
    Several outputs may have the same folder, which the driver and all workers must see.

    A column that has only nulls, and no type that the flow knows, is left out of a file.
    """

    def __init__(self, path: str | os.PathLike[str], *, rows: int = 1_000_000) -> None:
        self.path = shared_folder(path)
        self.rows = rows

    def open(self, worker: int, run: str) -> Writer:
        """Write on this worker."""
        return _ParquetWriter(self, f"{run}-{worker:04}")

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
                        f"{visible} is not there, hidden or visible, but it has rows of version "
                        f"{version}, of which it is not known whether anybody has seen them. Is "
                        "that the folder which the workers write to? If a reader has taken the "
                        "file, put one of that name there"
                    ) from None
        if staged:
            make_durable(self.path)

    def roll_back(self, query: str, version: int, attempt: int) -> None:
        """Delete hidden files of earlier attempts, and those of later versions."""
        ours = re.compile(rf"(\.?)part-{re.escape(query)}-(\d+)-\d+-\w+-(\d+)-\d+\.parquet")
        deleted = self.path.is_dir()
        # Once more, until there is none: a driver that was superseded while it gave files their
        # names may do so between a look at the folder and the deletion.
        while deleted:
            deleted = False
            for path in self.path.iterdir():
                found = ours.fullmatch(path.name)
                if found is None or int(found[2]) >= attempt:
                    continue
                if not found[1] and int(found[3]) <= version:
                    continue
                if not found[1]:
                    log.warning("%s is deleted: its rows will be made again", path)
                path.unlink(missing_ok=True)
                deleted = True


class _Gathering(ABC):
    """Rows that are gathered until there are enough of them for a file."""

    def __init__(self, sink: Parquet, name: str) -> None:
        self._sink = sink
        # Another output of this worker may go to the same folder.
        self._name = f"part-{name}-{token_hex(4)}"
        self._number = 0
        self._tables: list[pa.Table] = []
        self._rows = 0
        sink.path.mkdir(parents=True, exist_ok=True)

    def write(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows >= self._sink.rows:
            self._fill()

    @abstractmethod
    def _fill(self) -> None:
        """Make a file of what was gathered."""

    def _fill_file(self, path: Path) -> None:
        table = _together(self._tables, f"rows for {self._sink.path}")
        # Arrow writes nulls of no type as integers, which do not go with what comes later.
        table = table.select([f.name for f in table.schema if not pa.types.is_null(f.type)])
        pq.write_table(table, path)
        self._tables, self._rows = [], 0
        self._number += 1


class _ParquetWriter(_Gathering):
    def close(self) -> None:
        if self._rows:
            self._fill()

    def _fill(self) -> None:
        name = f"{self._name}-{self._number:05}.parquet"
        hidden = self._sink.path / f".{name}"
        self._fill_file(hidden)
        hidden.rename(self._sink.path / name)


class _StagedParquetWriter(_Gathering):
    def __init__(self, sink: Parquet, name: str) -> None:
        super().__init__(sink, name)
        self._early: list[tuple[int, Path]] = []
        """Files that were full before it was known what version they are for."""

    def stage(self, version: int) -> list[Any]:
        if self._rows:
            self._fill()
        names = []
        for number, hidden in self._early:
            names.append(f"{self._name}-{version:08}-{number:05}.parquet")
            hidden.rename(self._sink.path / f".{names[-1]}")
        if names:
            # The version must not outlive, by a power cut, the names of its files.
            make_durable(self._sink.path)
        self._early = []
        return names

    def close(self) -> None:
        self._tables, self._rows = [], 0

    def _fill(self) -> None:
        number = self._number
        hidden = self._sink.path / f".{self._name}-{0:08}-{number:05}.parquet"
        self._fill_file(hidden)
        make_durable(hidden)
        self._early.append((number, hidden))


def _together(tables: Sequence[pa.Table], what: str) -> pa.Table:
    """All rows in one table, of the types that hold all of them."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise JetonError(
            f"{what} have types that do not go together: {error}. Give the flow's inputs a "
            "schema=, or cast the columns before the output"
        ) from error


class Callback:
    """A function at the driver, called with each table of rows.

    If it raises, it is called again with the same table, as ``retry`` says; then the query fails
    with that exception. With ``delivery``, its second argument is a `Delivery`: with checkpoints,
    a function that takes each version and number once has every row exactly once.

    >>> taken = {}
    >>> def take(table, delivery):
    ...     taken[delivery.version, delivery.number] = table
    >>> sink = Callback(take, delivery=True, retry=Retry(times=10, first_wait=1.0))
    >>> sink.receive(pa.table({"n": [1, 2]}), Delivery(version=7))
    >>> taken[7, 0].num_rows
    2
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        delivery: bool = False,
        retry: Retry | None = None,
    ) -> None:
        self._function = function
        self._delivery = delivery
        self.retry = retry or Retry()

    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        """Call the function."""
        if self._delivery:
            self._function(table, delivery)
        else:
            self._function(table)


class Memory:
    """A table at the driver that grows; ``query.table(name)`` makes a DataFrame of it.

    >>> memory = Memory()
    >>> memory.receive(pa.table({"n": [1, 2]}), Delivery())
    >>> memory.table().num_rows
    2
    """

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._lock = threading.Lock()

    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        """Keep the rows."""
        with self._lock:
            self._tables.append(table)

    def table(self) -> pa.Table | None:
        """All rows so far, or nothing if none has come."""
        with self._lock:
            return _together(self._tables, "rows in memory") if self._tables else None
