"""stateful_map with timers and a time-to-live: states that change as time passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.durations import Length
from jeton.columns.ordering import order_by
from jeton.columns.schema import SchemaLike
from jeton.core.antichain import Antichain
from jeton.core.errors import GraphError, JetonError
from jeton.core.times import END_OF_TIME
from jeton.core.token_set import TokenSet
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.operators.key_timers import MICROSECONDS, Alarms, KeyTimers, clock_of
from jeton.dataflow.operators.map_rows import rows_of
from jeton.dataflow.operators.stateful_map import (
    TIMERS,
    TOUCHED,
    Answers,
    States,
    Transition,
    require_answer,
    schema_with_key,
)
from jeton.dataflow.pacts import Broadcast
from jeton.dataflow.plan import OperatorInfo, Step
from jeton.dataflow.ports import Input, Output
from jeton.dataflow.stream_base import StreamBase
from jeton.state.accumulators import pylist
from jeton.state.changes import Cut, Guard
from jeton.state.python_values import StateCodec
from jeton.state.shapes import shape_of
from jeton.state.slot_pool import Slots
from jeton.state.time_map import TimeMap

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

Row: TypeAlias = dict[str, Any]

TimedTransition: TypeAlias = Callable[[Any, Row, "KeyTimers"], "tuple[Any, Sequence[Row]]"]
"""A function of a state, a record and timers; or of a state, a key and timers."""


def add_stateful_timers(
    keyed: KeyedStream,
    function: Transition | TimedTransition,
    initial: Any,
    *,
    on_timer: TimedTransition | None,
    ttl: Length | None,
    schema: SchemaLike | None,
    codec: StateCodec,
    name: str,
) -> Stream:
    """Add the operator of `KeyedStream.stateful_map` with ``on_timer`` or ``ttl``."""
    if not keyed.stream.kind.total:
        raise GraphError("timers and ttl= of stateful_map need integer times or timestamps")
    length = None
    if ttl is not None:
        domain = keyed.stream.flow.domain
        length = domain.length(ttl, "stateful_map(…, ttl={})", "time-to-live")
        if length < 0:
            raise GraphError(f"the ttl= of stateful_map cannot be {ttl!r}, a negative time")
    key, stream = keyed.key, keyed.stream
    known = schema_with_key(keyed, schema)
    builder = stream.operator(name)
    builder.input(stream, keyed.pact)
    if on_timer is not None:
        # It leads to no output, so that nothing waits for it.
        builder.input(add_last_time(stream, f"{builder.name} end"), Broadcast())
    builder.output({0: 0}, schema=known)

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        [token] = tokens
        states = TimedStates(
            key, function, initial, info, known, codec, on_timer=on_timer, ttl=length
        )
        states.reached.keep()
        info.keep(states.waiting, name="waiting", shape=shape_of("records", key))
        info.keep(states, token, shape=shape_of("states", key))
        states.begin(token)
        token.drop()

        def step(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            for ref, batch in inputs[0]:
                states.push(ref, batch)
            for ends in inputs[1:]:
                for _, batch in ends:
                    states.last = max(states.last, int(batch.column(LAST).max()))
                if not inputs[0].frontier and ends.frontier:
                    return  # some worker has not said yet which its last time was
            states.advance(inputs[0].frontier, outputs[0])

        return step

    return builder.build(build, notify="held")[0]


LAST: Final = "last"


def add_last_time(stream: StreamBase, name: str) -> Stream:
    """Add an operator that sends the time of its last record once its input has ended."""
    builder = stream.scope.operator(name, time=stream.time_name)
    builder.input(stream)
    builder.output({0: 0}, schema={LAST: int})

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        [token] = tokens
        # The row says its time itself, so that the token need not follow the frontier.
        token.downgrade(END_OF_TIME)
        info.keep_nothing()  # records from before a snapshot are those of `Reached`
        last: int = info.kind.minimum

        def step(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            nonlocal last
            for _, batch in inputs[0]:
                if len(batch):
                    last = max(last, int(batch.times.max()))
            if not inputs[0].frontier and not token.dropped:
                with token:
                    outputs[0].session(token).give({LAST: last})

        return step

    return builder.build(build, notify="held")[0]


def check_functions(function: Callable[..., Any], on_timer: Callable[..., Any] | None) -> None:
    """Refuse functions that do not take what they will be called with."""
    if on_timer is None:
        if not _takes(function, 2) and _takes(function, 3):
            raise GraphError(
                f"{_name(function)} takes three arguments (state, row, timers), but there is no "
                "on_timer=: timers call it, stateful_map(…, on_timer=…)"
            )
        return
    if not _takes(on_timer, 3):
        raise GraphError(f"on_timer={_name(on_timer)} must be a function of (state, key, timers)")
    if not _takes(function, 3):
        raise GraphError(
            f"with on_timer=, the function of stateful_map is called with (state, row, timers), "
            f"which {_name(function)} does not take"
        )


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with that number of arguments, as far as is known."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # it is written in C, and does not say
        return True
    return True


def _name(function: object) -> str:
    return getattr(function, "__name__", repr(function))


class TimedStates(States):
    """The states of keys, the records that they wait for, their timers and their last records.

    Whatever happens in event time happens in its order: a record comes after the timers before
    it, and before those at its own time. So it depends on the records alone.
    """

    def __init__(
        self,
        key: Sequence[str],
        function: Transition | TimedTransition,
        initial: Any,
        info: OperatorInfo,
        schema: pa.Schema | None,
        codec: StateCodec,
        *,
        on_timer: TimedTransition | None,
        ttl: int | None,
    ) -> None:
        super().__init__(key, function, initial, info, schema, codec)
        self._on_timer = on_timer
        self._fires = on_timer is not None
        self._ttl = ttl
        self._info = info
        self._rights = TokenSet()
        self._events = Alarms()
        self._processing = Alarms()
        self._timers = KeyTimers(info, self._events, self._processing)
        self._armed: int | None = None
        """The time of the clock for which an invocation has been requested."""
        self._now: int = info.kind.minimum
        """The time up to which records have come, at which processing-time timers send."""
        self.last: int = info.kind.minimum
        """The time of the last record of all workers, as far as it is known."""
        self._touched: list[int] = []
        """The time of the last record, by slot; the end of time if it is not known."""
        self._expiry: TimeMap[list[int]] = TimeMap()
        """When to look whether keys have expired; each is in it once."""
        self._watched: set[int] = set()
        """The keys that are."""
        self._keys: dict[int, Row] = {}
        """The keys that have timers, and those that are busy in this step."""
        self._busy: set[int] = set()
        """The keys that have had records or calls in this step."""
        self._vanished: set[int] = set()
        """The keys that were forgotten in this step, and may be there again."""

    def begin(self, token: TimestampToken) -> None:
        """Hold the rights for what was restored."""
        if self.reached.time is not None:
            self._now = self.reached.time
        if self.reached.last is not None:
            self.last = self.reached.last
        for time in self._pending():
            self._rights.hold(token, time)
        self._arm()

    def push(self, right: TokenRef, batch: Batch) -> None:
        """Let records wait until they are complete."""
        if len(batch):
            self._rights.hold(right, int(batch.times.min()))
            self.waiting.push(None, batch)

    def advance(self, frontier: Antichain, output: Output) -> None:
        """Let everything happen that is complete, and send the rows."""
        limit: int | None = frontier.only
        answers = Answers(self._kind, output.time_name, output.units.unit, self._schema)
        self._now = max(self._now, self.last if limit is None else limit)
        batch = self.waiting.take(limit)
        if batch is not None:
            self._follow(batch.named(output.time_name), answers)
        if self._on_timer is not None:
            if limit is None:
                # Those by the clock do what they do at the time of the last record: no record can
                # cancel them any more.
                self._fire_events(self._now, answers)
                self._timers.ended = True
                self._fire_processing(None, answers)
            self._fire_events(limit, answers)
            if limit is not None and len(self._processing):
                self._fire_processing(clock_of(self._info), answers)
        if self._ttl is not None:
            self._expire(frontier, limit)
        sent = answers.batch(self._keys_of)
        if sent is not None:
            output.session(self._rights.token_for(int(sent.times.min()))).give(sent)
        for slot in self._busy:
            if slot not in self._events and slot not in self._processing:
                self._keys.pop(slot, None)
        self._busy.clear()
        gone = [slot for slot in self._vanished if self._states[slot] is None]
        if gone:
            self._groups.remove(np.unique(np.array(gone, dtype=np.int64)))
        self._vanished.clear()
        self._rights.settle(self._pending())
        self._arm()

    def _follow(self, batch: Batch, answers: Answers) -> None:
        """Move states on by complete records; timers fire in between."""
        batch = batch.take(order_by(batch))
        found = self._slots(self._groups.find(batch)[0])
        self._groups.changes.touch(found)
        slots = found.tolist()
        times: list[int] = batch.times.tolist()
        states, function = self._states, self._function
        timers, timed = self._timers, self._on_timer is not None
        if timed:
            self._learn_keys(set(slots))
        for slot, time, record in zip(slots, times, rows_of(batch), strict=True):
            if timed:
                self._fire_events(time, answers)
            if self._has_expired(slot, time):
                self._forget(slot)
            state = states[slot]
            state = self._initial() if state is None else state
            if timed:
                timers.enter(slot, time, time, "record")
                rows = self._moved(slot, function, function(state, record, timers))
            else:
                rows = self._moved(slot, function, function(state, record))
            if self._ttl is not None and states[slot] is not None:
                self._touch(slot, time)
            if rows:
                answers.add(slot, time, rows)

    def _fire_events(self, before: int | None, answers: Answers) -> None:
        """Call for the timers before a time, or for all, in their order."""
        events = self._events
        while (time := events.next) is not None and (before is None or time < before):
            self._fire(events.pop(), time, time + 1, "timer", answers)

    def _fire_processing(self, now: int | None, answers: Answers) -> None:
        """Call for the timers up to a time of the clock, or for all, in their order."""
        timers, time = self._processing, self._now
        while (due := timers.next) is not None and (now is None or due <= now):
            self._fire(timers.pop(), time, time, "processing-time timer", answers)

    def _fire(self, slot: int, time: int, first: int, what: str, answers: Answers) -> None:
        if self._has_expired(slot, time):
            self._forget(slot)
            return
        assert self._on_timer is not None
        self._groups.changes.touch(np.array([slot]))
        self._timers.enter(slot, time, first, what)
        self._busy.add(slot)
        moved = self._on_timer(self._states[slot], {**self._keys[slot]}, self._timers)
        rows = self._moved(slot, self._on_timer, moved)
        if rows:
            answers.add(slot, time, rows, "timer")

    def _moved(self, slot: int, function: Callable[..., Any], moved: Any) -> Sequence[Row]:
        """Take over what a function has returned for a key; the rows."""
        if type(moved) is not tuple or len(moved) != 2 or type(moved[1]) is not list:
            require_answer(function, moved)
        self._timers.leave()
        self._states[slot], rows = moved
        if moved[0] is None:
            if self._timers.were_set(slot):
                raise JetonError(
                    f"{_name(function)} set a timer and returned None as the state, which forgets "
                    "the key and its timers: return another state, such as {} or True"
                )
            self._forget(slot)
        found: Sequence[Row] = rows
        return found

    def _touch(self, slot: int, time: int) -> None:
        assert self._ttl is not None
        self._touched.extend([0] * (slot + 1 - len(self._touched)))
        self._touched[slot] = time
        if slot not in self._watched:
            self._watched.add(slot)
            self._expiry.get_or(time + self._ttl, list).append(slot)

    def _has_expired(self, slot: int, time: int) -> bool:
        ttl = self._ttl
        if ttl is None or self._states[slot] is None:
            return False
        return self._touched[slot] + ttl < time

    def _forget(self, slot: int) -> None:
        self._states[slot] = None
        self._events.clear(slot)
        self._processing.clear(slot)
        self._busy.add(slot)
        self._vanished.add(slot)

    def _expire(self, frontier: Antichain, limit: int | None) -> None:
        """Forget the keys that no record can find any more."""
        assert self._ttl is not None
        for _, slots in list(self._expiry.pop_before(frontier)):
            for slot in slots:
                self._watched.remove(slot)
                if self._states[slot] is None:
                    continue
                if limit is None or self._has_expired(slot, limit):
                    self._forget(slot)
                else:
                    self._touch(slot, self._touched[slot])

    def _pending(self) -> Iterable[int]:
        """The times at which something may still be sent, the least of each kind."""
        if self.waiting.least is not None:
            yield self.waiting.least
        if self._events.next is not None:
            yield self._events.next
        if len(self._processing):
            yield self._now

    def _arm(self) -> None:
        """Ask to be invoked when the next processing-time timer is due."""
        due = self._processing.next
        if due is None:
            return
        now = clock_of(self._info)
        if self._armed is None or self._armed <= now or due < self._armed:
            self._armed = due
            self._info.activator.after(max(0, due - now) / MICROSECONDS)

    def _learn_keys(self, slots: set[int]) -> None:
        """Have the keys of slots at hand as they are stored: equal ones have one form there."""
        self._busy |= slots
        new = [slot for slot in slots if slot not in self._keys]
        columns = self._groups.columns(np.array(new, dtype=np.int64))
        self._keys |= {slot: {} for slot in new}
        for name, column in columns.items():
            for slot, value in zip(new, pylist(column), strict=True):
                self._keys[slot][name] = value

    def _keys_of(self, slots: Any) -> dict[str, Any]:
        time_name = self._info.outputs[0].time_name
        columns = self._groups.columns(slots.astype(np.int64))
        return {name: column for name, column in columns.items() if name != time_name}

    time_columns = (TOUCHED, TIMERS[0])

    def snapshot(self) -> pa.Table:
        """All keys with their states, the times of their last records and their timers."""
        return self._table(self._groups.live())

    def cut(self, after: str | None, guard: Guard) -> Cut:
        """The keys whose function was called, or that were forgotten.

        How long processing-time timers still have changes all the time.
        """
        running = [slot for slot in self._processing if self._states[slot] is not None]
        self._groups.changes.touch(np.array(running, dtype=np.int64))
        return super().cut(after, guard)

    def _table(self, found: Slots) -> pa.Table:
        table = super()._table(found)
        slots = found.tolist()
        if self._ttl is not None:
            times_of = (self._touched[slot] for slot in slots)
            touched = [None if time == END_OF_TIME else time for time in times_of]
            table = table.append_column(TOUCHED, pa.array(touched, pa.int64()))
        if self._fires:
            now, times = clock_of(self._info), pa.list_(pa.int64())
            # The clock of another process has another origin, so that what is left is stored:
            # less than nothing for those that are overdue, each of which stays a timer of its own.
            left = [[due - now for due in self._processing.of(slot)] for slot in slots]
            values = [[self._events.of(slot) for slot in slots], left]
            for name, column in zip(TIMERS, values, strict=True):
                table = table.append_column(name, pa.array(column, times))
        return table

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The states again, with what they wait for."""
        if state.num_rows == 0:
            return
        slots = self._load(state)
        reached = self.reached.time
        if self._ttl is not None:
            self._touched = [END_OF_TIME] * (max(slots) + 1)
            known = TOUCHED in state.column_names
            touched = state.column(TOUCHED).to_pylist() if known else [None] * len(slots)
            if None in touched:
                # What is not known counts from now on, which must be stored.
                self._groups.changes.loaded(None)
            for slot, time in zip(slots, touched, strict=True):
                since = reached if time is None else time
                if since is not None:  # else it counts from its next record
                    self._touch(slot, since)
        if self._fires and TIMERS[0] in state.column_names:
            now = clock_of(self._info)
            found = (state.column(name).to_pylist() for name in TIMERS)
            self._learn_keys(set(slots))
            for slot, events, processing in zip(slots, *found, strict=True):
                for time in events or ():
                    self._events.add(time, slot)
                for left in processing or ():
                    self._processing.add(now + left, slot)
