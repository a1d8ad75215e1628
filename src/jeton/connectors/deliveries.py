"""Deliveries: how rows get from the workers to a sink at the driver, and what if it fails.

With checkpoints, workers write these rows to files beside the checkpoint, which become part of a
version. Once that is committed, the driver reads them, hands them to the sink, and deletes them
after it has marked that all were taken. So they exist until the sink has them, whichever process
dies. Without checkpoints rows travel to the driver at once, and `Inbox` hands them over.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa

from jeton.connectors.sinks import Delivery, DriverSink, Retry, StagedWriter
from jeton.core.errors import JetonError, SnapshotError, summary
from jeton.storage.files import Files

log = logging.getLogger(__name__)

FULL: Final = 8 << 20
"""Bytes of rows from which on a worker writes them to a file."""
_ROWS: Final = re.compile(r"(\d+)-\d+-[0-9a-f]+-\d+\.arrow")


class SinkFailed(JetonError):
    """A sink at the driver did not take rows; its cause is what the sink raised."""


def hand_over(
    output: str,
    sink: DriverSink,
    table: pa.Table,
    delivery: Delivery,
    wait: Callable[[float], bool],
) -> None:
    """Hand a table to a sink, more than once if it fails; `SinkFailed` if it keeps failing.

    ``wait`` waits for some seconds, and returns whether there is no more time to wait. Errors
    that are not an `Exception`, such as `SystemExit`, are failures too; but in the program's main
    thread they pass, since there they may be meant for the program.
    """
    retry: Retry = getattr(sink, "retry", Retry())
    waits = retry.waits()
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
            log.warning(
                "the sink of output %r failed, and gets the same %d rows again in %g s: %s: %s",
                output,
                table.num_rows,
                waits[at],
                type(error).__name__,
                error,
            )
            delivery = Delivery(delivery.version, delivery.number, again=True)
        else:
            return


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _of(delivery: Delivery) -> str:
    if delivery.version is None:
        return ""
    return f" (table {delivery.number} of version {delivery.version})"


class Deliveries:
    """A sink at the driver as one that commits with checkpoints.

    >>> import tempfile
    >>> from jeton.connectors.sinks import Callback
    >>> files = Files(tempfile.mkdtemp())
    >>> writer = open_rows(files, worker=0, attempt=1)
    >>> writer.write(pa.table({"n": [1, 2]}))
    >>> staged = writer.stage(7)
    >>> sink = Callback(lambda table, which: print(table["n"].to_pylist(), which), delivery=True)
    >>> deliveries = Deliveries(files, "rows", sink, lambda seconds: False)
    >>> deliveries.commit("3f9a", 7, staged)
    [1, 2] Delivery(version=7, number=0, again=True)
    """

    def __init__(
        self, files: Files, output: str, sink: DriverSink, wait: Callable[[float], bool]
    ) -> None:
        self._files = files
        self._output = output
        self._sink = sink
        self._wait = wait
        self._taken = (-1, 0)
        """Of which version how many tables were taken, as far as this driver knows."""
        self.again = True
        """Whether another driver may have handed over some of what comes next."""

    def open_staged(self, worker: int, query: str, attempt: int) -> StagedWriter:
        """A worker's end."""
        return open_rows(self._files, worker, attempt)

    def commit(self, query: str, version: int, staged: Sequence[Any]) -> None:
        """Hand all rows of a version to the sink, but for what it has taken before."""
        taken = self._taken[1] if self._taken[0] == version else 0
        number = 0
        for name in staged:
            for batch in self._read(name, version):
                if number >= taken:
                    table = pa.Table.from_batches([batch])
                    which = Delivery(version, number, self.again)
                    hand_over(self._output, self._sink, table, which, self._wait)
                    self._taken = (version, number + 1)
                number += 1

    def roll_back(self, query: str, version: int, attempt: int) -> None:
        """Delete the rows of earlier attempts: those that were committed have been handed over."""
        folder = _folder(self._files)
        for found in map(_ROWS.fullmatch, self._files.names(folder)):
            if found is not None and int(found[1]) < attempt:
                self._files.delete(folder / found[0])

    def discard(self, staged: Sequence[Any]) -> None:
        """Delete rows of which it is marked that the sink has got them."""
        for name in staged:
            self._files.delete(_folder(self._files) / name)

    def _read(self, name: str, version: int) -> list[pa.RecordBatch]:
        path = _folder(self._files) / name
        try:
            return _batches(self._files.read(path))
        except (FileNotFoundError, pa.ArrowException) as error:
            raise SnapshotError(
                f"rows of version {version} for the sink of output {self._output!r} are damaged: "
                f"{error}. To go on without them, put an empty file in the place of {path}"
            ) from error


def _batches(data: bytes) -> list[pa.RecordBatch]:
    """The rows of a file, which may be empty; `ArrowException` if they are torn."""
    try:
        return list(pa.ipc.open_stream(data)) if data else []
    except OSError as error:
        # Arrow's own for a stream that ends too early.
        raise pa.ArrowInvalid(str(error)) from error


def open_rows(files: Files, worker: int, attempt: int) -> StagedWriter:
    """A worker's end of a sink at the driver, with checkpoints."""
    return _RowsWriter(files, f"{attempt}-{worker}-{token_hex(4)}")


def _folder(files: Files) -> Any:
    return files.root / "rows"


class _RowsWriter:
    def __init__(self, files: Files, name: str) -> None:
        self._files = files
        self._name = name
        self._number = 0
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._written: list[str] = []

    def write(self, table: pa.Table) -> None:
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


class Inbox:
    """Rows on their way to a sink at the driver, without checkpoints; a thread hands them over.

    `put` never waits: the workers bound the number of rows, since each sends more only after
    ``taken`` has acknowledged earlier ones.
    """

    def __init__(
        self,
        output: str,
        sink: DriverSink,
        wait: Callable[[float], bool],
        failed: Callable[[SinkFailed], None],
    ) -> None:
        self._output = output
        self._sink = sink
        self._wait = wait
        self._failed = failed
        self._waiting: queue.SimpleQueue[tuple[pa.Table, Callable[[], object]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name=f"jeton-sink-{output}", daemon=True)
        self._thread.start()

    def put(self, table: pa.Table, taken: Callable[[], object]) -> None:
        """Have rows handed over, and call ``taken`` then."""
        self._waiting.put((table, taken))

    def end(self, timeout: float | None) -> None:
        """Wait until the sink has taken everything, or has failed, or time is up."""
        self._waiting.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                table, taken = item
                hand_over(self._output, self._sink, table, Delivery(), self._wait)
                taken()
        except SinkFailed as error:
            self._failed(error)
        except BaseException as error:
            failure = SinkFailed(
                f"rows could not be handed to the sink of output {self._output!r}: {summary(error)}"
            )
            failure.__cause__ = error
            self._failed(failure)
