"""Long-lived queries: a barrier job that stays up, for milliseconds instead of micro-batches.

`start` runs on the driver and `run_worker` in each task. Spark only starts and ends them: sources
are read and sinks written by the workers themselves, and the driver hears from each worker over a
connection of its own.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from jeton.core.errors import GraphError, JetonError
from jeton.core.times import Product
from jeton.dataflow.batch import Batch, concat
from jeton.dataflow.inputs import InputHandle
from jeton.spark.batch import next_plan, rendezvous_of, require_slots
from jeton.spark.control import Control
from jeton.spark.query import Query
from jeton.spark.rendezvous import Meeting
from jeton.spark.sinks import DriverSink, Sink, WorkerSink, Writer
from jeton.spark.sources import Reader, Source
from jeton.spark.tasks import Joined, first_cause, join_peers, told
from jeton.worker.mesh import PeerFailed
from jeton.worker.process import Process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jeton.dataflow.flow import Flow

REPORT: Final = 0.2
"""Seconds between a worker's reports."""
LEAST_PATIENCE: Final = 0.0005
MOST_PATIENCE: Final = 0.02
"""Seconds for which a source that has nothing, and cannot tell when it will, is left alone."""


def start(
    flow: Flow,
    spark: SparkSession,
    *,
    sources: Mapping[str, Source] | None = None,
    sinks: Mapping[str, Sink] | None = None,
    workers: int = 2,
    name: str | None = None,
) -> Query:
    """Run a flow on Spark in the background, until its sources end or it is stopped.

    Args:
        flow: The program.
        spark: The session whose cluster it runs on.
        sources: Where the records of each input come from.
        sinks: Where the rows of each output go; an output without one is not collected.
        workers: How many tasks run as workers, all at the same time.
        name: What the query is called, in Spark's pages too; by default like the flow.

    >>> import jeton as jt
    >>> from jeton.spark.sinks import Memory
    >>> from jeton.spark.sources import Rate
    >>> flow = jt.Flow("live")
    >>> flow.output("numbers", flow.input("numbers").exchange("n"))
    >>> rate = Rate(10_000, lambda positions: {"n": positions}, limit=100)
    >>> query = start(flow, spark, sources={"numbers": rate}, sinks={"numbers": Memory()})
    >>> query.await_termination(60)
    True
    >>> query.table("numbers").count()
    100
    """
    sources, sinks = sources or {}, sinks or {}
    _require_names(flow, "input", flow.inputs, sources, all_of_them=True)
    _require_names(flow, "output", flow.outputs, sinks, all_of_them=False)
    require_slots(spark, workers)
    label = name or flow.name
    tag = f"jeton-{os.urandom(6).hex()}"
    query = Query(label, spark, workers, sinks, tag)
    server = rendezvous_of(spark)
    plan = next_plan(flow)
    meeting = server.meeting(plan, query.take_over)
    # Sinks at the driver stay there: workers only need to know which outputs to send.
    task = WorkerTask(
        flow,
        dict(sources),
        {n: sink for n, sink in sinks.items() if isinstance(sink, WorkerSink)},
        tuple(n for n, sink in sinks.items() if isinstance(sink, DriverSink)),
        meeting,
        tag,
    )

    def run() -> None:
        error: BaseException | None = None
        try:
            context = spark.sparkContext
            context.addJobTag(tag)
            context.setJobDescription(f"Jeton query {label!r} on {workers} workers")
            frame = spark.range(0, workers, 1, workers)
            frame.mapInArrow(task, "worker long", barrier=True).collect()
        except Exception as caught:
            error = caught
        finally:
            server.forget(plan)
            query.ended(error)

    # PySpark ties a thread of Python's to one of the JVM's, which has the job's tag.
    from pyspark import InheritableThread

    thread: threading.Thread = InheritableThread(target=run, session=spark)
    thread.daemon = True
    thread.start()
    return query


def _require_names(
    flow: Flow, what: str, known: tuple[str, ...], given: Mapping[str, Any], *, all_of_them: bool
) -> None:
    unknown = [name for name in given if name not in known]
    missing = [name for name in known if name not in given] if all_of_them else []
    if unknown:
        raise GraphError(f"flow {flow.name!r} has no {what}s {unknown}, only {list(known)}")
    if missing:
        raise GraphError(f"flow {flow.name!r} needs sources for its inputs {missing}")


@dataclass(frozen=True)
class WorkerTask:
    """The code of a task: one worker of a long-lived query."""

    flow: Flow
    sources: dict[str, Source]
    sinks: dict[str, WorkerSink]
    to_driver: tuple[str, ...]
    meeting: Meeting
    run: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the worker; Spark is told the worker's number at the end, and nothing else."""
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        joined = join_peers(BarrierTaskContext.get(), self.meeting, by_gathering=False)
        assert joined.driver is not None
        control = Control(joined.driver)
        try:
            LongLived(self, joined, control).run()
            joined.leave()
        except Exception as error:
            joined.fail(error)
            if not isinstance(error, PeerFailed):
                with suppress(OSError):
                    control.send("failed", text=told(error))
            raise first_cause(joined.rank, error) from None
        finally:
            joined.close()
        yield pa.RecordBatch.from_pydict({"worker": [joined.rank]})


