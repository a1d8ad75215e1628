"""Tasks of a long-lived query: each is one worker of the flow, for as long as that runs.

The code here runs on executors. A worker reads its partitions of the sources, writes what the
outputs collect, and stops for a moment when a checkpoint is due.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from jeton.cluster.checkpoint_writer import CheckpointWriter, RestorePoint
from jeton.cluster.control import Control
from jeton.cluster.failures import blaming
from jeton.cluster.rendezvous import Meeting
from jeton.cluster.worker_io import Committing, OutputSink, ToDriver, WorkerSources, Writers
from jeton.connectors.sinks import Sink, SinkContext, Writer
from jeton.connectors.sinks.driver_sink import RowsToDriver
from jeton.connectors.sources import Source
from jeton.runtime import balance as balance  # its commands are known to workers once imported
from jeton.runtime.attachments import Positions
from jeton.runtime.commands import Command
from jeton.runtime.steering import Watch
from jeton.runtime.worker_facts import BusyWatch
from jeton.spark import store_access
from jeton.spark.tasks import PeerGroup, join_peers
from jeton.storage.store_settings import StoreSettings

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow


@dataclass(frozen=True)
class WorkerTask:
    """The code of a task: one worker of a long-lived query.

    >>> import pickle
    >>> task = WorkerTask(None, {}, {}, {}, Meeting("here", 1, b"", "plan"), "run", None, 10.0)
    >>> pickle.loads(pickle.dumps(task)) == task
    True
    """

    flow: Flow
    sources: dict[str, Source]
    partitions: Positions
    """The partitions of the sources, of all workers."""
    sinks: dict[str, Sink]
    meeting: Meeting
    run: str
    restore_point: RestorePoint | None
    """The checkpoint to start from and where to write others, if it takes any."""
    every: float | None
    """Seconds after which rows are committed, if it takes no checkpoints."""
    paused_at: int | None = None
    """The time of the breakpoint that the query has, after a restart."""
    watch: Watch | None = None
    """The rows that `pause_when` looks for, after a restart."""
    standing: tuple[Command, ...] = ()
    """Commands that were for every worker when the attempt began."""
    stores: StoreSettings = field(default_factory=StoreSettings)
    """How the session reaches stores."""
    memory_budget: int | None = None
    """The bytes of memory that the state of a worker may take."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the worker; its number is the only row that Spark gets, at the end."""
        store_access.use(self.stores)
        for _ in batches:
            pass
        # Libraries stay: without this, Python's collector goes through all of them now and then,
        # which stops the worker for a tenth of a second and more.
        gc.collect()
        gc.freeze()
        try:
            rank = self._run()
        finally:
            gc.unfreeze()
        # The process may serve other tasks, and was like this when it came from the daemon.
        gc.collect()
        gc.freeze()
        yield pa.RecordBatch.from_pydict({"worker": [rank]})

    def _run(self) -> int:
        """Run the worker to its end; returns its number."""
        from pyspark import BarrierTaskContext

        with join_peers(BarrierTaskContext.get(), self.meeting, by_gathering=False) as group:
            assert group.driver is not None
            group.control = Control(group.driver)
            self._work(group, group.control)
            group.leave()
        return group.rank

    def _work(self, group: PeerGroup, control: Control) -> None:
        restore_point, rank = self.restore_point, group.rank
        with ExitStack() as stack:
            share = None if restore_point is None else restore_point.share(rank, group.workers)
            agent = stack.enter_context(closing(group.agent(self.flow, share, self.memory_budget)))
            feed = WorkerSources(agent, self.sources, self.partitions)
            stack.callback(feed.release)
            writer: CheckpointWriter | None = None
            if restore_point is not None:
                writer = CheckpointWriter.of(
                    restore_point, agent, control, self._staged(rank, restore_point)
                )
                stack.enter_context(closing(writer))
            tables = writer or Writers(self._writers(rank, control))
            sink = OutputSink(agent, self.sinks, tables)
            agent.attach(feed=feed, sink=sink, driver=control, parts=writer)
            for command in self.standing:
                agent.obey(command)
            if self.paused_at is not None:
                agent.breakpoints.pause_again(self.paused_at)
            if self.watch is not None:
                self.watch.do(agent)
            with BusyWatch(agent):
                agent.run()

    def _writers(self, worker: int, control: Control) -> dict[str, Committing | ToDriver]:
        """This worker's ends of the sinks, without checkpoints."""
        writers: dict[str, Committing | ToDriver] = {}
        for name, sink in self.sinks.items():
            if isinstance(sink, RowsToDriver):
                writers[name] = ToDriver(control, name, sink.prepare)
                continue
            # Each worker commits alone, as if it were a query of its own.
            context = SinkContext(f"{self.run}-{worker}", output=name, worker=worker)
            with blaming(name, "opening its sink"):
                writers[name] = Committing(sink, context, self.every)
        return writers

    def _staged(self, worker: int, restore_point: RestorePoint) -> dict[str, Writer]:
        """This worker's ends of the sinks, which commit with checkpoints."""
        writers: dict[str, Writer] = {}
        for name, sink in self.sinks.items():
            context = SinkContext(
                restore_point.query,
                restore_point.attempt,
                output=name,
                worker=worker,
                files=restore_point.store.files,
            )
            with blaming(name, "opening its sink"):
                writers[name] = sink.open(context)
        return writers
