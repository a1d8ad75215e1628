"""Calendars: days, weeks and months in a time zone, whose lengths differ."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns.durations import NANOSECONDS, Calendar
from jeton.columns.time_arithmetic import Integers, before_the_start, past_the_end
from jeton.columns.time_units import require_zone

MONDAY = 3
"""Days from the Monday before the epoch, which was a Thursday, to the epoch."""


class CalendarGrid:
    """Where the days, weeks or months of a calendar begin and end, in a unit of time.

    A day begins with the first instant whose date it is: a day on which clocks change has 23 or 25
    hours. Weeks begin on Mondays. Without a zone, days are those of the times' own clock.

    >>> grid = CalendarGrid(Calendar(1, "day"), "s", "Europe/Berlin")
    >>> noon = np.datetime64("2024-03-31T12:00", "s").astype(np.int64)
    >>> starts, ends = grid.around(np.array([noon]))
    >>> ((ends - starts) // 3600).tolist()
    [23]
    """

    def __init__(self, calendar: Calendar, unit: str, zone: str | None) -> None:
        if zone is not None:
            require_zone(zone)
        self._calendar = calendar
        self._unit = unit
        self._zone = zone
        self._day = NANOSECONDS["D"] // NANOSECONDS[unit]

    def around(self, times: Integers) -> tuple[Integers, Integers]:
        """The start and the end of the part of the calendar that each time is in."""
        _, starts, ends = self._located(times)
        return starts, ends

    def next_ends(self, times: Integers, count: int) -> Integers:
        """For each time, the ends of its part of the calendar and of those after it, as a row.

        >>> grid = CalendarGrid(Calendar(1, "month"), "D", None)
        >>> grid.next_ends(np.array([0]), 3)
        array([[31, 59, 90]])
        """
        parts, _, ends = self._located(times)
        found = np.empty((len(times), count), dtype=np.int64)
        for column in range(count):
            known, inverse = np.unique(parts + (column + 1), return_inverse=True)
            found[:, column] = self._starts(known)[inverse]
            wrong = found[:, column] < ends
            if wrong.any():
                raise past_the_end(times[wrong.argmax()], f"a window of {count} x {self._calendar}")
        return found

    def starts_before(self, ends: Integers, count: int) -> Integers:
        """The starts of ``count`` parts of the calendar that end at some times.

        >>> grid = CalendarGrid(Calendar(1, "month"), "D", None)
        >>> grid.starts_before(np.array([59]), 2)
        array([0])
        """
        parts, own, _ = self._located(ends - 1)
        found = self._starts(parts - (count - 1))
        wrong = found > own
        if wrong.any():
            raise before_the_start(ends[wrong.argmax()], f"{count} x {self._calendar}")
        return found

    def _located(self, times: Integers) -> tuple[Integers, Integers, Integers]:
        """The number, the start and the end of the part of the calendar that each time is in."""
        parts = self._parts(times)
        known, inverse = np.unique(parts, return_inverse=True)
        starts, ends = self._starts(known)[inverse], self._starts(known + 1)[inverse]
        # Where clocks are put back over midnight, a date comes, goes, and comes again.
        again = (times >= ends).astype(np.int64) - (times < starts)
        if again.any():
            parts = parts + again
            starts, ends = self._starts(parts), self._starts(parts + 1)
        outside = (times < starts) | (times >= ends)
        if outside.any():
            time, what = times[outside.argmax()], f"its window of {self._calendar}"
            raise past_the_end(time, what) if time > 0 else before_the_start(time, what)
        return parts, starts, ends

    def _parts(self, times: Integers) -> Integers:
        """The number of the part of the calendar in which each time is, by its date."""
        local = times
        if self._zone is not None:
            stamps = pa.array(times).view(pa.timestamp(self._unit, self._zone))
            local = pc.local_timestamp(stamps).view(pa.int64()).to_numpy()
        count, part = self._calendar.count, self._calendar.part
        if part == "month":
            dates = local.view(f"datetime64[{self._unit}]")
            months: Integers = dates.astype("datetime64[M]").astype(np.int64)
            return months // count
        days = local // self._day
        return days // count if part == "day" else (days + MONDAY) // 7 // count

    def _starts(self, parts: Integers) -> Integers:
        """The first instant of each part."""
        count, part = self._calendar.count, self._calendar.part
        if part == "month":
            days = (parts * count).view("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        else:
            days = parts * count if part == "day" else parts * (7 * count) - MONDAY
        local: Integers = days * self._day
        if self._zone is None:
            return local
        stamps = pa.array(local).view(pa.timestamp(self._unit))
        first = pc.assume_timezone(stamps, self._zone, ambiguous="earliest", nonexistent="latest")
        found: Integers = first.view(pa.int64()).to_numpy()
        return found
