"""Input and output of a long-lived query on one worker: its sources, and sinks for its rows."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

import pyarrow as pa

from jeton.cluster.control import written_table
from jeton.cluster.failures import blaming
from jeton.columns.batch import Batch, concat
from jeton.connectors.sinks import Sink, SinkContext
from jeton.connectors.sinks.driver_sink import Prepare
from jeton.connectors.source_plan import share
from jeton.connectors.source_reader import SourceReader
from jeton.connectors.sources import Source
from jeton.dataflow.plan import answers_at_once
from jeton.runtime.agent import Agent
from jeton.runtime.attachments import Positions
from jeton.runtime.commands import Connection
from jeton.runtime.read_ahead import ReadAhead

LEAST_PATIENCE: Final = 0.0005
MOST_PATIENCE: Final = 0.02
"""Seconds between polls of a source that has no records and does not know when it will."""
LEAD: Final = 4 << 20
"""Bytes that a partition may be read beyond the time of the slowest one: few enough for caches."""
LEAST_READS: Final = 4
"""Reads that it may be ahead in any case: otherwise workers would take turns with large ones."""
LEAD_PATIENCE: Final = 0.1
"""Seconds after which a partition does not wait for one that is behind, and reads further."""
CREDIT: Final = 8 << 20
"""Bytes of rows that a sink at the driver has not taken, from which on a worker sends no more."""


class WorkerSources:
    """The feed of a long-lived query: reads this worker's partitions of all sources.

    Where all results of an input wait for times to pass, its partitions are read in step (see
    `jeton.runtime.read_ahead`), as long as the slowest one catches up soon.

    >>> import jeton as jt
    >>> from jeton.connectors.sources import Batches
    >>> flow = jt.Flow("fed")
    >>> flow.output("out", flow.input("n"))
    >>> agent = Agent(flow)
    >>> source = Batches(lambda partition, partitions: iter([{"time": [3]}]))
    >>> feed = WorkerSources(agent, {"n": source}, {"n": {"0/1": {"position": None}}})
    >>> feed.read(busy=False), feed.positions()["n"]["0/1"]["position"]
    (True, 1)
    """

    awaits_command = False

    def __init__(
        self,
        agent: Agent,
        sources: Mapping[str, Source],
        partitions: Positions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``partitions`` has those of all workers: this one reads its share."""
        worker = agent.worker
        self._clock = clock
        self._readers: list[SourceReader] = []
        for name, source in sources.items():
            handle = worker.handles[agent.flow.handle("input", name)]
            mine = share(partitions[name], worker.index, worker.workers)
            declared = agent.flow.declared(name)
            time_name = agent.flow.time_name(name)
            source = source if declared is None else source.typed(declared, time_name)
            ahead = _in_step(agent, name, clock)
            with blaming(name, "opening its source"):
                self._readers.append(SourceReader(name, handle, source, mine, clock, ahead))

    @property
    def rejected(self) -> int:
        """Records that could not be read, and have been put elsewhere."""
        return sum(reader.rejected for reader in self._readers)

    @property
    def ended(self) -> bool:
        """Whether all inputs are closed."""
        return not any(reader.is_open for reader in self._readers)

    def read(self, busy: bool) -> bool:
        """Ask each partition of each source once."""
        read = False
        for reader in self._readers:
            with blaming(reader.name, "reading its source"):
                read = reader.read() or read
        return read

    def patience(self, idle: float) -> float:
        """Seconds until a source is worth asking again.

        A source that does not know is polled less often the longer it has had no records. So a
        record waits for at most a tenth of the time since the last one, and an idle query costs
        little.
        """
        least, now = math.inf, self._clock()
        for reader in self._readers:
            if reader.is_open:
                ready_at = reader.ready_at
                unknown = min(max(idle / 10, LEAST_PATIENCE), MOST_PATIENCE)
                least = min(least, unknown if ready_at is None else max(ready_at - now, 0.0))
        return least

    def advance(self, inputs: Mapping[str, int]) -> None:
        """Let inputs whose partitions here are all idle follow those of other workers."""
        for reader in self._readers:
            if reader.name in inputs:
                reader.follow(inputs[reader.name])

    def add_partitions(self, name: str, partitions: Mapping[str, Mapping[str, Any]]) -> None:
        """Read partitions of a source that have appeared."""
        for reader in self._readers:
            if reader.name == name:
                with blaming(name, "opening its source"):
                    reader.add(partitions)

    def positions(self) -> Positions:
        """Where each partition of each source is."""
        return {reader.name: reader.positions() for reader in self._readers}

    def state(self) -> Mapping[str, Any]:
        """How far each open input is, and whether all its partitions here are idle."""
        return {reader.name: reader.state for reader in self._readers if reader.is_open}

    def close(self) -> None:
        """Close all inputs."""
        for reader in self._readers:
            reader.close()

    def release(self) -> None:
        """Close all readers, at the end of the worker."""
        for reader in self._readers:
            with blaming(reader.name, "closing its source"):
                reader.release()


