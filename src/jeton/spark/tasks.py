"""Tasks of a barrier stage, each one worker of the flow.

The code here runs on executors. A task joins its peers, and runs an agent that reads Arrow batches
from Spark and yields the rows that the flow's outputs collect.
"""

from __future__ import annotations

import json
import logging
import math
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import zip_longest
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from jeton.cluster.control import Control
from jeton.cluster.failures import FailedBefore, Failure, WorkerFailed
from jeton.cluster.rendezvous import Meeting, meet, report_failure
from jeton.columns.batch import Batch, concat
from jeton.columns.compiled import get_ready
from jeton.core.errors import GraphError, JetonError
from jeton.dataflow.inputs import InputHandle
from jeton.mesh.link import PeerLost
from jeton.mesh.listener import Address, Listener
from jeton.mesh.mesh import Mesh, PeerFailed
from jeton.runtime.agent import Agent
from jeton.runtime.attachments import NoFeed, NoSink
from jeton.spark.internals import dumps_by_value, hide_traceback
from jeton.spark.metrics import Counts, counted
from jeton.state.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext
    from pyspark.accumulators import Accumulator

    from jeton.dataflow.flow import Flow

log = logging.getLogger(__name__)

OUTPUT: Final = "output"
ROWS_OUT: Final = 65_536
"""Collected rows from which on they are handed to Spark."""
ROWS_IN: Final = 32_768
"""Rows that are put together from Spark's batches, which have 10,000 by default."""
BYTES_IN: Final = 16 << 20
"""Their bytes, if that is fewer rows."""


