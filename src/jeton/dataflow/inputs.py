"""Inputs: handles that send records from outside and advance their times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import time_columns
from jeton.columns.batch import Batch
from jeton.columns.column import plain
from jeton.columns.schema import SchemaLike, as_schema, time_type
from jeton.columns.tables import as_table
from jeton.columns.time_columns import Times
from jeton.columns.time_units import INTEGER, convert
from jeton.core.errors import (
    BatchError,
    GraphError,
    JetonError,
    SnapshotError,
    TimeError,
    TokenError,
)
from jeton.core.times import IntegerTimes, Time, TimeKind
from jeton.core.tokens import ActivatingToken, TimestampToken, TokenRef
from jeton.dataflow.partitions import (
    Partition,
    PartitionKey,
    StoredPartition,
    passed,
    restored,
    sift,
    slowest,
    stored,
)
from jeton.dataflow.plan import OperatorInfo, SourcePort
from jeton.dataflow.ports import PostedOutput, Session, is_single
from jeton.dataflow.stream import Stream
from jeton.state.snapshot import BIN, for_everyone

if TYPE_CHECKING:
    from jeton.dataflow.scope import Scope


LATE_AT: Final = "late_at"
"""The time column of late records, whose own times have the name of the input's time column."""


class InputStream(Stream):
    """The stream of an input, with the records that came too late beside it."""

    @property
    def late(self) -> Stream:
        """Records below the input's time when they were sent.

        They have all their columns, also their own time under its name. The time column of this
        stream is another one, ``late_at`` (``late_at_`` if the schema has such a column): the
        least time at which they would not have been late. Until an operator reads this stream,
        the output behind it does not exist, and costs nothing.

        >>> import jeton as jt
        >>> flow = jt.Flow("late")
        >>> numbers = flow.input("n")
        >>> flow.output("late", numbers.late)
        >>> with flow.open() as run:
        ...     run.input("n").advance_to(5)
        ...     run.input("n").send({"time": [3, 6], "n": [1, 2]})
        ...     run.finish()["late"].to_pylist()
        [{'late_at': 5, 'time': 3, 'n': 1}]
        """
        schema, name = self.schema, LATE_AT
        while name in (self.time_name, *(schema.names if schema is not None else ())):
            name += "_"
        if schema is not None:
            own = self.flow.domain.type if isinstance(self.kind, IntegerTimes) else pa.null()
            schema = schema.insert(0, pa.field(self.time_name, own))
        late = SourcePort(self.sources[0].operator, 1)
        return self.scope.stream([late], name, schema)


def add_input(
    scope: Scope,
    name: str,
    time: str,
    schema: SchemaLike | None,
    lateness: int | None = None,
    idle_after: float | None = None,
) -> InputStream:
    """Add the operator of `Flow.input`."""
    if idle_after is not None and not idle_after > 0:
        raise GraphError(
            f"input {name!r} cannot take partitions for idle after {idle_after:g} seconds: give a "
            "number above zero, or None to wait for them indefinitely"
        )
    known = None if schema is None else as_schema(schema, time)
    timed = schema is not None and time_type(schema, time) is not None
    builder = scope.operator(name, time=time)
    builder.output(schema=known)

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> None:
        handle = InputHandle(name, tokens, info, known, lateness, idle_after, timed)
        info.publish(handle)
        info.keep(handle)

    builder.build(build)
    return InputStream(scope, [SourcePort(scope.flow.operators[-1].index, 0)], time, known)