def _in_step(agent: Agent, name: str, clock: Callable[[], float]) -> Callable[[], ReadAhead] | None:
    """A measure of how far a partition is ahead of others of its input.

    There is none where results come without waiting for times.
    """
    flow, worker = agent.flow, agent.worker
    node = flow.handle("input", name)
    if not flow.kind.integers or answers_at_once(flow.operators, node):
        return None
    location = worker.graph.nodes[node].outputs[0]
    return partial(
        ReadAhead,
        worker.tracker,
        location,
        most=LEAD,
        reads=LEAST_READS,
        patience=LEAD_PATIENCE,
        clock=clock,
    )


class Tables(Protocol):
    """A receiver of the tables of a worker's outputs."""

    @property
    def is_full(self) -> bool:
        """Whether tables wait until others are taken."""
        ...

    @property
    def waits_for(self) -> str:
        """The reason why it is full, as the end of a sentence; empty if it is not."""
        ...

    @property
    def uncommitted(self) -> Mapping[str, int]:
        """For outputs how many rows wait for the next checkpoint."""
        ...

    def write(self, output: str, table: pa.Table) -> None:
        """Take rows of an output."""
        ...

    def poll(self) -> None:
        """Do what is due."""
        ...

    def taken(self, output: str, size: int) -> None:
        """Bytes of an output's rows were taken at the other end."""
        ...

    def finish(self) -> None:
        """End in good order."""
        ...


class OutputSink:
    """The sink of a long-lived query: hands each output's rows on as tables."""

    def __init__(self, agent: Agent, outputs: Collection[str], tables: Tables) -> None:
        """Rows of the other outputs are dropped."""
        flow = agent.flow
        self.rows = 0
        self.taken = tables.taken
        self.finish = tables.finish
        self._tables = tables
        self._flow = flow
        self._outputs = frozenset(outputs)
        self._collected: dict[str, list[Batch]] = {
            name: agent.worker.handles[flow.handle("output", name)] for name in flow.outputs
        }

    @property
    def is_full(self) -> bool:
        """Whether tables wait until others are taken."""
        return self._tables.is_full

    @property
    def waits_for(self) -> str:
        """The outputs whose rows wait, as the end of a sentence."""
        return self._tables.waits_for

    @property
    def uncommitted(self) -> Mapping[str, int]:
        """For outputs how many rows wait for the next checkpoint."""
        return self._tables.uncommitted

    def write(self) -> None:
        """Hand over what the outputs have collected."""
        for name, collected in self._collected.items():
            if collected and name in self._outputs:
                table = typed_table(concat(collected).to_arrow(), self._flow.output_schema(name))
                self.rows += table.num_rows
                if table.num_rows:
                    self._tables.write(name, table)
            collected.clear()
        self._tables.poll()


class Writers:
    """The tables' way without checkpoints: to a writer for each output, which commits by itself."""

    uncommitted: Mapping[str, int] = MappingProxyType({})

    def __init__(self, writers: Mapping[str, Committing | ToDriver]) -> None:
        self._writers = writers
        self._to_driver = {n: each for n, each in writers.items() if isinstance(each, ToDriver)}

    @property
    def is_full(self) -> bool:
        """Whether there are rows that cannot be sent before a sink has taken others."""
        return any(writer.is_full for writer in self._to_driver.values())

    @property
    def waits_for(self) -> str:
        """The outputs whose rows wait, as the end of a sentence."""
        full = [
            f"the sink of output {name!r}, which has not taken {writer.untaken:,} bytes of rows"
            for name, writer in self._to_driver.items()
            if writer.is_full
        ]
        return f"reads no sources, since it waits for {' and '.join(full)}" if full else ""

    def write(self, output: str, table: pa.Table) -> None:
        """Write rows of an output."""
        with blaming(output, "writing to its sink"):
            self._writers[output].write(table)

    def poll(self) -> None:
        """Commit rows that are due."""
        for name, writer in self._writers.items():
            with blaming(name, "writing to its sink"):
                writer.poll()

    def taken(self, output: str, size: int) -> None:
        """A sink at the driver has taken rows."""
        self._to_driver[output].taken(size)

    def finish(self) -> None:
        """Close all writers."""
        for name, writer in self._writers.items():
            with blaming(name, "closing its sink"):
                writer.close()


