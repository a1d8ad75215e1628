"""DriverSink: a sink at the driver, to which workers send their rows.

With checkpoints, workers write the rows to files beside the checkpoint, which become part of a
version. Once that is committed, the driver reads them, hands them to the sink, and deletes them
after it has marked that all were taken. So they exist until the sink has them, whichever process
dies. Without checkpoints rows travel to the driver at once.
"""

from __future__ import annotations

import logging
import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any, Final, TypeAlias

import pyarrow as pa

from jeton.connectors.sinks.sink import Guarantee, Sink, SinkContext, Writer, concatenated
from jeton.core.errors import GraphError, JetonError, SnapshotError, summary
from jeton.storage.files import Files

log = logging.getLogger(__name__)

FULL: Final = 8 << 20
"""Bytes of rows from which on a worker writes them to a file."""
_ROWS: Final = re.compile(r"(\d+)-\d+-[0-9a-f]+-\d+\.arrow")

Prepare: TypeAlias = Callable[[pa.Table], pa.Table]
"""A function that workers apply to rows before they send them."""


class SinkFailed(JetonError):
    """A sink at the driver did not take rows; its cause is what the sink raised."""


@dataclass(frozen=True)
class Delivery:
    """Which table of rows a sink at the driver is handed."""

    version: int | None = None
    """The version of the checkpoint that covers the rows, if the query takes any."""
    number: int = 0
    """Which table it is of those for this version and output."""
    again: bool = False
    """Whether the sink may have got it before: then it was the same table."""
    context: SinkContext = field(
        default_factory=lambda: SinkContext(query=""), repr=False, compare=False
    )
    """The query and the output that the rows are of."""


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


class DriverSink(Sink):
    """A sink at the driver, to which workers send their rows.

    If it raises, it is handed the same table again, as its attribute ``retry`` says; then the query
    fails. With checkpoints a table is handed over again after the query was restarted, or started
    again, unless it was taken: at least once, in the same order, with the same `Delivery.version`
    and `Delivery.number`. No two tables of an output have the same. A sink that stores these with
    the rows, in one transaction, and ignores those that it has, takes each row exactly once.

    Rows that it got cannot be withdrawn. If a committed version is found damaged, a running query
    fails; a query that is started again goes on from the version before, and hands their rows over
    once more, under the numbers of new versions. Override `roll_back` to refuse that.

    >>> class Sum(DriverSink):
    ...     total = 0
    ...
    ...     def receive(self, table, delivery):
    ...         self.total += sum(table["n"].to_pylist())
    >>> sink = Sum()
    >>> sink.receive(pa.table({"n": [1, 2]}), Delivery())
    >>> sink.total
    3
    """

    guarantee: Guarantee = "at least once"
    retry = Retry()
    whole_versions = False
    """Whether all rows of a version come in one table, with number 0."""

    @abstractmethod
    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        """Take rows; called by one thread at a time."""

    def preparation(self) -> Prepare | None:
        """A function that workers apply to rows before they send them; it must be picklable."""
        return None

    def open(self, context: SinkContext) -> Writer:
        """Write rows beside the checkpoint."""
        return self.at_workers().open(context)

    def commit(self, context: SinkContext, version: int, staged: Sequence[Any]) -> None:
        """Hand all rows of a version to the sink, but for what it has taken before."""
        taken = context.taken[1] if context.taken[0] == version else 0
        parts = _staged_tables(context, version, staged)
        if self.whole_versions:
            parts = _as_one(parts, context.output)
        number, waiting = 0, context.waiting
        waiting.clear()
        for tables in parts:
            for table in tables[max(0, taken - number) :]:
                waiting.add(table.num_rows)
            for table in tables:
                if number >= taken:
                    with waiting.taking():
                        hand_over(self, table, Delivery(version, number, context.again, context))
                    context.taken = (version, number + 1)
                number += 1

    def roll_back(self, context: SinkContext, version: int) -> None:
        """Delete the rows of earlier attempts: those that were committed have been handed over."""
        files = _files(context)
        for found in map(_ROWS.fullmatch, files.names(_folder(files))):
            if found is not None and int(found[1]) < context.attempt:
                files.delete(_folder(files) / found[0])

    def clean(self, context: SinkContext, staged: Sequence[Any]) -> None:
        """Delete rows of which it is marked that the sink has got them."""
        files = _files(context)
        for name in staged:
            files.delete(_folder(files) / name)

    def at_workers(self) -> RowsToDriver:
        """The workers' part of all sinks at the driver."""
        return RowsToDriver(self.preparation())


