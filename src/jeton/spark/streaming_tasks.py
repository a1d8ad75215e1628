"""What a task of a micro-batch does: restore, feed, run to rest, write what changed, commit.

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
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from jeton.cluster.control import Control
from jeton.cluster.rendezvous import Meeting
from jeton.columns.batch import Batch
from jeton.core.errors import JetonError
from jeton.runtime.process import BEAT, Process
from jeton.spark.tasks import (
    ROWS_OUT,
    Ends,
    Joined,
    ends_of,
    join_peers,
    rows_by_input,
    take_rows,
)
from jeton.storage.checkpoints import Checkpoints, Part
from jeton.storage.chunk_format import CorruptCheckpoint

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext
    from pyspark.accumulators import Accumulator

    from jeton.dataflow.flow import Flow

log = logging.getLogger(__name__)

GLANCE: Final = 0.001
"""Seconds that a worker waits for its peers before it looks whether the driver has answered."""
ROUND: Final = 1
"""Workers come to rest together once for each mesh."""
UNUSED: Final = 600.0
"""Seconds after which a worker that no micro-batch asked for is given up."""


@dataclass(frozen=True)
class Orders:
    """What all tasks are told before they begin: who is who, and where the state is."""

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
    """What to do if that version is damaged."""


@dataclass(slots=True)
class Kept:
    """A worker between two micro-batches: it has done one, and rests."""

    process: Process
    part: Part
    version: int
    epoch: int
    workers: int
    since: float = field(default_factory=time.monotonic)

    def claim(self) -> list[int]:
        """What the driver must know to tell whether it can go on."""
        return [self.version, self.epoch, self.workers, self.process.worker.index]


_kept: dict[tuple[str, str], Kept] = {}
"""The workers in this Python process, by plan and query."""


def run_micro_batch(
    flow: Flow,
    ends: Ends,
    lateness: Mapping[str, int | None],
    allow_removed: Sequence[str],
    meeting: Meeting,
    counts: Accumulator[dict[str, int]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """One task: a worker takes the rows of a micro-batch in, and its state one version further."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    key = (meeting.plan, context.getLocalProperty("sql.streaming.queryId") or "")
    kept = _kept.pop(key, None)
    told: list[tuple[Driver, Orders]] = []

    def arrange(sock: socket.socket) -> Sequence[int]:
        driver = Driver(sock)
        orders = driver.begin(context, kept)
        told.append((driver, orders))
        return orders.numbers

    joined = join_peers(context, meeting, False, arrange)
    try:
        task = _Task(flow, ends, joined, *told[0])
        task.prepare(kept, allow_removed)
        yield from task.run(batches, lateness)
        _keep(key, task.finish())
        joined.leave()
        counts.add(task.counts())
    except GeneratorExit:
        # Spark needs no more rows: not a failure of this worker's.
        raise
    except BaseException as error:
        raise joined.failed(error) from None
    finally:
        joined.close()


def _keep(key: tuple[str, str], kept: Kept) -> None:
    """Let a worker wait for its next micro-batch; others whose query has ended go."""
    _kept[key] = kept
    for other in [k for k, old in _kept.items() if kept.since - old.since > UNUSED]:
        _kept.pop(other).process.close()


def damaged(version: int, error: CorruptCheckpoint, remedy: str) -> CorruptCheckpoint:
    """An error that says what to do about it.

    >>> raise damaged(7, CorruptCheckpoint("a file is gone"), "Start anew")
    Traceback (most recent call last):
    jeton.storage.chunk_format.CorruptCheckpoint: the state after micro-batch 7 is damaged: ...
    """
    return CorruptCheckpoint(
        f"the state after micro-batch {version} is damaged: {error.message}. {remedy}"
    )


class Driver:
    """The connection to the driver, which hears what all workers say."""

    def __init__(self, sock: socket.socket) -> None:
        self._control = Control(sock)

    def begin(self, context: BarrierTaskContext, kept: Kept | None) -> Orders:
        """Say what this process keeps, and be told what to do."""
        batch = context.getLocalProperty("streaming.sql.batchId")
        if batch is None:
            raise JetonError("this stage was planned for a streaming query, but is not run by one")
        self.tell(
            "begin",
            workers=len(context.getTaskInfos()),
            stage=context.stageId(),
            query=context.getLocalProperty("sql.streaming.queryId"),
            run=context.getLocalProperty("spark.jobGroup.id"),
            batch=int(batch),
            held=None if kept is None else kept.claim(),
        )
        return Orders(**self.hear())

    def tell(self, kind: str, **what: Any) -> None:
        """Say something."""
        try:
            self._control.send(kind, **what)
        except OSError as error:
            raise JetonError(f"the driver has hung up: {error}") from error

    @property
    def has_answered(self) -> bool:
        """Whether there is something to hear."""
        return self._control.has_news()

    def hear(self) -> dict[str, Any]:
        """What the driver says, waiting for it."""
        frame = self._control.receive()
        if frame is None:
            raise JetonError("the driver has given this attempt at the micro-batch up")
        header, _ = frame
        if header["kind"] == "failed":
            raise JetonError(header["text"])
        return {name: value for name, value in header.items() if name not in ("kind", "size")}


