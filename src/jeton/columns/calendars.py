"""Calendars: days, weeks and months in a time zone, whose lengths differ."""

from __future__ import annotations

import zoneinfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns.durations import NANOSECONDS, Calendar
from jeton.columns.time_arithmetic import Integers, past_the_end
from jeton.core.errors import GraphError

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
            try:
                zoneinfo.ZoneInfo(zone)
            except (ValueError, OSError, KeyError):
                raise GraphError(
                    f"there is no time zone {zone!r}: write one such as 'Europe/Berlin' or 'UTC'"
                ) from None
        self._calendar = calendar
        self._unit = unit
        self._zone = zone
        self._day = NANOSECONDS["D"] // NANOSECONDS[unit]

    def around(self, times: Integers) -> tuple[Integers, Integers]:
        """The start and the end of the part of the calendar that each time is in."""
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
            raise past_the_end(times[outside.argmax()], f"its window of {self._calendar}")
        return starts, ends

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