@dataclass(frozen=True)
class RowsToDriver(Sink):
    """The workers' part of a sink at the driver: it writes rows beside the checkpoint."""

    prepare: Prepare | None = None

    def open(self, context: SinkContext) -> Writer:
        """Write on this worker."""
        name = f"{context.attempt}-{context.worker}-{token_hex(4)}"
        return _RowsWriter(_files(context), name, self.prepare)

    def commit(self, context: SinkContext, version: int, staged: Sequence[Any]) -> None:
        """Nothing: the driver has the sink itself."""

    def roll_back(self, context: SinkContext, version: int) -> None:
        """Nothing: the driver has the sink itself."""


class _RowsWriter(Writer):
    def __init__(self, files: Files, name: str, prepare: Prepare | None) -> None:
        self._files = files
        self._name = name
        self._prepare = prepare
        self._number = 0
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._written: list[str] = []

    def write(self, table: pa.Table) -> None:
        if self._prepare is not None:
            table = self._prepare(table)
        if self._tables and self._tables[0].schema != table.schema:
            self._fill()
        self._tables.append(table)
        self._bytes += table.nbytes
        if self._bytes >= FULL:
            self._fill()

    def stage(self, version: int) -> list[Any]:
        self._fill()
        written, self._written = self._written, []
        return written

    def close(self) -> None:
        self._tables = []

    def _fill(self) -> None:
        if not self._tables:
            return
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, self._tables[0].schema) as writer:
            for table in self._tables:
                writer.write_table(table.combine_chunks())
        name = f"{self._name}-{self._number}.arrow"
        self._files.write(_folder(self._files) / name, [stream.getvalue()])
        self._written.append(name)
        self._number += 1
        self._tables, self._bytes = [], 0


def hand_over(sink: DriverSink, table: pa.Table, delivery: Delivery) -> None:
    """Hand a table to a sink, more than once if it fails; `SinkFailed` if it keeps failing.

    Errors that are not an `Exception`, such as `SystemExit`, are failures too; but in the program's
    main thread they pass, since there they may be meant for the program.
    """
    output, wait = delivery.context.output, delivery.context.wait
    waits = sink.retry.waits()
    for at in range(len(waits) + 1):
        try:
            sink.receive(table, delivery)
        except BaseException as error:
            if not isinstance(error, Exception) and _in_main_thread():
                raise
            if at == len(waits) or wait(waits[at]):
                text = summary(error)
                raise SinkFailed(
                    f"the sink of output {output!r} failed {at + 1} times in a row to take "
                    f"{table.num_rows} rows{_of(delivery)}: {text}"
                ) from error
            delivery.context.waiting.error = summary(error)
            log.warning(
                "the sink of output %r failed, and gets the same %d rows again in %g s: %s: %s",
                output,
                table.num_rows,
                waits[at],
                type(error).__name__,
                error,
            )
            delivery = replace(delivery, again=True)
        else:
            return


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _of(delivery: Delivery) -> str:
    if delivery.version is None:
        return ""
    return f" (table {delivery.number} of version {delivery.version})"


def _as_one(parts: Iterator[list[pa.Table]], output: str) -> Iterator[list[pa.Table]]:
    found = [table for tables in parts for table in tables]
    if found:
        yield [concatenated(found, f"rows of output {output!r}")]


def _staged_tables(
    context: SinkContext, version: int, staged: Sequence[Any]
) -> Iterator[list[pa.Table]]:
    """The tables of each file that was staged."""
    files = _files(context)
    for name in staged:
        path = _folder(files) / name
        try:
            batches = _batches(files.read(path))
        except (FileNotFoundError, pa.ArrowException) as error:
            raise SnapshotError(
                f"rows of version {version} for the sink of output {context.output!r} are "
                f"damaged: {error}. To go on without them, put an empty file in the place of {path}"
            ) from error
        yield [pa.Table.from_batches([batch]) for batch in batches]


def _batches(data: bytes) -> list[pa.RecordBatch]:
    """The rows of a file, which may be empty; `ArrowException` if they are torn."""
    try:
        return list(pa.ipc.open_stream(data)) if data else []
    except OSError as error:
        # Arrow's own for a stream that ends too early.
        raise pa.ArrowInvalid(str(error)) from error


def _files(context: SinkContext) -> Files:
    if context.files is None:
        raise GraphError(
            f"the sink of output {context.output!r} stages rows beside a checkpoint, and there is "
            "none: set SinkContext.files"
        )
    return context.files


def _folder(files: Files) -> Any:
    return files.root / "rows"
