"""stateful_map with timers and a time-to-live: states that change as time passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.durations import Duration, Length, in_unit, is_duration, is_number, seconds
from jeton.columns.ordering import order_by
from jeton.columns.time_units import INTEGER, one_time, plain_times
from jeton.core.antichain import Antichain
from jeton.core.errors import GraphError, JetonError, TimeError
from jeton.core.times import END_OF_TIME
from jeton.core.token_set import TokenSet
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.operators.map_rows import rows_of
from jeton.dataflow.operators.stateful_map import (
    TIMERS,
    TOUCHED,
    Answers,
    States,
    Transition,
    wrong_answer,
)
from jeton.dataflow.operators.unary import add_unary
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.accumulators import pylist
from jeton.state.record_queue import RecordQueue
from jeton.state.shapes import shape_of
from jeton.state.time_map import TimeMap

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

Row: TypeAlias = dict[str, Any]

TimedTransition: TypeAlias = Callable[[Any, Row, "KeyTimers"], "tuple[Any, Sequence[Row]]"]
"""A function of a state, a record and timers; or of a state, a key and timers."""

MICROSECONDS: Final = 1_000_000
"""The worker's clock is read in these, so that the time of a timer is found again exactly."""


def add_stateful_timers(
    keyed: KeyedStream,
    function: Transition | TimedTransition,
    initial: Any,
    *,
    on_timer: TimedTransition | None,
    ttl: Length | None,
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
    key = keyed.key

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        states = TimedStates(key, function, initial, info, on_timer=on_timer, ttl=length)
        info.keep(states.waiting, name="waiting", shape=shape_of("records", key))
        info.keep(states, token, shape=shape_of("states", key))
        states.begin(token)
        token.drop()

        def step(input: Input, output: Output) -> None:
            for ref, batch in input:
                states.push(ref, batch)
            states.advance(input.frontier, output)

        return step

    return add_unary(keyed.stream, build, name=name, notify="held", pact=keyed.pact)


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


class Alarms:
    """The times that keys wait for: at most one of each key and time.

    >>> alarms = Alarms()
    >>> for time, slot in [(30, 0), (10, 1), (20, 1), (20, 1)]:
    ...     alarms.add(time, slot)
    >>> alarms.cancel(10, 1)
    >>> alarms.of(1), alarms.next, alarms.pop(), alarms.next
    ([20], 20, 1, 30)
    """

    __slots__ = ("_by_slot", "_by_time")

    def __init__(self) -> None:
        self._by_time: TimeMap[dict[int, None]] = TimeMap()
        self._by_slot: dict[int, set[int]] = {}

    def add(self, time: int, slot: int) -> None:
        """Let a key wait for a time."""
        self._by_time.get_or(time, dict)[slot] = None
        self._by_slot.setdefault(slot, set()).add(time)

    @property
    def next(self) -> int | None:
        """The least time for which a key waits."""
        least: list[int] = self._by_time.least()
        return least[0] if least else None

    def pop(self) -> int:
        """Take out a key that waits for the least time."""
        [time] = self._by_time.least()
        slot = next(iter(self._by_time[time]))
        self.cancel(time, slot)
        return slot

    def cancel(self, time: int, slot: int) -> None:
        """Let a key no longer wait for a time, if it does."""
        times = self._by_slot.get(slot, set())
        if time in times:
            times.remove(time)
            if not times:
                del self._by_slot[slot]
            slots = self._by_time[time]
            del slots[slot]
            if not slots:
                del self._by_time[time]

    def clear(self, slot: int) -> None:
        """Let a key wait for nothing."""
        for time in tuple(self._by_slot.get(slot, ())):
            self.cancel(time, slot)

    def of(self, slot: int) -> list[int]:
        """The times for which a key waits, in order."""
        return sorted(self._by_slot.get(slot, ()))

    def __contains__(self, slot: object) -> bool:
        return slot in self._by_slot

    def __len__(self) -> int:
        """The number of keys that wait."""
        return len(self._by_slot)


class KeyTimers:
    """The timers of the key for which a function of `KeyedStream.stateful_map` is called.

    They can be used during that call only. A key has at most one timer for each time, and none
    once it is forgotten.

    >>> import jeton as jt
    >>> def watch(state, row, timers):
    ...     timers.cancel()  # the one that an earlier record has set
    ...     timers.after(30)
    ...     return row["page"], []
    >>> def timed_out(page, key, timers):
    ...     return None, [{"last_page": page}]
    >>> flow = jt.Flow("sessions")
    >>> clicks = flow.input("clicks").key_by("who")
    >>> flow.output("ended", clicks.stateful_map(watch, "", on_timer=timed_out))
    >>> rows = {"time": [0, 20, 60], "who": ["Ann"] * 3, "page": ["home", "news", "home"]}
    >>> flow.run({"clicks": rows})["ended"].to_pylist()
    [{'time': 50, 'who': 'Ann', 'last_page': 'news'},
     {'time': 90, 'who': 'Ann', 'last_page': 'home'}]
    """

    __slots__ = (
        "_events", "_first", "_info", "_lengths", "_now", "_processing", "_slot", "_what",
        "ended", "was_set",
    )  # fmt: skip

    def __init__(self, info: OperatorInfo, events: Alarms, processing: Alarms) -> None:
        self._info = info
        self._events = events
        self._processing = processing
        self._lengths: dict[str, int] = {}
        self._slot: int | None = None
        self._now = self._first = 0
        self._what = ""
        self.was_set = False
        """Whether a timer was set in this call."""
        self.ended = False
        """Whether the input has ended, so that no processing time is waited for any more."""

    def enter(self, slot: int, now: int, first: int, what: str) -> None:
        """Begin a call for a key; timers can be set from ``first`` on."""
        self._slot, self._now, self._first, self._what = slot, now, first, what
        self.was_set = False

    def leave(self) -> None:
        """End the call."""
        self._slot = None

    @property
    def time(self) -> Any:
        """The time of the record or of the timer, as rows have it.

        For a processing-time timer that is the time at which its rows are sent.
        """
        self._require_slot()
        return self._shown([self._now])[0]

    @property
    def processing(self) -> bool:
        """Whether a processing-time timer has called the function."""
        self._require_slot()
        return self._what == "processing-time timer"

    @property
    def pending(self) -> list[Any]:
        """The times of the key's event-time timers, in order, as rows have them."""
        return self._shown(self._events.of(self._require_slot()))

    def at(self, time: Any) -> None:
        """Call ``on_timer`` once all records up to ``time`` have come.

        It is a time as rows have it: a timestamp, or an integer. In a function of a record it is
        not before the record's; in ``on_timer`` it is after that of the timer.
        """
        self._set(self._time(time, "timers.at"), f"timers.at({time!r})")

    def after(self, length: Length) -> None:
        """Call ``on_timer`` that long after the time of the record or of the timer.

        A duration where times are timestamps, an integer where they are integers.
        """
        self._require_slot()
        step = self._lengths.get(length) if isinstance(length, str) else None
        if step is None:
            step = self._length(length)
            if isinstance(length, str):
                self._lengths[length] = step
        shown = f"timers.after({length!r})"
        self._set(self._info.kind.check(self._now + step), shown)

    def after_processing(self, length: Duration | float) -> None:
        """Call ``on_timer`` once that much time has passed on the worker's clock.

        A duration or a number of seconds. Rows are then sent at the time that the input has
        reached. Once the input has ended, timers that still wait fire at once, and no further
        ones are set.
        """
        slot = self._require_slot()
        shown = f"timers.after_processing({length!r})"
        wait = seconds(length, f"the length of {shown}")
        if not 0 <= wait < float("inf"):
            raise TimeError(f"{shown} is not a time from now on")
        self.was_set = True
        if not self.ended:
            # At least one, or a timer that sets the next one would never let the clock move on.
            wait = max(1, ceil(wait * MICROSECONDS))
            self._processing.add(clock_of(self._info) + wait, slot)

    def cancel(self, time: Any = None) -> None:
        """Cancel the event-time timer at ``time``, if there is one; by default all of the key."""
        slot = self._require_slot()
        if time is None:
            self._events.clear(slot)
        else:
            self._events.cancel(self._time(time, "timers.cancel"), slot)

    def cancel_processing(self) -> None:
        """Cancel all processing-time timers of the key."""
        self._processing.clear(self._require_slot())

    def _set(self, time: int, shown: str) -> None:
        slot = self._require_slot()
        if time < self._first:
            [at, now] = self._shown([time, self._now])
            relation = "before" if time < self._now else "not after"
            raise TimeError(
                f"{shown} is at {at}, which is {relation} the {self._what} at {now}: set it for "
                f"{'this time' if self._first == self._now else 'a time after that'} or later"
            )
        self.was_set = True
        self._events.add(time, slot)

    def _time(self, value: Any, call: str) -> int:
        self._require_slot()
        unit = self._unit
        time: int = self._info.kind.check(one_time(value, unit, f"the time of {call}({value!r})"))
        return time

    def _length(self, length: Any) -> int:
        unit, shown = self._unit, f"timers.after({length!r})"
        stamps = unit is not None and unit != INTEGER
        if is_number(length) and (not stamps or length == 0):
            return int(length)
        if is_number(length):
            raise TimeError(
                f"{shown} has an integer, but times are timestamps: write "
                f"timers.after({f'{length}s'!r})"
            )
        if not is_duration(length):
            raise TimeError(
                f"{shown} cannot be: pass an integer where times are integers, and a duration, "
                "such as '30s', where they are timestamps"
            )
        if not stamps:
            raise TimeError(f"{shown} has a duration, but times are integers: pass an integer")
        assert unit is not None
        return in_unit(length, unit.partition(" ")[0], f"the length of {shown}")

    @property
    def _unit(self) -> str | None:
        return self._info.outputs[0].units.unit

    def _shown(self, times: list[int]) -> list[Any]:
        return plain_times(np.array(times, dtype=np.int64), self._unit)

    def _require_slot(self) -> int:
        if self._slot is None:
            raise JetonError(
                "timers belong to one call of a function of stateful_map, which has ended: set "
                "them there"
            )
        return self._slot


def clock_of(info: OperatorInfo) -> int:
    """The time of the worker's clock, in microseconds."""
    return round(info.activator.now() * MICROSECONDS)


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
        *,
        on_timer: TimedTransition | None,
        ttl: int | None,
    ) -> None:
        super().__init__(key, function, initial, info.kind)
        self._on_timer = on_timer
        self._fires = on_timer is not None
        self._ttl = ttl
        self._info = info
        self.waiting = RecordQueue(info.kind, key)
        self._rights = TokenSet()
        self._events = Alarms()
        self._processing = Alarms()
        self._timers = KeyTimers(info, self._events, self._processing)
        self._armed: int | None = None
        """The time of the clock for which an invocation has been requested."""
        self._reached: int = info.kind.minimum
        """The time up to which records have come, at which processing-time timers send."""
        self._touched: list[int] = []
        """The time of the last record, by slot."""
        self._expiry: TimeMap[list[int]] = TimeMap()
        """When to look whether keys have expired; each is in it once."""
        self._watched: set[int] = set()
        """The keys that are."""
        self._undated: list[int] = []
        """Restored keys of which the time of the last record is not known."""
        self._vanished: set[int] = set()
        """The keys that were forgotten in this step, and may be there again."""

    def begin(self, token: TimestampToken) -> None:
        """Hold the rights for what was restored."""
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
        answers = Answers(self._kind, output.time_name, output.units.unit)
        if limit is not None:
            self._reached = max(self._reached, limit)
        batch = self.waiting.take(limit)
        if batch is not None:
            self._follow(batch.named(output.time_name), answers)
        if self._on_timer is not None:
            if limit is None:
                # Those by the clock come first: no record can cancel them any more, and what they
                # do is at the time of the last record.
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
        gone = [slot for slot in self._vanished if self._states[slot] is None]
        if gone:
            self._groups.remove(np.unique(np.array(gone, dtype=np.int64)))
        self._vanished.clear()
        self._rights.settle(self._pending())
        self._arm()

    def _follow(self, batch: Batch, answers: Answers) -> None:
        """Move states on by complete records; timers fire in between."""
        batch = batch.take(order_by(batch))
        slots = self._slots(self._groups.find(batch)[0]).tolist()
        times: list[int] = batch.times.tolist()
        for slot in self._undated:
            self._touch(slot, times[0])
        self._undated.clear()
        states, function = self._states, self._function
        timers, timed = self._timers, self._on_timer is not None
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
        self._reached = max(self._reached, times[-1])

    def _fire_events(self, before: int | None, answers: Answers) -> None:
        """Call for the timers before a time, or for all, in their order."""
        events = self._events
        while (time := events.next) is not None and (before is None or time < before):
            self._fire(events.pop(), time, time + 1, "timer", answers)

    def _fire_processing(self, now: int | None, answers: Answers) -> None:
        """Call for the timers up to a time of the clock, or for all, in their order."""
        timers, time = self._processing, self._reached
        while (due := timers.next) is not None and (now is None or due <= now):
            self._fire(timers.pop(), time, time, "processing-time timer", answers)

    def _fire(self, slot: int, time: int, first: int, what: str, answers: Answers) -> None:
        if self._has_expired(slot, time):
            self._forget(slot)
            return
        assert self._on_timer is not None
        columns = self._groups.columns(np.array([slot], dtype=np.int64))
        key = {name: pylist(column)[0] for name, column in columns.items()}
        self._timers.enter(slot, time, first, what)
        moved = self._on_timer(self._states[slot], key, self._timers)
        rows = self._moved(slot, self._on_timer, moved)
        if rows:
            answers.add(slot, time, rows, "timer")

    def _moved(self, slot: int, function: Callable[..., Any], moved: Any) -> Sequence[Row]:
        """Take over what a function has returned for a key; the rows."""
        if not isinstance(moved, tuple) or len(moved) != 2:
            raise wrong_answer(function, moved)
        self._timers.leave()
        self._states[slot], rows = moved
        if moved[0] is None:
            if self._timers.was_set and (slot in self._events or slot in self._processing):
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
            yield self._reached

    def _arm(self) -> None:
        """Ask to be invoked when the next processing-time timer is due."""
        due = self._processing.next
        if due is None:
            return
        now = clock_of(self._info)
        if self._armed is None or self._armed <= now or due < self._armed:
            self._armed = due
            self._info.activator.after(max(0, due - now) / MICROSECONDS)

    def _keys_of(self, slots: Any) -> dict[str, Any]:
        time_name = self._info.outputs[0].time_name
        columns = self._groups.columns(slots.astype(np.int64))
        return {name: column for name, column in columns.items() if name != time_name}

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._groups)

    def snapshot(self) -> pa.Table:
        """All keys with their states, the times of their last records and their timers."""
        table = super().snapshot()
        slots = self._groups.live().tolist()
        if self._ttl is not None:
            undated = set(self._undated)
            touched = [None if slot in undated else self._touched[slot] for slot in slots]
            table = table.append_column(TOUCHED, pa.array(touched, pa.int64()))
        if self._fires:
            now, times = clock_of(self._info), pa.list_(pa.int64())
            # The clock of another process has another origin, so that what is left is stored.
            left = [[max(0, due - now) for due in self._processing.of(slot)] for slot in slots]
            reached = [self._reached if waits else None for waits in left]
            values = [[self._events.of(slot) for slot in slots], left, reached]
            for name, column, kind in zip(TIMERS, values, (times, times, pa.int64()), strict=True):
                table = table.append_column(name, pa.array(column, kind))
        return table

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The states again, with what they wait for."""
        if state.num_rows == 0:
            return
        slots = self._load(state)
        if self._ttl is not None:
            self._touched = [END_OF_TIME] * (max(slots) + 1)
            known = TOUCHED in state.column_names
            touched = state.column(TOUCHED).to_pylist() if known else [None] * len(slots)
            for slot, time in zip(slots, touched, strict=True):
                if time is None:
                    self._undated.append(slot)
                else:
                    self._touch(slot, time)
        if self._fires and TIMERS[0] in state.column_names:
            now = clock_of(self._info)
            found = (state.column(name).to_pylist() for name in TIMERS)
            for slot, events, processing, reached in zip(slots, *found, strict=True):
                for time in events or ():
                    self._events.add(time, slot)
                for left in processing or ():
                    self._processing.add(now + left, slot)
                    self._reached = max(self._reached, reached)
