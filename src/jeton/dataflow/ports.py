"""Ports: the inputs and outputs of an operator's logic."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from jeton.columns import time_columns
from jeton.columns.batch import Batch, concat
from jeton.columns.column import Column, as_column
from jeton.columns.time_columns import Times
from jeton.columns.time_domain import Units
from jeton.columns.time_units import INTEGER, given_times, stamped
from jeton.core.antichain import Antichain
from jeton.core.bookkeeping import Bookkeeping, Connection
from jeton.core.checks import described
from jeton.core.errors import BatchError, JetonError, OperatorFailed, TokenError
from jeton.core.times import Time, TimeKind
from jeton.core.tokens import TimestampToken, TokenRef

Message = tuple[Time, Batch]
"""A batch and a lower bound of its records' times, which is counted while it is under way."""


class InputSide(Protocol):
    """The part of a worker that an operator's input uses."""

    @property
    def consumed(self) -> Callable[[tuple[int, Time], int], None]:
        """Count a message at a location and time as taken (``-1``)."""
        ...

    def frontier(self, location: int) -> Antichain:
        """The frontier at a location, as this worker knows it."""
        ...


class Moment:
    """The time that an operator is busy with: for errors, and to see whether it took anything."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time: Time | None = None

    def begin(self) -> None:
        """Nothing has been taken yet."""
        self.time = None


class Input:
    """Messages that have arrived, and the frontier of those that may still come.

    Iterating takes messages one by one, each with a `TokenRef` that is valid for that step of
    the loop. Messages that are left when the operator yields are offered again.
    """

    __slots__ = (
        "_connections", "_consumed", "_left", "_live", "_moment", "_queue", "_side", "kind",
        "location", "units",
    )  # fmt: skip

    def __init__(
        self,
        side: InputSide,
        location: int,
        kind: TimeKind,
        connections: list[Connection | None],
        moment: Moment,
        units: Units | None = None,
    ) -> None:
        self._side = side
        self._consumed = side.consumed
        self.units = units or Units()
        self._queue: deque[Message] = deque()
        self._connections = connections
        self._moment = moment
        self._live: TokenRef | None = None
        self._left: list[tuple[Time, deque[tuple[Time, Batch]]]] = []
        """The times that loops over times have not reached yet, outer loops first."""
        self.location = location
        self.kind = kind

    @property
    def frontier(self) -> Antichain:
        """The least times that may still arrive here; empty once the input is complete."""
        return self._side.frontier(self.location)

    def __iter__(self) -> Iterator[tuple[TokenRef, Batch]]:
        """Take the messages that are there now, each with a reference for this step."""
        return _Messages(self)

    def by_time(self) -> Iterator[tuple[TokenRef, Batch]]:
        """The same, but each step has records of one exact time, as in the paper.

        Leaving the loop early puts the times that are left back.
        """
        return _Times(self)

    def _take(self) -> tuple[Time, Batch]:
        """Take the first message."""
        time, batch = self._queue.popleft()
        self._consumed((self.location, time), -1)
        return time, batch

    def _refer(self, time: Time) -> TokenRef:
        """A reference for one step of a loop."""
        self._moment.time = time
        ref = self._live = TokenRef(self._connections, time)
        return ref

    def end(self) -> None:
        """End the invocation, and with it a loop that was left early."""
        if self._live is not None:
            self._live.expire()
            self._live = None
            while self._left:
                self._put_back(self._left[-1][1])

    def _put_back(self, loop: deque[tuple[Time, Batch]]) -> None:
        """Offer times that a loop did not reach again."""
        for at, (stamp, parts) in enumerate(self._left):
            if parts is loop:
                del self._left[at]
                if parts:
                    self._consumed((self.location, stamp), +1)
                    self._queue.appendleft((stamp, concat([part for _, part in parts])))
                    parts.clear()
                return

    def deliver(self, time: Time, batch: Batch) -> None:
        """A message arrives: the worker calls this."""
        if batch.unit is not self.units.unit and batch.unit is not None:
            self.units.learn(batch.unit)
        self._queue.append((time, batch))

    def take_all(self) -> list[Message]:
        """Take the messages out, which stay counted: the worker calls this."""
        messages = list(self._queue)
        self._queue.clear()
        return messages

    def waiting(self) -> tuple[Message, ...]:
        """The messages that wait, to be looked at."""
        return tuple(self._queue)

    def __len__(self) -> int:
        """The number of messages that wait."""
        return len(self._queue)

    def __bool__(self) -> bool:
        return bool(self._queue)


class _Messages:
    """A loop over the messages of an input. Not a generator: it ends as soon as it is left."""

    __slots__ = ("_left", "_port", "_ref")

    def __init__(self, port: Input) -> None:
        self._port = port
        self._left = len(port._queue)
        self._ref: TokenRef | None = None

    def __iter__(self) -> Iterator[tuple[TokenRef, Batch]]:
        return self

    def __next__(self) -> Any:
        # In line, as every message comes here: the same as `_expire`, `_take` and `Input._refer`.
        if self._ref is not None:
            self._ref.expire()
            self._ref = None
        port = self._port
        if not self._left or not port._queue:
            self._left = 0
            raise StopIteration
        self._left -= 1
        time, batch = port._queue.popleft()
        port._consumed((port.location, time), -1)
        port._moment.time = time
        ref = port._live = self._ref = TokenRef(port._connections, time)
        return ref, batch

    def _take(self) -> tuple[Time, Batch]:
        """Take the next message, of those that were there when the loop began."""
        if not self._left or not self._port._queue:
            self._left = 0
            raise StopIteration
        self._left -= 1
        return self._port._take()

    def _expire(self) -> None:
        """End a step."""
        if self._ref is not None:
            self._ref.expire()
            self._ref = None

    def __del__(self) -> None:
        if self._ref is not None:
            self._ref.expire()


class _Times(_Messages):
    """A loop over the times of the messages of an input, one by one."""

    __slots__ = ("_parts",)

    def __init__(self, port: Input) -> None:
        super().__init__(port)
        self._parts: deque[tuple[Time, Batch]] = deque()

    def __next__(self) -> Any:
        self._expire()
        while not self._parts:
            self._port._put_back(self._parts)
            stamp, batch = self._take()
            self._parts = deque(batch.by_time())
            self._port._left.append((stamp, self._parts))
        time, part = self._parts.popleft()
        ref = self._ref = self._port._refer(time)
        return ref, part

    def __del__(self) -> None:
        self._expire()
        self._port._put_back(self._parts)


class Edge(Protocol):
    """Where an output's messages go."""

    def push(self, time: Time, batch: Batch) -> None:
        """Send a batch, stamped with a lower bound of its times."""
        ...