class InputHandle:
    """One worker's end of an input: send records, advance, close.

    Records may be sent at the input's time or any later one. Those below it are *late*: they
    are counted in `late_count` and go to the input's late output if an operator reads it.

    An input with a `lateness` also advances by itself, to the greatest time sent so far less
    that: as if records were sent one by one, so that it does not matter how they are batched.

    A handle is one partition of the input, unless `partition` opens several: then each has a
    floor of its own, and the input advances with the slowest of them.
    """

    def __init__(
        self,
        name: str,
        tokens: list[TimestampToken],
        info: OperatorInfo,
        schema: pa.Schema | None = None,
        lateness: int | None = None,
        idle_after: float | None = None,
        timed: bool = False,
    ) -> None:
        self.name = name
        self.lateness = lateness
        self.idle_after = idle_after
        self._info = info
        self._schema = schema
        self._timed = timed
        """Whether the schema declares the time column: then all records have one."""
        self._outputs = [PostedOutput(output, info.post) for output in info.outputs]
        for output in info.outputs:
            output.notes_times = False  # `furthest` has them as soon as they are sent
        self._tokens = [token.activating() for token in tokens]
        tokens.clear()
        self._time: Time = self._tokens[0].time
        self._own: Partition | None = None
        self._partitions: dict[PartitionKey, Partition] = {}
        self._restored: dict[PartitionKey, StoredPartition] = {}
        """Partitions before a restart that have not been opened again."""
        self.turn: AbstractContextManager[Any] = nullcontext()
        """Held during each act, where another thread may look at the input or steer the flow."""
        self.became_idle: Callable[[], None] = lambda: None
        """Called when this input no longer waits for any partition on this worker."""
        self.late_count = 0
        self.sent_count = 0
        """The number of records sent, late ones included."""
        self.furthest: int | None = None
        """The greatest time of a record sent so far, where times are integers."""
        self.held_from: int | None = None
        """The time of the breakpoint that holds this input, if one does."""
        self._closed = False

    @property
    def time(self) -> Time:
        """The time below which nothing more can be sent."""
        return self._time

    @property
    def kind(self) -> TimeKind:
        """The kind of this input's times."""
        return self._info.kind

    @property
    def closed(self) -> bool:
        """Whether the input has ended on this worker."""
        return self._closed

    @property
    def idle(self) -> bool:
        """Whether there are partitions, but all of them have ended or are idle."""
        known = self._known()
        return bool(known) and not any(each.holds for each in known)

    @property
    def partitions(self) -> list[Partition]:
        """The partitions that were opened so far."""
        return list(self._partitions.values())

    def partition(
        self, key: PartitionKey, *, floor: int | None = None, idle: bool = False
    ) -> Partition:
        """The partition of that name, opened if it is new: from now on the input waits for it.

        Open all partitions before the first of them sends, also after a restart.
        A new one starts where it was in the snapshot that the run goes on from, idle if it was, or
        at the least time. A host that stores floors itself, as long-lived queries do, gives it a
        ``floor``, and says whether it is ``idle``.
        """
        with self.turn:
            self._require_open()
            found = self._partitions.get(key)
            return self._opened(key, floor, idle) if found is None else found

    def _opened(self, key: PartitionKey, floor: int | None, idle: bool) -> Partition:
        if not isinstance(self.kind, IntegerTimes):
            raise GraphError(f"input {self.name!r} has no integer times: partitions need them")
        new = StoredPartition(self.kind.minimum, ended=False, idle=False)
        at = self._restored.pop(key, new)
        if floor is not None:
            at = at._replace(floor=floor, idle=idle)
        found = Partition(self, key, at.floor, ended=at.ended, idle=at.idle, stored=floor is None)
        # The input stays where it is until one sends: others may be opened still.
        self._partitions[key] = found
        if self.idle:
            self.became_idle()
        return found

    def narrow(self, columns: Sequence[str]) -> None:
        """Take records with these of the declared columns only, before the first is sent.

        For a host that knows which columns the flow uses.
        """
        if self._schema is not None:
            self._schema = pa.schema([each for each in self._schema if each.name in columns])

    def send(self, data: Any = None, *, times: Any = None, **columns: Any) -> None:
        """Send records: a batch, a table, a dictionary or keyword columns.

        Times come from the batch, from the time column, from ``times``, or are the input's own;
        if it has not advanced yet, zero. An input whose schema declares the time column does not
        lend its own.
        """
        with self.turn:
            own = None
            if self.lateness is not None:
                own = self._own = self._own or Partition(self, None, self._time)
            self.send_from(own, data, times, columns)

    def send_from(
        self, partition: Partition | None, data: Any, times: Any, columns: Mapping[str, Any]
    ) -> None:
        """Send records of a partition, whose floor they raise if there is a lateness."""
        self._require_open()
        try:
            batch = self._as_batch(data, times, columns, self._now(partition))
            batch = self.in_flow_unit(batch)
        except JetonError as error:
            error.located(operator=self.name, worker=self._info.worker)
            raise
        if len(batch) == 0:
            return
        self.sent_count += len(batch)
        if self._info.kind.integers:
            _, most = batch.extent()
            if self.furthest is None or most > self.furthest:
                self.furthest = most
            if partition is not None and (partition.latest is None or most > partition.latest):
                partition.latest = most
        if self._schema is not None:
            batch = batch.conform(self._schema, f"input {self.name!r}")
        if partition is not None:
            partition.wake()
        bound = self._time
        if partition is None or self.lateness is None:
            if partition is not None:
                bound = max(bound, partition.floor)
            if batch.bound_from(bound) is None:
                late = self._earlier(batch, bound)
                at = time_columns.constant(self.kind, bound, int(late.sum()))
                batch = self._set_late_aside(batch, late, at)
        else:
            floor, least = partition.floor, self.kind.minimum
            late, count, partition.floor = sift(
                plain(batch.times), floor, bound, self.lateness, least
            )
            if count:
                at = passed(batch.times, floor, bound, self.lateness, least)[late]
                batch = self._set_late_aside(batch, late, at)
        self._outputs[0].send(batch.bound_from(self._time), batch)
        if partition is not None:
            self.settle()

    def settle(self) -> None:
        """Advance as far as the slowest partition allows."""
        if self._closed:
            return
        least = slowest(self._known())
        if least is None:
            self.became_idle()
        elif self._time < least:
            self.advance_to(least)

    def advance_to(self, time: Time) -> None:
        """Promise to send nothing before ``time`` any more.

        It is a timestamp, or an integer in the unit of the flow.
        """
        with self.turn:
            self._require_open()
            time = self.check(time)
            if not self._time <= time:
                now = self.in_words(self._time)
                raise TimeError(
                    f"input {self.name!r} is at {now} and cannot go back to {self.in_words(time)}"
                ).located(operator=self.name, worker=self._info.worker, time=self._time, moment=now)
            for token in self._tokens:
                token.downgrade(time)
            self._time = time

    def check(self, time: Any) -> Time:
        """A time of this input: timestamps are converted to the unit of the flow."""
        if type(time) is not int and self.kind.integers:
            time = self._outputs[0].units.time(time, self.name)
        return self.kind.check(time)

    def in_words(self, time: Time) -> str:
        """A time for people, as the records of the flow have it."""
        return self._outputs[0].book.in_words(time)

    def close(self) -> None:
        """End this input on this worker. Closing twice is harmless."""
        with self.turn:
            if not self._closed:
                self._closed = True
                for token in self._tokens:
                    token.drop()

    time_columns = ("time", "floor", "furthest")

    def snapshot(self) -> pa.Table:
        """The input's time and partitions; every worker restores them."""
        furthest, held = self.furthest, self.held_from
        if furthest is not None and held is not None:
            # Records that are held back have not gone in; at the start of time, none have.
            furthest = None if held == self.kind.minimum else min(furthest, held - 1)
        if not isinstance(self.kind, IntegerTimes):
            raise SnapshotError("snapshots need integer times").located(operator=self.name)
        return for_everyone(
            pa.table(
                {
                    BIN: np.zeros(1, dtype=np.uint16),
                    "time": np.array([self._time], dtype=np.int64),
                    "closed": np.array([self._closed]),
                    "unit": pa.array([self._outputs[0].units.unit], pa.string()),
                    "partitions": [stored(self._partitions, self._restored)],
                    "worker": np.array([self._info.worker], dtype=np.int64),
                    "floor": pa.array([self._own and self._own.floor], pa.int64()),
                    "furthest": pa.array([furthest], pa.int64()),
                }
            )
        )

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """Go on where the slowest of the inputs before was; close if all were closed.

        A handle's own floor is that of the same worker before: its records are late if they were.
        On another number of workers records come to other handles, so that all of them begin at
        the time of the slowest.
        """
        if "partitions" in state.column_names:
            self._restored = restored(pc.unique(state.column("partitions")).to_pylist())
            for unit in pc.unique(state.column("unit")).drop_null().to_pylist():
                self._outputs[0].units.restore(unit)
        if "furthest" in state.column_names:
            self.furthest = pc.max(state.column("furthest")).as_py()
        if "floor" in state.column_names and state.num_rows == self._info.workers:
            here = pc.equal(state.column("worker"), self._info.worker)
            for floor in state.filter(here).column("floor").drop_null().to_pylist():
                self._own = Partition(self, None, floor)
        still_open = state.filter(pc.invert(state.column("closed")))
        if still_open.num_rows:
            self.advance_to(pc.min(still_open.column("time")).as_py())
        else:
            self.close()

    def _known(self) -> list[Partition]:
        own = [] if self._own is None else [self._own]
        return [*own, *self._partitions.values()]

    def _as_batch(self, data: Any, times: Any, columns: Mapping[str, Any], now: Time) -> Batch:
        kind, time_name = self._info.kind, self._outputs[0].time_name
        if isinstance(data, Batch):
            return data.named(time_name)
        if columns:
            data = {**(data or {}), **columns}
        if isinstance(data, Mapping):
            data = {n: [v] if is_single(v) and n != time_name else v for n, v in data.items()}
            times = data.pop(time_name, times)
            if times is None and self._timed:
                return Batch.from_arrow(as_table(data), time=time_name, kind=kind)
            given = times is not None
            if isinstance(times, date | np.datetime64):
                # A single record's; its unit is that of a column.
                times = [times] if isinstance(times, date) else np.array([times])
            elif isinstance(times, np.integer):
                times = int(times)
            if times is None or type(times) is int or isinstance(times, tuple):
                length = max((len(values) for values in data.values()), default=0)
                time = now if times is None else kind.check(times)
                times = time_columns.constant(kind, time, length)
            batch = Batch(data, times, time_name=time_name, kind=kind)
            if batch.unit is None and kind.integers and given:
                batch.unit = INTEGER
            return batch
        return Batch.from_arrow(as_table(data), time=time_name, kind=kind)

    def in_flow_unit(self, batch: Batch) -> Batch:
        """The batch with its times in the unit of the flow, exactly."""
        units, unit = self._outputs[0].units, batch.unit
        if unit is None or unit == units.unit or len(batch) == 0:
            return batch
        to = units.admit(unit, self.name)
        what = f"column {batch.time_name!r} of input {self.name!r}"
        converted = batch.at(convert(batch.times, unit, to, what))
        converted.unit = to
        return converted

    def _now(self, partition: Partition | None) -> Time:
        """The time of records that come without one."""
        kind = self._info.kind
        time = self._time if partition is None else max(self._time, partition.floor)
        return kind.origin if time == kind.minimum else time

    def _earlier(self, batch: Batch, bound: Time) -> npt.NDArray[np.bool_]:
        """Which records are not at the bound or later."""
        late = np.zeros(len(batch), np.bool_)
        now = time_columns.constant(self._info.kind, bound, len(batch))
        late[time_columns.earlier(now, batch.times)] = True
        return late

    def _set_late_aside(self, batch: Batch, late: npt.NDArray[np.bool_], at: Times) -> Batch:
        """Send late records to the late output, if it exists; returns the others."""
        behind = batch.filter(late)
        self.late_count += len(behind)
        if len(self._outputs) > 1:
            if self._schema is None and LATE_AT in behind.columns:
                raise BatchError(
                    f"input {self.name!r} has a column {LATE_AT!r}, which is the time column of "
                    "late records: rename it, or declare the columns, flow.input(…, schema=…)"
                )
            own = behind.column(behind.time_name)
            if not self.kind.integers:
                own = time_columns.to_arrow(behind.times)
            columns = {behind.time_name: own, **behind.columns}
            self._outputs[1].send(self._time, Batch.trusted(columns, at, LATE_AT, self._time))
        return batch.filter(~late)

    def _require_open(self) -> None:
        if self._closed:
            raise TokenError(f"input {self.name!r} is closed").located(
                operator=self.name, worker=self._info.worker
            )