class _Task:
    """One worker's way through one micro-batch."""

    process: Process
    base: Part | None

    def __init__(
        self, flow: Flow, ends: Ends, joined: Joined, driver: Driver, orders: Orders
    ) -> None:
        self.flow = flow
        self.ends = ends
        self.joined = joined
        self.driver = driver
        self.orders = orders
        self.store = Checkpoints(orders.path)
        self.rows_in = self.rows_out = self.late = 0

    def prepare(self, kept: Kept | None, allow_removed: Sequence[str]) -> None:
        """Take up the worker that this process keeps, or make one from the files."""
        orders, joined = self.orders, self.joined
        log.info(
            "worker %d of %d of flow %r begins version %d %s",
            joined.rank,
            joined.workers,
            self.flow.name,
            orders.version,
            "as it is" if orders.live else f"from version {orders.restore} in the files",
        )
        if orders.live:
            assert kept is not None, "the driver was told what is kept"
            self.process, self.base = kept.process, kept.part
            self.process.rejoin(joined.mesh)
        else:
            if kept is not None:
                kept.process.close()
            self._restore(allow_removed)
        self.handles, self.collected = ends_of(self.flow, self.ends, self.process)
        self.late = -self._late_so_far()

    def _restore(self, allow_removed: Sequence[str]) -> None:
        rank, workers = self.joined.rank, self.joined.workers
        share = self.base = None
        if self.orders.restore is not None:
            try:
                before = self.store.load(self.orders.restore)
                share = before.share(rank, workers, allow_removed=allow_removed)
                self.base = before.part(rank, workers)
            except CorruptCheckpoint as error:
                raise damaged(self.orders.restore, error, self.orders.remedy) from error
        self.process = Process(
            self.flow, self.joined.mesh, index=rank, workers=workers, restore=share
        )

    def run(
        self, batches: Iterator[pa.RecordBatch], lateness: Mapping[str, int | None]
    ) -> Iterator[pa.RecordBatch]:
        """Feed everything, let all workers' inputs advance together, and run to rest."""
        own = [handle.lateness for handle in self.handles]
        for handle in self.handles:
            # What is late is decided once for a batch, or it would depend on the rows' order.
            handle.lateness = None
        greatest: dict[str, int] = {}
        yield from self._feed(batches, greatest)
        for handle, late in zip(self.handles, own, strict=True):
            handle.lateness = late
        floors = {
            name: max(greatest[name] - late, self.handles[at].kind.minimum)
            for at, name in enumerate(self.ends.inputs)
            if name in greatest and (late := lateness[name]) is not None
        }
        self.driver.tell("fed", floors=floors)
        while not self.driver.has_answered:
            self.process.turn(block=GLANCE)
            yield from self._out(ROWS_OUT)
        floors = self.driver.hear()["floors"]
        for name, handle in zip(self.ends.inputs, self.handles, strict=True):
            if name in floors and handle.time < floors[name]:
                handle.advance_to(floors[name])
        while self.process.turn(block=GLANCE):
            yield from self._out(ROWS_OUT)
        self.process.rest_together(ROUND)
        yield from self._out(1)

    def finish(self) -> Kept:
        """Write what changed; it counts once the driver has heard the same of all workers."""
        orders = self.orders
        tables = self.process.worker.snapshot()
        part = self.store.write_part(
            orders.version,
            self.joined.rank,
            tables,
            epoch=orders.epoch,
            base=self.base,
            bins=self.process.worker.bins,
        )
        self.driver.tell("part", part=part.to_json())
        self.driver.hear()
        self.process.go_on_together(ROUND)
        return Kept(self.process, part, orders.version, orders.epoch, self.joined.workers)

    def counts(self) -> dict[str, int]:
        """What this worker did in this micro-batch."""
        mesh = self.joined.mesh
        return {
            "runs": int(self.joined.rank == 0),
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "late": self.late + self._late_so_far(),
            "messages": mesh.messages if mesh else 0,
            "progress_batches": mesh.progress_batches if mesh else 0,
        }

    def _feed(
        self, batches: Iterator[pa.RecordBatch], greatest: dict[str, int]
    ) -> Iterator[pa.RecordBatch]:
        process, inputs = self.process, self.ends.inputs
        while True:
            did = process.turn()
            if process.is_held_up or process.worker.has_work:
                if not did:
                    # Held up: whatever changes that wakes it.
                    process.turn(block=BEAT)
            else:
                batch = next(batches, None)
                if batch is None:
                    return
                for number, rows in rows_by_input(len(inputs), batch):
                    handle, name = self.handles[number], inputs[number]
                    sent = Batch.from_arrow(
                        pa.Table.from_batches([rows]),
                        time=self.flow.operators[self.flow.handle("input", name)].time_name,
                        kind=handle.kind,
                    )
                    if len(sent):
                        self.rows_in += len(sent)
                        handle.send(sent)
                        last = int(sent.times.max())
                        greatest[name] = max(last, greatest.get(name, last))
            yield from self._out(ROWS_OUT)

    def _out(self, least: int) -> Iterator[pa.RecordBatch]:
        for rows in take_rows(self.ends, self.collected, least=least):
            self.rows_out += rows.num_rows
            yield rows

    def _late_so_far(self) -> int:
        return sum(handle.late_count for handle in self.handles)
