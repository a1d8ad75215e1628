"""Tasks of a long-lived query: each is one worker of the flow, for as long as that runs.

The code here runs on executors. A worker reads its partitions of the sources, writes what the
outputs collect, and stops for a moment when a checkpoint is due.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from jeton.cluster.checkpoint_writer import CheckpointWriter, RestorePoint
from jeton.cluster.control import Control
from jeton.cluster.failures import blaming
from jeton.cluster.rendezvous import Meeting
from jeton.cluster.worker_io import OutputSink, ToDriver, WorkerSources, Writers
from jeton.connectors.deliveries import open_rows
from jeton.connectors.sinks import StagedSink, StagedWriter, WorkerSink, Writer
from jeton.connectors.sources import Source
from jeton.runtime import balance as balance  # its commands are known to workers once imported
from jeton.runtime.steering import Watch
from jeton.runtime.worker_facts import BusyWatch
from jeton.spark.tasks import PeerGroup, join_peers

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow


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
    restore_point: RestorePoint | None
    """The checkpoint to start from and where to write others, if it takes any."""
    paused_at: int | None = None
    """The time of the breakpoint that the query has, after a restart."""
    watch: Watch | None = None
    """The rows that `pause_when` looks for, after a restart."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the worker; its number is the only row that Spark gets, at the end."""
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        # Libraries stay: without this, Python's collector goes through all of them now and then,
        # which stops the worker for a tenth of a second and more.
        gc.collect()
        gc.freeze()
        try:
            with join_peers(BarrierTaskContext.get(), self.meeting, by_gathering=False) as group:
                assert group.driver is not None
                group.control = Control(group.driver)
                self._work(group, group.control)
                group.leave()
        finally:
            gc.unfreeze()
        yield pa.RecordBatch.from_pydict({"worker": [group.rank]})

    def _work(self, group: PeerGroup, control: Control) -> None:
        restore_point, rank = self.restore_point, group.rank
        with ExitStack() as stack:
            share = None if restore_point is None else restore_point.share(rank, group.workers)
            agent = stack.enter_context(closing(group.agent(self.flow, share)))
            feed = WorkerSources(
                agent, self.sources, None if restore_point is None else restore_point.positions
            )
            writer: CheckpointWriter | None = None
            if restore_point is not None:
                writer = CheckpointWriter.of(
                    restore_point, agent, control, self._staged(rank, restore_point)
                )
                stack.enter_context(closing(writer))
            tables = writer or Writers(self._writers(rank, control))
            sink = OutputSink(agent, (*self.sinks, *self.to_driver), tables)
            agent.attach(feed=feed, sink=sink, driver=control, parts=writer)
            if self.paused_at is not None:
                agent.breakpoints.pause_again(self.paused_at)
            if self.watch is not None:
                self.watch.do(agent)
            with BusyWatch(agent):
                agent.run()

    def _writers(self, worker: int, control: Control) -> dict[str, Writer]:
        """This worker's ends of the sinks, without checkpoints."""
        writers: dict[str, Writer] = {}
        for name, sink in self.sinks.items():
            assert isinstance(sink, WorkerSink)
            with blaming(name, "opening its sink"):
                writers[name] = sink.open(worker, self.run)
        return writers | {name: ToDriver(control, name) for name in self.to_driver}

    def _staged(self, worker: int, restore_point: RestorePoint) -> dict[str, StagedWriter]:
        """This worker's ends of the sinks, which commit with checkpoints."""
        writers: dict[str, StagedWriter] = {}
        for name, sink in self.sinks.items():
            assert isinstance(sink, StagedSink)
            with blaming(name, "opening its sink"):
                writers[name] = sink.open_staged(worker, restore_point.query, restore_point.attempt)
        for name in self.to_driver:
            writers[name] = open_rows(restore_point.store.files, worker, restore_point.attempt)
        return writers