def add_unordered_input(scope: Scope, name: str, time: str) -> Stream:
    """Add the operator of `Flow.unordered_input`."""
    builder = scope.operator(name, time=time)
    builder.output()

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> None:
        info.publish(UnorderedInputHandle(tokens.pop(), info))

    return builder.build(build)[0]


class UnorderedInputHandle:
    """One worker's end of an input whose tokens the caller holds.

    `token` is the first one. Clone and downgrade tokens at will, send with `session`, and drop
    every token to end the input.

    >>> import jeton as jt
    >>> flow = jt.Flow("unordered")
    >>> flow.output("seen", flow.unordered_input("n"))
    >>> with flow.open() as run:
    ...     numbers = run.input("n")
    ...     with numbers.token as token:
    ...         for time in (3, 1, 2):
    ...             numbers.session(token, time).give(n=time * 10)
    ...     run.finish()["seen"].to_pylist()
    [{'time': 1, 'n': 10}, {'time': 2, 'n': 20}, {'time': 3, 'n': 30}]
    """

    def __init__(self, token: TimestampToken, info: OperatorInfo) -> None:
        self.token: ActivatingToken = token.activating()
        self._output = PostedOutput(info.outputs[0], info.post)

    def session(self, token: TimestampToken | TokenRef, time: Time | None = None) -> Session:
        """A session at the token's time, or at a later ``time``."""
        return self._output.session(token, time)

    @property
    def closed(self) -> bool:
        """Never for certain: clones of the token may be anywhere."""
        return False

    def close(self) -> None:
        """Drop the first token if it is still held; clones are the user's own."""
        if not self.token.dropped:
            self.token.drop()