class Output:
    """Where an operator sends, by sessions opened with a token or a token reference."""

    __slots__ = (
        "_behind",
        "_edges",
        "_rows",
        "book",
        "furthest",
        "index",
        "kind",
        "notes_times",
        "time_name",
        "units",
    )

    def __init__(self, book: Bookkeeping, time_name: str, units: Units | None = None) -> None:
        self.book = book
        self.notes_times = False
        """Whether it notes in `furthest` how far it has sent: for operators without inputs."""
        self.furthest: int | None = None
        self.units = units or Units()
        self.index = book.output
        self.kind = book.kind
        self.time_name = time_name
        self._edges: list[Edge] = []
        self._behind: list[Edge] | None = None
        """The edges behind the one that messages are diverted to."""
        self._rows = _Rows()

    def stamped(self, times: Times) -> Column:
        """Times as a column of records: timestamps, if those of the flow are."""
        return stamped(times, self.units.unit)

    @property
    def has_stamps(self) -> bool:
        """Whether the times of the flow are timestamps, and known to be."""
        return self.units.unit not in (None, INTEGER)

    def one_time(self, time: Any) -> Time:
        """A time as a user gives it, checked: timestamps are converted to the flow's unit."""
        if self.kind.integers:
            time = self.units.time(time, self.book.operator)
        return self.kind.check(time)

    @property
    def edges(self) -> Sequence[Edge]:
        """Where messages go in the end, also while they are diverted."""
        return self._edges if self._behind is None else self._behind

    def connect(self, edges: Sequence[Edge]) -> None:
        """Say where messages go: the worker does this."""
        if self._behind is None:
            self._edges = list(edges)
        else:
            self._behind = list(edges)

    def divert(self, edge: Edge | None) -> None:
        """Have messages go to an edge that sends them on to `edges`, or no longer."""
        behind = self._edges if self._behind is None else self._behind
        self._edges, self._behind = (behind, None) if edge is None else ([edge], behind)

    def session(self, right: TimestampToken | TokenRef, time: Time | None = None) -> Session:
        """Open a session at the token's time, or at a later ``time``.

        While it is open, the token can be neither downgraded nor dropped.
        """
        if time is not None and (type(time) is not int or not self.kind.integers):
            time = self.one_time(time)
        try:
            admitted = right._admit(self.book, time)
        except AttributeError:
            _require_right(right, self.book)
            raise
        return Session(self, right, admitted)

    def send(self, time: Time, batch: Batch) -> None:
        """Send a batch whose times are all ``>= time``; sessions do this."""
        if len(batch.times):
            batch.unit = self.units.unit
            if self.notes_times:
                _, most = batch.extent()
                if self.furthest is None or most > self.furthest:
                    self.furthest = most
            for edge in self._edges:
                edge.push(time, batch)

    def flush(self) -> None:
        """Send rows that were given one by one; the worker calls this when the operator yields."""
        rows = self._rows
        if rows.times:
            self._rows = _Rows()
            times = time_columns.as_times(self.kind, rows.times)
            columns = {name: as_column(values) for name, values in rows.columns.items()}
            self.send(rows.bound, Batch.trusted(columns, times, self.time_name, rows.bound))

    def add_row(self, session_time: Time, time: Time, values: Mapping[str, Any]) -> None:
        """Put one row aside, to be sent with its neighbours."""
        rows = self._rows
        if rows.times:
            # One message bears one time for which a right was held. Totally ordered rights
            # always have a least one; others only go together when they are the same.
            fits = rows.columns.keys() == values.keys() and (
                self.kind.total or rows.bound == session_time
            )
            if not fits or len(rows.times) >= 4096:
                self.flush()
                rows = self._rows
        if not rows.times:
            rows.columns = {name: [] for name in values}
            rows.bound = session_time
        elif session_time < rows.bound:
            rows.bound = session_time
        rows.times.append(time)
        for name, value in values.items():
            rows.columns[name].append(value)


