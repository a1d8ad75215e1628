"""Inputs in user hands: handles that send records and say which times are over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.core.errors import (
    GraphError,
    JetonError,
    OperatorFailed,
    SnapshotError,
    TimeError,
    TokenError,
)
from jeton.core.times import IntegerTimes, Time, TimeKind
from jeton.core.tokens import ActivatingToken, TimestampToken, TokenRef
from jeton.dataflow import time_columns
from jeton.dataflow.batch import Batch
from jeton.dataflow.columns import plain
from jeton.dataflow.lateness import sift
from jeton.dataflow.pacts import BINS
from jeton.dataflow.plan import OperatorInfo, Source
from jeton.dataflow.ports import Output, Session, is_single
from jeton.dataflow.schema import SchemaLike, as_schema, conform
from jeton.dataflow.state.snapshot import BIN
from jeton.dataflow.stream import Stream
from jeton.dataflow.tables import as_table

if TYPE_CHECKING:
    from jeton.dataflow.scope import Scope

EVENT_TIME = "event_time"
"""The column of a late output that keeps the time at which a late record should have come.

If records have a column of that name already, an underscore is added.
"""


class InputStream(Stream):
    """The stream of an input, with the records that came too late beside it."""

    @property
    def late(self) -> Stream:
        """Records whose time the input had already given up when they were sent.

        They come at the input's own time, with the time they claim in ``event_time``.

        >>> import jeton as jt
        >>> flow = jt.Flow("late")
        >>> numbers = flow.input("n")
        >>> flow.output("late", numbers.late)
        >>> with flow.open() as run:
        ...     run.input("n").advance_to(5)
        ...     run.input("n").send({"time": [3, 6], "n": [1, 2]})
        ...     run.finish()["late"].to_pylist()
        [{'time': 5, 'n': 1, 'event_time': 3}]
        """
        plan = self.flow.operators[self.sources[0].operator]
        plan.outputs = 2
        schema = self.schema
        if schema is not None:
            plain = isinstance(self.kind, IntegerTimes)
            name = _claimed([self.time_name, *schema.names])
            schema = schema.append(pa.field(name, pa.int64() if plain else pa.null()))
        return self.scope.stream([Source(plan.index, 1)], self.time_name, schema)


def _claimed(taken: Sequence[str]) -> str:
    """What the column with the times that late records claim is called beside others."""
    name = EVENT_TIME
    while name in taken:
        name += "_"
    return name


def add_input(
    scope: Scope, name: str, time: str, schema: SchemaLike | None, lateness: int | None = None
) -> InputStream:
    """Add an ordered input to a scope."""
    if lateness is not None:
        if not isinstance(scope.kind, IntegerTimes):
            raise GraphError(f"input {name!r} has no integer times: lateness= needs them")
        if lateness < 0:
            raise GraphError(f"input {name!r} cannot allow for a lateness of {lateness}")
    known = None if schema is None else as_schema(schema, time)
    builder = scope.operator(name, time=time)
    builder.output()

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> None:
        handle = InputHandle(name, tokens, info, known, lateness)
        info.publish(handle)
        info.keep(handle)

    builder.build(build)
    return InputStream(scope, [Source(scope.flow.operators[-1].index, 0)], time, known)


def add_unordered_input(scope: Scope, name: str, time: str) -> Stream:
    """Add an input whose tokens are in user hands."""
    builder = scope.operator(name, time=time)
    builder.output()

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> None:
        info.publish(UnorderedInputHandle(tokens.pop(), info))

    return builder.build(build)[0]


class InputHandle:
    """One worker's end of an input: send records, advance, close.

    Records may be sent at the input's time or any later one. Those below it are *late*: they
    are counted in `late_count` and go to the input's late output if somebody uses it.

    An input with a `lateness` also advances by itself, to the greatest time sent so far less
    that: as if records were sent one by one, so that it does not matter how they are batched.
    """

    def __init__(
        self,
        name: str,
        tokens: list[TimestampToken],
        info: OperatorInfo,
        schema: pa.Schema | None = None,
        lateness: int | None = None,
    ) -> None:
        self.name = name
        self.lateness = lateness
        self._info = info
        self._schema = schema
        self._outputs = [PostedOutput(output, info.post) for output in info.outputs]
        self._tokens = [token.activating() for token in tokens]
        tokens.clear()
        self._time: Time = self._tokens[0].time
        self.late_count = 0
        self.sent_count = 0
        """How many records were sent, the late ones included."""
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

    def send(self, data: Any = None, *, times: Any = None, **columns: Any) -> None:
        """Send records: a batch, a table, a dictionary or keyword columns.

        Times come from the batch, from the time column, from ``times``, or are the input's own.
        """
        self._require_open()
        batch = self._as_batch(data, times, columns)
        if len(batch) == 0:
            return
        self.sent_count += len(batch)
        if self._schema is not None:
            batch = conform(batch, self._schema, f"input {self.name!r}")
        after = None
        if self.lateness is not None:
            least = self.kind.minimum
            late, count, floor = sift(plain(batch.times), self._time, self.lateness, least)
            if count:
                batch = self._set_late_aside(batch, late)
            after = floor if floor > self._time else None
        elif batch.bound_from(self._time) is None:
            batch = self._set_late_aside(batch, self._earlier(batch))
        self._outputs[0].send(batch.bound_from(self._time), batch)
        if after is not None:
            self.advance_to(after)

    def advance_to(self, time: Time) -> None:
        """Promise to send nothing before ``time`` any more."""
        self._require_open()
        time = self._info.kind.check(time)
        if not self._time <= time:
            raise TimeError(
                f"input {self.name!r} is at {self._time} and cannot go back to {time}"
            ).located(operator=self.name, worker=self._info.worker, time=self._time)
        for token in self._tokens:
            token.downgrade(time)
        self._time = time

    def close(self) -> None:
        """End this input on this worker. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            for token in self._tokens:
                token.drop()

    def snapshot(self) -> pa.Table:
        """Where this input is, once for each bin, so that every worker gets to know."""
        if not isinstance(self.kind, IntegerTimes):
            raise SnapshotError("snapshots need integer times").located(operator=self.name)
        return pa.table(
            {
                BIN: np.arange(BINS, dtype=np.uint16),
                "time": np.full(BINS, self._time, dtype=np.int64),
                "closed": np.full(BINS, self._closed),
            }
        )

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """Go on where the slowest of the inputs before was; close if all were closed."""
        still_open = state.filter(pc.invert(state.column("closed")))
        if still_open.num_rows:
            self.advance_to(pc.min(still_open.column("time")).as_py())
        else:
            self.close()

    def _as_batch(self, data: Any, times: Any, columns: Mapping[str, Any]) -> Batch:
        kind, time_name = self._info.kind, self._outputs[0].time_name
        if isinstance(data, Batch):
            return data.named(time_name)
        if columns:
            data = {**(data or {}), **columns}
        if isinstance(data, Mapping):
            data = {n: [v] if is_single(v) and n != time_name else v for n, v in data.items()}
            times = data.pop(time_name, times)
            if times is None or type(times) is int or isinstance(times, tuple):
                length = max((len(values) for values in data.values()), default=0)
                time = self._time if times is None else kind.check(times)
                times = time_columns.constant(kind, time, length)
            return Batch(data, times, time_name=time_name, kind=kind)
        return Batch.from_arrow(as_table(data), time=time_name, kind=kind)

    def _earlier(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Which records are not at the input's time or later."""
        late = np.zeros(len(batch), np.bool_)
        now = time_columns.constant(self._info.kind, self._time, len(batch))
        late[time_columns.earlier(now, batch.times)] = True
        return late

    def _set_late_aside(self, batch: Batch, late: npt.NDArray[np.bool_]) -> Batch:
        """Send what is late to the late output, if there is one; return what is not."""
        behind = batch.filter(late)
        self.late_count += len(behind)
        if len(self._outputs) > 1:
            name = _claimed([behind.time_name, *behind.names])
            claimed = {name: time_columns.to_arrow(behind.times)}
            now = time_columns.constant(self._info.kind, self._time, len(behind))
            self._outputs[1].send(self._time, behind.with_columns(claimed).at(now, self._time))
        return batch.filter(~late)

    def _require_open(self) -> None:
        if self._closed:
            raise TokenError(f"input {self.name!r} is closed").located(
                operator=self.name, worker=self._info.worker
            )


class UnorderedInputHandle:
    """One worker's end of an input whose tokens are in user hands.

    `token` is the first one. Clone and downgrade tokens as you like, send with `session`, and
    drop every token to end the input.

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


class PostedOutput(Output):
    """An output used from outside its worker: what is sent reaches it in its next step.

    Sending and the acts of activating tokens go the same way, so they keep their order.
    """

    __slots__ = ("_post", "_real")

    def __init__(self, real: Output, post: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(real.book, real.time_name)
        self._real = real
        self._post = post

    def send(self, time: Time, batch: Batch) -> None:
        """Have the worker send a batch."""

        def act() -> None:
            try:
                self._real.send(time, batch)
            except JetonError as error:
                error.located(operator=self.book.operator, time=time)
                raise
            except Exception as error:
                failed = OperatorFailed.because(error, "sending from it")
                failed.located(operator=self.book.operator, time=time)
                raise failed from error

        self._post(act)

    def add_row(self, session_time: Time, time: Time, values: Mapping[str, Any]) -> None:
        """Send a single row at once: there is no end of an invocation to wait for."""
        super().add_row(session_time, time, values)
        self.flush()
