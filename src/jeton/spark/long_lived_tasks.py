"""What a task of a long-lived query does: it is one worker of the flow, for as long as that runs.

The code here runs on executors. A worker reads its partitions of the sources, takes turns with the
mesh, writes what the outputs collect, and stops for a moment when a checkpoint is due.
"""

from __future__ import annotations

import gc
import resource
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from jeton.cluster.checkpoint_writer import Ground, Keeper
from jeton.cluster.control import Control, written_table
from jeton.cluster.failures import blaming
from jeton.cluster.rendezvous import Meeting
from jeton.columns.batch import Batch, concat
from jeton.connectors.deliveries import open_rows
from jeton.connectors.sinks import StagedSink, StagedWriter, WorkerSink, Writer
from jeton.connectors.source_reader import Feed
from jeton.connectors.sources import Source
from jeton.core.errors import JetonError, SnapshotError
from jeton.core.times import Product
from jeton.runtime.process import Process
from jeton.spark.tasks import Joined, join_peers

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow

REPORT: Final = 0.2
"""Seconds between a worker's reports."""
LEAST_PATIENCE: Final = 0.0005
MOST_PATIENCE: Final = 0.02
"""Seconds for which a source that has nothing, and cannot tell when it will, is left alone."""
LAST_PATIENCE: Final = 0.005
"""Seconds between looks for the driver's word, when there is nothing left to do."""
CREDIT: Final = 8 << 20
"""Bytes of rows that a sink at the driver has not taken, from which on a worker sends no more."""
REST_PATIENCE: Final = 60.0
"""Seconds after which a worker gives up to come to rest for a checkpoint."""


@dataclass(frozen=True)
class WorkerTask:
    """The code of a task: one worker of a long-lived query.

    >>> import pickle
    >>> task = WorkerTask(None, {}, {}, ("counts",), Meeting("here", 1, b"", "plan"), "run", None)
    >>> pickle.loads(pickle.dumps(task)) == task
    True
    """

    flow: Flow
    sources: dict[str, Source]
    sinks: dict[str, WorkerSink | StagedSink]
    to_driver: tuple[str, ...]
    meeting: Meeting
    run: str
    ground: Ground | None
    """What it goes on from and where its checkpoints go, if it takes any."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the worker; Spark is told the worker's number at the end, and nothing else."""
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        # Libraries stay: without this, Python's collector goes through all of them now and then,
        # which stops the worker for a tenth of a second and more.
        gc.collect()
        gc.freeze()
        joined = join_peers(BarrierTaskContext.get(), self.meeting, by_gathering=False)
        assert joined.driver is not None
        control = Control(joined.driver)
        try:
            with closing(LongLived(self, joined, control)) as worker:
                worker.run()
            joined.leave()
        except BaseException as error:
            raise joined.failed(error, control) from None
        finally:
            joined.close()
            gc.unfreeze()
        yield pa.RecordBatch.from_pydict({"worker": [joined.rank]})