class PostedOutput(Output):
    """An output used from outside its worker: batches reach it in its next step.

    Any thread may send. Batches and the acts of activating tokens go the same way, the worker's
    posts, so that they keep their order: a batch is counted before its token moves on. That costs
    a quarter of a microsecond for each batch. A direct call would save it, but is safe only on the
    thread that steps the worker, and between steps, which an output cannot know.
    """

    __slots__ = ("_inner", "_post")

    def __init__(self, real: Output, post: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(real.book, real.time_name, real.units)
        self._inner = real
        self._post = post

    def send(self, time: Time, batch: Batch) -> None:
        """Have the worker send a batch."""

        def act() -> None:
            try:
                self._inner.send(time, batch)
            except JetonError as error:
                error.located(
                    operator=self.book.operator, time=time, moment=self.book.in_words(time)
                )
                raise
            except Exception as error:
                failed = OperatorFailed.because(error, "sending from it")
                failed.located(
                    operator=self.book.operator, time=time, moment=self.book.in_words(time)
                )
                raise failed from error

        self._post(act)

    def add_row(self, session_time: Time, time: Time, values: Mapping[str, Any]) -> None:
        """Send a single row at once, since no invocation ends here."""
        super().add_row(session_time, time, values)
        self.flush()


class _Rows:
    """Rows given one by one that wait to become a batch."""

    __slots__ = ("bound", "columns", "times")

    def __init__(self) -> None:
        self.times: list[Time] = []
        self.columns: dict[str, list[Any]] = {}
        self.bound: Time = None


class Session:
    """Sends records at the session's time or later.

    ``give`` takes a batch, whose records keep their times; or columns, which are sent at the
    session's time or at the times given.
    """

    __slots__ = ("_closed", "_output", "_right", "time")

    def __init__(self, output: Output, right: TimestampToken | TokenRef, time: Time) -> None:
        self._output = output
        self._right = right
        self.time = time
        self._closed = False

    def give(
        self, data: Batch | Mapping[str, Any] | None = None, *, times: Any = None, **columns: Any
    ) -> None:
        """Send a batch, or columns (arrays, or plain values for a single record)."""
        if self._closed:
            at = self._output.book.in_words(self.time)
            raise TokenError(f"this session at {at} is closed: open another")
        # Without a `with` around, the right may have been given up since the session was made.
        self._right._admit(self._output.book, self.time)
        if isinstance(data, Batch):
            if times is None and not columns:
                self._send(data)
                return
            if times is not None:
                data = data.at(self._stamps(times, len(data)))
            self._send(data.with_columns(_spread(columns, len(data))))
            return
        if data is not None and not isinstance(data, Mapping):
            raise BatchError(
                f"a session takes a batch or columns, not a {type(data).__name__}: give columns of "
                "values, session.give(n=[1, 2]), or one row at a time, session.give(n=1)"
            )
        values = {**(data or {}), **columns}
        single = [name for name, value in values.items() if is_single(value)]
        if len(single) == len(values):
            self._give_row(values, times)
        else:
            self._give_columns(values, set(single), times)

    def _give_row(self, values: Mapping[str, Any], times: Any) -> None:
        output = self._output
        time = self.time if times is None else output.one_time(times)
        if not self.time <= time:
            raise self._too_early(time)
        if output.time_name in values:
            raise BatchError(f"{output.time_name!r} is the time column: pass times=…")
        output.add_row(self.time, time, values)

    def _give_columns(self, values: Mapping[str, Any], single: set[str], times: Any) -> None:
        output = self._output
        columns: dict[str, Column] = {n: as_column(v) for n, v in values.items() if n not in single}
        lengths = {name: len(column) for name, column in columns.items()}
        length = next(iter(lengths.values()))
        if any(other != length for other in lengths.values()):
            raise BatchError(f"columns of unequal lengths: {lengths}")
        columns |= _spread({name: values[name] for name in single}, length)
        stamps = self._stamps(self.time if times is None else times, length)
        self._send(Batch(columns, stamps, time_name=output.time_name, kind=output.kind))

    def _stamps(self, times: Any, length: int) -> Times:
        """Times for records: one for all, or one for each."""
        kind = self._output.kind
        if is_single(times) or isinstance(times, tuple):
            return time_columns.constant(kind, self._output.one_time(times), length)
        stamps = given_times(kind, times, self._output.units.unit, "these times")
        if len(stamps) != length:
            raise BatchError(f"there are {len(stamps)} times for {length} records")
        return stamps

    def _send(self, batch: Batch) -> None:
        output = self._output
        bound = batch.bound_from(self.time)
        if bound is None:
            raise self._too_early(time_columns.first_below(batch.times, self.time))
        if output._rows.times:
            output.flush()
        if batch.time_name != output.time_name:
            batch = batch.named(output.time_name)
        output.send(bound, batch)

    def _too_early(self, time: Time) -> TokenError:
        book = self._output.book
        moment = book.in_words(self.time)
        return TokenError(
            f"a record at {book.in_words(time)} cannot be sent in a session at {moment}: "
            "a token allows its own time and later ones; nothing of this batch was sent"
        ).located(operator=book.operator, worker=book.owner.index, time=self.time, moment=moment)

    def __enter__(self) -> Session:
        self._right._admit(self._output.book, self.time)
        self._right._lock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._right._unlock()


def _require_right(given: object, book: Bookkeeping) -> None:
    """Refuse to open a session with anything else than a right to send."""
    if not isinstance(given, TimestampToken | TokenRef):
        raise TokenError(
            "a session needs a token, or the reference that came with a message, not "
            f"{described(given)}: output.session(ref)"
        ).located(operator=book.operator, worker=book.owner.index) from None


def _spread(values: Mapping[str, Any], length: int) -> dict[str, Column]:
    """Columns as they are, and plain values once for each record."""
    return {
        name: as_column([value] * length if is_single(value) else value)
        for name, value in values.items()
    }


def is_single(value: Any) -> bool:
    """Whether a value stands for one record rather than being a column."""
    return isinstance(value, str | bytes | int | float | bool | np.generic) or not hasattr(
        value, "__len__"
    )
