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

from jeton.cluster.checkpoint_writer import CheckpointWriter, Ground
from jeton.cluster.control import Control
from jeton.cluster.failures import blaming
from jeton.cluster.rendezvous import Meeting
from jeton.cluster.worker_ends import OutputSink, SourceFeed, ToDriver, Writers
from jeton.connectors.deliveries import open_rows
from jeton.connectors.sinks import StagedSink, StagedWriter, WorkerSink, Writer
from jeton.connectors.sources import Source
from jeton.spark.tasks import Joined, join_peers

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
            self._work(joined, control)
            joined.leave()
        except BaseException as error:
            raise joined.failed(error, control) from None
        finally:
            joined.close()
            gc.unfreeze()
        yield pa.RecordBatch.from_pydict({"worker": [joined.rank]})

    def _work(self, joined: Joined, control: Control) -> None:
        ground, rank = self.ground, joined.rank
        with ExitStack() as stack:
            share = None if ground is None else ground.share(rank, joined.workers)
            agent = stack.enter_context(closing(joined.agent(self.flow, share)))
            feed = SourceFeed(agent, self.sources, None if ground is None else ground.positions)
            writer: CheckpointWriter | None = None
            if ground is not None:
                writer = CheckpointWriter.of(ground, agent, control, self._staged(rank, ground))
                stack.enter_context(closing(writer))
            tables = writer or Writers(self._writers(rank, control))
            sink = OutputSink(agent, (*self.sinks, *self.to_driver), tables)
            agent.attach(feed=feed, sink=sink, driver=control, parts=writer)
            agent.run()

    def _writers(self, worker: int, control: Control) -> dict[str, Writer]:
        """This worker's ends of the sinks, without checkpoints."""
        writers: dict[str, Writer] = {}
        for name, sink in self.sinks.items():
            assert isinstance(sink, WorkerSink)
            with blaming(name, "opening its sink"):
                writers[name] = sink.open(worker, self.run)
        return writers | {name: ToDriver(control, name) for name in self.to_driver}

    def _staged(self, worker: int, ground: Ground) -> dict[str, StagedWriter]:
        """This worker's ends of the sinks, which commit with checkpoints."""
        writers: dict[str, StagedWriter] = {}
        for name, sink in self.sinks.items():
            assert isinstance(sink, StagedSink)
            with blaming(name, "opening its sink"):
                writers[name] = sink.open_staged(worker, ground.query, ground.attempt)
        for name in self.to_driver:
            writers[name] = open_rows(ground.store.files, worker, ground.attempt)
        return writers
