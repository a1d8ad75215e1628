"""Sink and Writer: a destination of an output's rows, and one worker's end of it.

Workers write rows, and *stage* them when a checkpoint is taken: they put them where they are safe,
but not visible yet. Once the version is committed, the driver *commits* what all workers staged for
it: now the rows are visible. Before an attempt, the driver *rolls back* what earlier attempts left
beyond the version that it starts from. So each row appears exactly once.

Some destinations cannot hide rows: derive their sinks from `DirectSink`, whose workers write at
once, or from `DriverSink`, which gets rows at the driver after the commit. Their rows come at least
once.

A query without checkpoints has workers that stage and commit by themselves, each under a name of
its own, every few seconds and at the end.

`jeton.testing.check_sink` tests whether a sink keeps these promises.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import pyarrow as pa

from jeton.connectors.waiting import Waiting
from jeton.core.errors import JetonError
from jeton.storage.files import Files

Guarantee: TypeAlias = Literal["exactly once", "at least once"]
"""How often a row appears in a sink, in a query with checkpoints, whatever fails."""


@dataclass
class SinkContext:
    """The part of a query that a sink works for: one output, on a worker or at the driver.

    >>> SinkContext(query="3f9a", attempt=2, worker=0).worker
    0
    """

    query: str
    """The name of the query, the same for all attempts at it, and for no other query."""
    attempt: int = 1
    """The attempts at a query have numbers that grow. An earlier one may still act."""
    output: str = "rows"
    worker: int | None = None
    """The worker; ``None`` at the driver."""
    files: Files | None = None
    """The folder of the query's checkpoints, if it takes any."""
    wait: Callable[[float], bool] = threading.Event().wait
    """At the driver: wait for some seconds; returns whether there is no more time to wait."""
    again: bool = True
    """At the driver: whether a version may have been committed before, in part or in full."""
    taken: tuple[int, int] = (-1, 0)
    """At the driver: of which version how many tables a `DriverSink` has taken."""

    def __post_init__(self) -> None:
        self.waiting = Waiting(self.output)
        """At the driver: the tables that a `DriverSink` has not taken."""

    @property
    def name(self) -> str:
        """A name that no other output, worker or attempt of any query has.

        >>> SinkContext(query="3f9a", attempt=2, worker=7, output="counts").name
        '3f9a-2-0007-counts'
        """
        worker = "driver" if self.worker is None else f"{self.worker:04}"
        return f"{self.query}-{self.attempt}-{worker}-{quote(self.output, safe='')}"


class Writer(ABC):
    """One worker's end of a sink."""

    @abstractmethod
    def write(self, table: pa.Table) -> None:
        """Take rows."""

    @abstractmethod
    def stage(self, version: int) -> list[Any]:
        """Put what was written since the last time where it is safe, but not visible yet.

        Returns what `Sink.commit` has to know, such as names of files: anything that JSON can hold.
        """

    def close(self) -> None:  # noqa: B027
        """No more rows will come. Those written since the last `stage` are given up."""


class Sink(ABC):
    """A destination of an output's rows.

    Everything that it writes must be recognisable by query, version and attempt, so that
    `roll_back` finds it. Workers get a copy of the sink, the driver keeps its own.
    """

    guarantee: Guarantee = "exactly once"

    def begin(self, output: str, schema: pa.Schema | None) -> None:  # noqa: B027
        """At the driver, before a query starts: raise if it cannot take the rows of an output.

        ``schema`` has the output's columns, if the flow knows them.
        """

    @abstractmethod
    def open(self, context: SinkContext) -> Writer:
        """One worker's end, for one attempt at a query."""

    @abstractmethod
    def commit(self, context: SinkContext, version: int, staged: Sequence[Any]) -> None:
        """At the driver: make what all workers staged for a version visible.

        It is called again if it failed, or if the driver died meanwhile: for the last version
        only, by the next attempt, before that calls `roll_back`. Nothing may appear twice then.
        """

    @abstractmethod
    def roll_back(self, context: SinkContext, version: int) -> None:
        """At the driver, before an attempt: undo what earlier attempts left beyond a version.

        That is what they staged and did not commit, and what later versions made visible, which
        there are if their checkpoints cannot be read any more. What this attempt or a later one
        wrote must stay: a driver may be stopped right here while its successor goes on.
        """

    def clean(self, context: SinkContext, staged: Sequence[Any]) -> None:  # noqa: B027
        """At the driver: delete what was staged, since it is recorded that it was committed."""

    def at_workers(self) -> Sink:
        """The sink that workers open; it must be picklable."""
        return self


class DirectSink(Sink):
    r"""A sink whose rows are visible as soon as a worker has written them: at least once.

    After a failure, rows since the last checkpoint are written again. Only `open` is needed; its
    writer's `stage` makes sure that the rows have arrived, and returns an empty list.

    >>> class Lines(DirectSink):
    ...     def __init__(self, path):
    ...         self.path = path
    ...
    ...     def open(self, context):
    ...         return LinesWriter(open(f"{self.path}/{context.name}.txt", "a"))
    >>> class LinesWriter(Writer):
    ...     def __init__(self, file):
    ...         self._file = file
    ...
    ...     def write(self, table):
    ...         self._file.writelines(f"{row}\n" for row in table.to_pylist())
    ...
    ...     def stage(self, version):
    ...         self._file.flush()
    ...         return []
    ...
    ...     def close(self):
    ...         self._file.close()
    >>> import pathlib, tempfile
    >>> from jeton.testing import check_sink
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> def lines():
    ...     files = sorted(folder.iterdir())
    ...     return [eval(line) for file in files for line in file.read_text().splitlines()]
    >>> check_sink(Lines(folder), lines)
    """

    guarantee: Guarantee = "at least once"

    def commit(self, context: SinkContext, version: int, staged: Sequence[Any]) -> None:
        """Do nothing: rows are visible."""

    def roll_back(self, context: SinkContext, version: int) -> None:
        """Do nothing: rows cannot be withdrawn."""


def concatenated(tables: Sequence[pa.Table], what: str) -> pa.Table:
    """All rows in one table, of the types that hold all of them."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise JetonError(
            f"{what} have types that do not go together: {error}. Give the flow's inputs a "
            "schema=, or cast the columns before the output"
        ) from error
