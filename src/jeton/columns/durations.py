"""Durations as users write them: text, ``timedelta``, pandas' and NumPy's, as exact integers.

>>> in_unit("1h 30m", "s", "the size of a window")
5400
>>> in_unit(datetime.timedelta(milliseconds=5), "us", "the gap")
5000
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from jeton.core.errors import GraphError

Duration: TypeAlias = "str | datetime.timedelta | np.timedelta64"
"""A length of time: text such as ``"5 minutes"``, or a ``timedelta`` of Python, pandas or NumPy."""

Length: TypeAlias = "int | Duration"
"""An integer where times are integers, a duration where they are timestamps."""

NANOSECONDS: Final = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "D": 86400 * 10**9,
    "W": 7 * 86400 * 10**9,
}
"""The length of each of NumPy's units that has a fixed one."""

_WORDS: Final = {
    word: unit
    for unit, words in {
        "ns": "ns nano nanos nanosecond nanoseconds",
        "us": "us µs μs micro micros microsecond microseconds",
        "ms": "ms milli millis millisecond milliseconds",
        "s": "s sec secs second seconds",
        "m": "m min mins minute minutes",
        "h": "h hr hrs hour hours",
        "D": "d day days",
        "W": "w week weeks",
    }.items()
    for word in words.split()
}

_MONTHS: Final = {
    word: months
    for months, words in {
        1: "mo month months",
        3: "q quarter quarters",
        12: "y yr year years",
    }.items()
    for word in words.split()
}

_TERM: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([^\W\d_]*)\s*,?")

Part: TypeAlias = Literal["day", "week", "month"]


@dataclass(frozen=True, slots=True)
class Calendar:
    """A number of days, weeks or months of the calendar, whose lengths may differ."""

    count: int
    part: Part

    def steps(self, part: Calendar) -> int | None:
        """How many times another length goes into this one; ``None`` if not a whole number.

        >>> day, week, month = Calendar(1, "day"), Calendar(1, "week"), Calendar(1, "month")
        >>> week.steps(day), day.steps(week), month.steps(day)
        (7, None, None)
        """
        (mine, months), (step, its_months) = (
            (each.count * (7 if each.part == "week" else 1), each.part == "month")
            for each in (self, part)
        )
        return mine // step if months == its_months and mine % step == 0 else None

    def __str__(self) -> str:
        return f"{self.count} {self.part}" + ("s" if self.count > 1 else "")


def is_duration(value: object) -> bool:
    """Whether a value is meant as a length of time, and not as an integer.

    >>> [is_duration(value) for value in ("30s", datetime.timedelta(1), np.timedelta64(5, "s"), 7)]
    [True, True, True, False]
    """
    return isinstance(value, str | datetime.timedelta | np.timedelta64 | pa.DurationScalar)


def is_number(value: object) -> bool:
    """Whether a value is a plain integer, of which NumPy's durations claim to be some too.

    >>> is_number(np.int32(7)), is_number(np.timedelta64(7, "s")), is_number(True)
    (True, False, False)
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def nanoseconds(value: Any, what: str) -> Fraction:
    """The exact length of a duration; ``what`` names it in errors.

    >>> nanoseconds("1.5 s", "the gap"), nanoseconds(np.timedelta64(3, "m"), "the gap")
    (Fraction(1500000000, 1), Fraction(180000000000, 1))
    >>> nanoseconds("10 parsecs", "the gap")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: the gap cannot be '10 parsecs': there is no unit 'parsecs' \
