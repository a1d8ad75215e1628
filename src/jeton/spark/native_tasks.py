"""Tasks of a batch whose workers read sources, or write to sinks, by themselves.

The code here runs on executors. Rows of sources reach the flow as Arrow reads them, and rows of
outputs the files of a sink: neither passes through Spark.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from jeton.cluster.failures import blaming
from jeton.cluster.rendezvous import Meeting
from jeton.cluster.worker_io import typed_table
from jeton.columns.batch import Batch, concat
from jeton.connectors.sinks import Sink, SinkContext, Writer
from jeton.connectors.source_plan import share
from jeton.connectors.sources import Reader, Source
from jeton.dataflow.inputs import InputHandle
from jeton.runtime.agent import Agent
from jeton.runtime.attachments import NoSink, Positions
from jeton.spark import store_access
from jeton.spark.metrics import Counts, counted
from jeton.spark.tasks import (
    ROWS_OUT,
    Ends,
    Onlooker,
    SparkBatches,
    SparkRows,
    inputs_of,
    join_peers,
)
from jeton.storage.store_settings import StoreSettings

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

    from jeton.dataflow.flow import Flow

REPORT: Final = pa.schema(
    [("worker", pa.int32()), ("attempt", pa.int64()), ("written", pa.string())]
)
"""The row in which a worker reports what it has written."""
VERSION: Final = 1
"""A batch has one version of its rows."""
_PATIENCE: Final = 0.001
"""Seconds until a source is asked again that had nothing, and does not know when it will."""


@dataclass(frozen=True)
class NativeTask:
    """The code of a task: one worker of a batch.

    >>> import pickle
    >>> task = NativeTask(None, Ends((), ()), Meeting("here", 1, b"", "plan"), False, None)
    >>> pickle.loads(pickle.dumps(task)) == task
    True
    """

    flow: Flow
    ends: Ends
    """The inputs that Spark feeds, and the outputs that go back to it."""
    meeting: Meeting
    by_gathering: bool
    counts: Accumulator[Counts] | None
    sources: dict[str, Source] = field(default_factory=dict)
    partitions: Positions = field(default_factory=dict)
    """The partitions of the sources, of all workers."""
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns of inputs whose sources leave out some that are declared."""
    sinks: dict[str, Sink] = field(default_factory=dict)
    run: str = ""
    """The name of the run, which no other has."""
    stores: StoreSettings = field(default_factory=StoreSettings)
    """How the session reaches stores."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the worker, and yield its rows for Spark, or a report of what it wrote."""
        from pyspark import BarrierTaskContext

        store_access.use(self.stores)
        flow, meeting = self.flow, self.meeting
        with join_peers(BarrierTaskContext.get(), meeting, self.by_gathering) as group:
            with ExitStack() as stack:
                agent = stack.enter_context(closing(group.agent(flow)))
                feed = NativeBatches(agent, self, batches)
                stack.callback(feed.release)
                sink = (
                    None if not self.sinks else SinkRows(agent, self._writers(agent, group.epoch))
                )
                rows = SparkRows(agent, self.ends) if sink is None else None
                heard = group.driver if meeting.heard else None
                driver = None if heard is None else Onlooker(heard)
                agent.attach(feed=feed, sink=sink or rows, driver=driver)
                for _ in agent.turns():
                    if rows is not None and rows.waits:
                        yield from rows.take(ROWS_OUT)
                # No peer needs this worker any more, however long the last rows take.
                agent.peers.begin_goodbye()
                if rows is not None:
                    yield from rows.take(1)
                written = {} if sink is None else sink.staged()
                agent.report()
            group.leave()
            if self.counts is not None:
                self.counts.add(counted(agent, group.epoch))
            if sink is not None:
                report = [[group.rank], [group.epoch], [json.dumps(written)]]
                yield pa.RecordBatch.from_arrays(
                    [pa.array(each, kind) for each, kind in zip(report, REPORT.types, strict=True)],
                    schema=REPORT,
                )

    def _writers(self, agent: Agent, attempt: int) -> dict[str, Writer]:
        writers: dict[str, Writer] = {}
        for name, sink in self.sinks.items():
            context = SinkContext(self.run, attempt, output=name, worker=agent.worker.index)
            with blaming(name, "opening its sink"):
                writers[name] = sink.open(context)
        return writers