class Committing:
    """A worker's end of a sink, without checkpoints: it commits its rows by itself.

    It does so some seconds after the first of them, and at the end.

    >>> import tempfile
    >>> from jeton.connectors.sinks import Parquet
    >>> sink, now = Parquet(tempfile.mkdtemp()), [0.0]
    >>> def visible():
    ...     return [name for name in sink.files.names(sink.path) if name.startswith("part-")]
    >>> writer = Committing(sink, SinkContext("mine", worker=0), every=5.0, clock=lambda: now[0])
    >>> writer.write(pa.table({"n": [1, 2]}))
    >>> writer.poll()
    >>> visible()
    []
    >>> now[0] = 5.0
    >>> writer.poll()
    >>> len(visible())
    1
    """

    def __init__(
        self,
        sink: Sink,
        context: SinkContext,
        every: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink = sink
        self._context = context
        self._every = math.inf if every is None else every
        self._clock = clock
        self._writer = sink.open(context)
        self._due = math.inf
        self._version = 0

    def write(self, table: pa.Table) -> None:
        """Write rows."""
        self._writer.write(table)
        self._due = min(self._due, self._clock() + self._every)

    def poll(self) -> None:
        """Commit what was written, if it is time to."""
        if self._due < math.inf and self._clock() >= self._due:
            self._commit()

    def close(self) -> None:
        """Commit all that was written."""
        self._commit()
        self._writer.close()

    def _commit(self) -> None:
        self._version, self._due = self._version + 1, math.inf
        staged = self._writer.stage(self._version)
        self._sink.commit(self._context, self._version, staged)
        self._sink.clean(self._context, staged)


class ToDriver:
    """A worker's end of a sink at the driver, without checkpoints.

    Rows that the driver cannot take yet wait here, and the worker reads no more until they are
    sent, so that there are never many.
    """

    def __init__(self, driver: Connection, output: str, prepare: Prepare | None = None) -> None:
        self._driver = driver
        self._output = output
        self._prepare = prepare
        self._waiting: deque[pa.Table] = deque()
        self._on_their_way = 0

    @property
    def is_full(self) -> bool:
        """Whether rows wait here."""
        return bool(self._waiting)

    @property
    def untaken(self) -> int:
        """Bytes of rows that wait here, or are on their way to the sink."""
        waiting: int = sum(table.nbytes for table in self._waiting)
        return self._on_their_way + waiting

    def write(self, table: pa.Table) -> None:
        """Send rows, as soon as the driver can take them."""
        if self._prepare is not None:
            table = self._prepare(table)
        rows = max(1, table.num_rows * CREDIT // max(table.nbytes, CREDIT))
        self._waiting.extend(table.slice(at, rows) for at in range(0, table.num_rows, rows))
        self._send()

    def poll(self) -> None:
        """Do nothing: the driver says when it has taken rows."""

    def taken(self, size: int) -> None:
        """The sink has taken rows."""
        self._on_their_way -= size
        self._send()

    def close(self) -> None:
        """Do nothing: the driver knows the end."""

    def _send(self) -> None:
        while self._waiting and self._on_their_way < CREDIT:
            payload = written_table(self._waiting.popleft())
            self._on_their_way += len(payload)
            self._driver.send("rows", payload, output=self._output)


def typed_table(table: pa.Table, known: pa.Schema | None) -> pa.Table:
    """The same rows, where columns of nothing but nulls have the types that the flow knows."""
    for at, field in enumerate(table.schema):
        if pa.types.is_null(field.type) and known is not None and field.name in known.names:
            kind = known.field(field.name).type
            table = table.set_column(at, field.name, table.column(at).cast(kind))
    return table