(units are ns, us, ms, s, m, h, d and w, or their names, as in '5 minutes')
    """
    if isinstance(value, str):
        return _from_text(value, what)
    if hasattr(value, "to_timedelta64"):
        value = value.to_timedelta64()  # pandas' has nanoseconds, which Python's does not show
    if isinstance(value, np.timedelta64):
        unit, count = np.datetime_data(value)
        if np.isnat(value):
            raise GraphError(f"{what} cannot be {value!r}: that is not a length of time")
        if unit not in NANOSECONDS:
            raise GraphError(
                f"{what} cannot be {value!r}: give it a unit of fixed length, such as 's'"
            )
        return Fraction(int(value.view(np.int64)) * count * NANOSECONDS[unit])
    if isinstance(value, datetime.timedelta):
        return Fraction(value // datetime.timedelta(microseconds=1) * 1000)
    if isinstance(value, pa.DurationScalar) and value.is_valid:
        return Fraction(value.value * NANOSECONDS[value.type.unit])
    raise GraphError(
        f"{what} cannot be {value!r}: pass a duration, such as '30s' or timedelta(seconds=30)"
    )


def in_unit(value: Any, unit: str, what: str) -> int:
    """A duration as a whole number of a unit.

    >>> in_unit("5 minutes", "ms", "the gap")
    300000
    >>> in_unit("100ms", "s", "the gap")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: the gap cannot be '100ms', which is not a whole number of s, the \
unit of this flow: choose a finer one, jt.Flow(…, unit='ms')
    """
    exact = nanoseconds(value, what) / NANOSECONDS[unit]
    if exact.denominator != 1:
        finer = next(
            (each for each in ("ms", "us", "ns") if _whole(exact * NANOSECONDS[unit], each)), None
        )
        remedy = f"choose a finer one, jt.Flow(…, unit={finer!r})" if finer else "round it"
        raise GraphError(
            f"{what} cannot be {value!r}, which is not a whole number of {unit}, the unit of this "
            f"flow: {remedy}"
        )
    return int(exact)


def seconds(value: Any, what: str) -> float:
    """A length of the wall clock: a number of seconds, or a duration.

    >>> seconds(0.5, "every="), seconds("2 min", "every=")
    (0.5, 120.0)
    """
    if is_number(value) or isinstance(value, float | np.floating):
        return float(value)
    return float(nanoseconds(value, what) / NANOSECONDS["s"])


def calendar(value: Any) -> Calendar | None:
    """Days, weeks or months, if a text says just that; ``None`` for all other lengths.

    >>> calendar("1 month"), calendar("2 days"), calendar("36 hours")
    (Calendar(count=1, part='month'), Calendar(count=2, part='day'), None)
    """
    found = _TERM.fullmatch(value) if isinstance(value, str) else None
    if found is None or not found[1].isdecimal() or int(found[1]) < 1:
        return None
    count, word = int(found[1]), found[2].lower()
    if word in _MONTHS:
        return Calendar(count * _MONTHS[word], "month")
    unit = _WORDS.get(word)
    return Calendar(count, "day" if unit == "D" else "week") if unit in ("D", "W") else None


def _whole(exact: Fraction, unit: str) -> bool:
    return (exact / NANOSECONDS[unit]).denominator == 1


def _from_text(text: str, what: str) -> Fraction:
    body, sign = text.strip(), 1
    if body[:1] in ("-", "+"):
        body, sign = body[1:], -1 if body[0] == "-" else 1
    total, at = Fraction(0), 0
    while at < len(body):
        found = _TERM.match(body, at)
        if found is None:
            break
        number, word = found[1], found[2]
        unit = _WORDS.get(word.lower()) if word != "M" else None
        if unit is None:
            raise GraphError(f"{what} cannot be {text!r}: {_reason(number, word)}")
        total += Fraction(number) * NANOSECONDS[unit]
        at = found.end()
    if at == 0 or at < len(body):
        raise GraphError(
            f"{what} cannot be {text!r}, which is not a duration: write numbers with units, as in "
            "'30s', '5 minutes' or '1h 30m'"
        )
    return sign * total


def _reason(number: str, word: str) -> str:
    if not word:
        return f"{number} has no unit (write '{number}s' for seconds)"
    if word == "M" or word.lower() in _MONTHS:
        return "months and years have no fixed length: use days, or calendar windows, tumbling()"
    return (
        f"there is no unit {word!r} (units are ns, us, ms, s, m, h, d and w, or their names, as in "
        "'5 minutes')"
    )
