"""Timers of keys: the times that keys wait for, and what users set them with."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any, Final

import numpy as np

from jeton.columns.durations import Duration, Length, in_unit, is_duration, is_number, seconds
from jeton.columns.time_units import (
    INTEGER,
    is_timestamp,
    last_plain,
    one_time,
    plain_times,
    time_text,
)
from jeton.core.errors import JetonError, TimeError
from jeton.core.times import END_OF_TIME
from jeton.dataflow.plan import OperatorInfo
from jeton.state.time_map import TimeMap

MICROSECONDS: Final = 1_000_000
"""The worker's clock is read in these, so that the time of a timer is found again exactly."""
LONGEST: Final = 2**62
"""The longest wait, in microseconds: more than anyone will wait, but 64 bits can hold its end."""


class Alarms:
    """The times that keys wait for: each key at most once for each time.

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

    def has(self, time: int, slot: int) -> bool:
        """Whether a key waits for a time."""
        return time in self._by_slot.get(slot, ())

    def __contains__(self, slot: object) -> bool:
        return slot in self._by_slot

    def __iter__(self) -> Iterator[int]:
        """The keys that wait."""
        return iter(self._by_slot)

    def __len__(self) -> int:
        """The number of keys that wait."""
        return len(self._by_slot)


class KeyTimers:
    """The timers of the key for which a function of `KeyedStream.stateful_map` is called.

    They can be used during that call only. A key has at most one timer for each time in event
    time, and for each microsecond of the clock: setting it again changes nothing. A key that is
    forgotten has none.

    >>> import jeton as jt
    >>> def watch(state, row, timers):
    ...     timers.cancel()  # the one that an earlier record has set
    ...     timers.after(30)
    ...     return {"last_page": row["page"]}, []
    >>> def timed_out(state, key, timers):
    ...     return None, [state]
    >>> flow = jt.Flow("sessions")
    >>> clicks = flow.input("clicks").key_by("who")
    >>> flow.output("ended", clicks.stateful_map(watch, {}, on_timer=timed_out))
    >>> rows = {"time": [0, 20, 60], "who": ["Ann"] * 3, "page": ["home", "news", "home"]}
    >>> flow.run({"clicks": rows})["ended"].to_pylist()
    [{'time': 50, 'who': 'Ann', 'last_page': 'news'},
     {'time': 90, 'who': 'Ann', 'last_page': 'home'}]
    """

    __slots__ = (
        "_events", "_first", "_info", "_known", "_last", "_lengths", "_made", "_now",
        "_processing", "_slot", "_units", "_what", "ended",
    )  # fmt: skip

    def __init__(self, info: OperatorInfo, events: Alarms, processing: Alarms) -> None:
        self._info = info
        self._events = events
        self._processing = processing
        self._units = info.outputs[0].units
        self._known: str | None = None
        self._last: int = END_OF_TIME
        """The last time that a timer can have if that unit is known."""
        self._lengths: dict[str, int] = {}
        self._slot: int | None = None
        self._now = self._first = 0
        self._what = ""
        self._made: list[tuple[Alarms, int]] = []
        """The timers that were set in this call; some may be cancelled again."""
        self.ended = False
        """Whether the input has ended, so that no processing time is waited for any more."""

    def __dir__(self) -> list[str]:
        return [
            "after", "after_processing", "at", "cancel", "cancel_processing", "pending",
            "processing", "time",
        ]  # fmt: skip

    def enter(self, slot: int, now: int, first: int, what: str) -> None:
        """Begin a call for a key; timers can be set from ``first`` on."""
        self._slot, self._now, self._first, self._what = slot, now, first, what
        self._made.clear()

    def leave(self) -> None:
        """End the call."""
        self._slot = None

    def were_set(self, slot: int) -> bool:
        """Whether the latest call, for that key, has set timers that wait still."""
        return any(alarms.has(time, slot) for alarms, time in self._made)

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

        It is a time as rows have it: a timestamp, or an integer if those are integers. In a
        function of a record it is not before the record's; in ``on_timer`` it is after that of
        the timer.
        """
        self._set(self._time(time, "at"), "at", time)

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
        self._set(self._now + step, "after", length)

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
        if not self.ended:
            # At least one, or a timer that sets the next one would never let the clock move on.
            due = clock_of(self._info) + min(max(1, ceil(wait * MICROSECONDS)), LONGEST)
            self._made.append((self._processing, due))
            self._processing.add(due, slot)

    def cancel(self, time: Any = None) -> None:
        """Cancel the event-time timer at ``time``, if there is one; by default all of the key."""
        slot = self._require_slot()
        if time is None:
            self._events.clear(slot)
        else:
            self._events.cancel(self._time(time, "cancel"), slot)

    def cancel_processing(self) -> None:
        """Cancel all processing-time timers of the key."""
        self._processing.clear(self._require_slot())

    def _set(self, time: int, call: str, value: Any) -> None:
        slot = self._require_slot()
        unit = self._units.unit
        if unit is not self._known:  # rows and functions must be able to show the last time
            self._known = unit
            self._last = END_OF_TIME if unit is None or unit == INTEGER else last_plain(unit)
        if not self._first <= time <= self._last:
            raise self._misplaced(time, f"timers.{call}({value!r})")
        self._made.append((self._events, time))
        self._events.add(time, slot)

    def _misplaced(self, time: int, shown: str) -> TimeError:
        """The error for a timer before those that can be set, or after all of them."""
        at, what = self._text(time), f"the {self._what} at {self._text(self._now)}"
        if time > self._last:
            last = self._text(self._last)
            return TimeError(f"{shown}, for {what}, is at {at}, after {last}, the last time")
        relation = "before" if time < self._now else "not after"
        wanted = "that time or a later one" if self._first == self._now else "a later time"
        return TimeError(f"{shown} is at {at}, which is {relation} {what}: set it for {wanted}")

    def _time(self, value: Any, call: str) -> int:
        self._require_slot()
        shown = f"timers.{call}({value!r})"
        if self._stamps:
            if not is_timestamp(value):
                raise TimeError(f"{shown} is not at a timestamp, as times are: pass a datetime")
        elif not is_number(value):
            raise TimeError(f"{shown} is not at an integer, as times are: pass one")
        found: int = one_time(value, self._unit, f"the time of {shown}")
        return int(found)

    def _length(self, length: Any) -> int:
        unit, stamps = self._unit, self._stamps
        if is_number(length) and (not stamps or length == 0):
            return int(length)
        shown = f"timers.after({length!r})"
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
        return self._units.unit

    @property
    def _stamps(self) -> bool:
        return self._info.outputs[0].has_stamps

    def _shown(self, times: list[int]) -> list[Any]:
        return plain_times(np.array(times, dtype=np.int64), self._unit)

    def _text(self, time: int) -> str:
        return time_text(time, self._unit)

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