class NativeBatches(SparkBatches):
    """The feed of such a batch: its share of each source, and what Spark has for other inputs.

    A batch at a time, when the worker has nothing to do. Nothing is late.
    """

    def __init__(self, agent: Agent, task: NativeTask, batches: Iterator[pa.RecordBatch]) -> None:
        if not task.ends.inputs:
            for _ in batches:
                pass
        super().__init__(agent, inputs_of(agent, task.ends), task.ends.columns, batches)
        self._from_spark = bool(task.ends.inputs)
        self._readers: deque[tuple[str, InputHandle, Reader]] = deque()
        self._next: float | None = None
        """When to ask again, if no source had anything."""
        worker = agent.worker
        self._native = inputs_of(agent, replace(task.ends, inputs=tuple(task.sources)))
        for (name, source), handle in zip(task.sources.items(), self._native, strict=True):
            handle.lateness = None
            if name in task.columns:
                handle.narrow(task.columns[name])
            mine = share(task.partitions[name], worker.index, worker.workers)
            with blaming(name, "opening its source"):
                for partition, at in mine.items():
                    opened = source.open(partition, at["position"])
                    self._readers.append((name, handle, opened))

    def read(self, busy: bool) -> bool:
        """Send the rows of one batch of Spark's, and of one reader."""
        if busy or self._ended:
            return False
        read = self._read_source()
        if self._from_spark:
            # It may block: then there is nothing that the sources could not wait for.
            read = super().read(busy) or read
        elif not self._readers:
            self._ended = True
            self.end()
            read = True
        return read

    def end(self) -> None:
        """Spark has no more batches: the inputs close once the sources have ended too."""
        self._from_spark = False
        self._ended = not self._readers
        if self._ended:
            for handle in self._native:
                handle.close()
            super().end()

    def patience(self, idle: float) -> float:
        """Seconds until a source is worth asking again."""
        if self._ended:
            return math.inf
        if self._from_spark or self._next is None:
            return 0.0
        return max(0.0, self._next - time.monotonic())

    def release(self) -> None:
        """Close all readers, at the end of the worker."""
        for name, _, reader in self._readers:
            with blaming(name, "closing its source"):
                reader.close()

    def _read_source(self) -> bool:
        """Ask readers in turn until one has records."""
        self._next = None
        for _ in range(len(self._readers)):
            name, handle, reader = self._readers[0]
            before = reader.rejected
            with blaming(name, "reading its source"):
                records = reader.read()
            self.rejected += reader.rejected - before
            if records is not None:
                handle.send(records)
            if reader.ended:
                self._readers.popleft()
                reader.close()
            else:
                self._readers.rotate(-1)
            if records is not None:
                return True
            if not reader.ended:
                at = reader.ready_at
                at = time.monotonic() + _PATIENCE if at is None else at
                self._next = at if self._next is None else min(self._next, at)
        return False


class SinkRows(NoSink):
    """The sink of such a batch: each output's rows go to a writer, and are staged at the end."""

    def __init__(self, agent: Agent, writers: Mapping[str, Writer]) -> None:
        flow, handles = agent.flow, agent.worker.handles
        self.rows = 0
        self._flow = flow
        self._writers = writers
        self._written = dict.fromkeys(writers, 0)
        self._collected: dict[str, list[Batch]] = {
            name: handles[flow.handle("output", name)] for name in flow.outputs
        }

    def write(self) -> None:
        """Hand on the rows of outputs that have collected enough; drop those without a sink."""
        self._hand_on(ROWS_OUT)

    def staged(self) -> dict[str, Any]:
        """Hand on the last rows, and say what each writer has staged."""
        self._hand_on(1)
        found: dict[str, Any] = {}
        for name, writer in self._writers.items():
            with blaming(name, "writing to its sink"):
                found[name] = {"rows": self._written[name], "staged": writer.stage(VERSION)}
                writer.close()
        return found

    def _hand_on(self, least: int) -> None:
        for name, batches in self._collected.items():
            writer = self._writers.get(name)
            if writer is None:
                batches.clear()
            elif batches and sum(map(len, batches)) >= least:
                table = typed_table(_joined(batches), self._flow.output_schema(name))
                batches.clear()
                self._written[name] += table.num_rows
                self.rows += table.num_rows
                with blaming(name, "writing to its sink"):
                    writer.write(table)


def _joined(batches: Sequence[Batch]) -> pa.Table:
    return concat(batches).to_arrow()