@dataclass(frozen=True)
class Columns:
    """The columns of one input, and where they are in the rows that a stage reads.

    Rows of several inputs begin with the number of the one that they belong to. Inputs share
    columns of equal types, and those that an input does not use are null in its rows.
    """

    names: tuple[str, ...]
    at: tuple[int, ...]

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of this input in a batch.

        >>> batch = pa.RecordBatch.from_pydict({"_0": [1], "_1": [None], "_2": [3]})
        >>> Columns(("a`b",), (2,)).of(batch).to_pydict()
        {'a`b': [3]}
        """
        return pa.RecordBatch.from_arrays([batch.column(at) for at in self.at], self.names)


def shared(schemas: Sequence[Sequence[tuple[str, Any]]]) -> tuple[Columns, ...]:
    """Where the columns of inputs are in the rows of all of them, from their names and types.

    >>> shared([[("id", int)]])
    (Columns(names=('id',), at=(0,)),)
    >>> for columns in shared([[("n", int), ("m", int)], [("word", str), ("n", int)]]):
    ...     print(columns)
    Columns(names=('n', 'm'), at=(1, 3))
    Columns(names=('word', 'n'), at=(2, 1))
    """
    if len(schemas) == 1:
        return (Columns(tuple(name for name, _ in schemas[0]), tuple(range(len(schemas[0])))),)
    kinds: list[Any] = [None]
    found: list[list[int]] = [[] for _ in schemas]
    # In turn, so that the first columns of each are among the first of all.
    for fields in zip_longest(*schemas):
        for mine, field in zip(found, fields, strict=True):
            if field is None:
                continue
            at = 1
            while at < len(kinds) and (at in mine or kinds[at] != field[1]):
                at += 1
            if at == len(kinds):
                kinds.append(field[1])
            mine.append(at)
    return tuple(
        Columns(tuple(name for name, _ in schema), tuple(mine))
        for schema, mine in zip(schemas, found, strict=True)
    )


@dataclass(frozen=True)
class Ends:
    """How the flow's inputs and outputs lie in the rows that a stage reads and writes."""

    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, pa.Schema], ...]
    """Each output's name and the schema of its table."""
    columns: tuple[Columns, ...] = ()
    """The columns of each input."""

    @property
    def result(self) -> pa.Schema:
        """The schema of the rows that the stage writes."""
        if len(self.outputs) == 1:
            return self.outputs[0][1]
        fields = [pa.field(OUTPUT, pa.int32())]
        # Numbers, so that no name of a user's can be in the way.
        for number, (_, schema) in enumerate(self.outputs):
            fields.append(pa.field(f"_{number}", pa.struct(list(schema))))
        return pa.schema(fields)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer and larger batches: an operator has a fixed cost for each.

    >>> some = [pa.RecordBatch.from_pydict({"n": [number] * 10_000}) for number in range(5)]
    >>> [len(batch) for batch in gathered(some)], next(gathered(some[:1])) is some[0]
    ([40000, 10000], True)
    """
    some: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        some.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROWS_IN or size >= BYTES_IN:
            joined = _joined(some)
            # These are not to stay in memory while the joined rows are worked on.
            some, rows, size = [], 0, 0
            yield from joined
    if some:
        yield from _joined(some)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) == 1:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def run_task(
    flow: Flow,
    ends: Ends,
    meeting: Meeting,
    by_gathering: bool,
    counts: Accumulator[Counts] | None,
    feed: type[SparkBatches],
    batches: Iterator[pa.RecordBatch],
    memory_budget: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """One task: feed the batches to a worker, and yield the rows of its outputs."""
    from pyspark import BarrierTaskContext

    with join_peers(BarrierTaskContext.get(), meeting, by_gathering) as group:
        log.info("worker %d of %d of flow %r begins", group.rank, group.workers, flow.name)
        with closing(group.agent(flow, memory_budget=memory_budget)) as agent:
            inputs = inputs_of(agent, ends)
            rows = SparkRows(agent, ends)
            heard = group.driver if meeting.heard else None
            driver = None if heard is None else Onlooker(heard)
            reader = feed(agent, inputs, ends.columns, batches)
            agent.attach(feed=reader, sink=rows, driver=driver)
            for _ in agent.turns():
                if rows.waits:
                    yield from rows.take(ROWS_OUT)
            # No peer needs this worker any more, whenever Spark accepts the last rows.
            agent.peers.begin_goodbye()
            yield from rows.take(1)
            agent.report()
        group.leave()
        log.info("worker %d of flow %r has ended", group.rank, flow.name)
        if counts is not None:
            counts.add(counted(agent, group.epoch))


@dataclass(slots=True)
class PeerGroup:
    """A task's connections to its peers and to the driver, and its rank among them."""

    rank: int
    workers: int
    listener: Listener
    mesh: Mesh
    driver: socket.socket | None
    """The connection to the driver, where there is one."""
    meeting: Meeting | None
    """Where to report a failure, if the driver can be reached."""
    stage: int
    epoch: int
    control: Control | None = None
    """The driver's end of the connection, if it takes reports of failures there too."""

    def __enter__(self) -> PeerGroup:
        return self

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        """Close all connections; an error is reported, and raised as the first cause."""
        try:
            # Spark may need no more rows, which is not a failure of this worker.
            if error is not None and not isinstance(error, GeneratorExit | SparkLeft):
                raise self._failed(error) from None
        finally:
            self.close()

    def agent(
        self, flow: Flow, restore: Snapshot | None = None, memory_budget: int | None = None
    ) -> Agent:
        """The agent of this worker."""
        return Agent(
            flow,
            self.mesh,
            index=self.rank,
            workers=self.workers,
            restore=restore,
            memory_budget=memory_budget,
        )

    def leave(self) -> None:
        """End in good order, together with the peers."""
        self.mesh.say_goodbye()

    def _failed(self, error: BaseException) -> JetonError:
        """The error to raise in this task: the first cause, the same on all workers.

        The driver hears of it before the peers do, so that their failures are known to follow
        from this one.
        """
        cause = error if isinstance(error, PeerFailed) else self._report(error)
        self.mesh.fail(cause)
        hide_traceback()
        # A worker that was lost is all that is known then, and worth another attempt.
        return cause if isinstance(cause, PeerLost) else WorkerFailed(cause.text)

    def _report(self, error: BaseException) -> PeerFailed | PeerLost:
        """Report to the driver, which answers with the first cause."""
        failure = Failure.of(error, self.rank, dumps=dumps_by_value)
        if self.meeting is not None:
            with suppress(OSError, JetonError, ValueError, KeyError):
                failure = report_failure(
                    self.meeting,
                    rank=self.rank,
                    stage=self.stage,
                    epoch=self.epoch,
                    failure=failure,
                )
        if self.control is not None:
            with suppress(OSError):
                self.control.send("failed", failure=failure.to_json())
        if isinstance(error, PeerLost) and failure.lost:
            return error
        return PeerFailed(self.rank if failure.worker is None else failure.worker, failure.text)

    def close(self) -> None:
        """Close all sockets."""
        self.mesh.close()
        self.listener.close()
        if self.driver is not None:
            self.driver.close()