class LongLived:
    """One worker of a long-lived query, with its share of the sources and its ends of the sinks."""

    def __init__(self, task: WorkerTask, joined: Joined, control: Control) -> None:
        self._control = control
        self._flow = task.flow
        self._leads = joined.rank == 0
        where = joined.rank, joined.workers
        ground = task.ground
        self._process = Process(
            task.flow,
            joined.mesh,
            index=joined.rank,
            workers=joined.workers,
            restore=None if ground is None else ground.share(*where),
        )
        handles = self._process.worker.handles
        known = {} if ground is None else ground.positions
        self._inputs = [
            _fed(name, handles[task.flow.handle("input", name)], source, *where, known.get(name))
            for name, source in task.sources.items()
        ]
        self._collected: dict[str, list[Batch]] = {
            name: handles[task.flow.handle("output", name)] for name in task.flow.outputs
        }
        self._keeper: Keeper | None = None
        self._writers: dict[str, Writer] = {}
        self._to_driver: dict[str, _ToDriver] = {}
        if ground is not None:
            staged = {
                name: _open_staged(name, sink, joined.rank, ground)
                for name, sink in task.sinks.items()
            }
            staged |= {
                name: open_rows(ground.store.files, joined.rank, ground.attempt)
                for name in task.to_driver
            }
            self._keeper = Keeper(ground, *where, control, staged, bins=self._process.worker.bins)
        else:
            self._writers |= {
                name: _open(name, sink, joined.rank, task.run) for name, sink in task.sinks.items()
            }
            self._to_driver = {name: _ToDriver(control, name) for name in task.to_driver}
            self._writers |= self._to_driver
        self._began = time.monotonic()
        self._reported = 0.0
        self._rows = dict.fromkeys((*task.sinks, *task.to_driver), 0)
        self._busy_at = time.monotonic()
        self._stopping = False
        self._over = False
        self._wanted = 0
        self._version = 0
        self._told_complete = False

    def run(self) -> None:
        """Go around until the flow is complete or the driver says stop."""
        self._began = time.monotonic()
        process, keeper = self._process, self._keeper
        while not self._stopping and not self._over:
            read = bool(self._inputs) and self._read()
            busy = read or process.worker.has_work
            did = process.turn(block=0.0 if busy else self._patience())
            if did or read:
                self._busy_at = time.monotonic()
                self._write()
            self._keep_in_touch()
            if keeper is None:
                self._over = process.is_complete
            else:
                keeper.check()
                self._mind_checkpoints(keeper)
        if keeper is not None:
            keeper.finish()
        else:
            self._write()
            while self._waits_for_sinks:
                self._keep_in_touch()
                self._control.has_news(REPORT / 2)
            for name, writer in self._writers.items():
                with blaming(name, "closing its sink"):
                    writer.close()
        self._report()

    def close(self) -> None:
        """The run is over, however it ended."""
        self._process.close()
        if self._keeper is not None:
            self._keeper.close()

    # Checkpoints

    def _mind_checkpoints(self, keeper: Keeper) -> None:
        """Take one, if the driver or another worker wants that; or the last one, at the end."""
        process = self._process
        version = max(self._wanted, process.called_to_rest)
        if version > self._version:
            self._version = version
            self._checkpoint(version, keeper)
        elif process.is_complete and self._leads and not self._told_complete:
            self._told_complete = True
            self._control.send("complete")

    def _checkpoint(self, version: int, keeper: Keeper) -> None:
        process = self._process
        began = time.monotonic()
        why = ""
        if process.rest_together(version, patience=REST_PATIENCE):
            self._write()
            try:
                state = process.worker.snapshot()
                positions = {feed.name: feed.positions() for feed in self._inputs}
                # All have heard of everything that happened: so all agree on this.
                self._over = process.is_complete
            except SnapshotError as error:
                if process.is_complete:
                    raise
                why = str(error)
        else:
            why = f"worker {process.worker.index} did not come to rest"
        process.go_on_together(version)
        if why:
            self._control.send("missed", version=version, why=why)
        else:
            keeper.keep(version, state, positions, time.monotonic() - began)

    # Going around

    def _read(self) -> bool:
        """Take records from the sources, unless there is more than enough under way."""
        if self._process.is_held_up or self._waits_for_sinks:
            return False
        read = False
        for feed in self._inputs:
            with blaming(feed.name, "reading its source"):
                read = feed.read() or read
        return read

    def _patience(self) -> float:
        """How long to block: until a source is worth asking again.

        A source that cannot tell when is asked less often the longer it has had nothing, so that
        a record waits for a tenth of the time since the last one, and an idle query costs little.
        """
        now = time.monotonic()
        patience = LAST_PATIENCE if self._awaits_word or self._waits_for_sinks else REPORT / 2
        if self._process.is_held_up or self._waits_for_sinks:
            return patience
        for feed in self._inputs:
            if feed.is_open:
                ready_at = feed.ready_at
                unknown = min(max((now - self._busy_at) / 10, LEAST_PATIENCE), MOST_PATIENCE)
                wait = unknown if ready_at is None else max(ready_at - now, 0.0)
                patience = min(patience, wait)
        return patience

    def _write(self) -> None:
        for name, collected in self._collected.items():
            if collected and name in self._rows:
                table = _typed(concat(collected).to_arrow(), self._flow.output_schema(name))
                self._rows[name] += table.num_rows
                if self._keeper is not None:
                    self._keeper.write(name, table)
                else:
                    with blaming(name, "writing to its sink"):
                        self._writers[name].write(table)
            collected.clear()

    def _keep_in_touch(self) -> None:
        now = time.monotonic()
        # At the end there is nothing to wait for but the driver's word.
        if now - self._reported > REPORT or self._awaits_word or self._waits_for_sinks:
            if now - self._reported > REPORT:
                self._reported = now
                self._report()
            while self._control.has_news():
                news = self._control.receive()
                if news is None:
                    raise JetonError("the driver of this query has gone")
                self._obey(news[0])

    def _obey(self, header: dict[str, Any]) -> None:
        if header["kind"] == "checkpoint":
            self._wanted = header["version"]
        elif header["kind"] == "follow":
            for feed in self._inputs:
                if feed.name in header["inputs"]:
                    feed.follow(header["inputs"][feed.name])
        elif header["kind"] == "stop":
            if not header["drain"]:
                self._stopping = True
            for feed in self._inputs:
                feed.close()
        elif header["kind"] == "taken":
            self._to_driver[header["output"]].taken(header["bytes"])

    @property
    def _waits_for_sinks(self) -> bool:
        """Whether there are rows that cannot be sent before a sink has taken others."""
        return any(writer.is_full for writer in self._to_driver.values())

    @property
    def _awaits_word(self) -> bool:
        return self._told_complete and not self._over

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
            "cpu_seconds": round(time.process_time(), 4),
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        inputs = {feed.name: feed.state for feed in self._inputs if feed.is_open}
        self._control.send("report", frontiers=places, metrics=metrics, inputs=inputs)


