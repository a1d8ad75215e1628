"""Tasks of a micro-batch: restore, feed, come to rest, write what changed, wait for the commit.

A worker outlives the task that ran it: it stays in its Python process, and if the next micro-batch
finds all workers of the one before alive, they go on as they are. Otherwise all start from the
files. So a task is not the worker with its partition's number, but the one that its process keeps.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from jeton.cluster.checkpoint_writer import CheckpointWriter
from jeton.cluster.control import Control
from jeton.cluster.rendezvous import Meeting
from jeton.columns.batch import Batch
from jeton.core.errors import JetonError
from jeton.runtime.agent import Agent
from jeton.runtime.commands import Command, Connection, Fail
from jeton.runtime.worker_facts import BusyWatch
from jeton.spark.internals import BatchId, micro_batch_of
from jeton.spark.metrics import Counts, counted
from jeton.spark.tasks import (
    ROWS_OUT,
    Ends,
    PeerGroup,
    SparkBatches,
    SparkRows,
    inputs_of,
    join_peers,
)
from jeton.storage.checkpoints import Checkpoints, Part
from jeton.storage.chunk_format import CorruptCheckpoint

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext
    from pyspark.accumulators import Accumulator

    from jeton.dataflow.flow import Flow

log = logging.getLogger(__name__)

UNUSED: Final = 600.0
"""Seconds after which a worker that no micro-batch asked for is given up."""


@dataclass(frozen=True, kw_only=True)
class Orders(Command):
    """The first command of a micro-batch: who is who, and where the state is.

    A task follows it when it makes its agent.
    """

    kind = "orders"
    numbers: list[int]
    """Which worker each of the tasks is."""
    version: int
    epoch: int
    path: str
    restore: int | None
    """The version to start from, if there is one."""
    live: bool
    """Whether all workers of that version are still there."""
    remedy: str
    """The advice in an error, if that version is damaged."""
    paused_at: int | None = None
    """The breakpoint, if one is set."""


@dataclass(slots=True)
class Kept:
    """A worker between two micro-batches: it has done one, and rests."""

    agent: Agent
    part: Part
    version: int
    epoch: int
    workers: int
    since: float = field(default_factory=time.monotonic)

    def claim(self) -> list[int]:
        """The facts by which the driver decides whether it can go on."""
        return [self.version, self.epoch, self.workers, self.agent.worker.index]


class KeptWorkers:
    """The workers that a Python process keeps between micro-batches, by plan and query."""

    def __init__(self) -> None:
        self._by_query: dict[tuple[str, str], Kept] = {}

    def take(self, key: tuple[str, str]) -> Kept | None:
        """Take a query's worker out, if there is one."""
        return self._by_query.pop(key, None)

    def keep(self, key: tuple[str, str], kept: Kept) -> None:
        """Keep a worker for its next micro-batch; those whose query has ended are closed."""
        self._by_query[key] = kept
        for other, old in list(self._by_query.items()):
            if kept.since - old.since > UNUSED:
                self._by_query.pop(other).agent.close()


KEPT_WORKERS: Final = KeptWorkers()
"""Those of this process: Spark runs the tasks of later micro-batches in the same one."""


