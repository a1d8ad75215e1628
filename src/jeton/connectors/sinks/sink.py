"""Sinks: the protocols of the places that the rows of an output go to.

Without checkpoints, rows are handed over as they are made. With checkpoints, they are handed over
once the version that covers them is committed: a `StagedSink` prepares them on the workers and
makes them visible at the driver, exactly once; a `DriverSink` receives them then, at least once,
each table with the number by which it recognises one that it has received before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from jeton.core.errors import JetonError


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
        """One worker's end, for one attempt at a query, whose name never changes."""
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

    Rows that it got cannot be withdrawn. If a committed version is found damaged, a running query
    fails; a query that is started again goes on from the version before, and hands their rows over
    once more, under the numbers of new versions.
    """

    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        """Take rows; called by one thread at a time."""
        ...


Sink: TypeAlias = WorkerSink | StagedSink | DriverSink


def concatenated(tables: Sequence[pa.Table], what: str) -> pa.Table:
    """All rows in one table, of the types that hold all of them."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise JetonError(
            f"{what} have types that do not go together: {error}. Give the flow's inputs a "
            "schema=, or cast the columns before the output"
        ) from error