class _ToDriver:
    """A worker's end of a sink at the driver, without checkpoints.

    Rows that the driver cannot take yet wait here, and the worker reads no more until they are
    sent, so that there are never many.
    """

    def __init__(self, control: Control, name: str) -> None:
        self._control = control
        self._name = name
        self._waiting: deque[pa.Table] = deque()
        self._on_their_way = 0

    @property
    def is_full(self) -> bool:
        return bool(self._waiting)

    def write(self, table: pa.Table) -> None:
        rows = max(1, table.num_rows * CREDIT // max(table.nbytes, CREDIT))
        self._waiting.extend(table.slice(at, rows) for at in range(0, table.num_rows, rows))
        self._send()

    def taken(self, size: int) -> None:
        """The sink has taken rows."""
        self._on_their_way -= size
        self._send()

    def close(self) -> None:
        pass

    def _send(self) -> None:
        while self._waiting and self._on_their_way < CREDIT:
            payload = written_table(self._waiting.popleft())
            self._on_their_way += len(payload)
            self._control.send("rows", payload, output=self._name)


def _typed(table: pa.Table, known: pa.Schema | None) -> pa.Table:
    """The same rows, where columns of nothing but nulls have the types that the flow knows."""
    for at, field in enumerate(table.schema):
        if pa.types.is_null(field.type) and known is not None and field.name in known.names:
            kind = known.field(field.name).type
            table = table.set_column(at, field.name, table.column(at).cast(kind))
    return table


def _fed(name: str, *args: Any) -> Feed:
    with blaming(name, "opening its source"):
        return Feed(name, *args)


def _open(name: str, sink: WorkerSink | StagedSink, worker: int, run: str) -> Writer:
    assert isinstance(sink, WorkerSink)
    with blaming(name, "opening its sink"):
        return sink.open(worker, run)


def _open_staged(
    name: str, sink: WorkerSink | StagedSink, worker: int, ground: Ground
) -> StagedWriter:
    assert isinstance(sink, StagedSink)
    with blaming(name, "opening its sink"):
        return sink.open_staged(worker, ground.query, ground.attempt)