def join_peers(
    context: BarrierTaskContext,
    meeting: Meeting,
    by_gathering: bool,
    arrange: Callable[[socket.socket], Sequence[int]] | None = None,
) -> PeerGroup:
    """Meet the other tasks of the stage and connect to each of them.

    ``arrange`` may ask the driver which worker each task shall be; by default they are numbered
    like the partitions that they read.
    """
    # While peers meet, so that the first batch does not wait for it.
    Thread(target=get_ready, name="jeton-get-ready", daemon=True).start()
    infos = context.getTaskInfos()
    rank, workers = context.partitionId(), len(infos)
    # Bind no wider than the address that Spark itself shows for this executor.
    host = infos[rank].address.rsplit(":", 1)[0].strip("[]")
    listener = Listener(
        meeting.secret, host, credentials=meeting.credentials, binding=meeting.binding
    )
    attempt = context.taskAttemptId()
    driver: socket.socket | None = None
    try:
        if by_gathering:
            said = context.allGather(json.dumps([attempt, *vars(listener.address).values()]))
            rows = [json.loads(text) for text in said]
            epoch = max(row[0] for row in rows) % (1 << 31)
            addresses = {at: Address(*row[1:]) for at, row in enumerate(rows)}
        else:
            try:
                epoch, addresses, driver = meet(
                    meeting,
                    rank=rank,
                    workers=workers,
                    stage=context.stageId(),
                    attempt=attempt,
                    address=listener.address,
                )
            except OSError as error:
                raise JetonError(
                    f"worker {rank} cannot reach the driver at {meeting.host}:{meeting.port} "
                    f"({error}): the address must be one that executors can connect to. It is "
                    "spark.driver.host of a classic session, and spark.jeton.client.host under "
                    "Spark Connect, which a firewall may be in the way of"
                ) from error
            if arrange is not None:
                numbers = arrange(driver)
                addresses = {numbers[at]: address for at, address in addresses.items()}
                rank = numbers[rank]
        mesh = Mesh(rank, addresses, listener, epoch)
    except BaseException as error:
        listener.close()
        if driver is not None:
            driver.close()
        if isinstance(error, FailedBefore):
            hide_traceback()
            raise WorkerFailed(error.message) from None
        raise
    known = None if by_gathering else meeting
    return PeerGroup(rank, workers, listener, mesh, driver, known, context.stageId(), epoch)


class SparkLeft(JetonError):
    """Spark has hung up while a task was reading from it."""


class Onlooker(Control):
    """The driver of a batch: it may look on at the reports, and gives no commands."""

    def send(self, kind: str, payload: bytes = b"", **header: Any) -> None:
        """Send a report, if the driver still listens."""
        with suppress(OSError):
            super().send(kind, payload, **header)

    def has_news(self, timeout: float = 0.0) -> bool:
        """Nothing is heard of it."""
        return False