class LongLived:
    """One worker of a long-lived query, with its share of the sources and its ends of the sinks."""

    def __init__(self, task: WorkerTask, joined: Joined, control: Control) -> None:
        self._control = control
        self._flow = task.flow
        self._process = Process(task.flow, joined.mesh, index=joined.rank, workers=joined.workers)
        handles = self._process.worker.handles
        self._inputs: list[_Feed] = [
            _Feed(handles[task.flow.handle("input", name)], _readers(source, joined))
            for name, source in task.sources.items()
        ]
        self._writers: dict[str, tuple[list[Batch], Writer]] = {
            name: (
                handles[task.flow.handle("output", name)],
                task.sinks[name].open(joined.rank, task.run)
                if name in task.sinks
                else _ToDriver(control, name),
            )
            for name in (*task.sinks, *task.to_driver)
        }
        wanted = {*task.sinks, *task.to_driver}
        self._unwanted: list[list[Batch]] = [
            handles[task.flow.handle("output", name)]
            for name in task.flow.outputs
            if name not in wanted
        ]
        self._began = time.monotonic()
        self._reported = 0.0
        self._rows = dict.fromkeys(self._writers, 0)
        self._busy_at = time.monotonic()
        self._stopping = False

    def run(self) -> None:
        """Go around until the flow is complete or the driver says stop."""
        self._began = time.monotonic()
        with closing(self._process) as process:
            while not process.is_complete and not self._stopping:
                read = self._read()
                did = process.turn(block=0.0 if read else self._patience())
                if did or read:
                    self._busy_at = time.monotonic()
                    self._write()
                self._keep_in_touch()
        self._write()
        for _, writer in self._writers.values():
            writer.close()
        self._report()

    def _read(self) -> bool:
        """Take records from the sources, unless there is more than enough under way."""
        if self._process.is_held_up:
            return False
        read = False
        for feed in self._inputs:
            read = feed.read() or read
        return read

    def _patience(self) -> float:
        """How long to block: until a source is worth asking again.

        A source that cannot tell when is asked less often the longer it has had nothing, so that
        a record waits for a tenth of the time since the last one, and an idle query costs little.
        """
        now = time.monotonic()
        patience = REPORT / 2
        if self._process.is_held_up:
            return patience
        for feed in self._inputs:
            if feed.is_open:
                ready_at = feed.ready_at
                unknown = min(max((now - self._busy_at) / 10, LEAST_PATIENCE), MOST_PATIENCE)
                wait = unknown if ready_at is None else max(ready_at - now, 0.0)
                patience = min(patience, wait)
        return patience

    def _write(self) -> None:
        for name, (collected, writer) in self._writers.items():
            if collected:
                table = concat(collected).to_arrow()
                collected.clear()
                self._rows[name] += table.num_rows
                writer.write(table)
        for collected in self._unwanted:
            collected.clear()

    def _keep_in_touch(self) -> None:
        now = time.monotonic()
        if now - self._reported > REPORT:
            self._reported = now
            self._report()
            while self._control.has_news():
                news = self._control.receive()
                if news is None:
                    raise JetonError("the driver of this query has gone")
                header, _ = news
                if header["kind"] == "stop":
                    if not header["drain"]:
                        self._stopping = True
                    for feed in self._inputs:
                        feed.close()

    def _report(self) -> None:
        worker = self._process.worker
        places = {}
        for what, name in self._flow.handles():
            if what in ("output", "probe"):
                node = worker.graph.nodes[self._flow.handle(what, name)]
                times = worker.tracker.least(node.inputs[0])
                places[name] = [list(t) if isinstance(t, Product) else t for t in times]
        mesh = self._process.mesh
        metrics = {
            "rows_in": sum(feed.rows for feed in self._inputs),
            "rows_out": sum(self._rows.values()),
            "late": sum(feed.handle.late_count for feed in self._inputs),
            "progress_batches": mesh.progress_batches if mesh else 0,
            "progress_bytes": mesh.progress_bytes if mesh else 0,
            "messages": mesh.messages if mesh else 0,
            "queued": worker.queued,
            "seconds": round(time.monotonic() - self._began, 3),
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        self._control.send("report", frontiers=places, metrics=metrics)


class _Feed:
    """An input on one worker, and the partitions of its source that this worker reads."""

    def __init__(self, handle: InputHandle, readers: list[Reader]) -> None:
        self.handle = handle
        self.rows = 0
        self._readers = readers
        if not readers:
            self.close()

    @property
    def is_open(self) -> bool:
        """Whether records may still come."""
        return not self.handle.closed

    @property
    def ready_at(self) -> float | None:
        """When to ask again, if all partitions can tell."""
        times = [reader.ready_at for reader in self._readers if not reader.ended]
        known = [at for at in times if at is not None]
        return min(known, default=None) if len(known) == len(times) else None

    def read(self) -> bool:
        """Ask each partition once; tells whether there was anything."""
        if self.handle.closed:
            return False
        read = False
        for reader in self._readers:
            records = None if reader.ended else reader.read()
            if records is not None:
                before = self.handle.sent_count
                self.handle.send(records)
                self.rows += self.handle.sent_count - before
                read = True
        open_readers = [reader for reader in self._readers if not reader.ended]
        if not open_readers:
            self.close()
        elif all(reader.floor is not None for reader in open_readers):
            floor = min(reader.floor for reader in open_readers if reader.floor is not None)
            if self.handle.time < floor:
                self.handle.advance_to(floor)
        return read

    def close(self) -> None:
        """No more records from here."""
        self.handle.close()


class _ToDriver:
    """A worker's end of a sink at the driver."""

    def __init__(self, control: Control, name: str) -> None:
        self._control = control
        self._name = name

    def write(self, table: pa.Table) -> None:
        self._control.send_table(self._name, table)

    def close(self) -> None:
        pass


def _readers(source: Source, joined: Joined) -> list[Reader]:
    partitions = source.partitions(joined.workers)
    mine = range(joined.rank, partitions, joined.workers)
    return [source.open(partition, partitions) for partition in mine]