def run_micro_batch(
    flow: Flow,
    ends: Ends,
    lateness: Mapping[str, int | None],
    allow_removed: Sequence[str],
    meeting: Meeting,
    counts: Accumulator[Counts],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """One task: a worker takes the rows of a micro-batch in, and its state one version further."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    batch = micro_batch_of(context)
    key = (meeting.plan, batch.query)
    kept = KEPT_WORKERS.take(key)
    received: list[tuple[Control, Orders]] = []

    def arrange(sock: socket.socket) -> Sequence[int]:
        control = Control(sock)
        orders = _begin(control, context, batch, kept)
        received.append((control, orders))
        return orders.numbers

    with join_peers(context, meeting, False, arrange) as group:
        control, orders = received[0]
        store = Checkpoints(orders.path)
        agent, base = _worker(flow, group, orders, store, kept, allow_removed)
        writer = CheckpointWriter(
            store, agent, control, epoch=orders.epoch, base=base, background=False
        )
        rows = SparkRows(agent, ends)
        feed = MicroBatch(agent, ends, batches, control, lateness)
        agent.attach(feed=feed, sink=rows, driver=control, parts=writer, reports=False)
        if agent.breakpoints.at != orders.paused_at:
            agent.breakpoints.resume()
        if orders.paused_at is not None:
            agent.breakpoints.pause_again(orders.paused_at)
        with BusyWatch(agent, elsewhere="waits for Spark to take its rows"):
            for _ in agent.turns():
                yield from rows.take(1 if agent.is_held else ROWS_OUT)
        assert writer.base is not None, "a worker is stopped once its part is committed"
        made = Kept(agent, writer.base, orders.version, orders.epoch, group.workers)
        KEPT_WORKERS.keep(key, made)
        group.leave()
        counts.add(counted(agent, group.epoch))


def damaged(version: int, error: CorruptCheckpoint, remedy: str) -> CorruptCheckpoint:
    """An error that says what to do about it.

    >>> raise damaged(7, CorruptCheckpoint("a file is gone"), "Start anew")
    Traceback (most recent call last):
    jeton.storage.chunk_format.CorruptCheckpoint: the state after micro-batch 7 is damaged: ...
    """
    return CorruptCheckpoint(
        f"the state after micro-batch {version} is damaged: {error.message}. {remedy}"
    )


def _begin(
    control: Control, context: BarrierTaskContext, batch: BatchId, kept: Kept | None
) -> Orders:
    """Report the worker that this process keeps, and wait for the driver's orders."""
    frame = None
    try:
        control.send(
            "begin",
            workers=len(context.getTaskInfos()),
            stage=context.stageId(),
            query=batch.query,
            run=batch.run,
            batch=batch.number,
            held=None if kept is None else kept.claim(),
        )
        frame = control.receive()
    except OSError as error:
        raise JetonError(f"the driver has hung up: {error}") from error
    if frame is None:
        raise JetonError("the driver has given this attempt at the micro-batch up")
    command = Command.from_json(frame[0])
    if isinstance(command, Fail):
        raise JetonError(command.text)
    assert isinstance(command, Orders)
    return command


def _worker(
    flow: Flow,
    group: PeerGroup,
    orders: Orders,
    store: Checkpoints,
    kept: Kept | None,
    allow_removed: Sequence[str],
) -> tuple[Agent, Part | None]:
    """The worker that this process keeps, or one from the files, and its part of the version."""
    log.info(
        "worker %d of %d of flow %r begins version %d %s",
        group.rank,
        group.workers,
        flow.name,
        orders.version,
        "as it is" if orders.live else f"from version {orders.restore} in the files",
    )
    if orders.live:
        assert kept is not None, "the driver knows which workers are kept"
        kept.agent.rejoin(group.mesh)
        return kept.agent, kept.part
    if kept is not None:
        kept.agent.close()
    if orders.restore is None:
        return group.agent(flow), None
    where = group.rank, group.workers
    try:
        before = store.load(orders.restore)
        share = before.share(*where, allow_removed=allow_removed)
        base = before.part(*where)
    except CorruptCheckpoint as error:
        raise damaged(orders.restore, error, orders.remedy) from error
    return group.agent(flow, share), base


class MicroBatch(SparkBatches):
    """The feed of a micro-batch: the driver decides how far its inputs advance at its end."""

    def __init__(
        self,
        agent: Agent,
        ends: Ends,
        batches: Iterator[pa.RecordBatch],
        driver: Connection,
        lateness: Mapping[str, int | None],
    ) -> None:
        inputs = inputs_of(agent, ends)
        self._own = [handle.lateness for handle in inputs]
        # Late records are decided once for a batch, or they would depend on the order of rows.
        super().__init__(agent, inputs, ends.columns, batches)
        self._names = ends.inputs
        self._driver = driver
        self._lateness = lateness
        self._greatest: dict[str, int] = {}

    def send(self, number: int, rows: pa.RecordBatch) -> None:
        """Send rows to the input of that number, and note their greatest time."""
        handle, name, flow = self._inputs[number], self._names[number], self._agent.flow
        sent = Batch.from_arrow(
            pa.Table.from_batches([rows]),
            time=flow.operators[flow.handle("input", name)].time_name,
            kind=handle.kind,
        )
        if len(sent):
            sent = handle.in_flow_unit(sent)
            handle.send(sent)
            last = int(sent.times.max())
            self._greatest[name] = max(last, self._greatest.get(name, last))

    def end(self) -> None:
        """Tell the driver how far the inputs could advance, as far as this worker has seen."""
        for handle, late in zip(self._inputs, self._own, strict=True):
            handle.lateness = late
        floors = {
            name: max(self._greatest[name] - late, handle.kind.minimum)
            for name, handle in zip(self._names, self._inputs, strict=True)
            if name in self._greatest and (late := self._lateness[name]) is not None
        }
        self.awaits_command = True
        latest = max(self._greatest.values(), default=None)
        self._driver.send("fed", floors=floors, latest=latest)

    def advance(self, inputs: Mapping[str, int]) -> None:
        """Advance the inputs to what all workers have seen."""
        for name, handle in zip(self._names, self._inputs, strict=True):
            if name in inputs and handle.time < inputs[name]:
                handle.advance_to(inputs[name])