class SparkBatches(NoFeed):
    """The feed of a batch: Arrow batches from Spark, read when the worker has nothing to do.

    Reading may block until Spark has more. After the last batch the inputs are closed.
    """

    gathers: ClassVar[bool] = True
    """Whether batches are put together before they are sent."""

    def __init__(
        self,
        agent: Agent,
        inputs: Sequence[InputHandle],
        columns: Sequence[Columns],
        batches: Iterator[pa.RecordBatch],
    ) -> None:
        self._agent = agent
        self._inputs = inputs
        self._columns = columns
        self._batches = gathered(batches) if self.gathers else batches
        self._ended = False
        for handle in inputs:
            # DataFrames are complete, so nothing in them is late: each input advances at its end.
            handle.lateness = None

    @property
    def ended(self) -> bool:
        """Whether Spark has no more batches."""
        return self._ended

    def read(self, busy: bool) -> bool:
        """Send the rows of one batch."""
        if busy or self._ended:
            return False
        try:
            batch = next(self._batches, None)
        except OSError as error:
            # The connection broke, or ended within a batch.
            raise SparkLeft("Spark has ended this task, and needs no more rows of it") from error
        if batch is None:
            self._ended = True
            self.end()
        else:
            self.take(batch)
        return True

    def take(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch to the inputs that they belong to."""
        for number, rows in rows_by_input(self._columns, batch):
            self.send(number, rows)

    def send(self, number: int, rows: pa.RecordBatch) -> None:
        """Send rows to the input of that number."""
        self._inputs[number].send(rows)

    def end(self) -> None:
        """There are no more batches."""
        for handle in self._inputs:
            handle.close()
        flow, known = self._agent.flow, self._agent.worker.handles
        for what, name in flow.handles():
            if what == "sequencer":
                known[flow.handle(what, name)].close()

    def patience(self, idle: float) -> float:
        """Nothing to wait for, as long as there are batches."""
        return math.inf if self._ended else 0.0


class SparkRows(NoSink):
    """The sink of a stage: rows wait where the outputs collect them, until Spark takes them."""

    def __init__(self, agent: Agent, ends: Ends) -> None:
        handles, flow = agent.worker.handles, agent.flow
        self._ends = ends
        self._collected: list[list[Batch]] = [
            handles[flow.handle("output", name)] for name, _ in ends.outputs
        ]
        self.rows = 0

    @property
    def waits(self) -> bool:
        """Whether any output has collected rows."""
        return any(self._collected)

    def take(self, least: int) -> Iterator[pa.RecordBatch]:
        """The rows of each output that has collected enough to be worth handing over."""
        for rows in take_rows(self._ends, self._collected, least=least):
            self.rows += rows.num_rows
            yield rows


def inputs_of(agent: Agent, ends: Ends) -> list[InputHandle]:
    """A worker's inputs, in the order of the stage's."""
    known, flow = agent.worker.handles, agent.flow
    handles: list[InputHandle] = [known[flow.handle("input", name)] for name in ends.inputs]
    for name, handle in zip(ends.inputs, handles, strict=True):
        if not isinstance(handle, InputHandle):
            raise GraphError(f"input {name!r} is unordered: Spark cannot hold its tokens")
    return handles


def rows_by_input(
    columns: Sequence[Columns], batch: pa.RecordBatch
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each input in a batch from Spark, with the input's number.

    >>> batch = pa.RecordBatch.from_pydict({"_0": [1, 0], "_1": [5, 6], "_2": [None, "a"]})
    >>> columns = Columns(("n", "word"), (1, 2)), Columns(("m",), (1,))
    >>> [(number, rows.to_pylist()) for number, rows in rows_by_input(columns, batch)]
    [(0, [{'n': 6, 'word': 'a'}]), (1, [{'m': 5}])]
    """
    if len(columns) == 1:
        yield 0, columns[0].of(batch)
        return
    if not len(batch):
        return
    which = batch.column(0)
    least, greatest = pc.min_max(which).values()
    for number in range(least.as_py(), greatest.as_py() + 1):
        rows = columns[number].of(batch)
        if least != greatest:
            rows = rows.filter(pc.equal(which, number))
        if len(rows):
            yield number, rows


def take_rows(
    ends: Ends, collected: Sequence[list[Batch]], *, least: int
) -> Iterator[pa.RecordBatch]:
    """The rows that outputs have collected, once there are at least ``least``."""
    for number, (batches, (name, schema)) in enumerate(zip(collected, ends.outputs, strict=True)):
        if sum(map(len, batches)) < least:
            continue
        table = conform_table(concat(batches).to_arrow(), schema, name)
        batches.clear()
        for batch in table.to_batches():
            yield batch if len(ends.outputs) == 1 else _tagged(ends, number, batch)


def conform_table(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """A table with exactly the types that were promised to Spark.

    >>> conform_table(pa.table({"n": [1]}), pa.schema([("n", pa.int16())]), "numbers").schema
    n: int16
    """
    try:
        table = table.select(schema.names)
        for at, field in enumerate(schema):
            if pa.types.is_date32(field.type) and pa.types.is_int64(table.schema.field(at).type):
                # Times are integers inside, and Arrow makes dates only of short ones.
                table = table.set_column(at, field.name, table.column(at).cast(pa.int32()))
        return table.cast(schema)
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise JetonError(
            f"output {name!r} was declared with the columns {schema.names} but has "
            f"{table.schema.names}: {error}"
        ) from error


def _tagged(ends: Ends, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    arrays: list[Any] = [pa.array([number] * len(batch), pa.int32())]
    for at, (_, schema) in enumerate(ends.outputs):
        kind = pa.struct(list(schema))
        arrays.append(
            pa.StructArray.from_arrays(batch.columns, fields=list(schema))
            if at == number
            else pa.nulls(len(batch), kind)
        )
    return pa.RecordBatch.from_arrays(arrays, schema=ends.result)
