"""Durations: exact, in every form that people use, with errors that say what to write."""

from __future__ import annotations

import datetime
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jeton.columns import durations
from jeton.errors import GraphError

HOUR = 3600 * 10**9


def without_unit(number: int) -> np.timedelta64:
    """A length of time as NumPy once allowed it; newer versions warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return np.timedelta64(number)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("30s", 30 * 10**9),
        ("5 minutes", 5 * 60 * 10**9),
        ("1h 30m", 5400 * 10**9),
        ("1 hour, 30 minutes", 5400 * 10**9),
        ("1h30m", 5400 * 10**9),
        ("100ms", 10**8),
        ("7µs", 7000),
        ("7 us", 7000),
        ("3ns", 3),
        ("0.5 s", 5 * 10**8),
        ("2 weeks", 14 * 24 * HOUR),
        ("1d", 24 * HOUR),
        ("-10 Seconds", -(10**10)),
        (datetime.timedelta(days=-1, microseconds=1), -24 * HOUR + 1000),
        (pd.Timedelta(1, "ns"), 1),
        (pd.Timedelta(5, "min"), 300 * 10**9),
        (np.timedelta64(90, "m"), 5400 * 10**9),
        (np.timedelta64(2, "W"), 14 * 24 * HOUR),
        (np.timedelta64(3, ("s", 25)), 75 * 10**9),
        (pa.scalar(5, pa.duration("ms")), 5 * 10**6),
    ],
)
def test_every_form(value: object, expected: int) -> None:
    assert durations.is_duration(value)
    assert durations.nanoseconds(value, "the gap") == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("10 parsecs", "there is no unit 'parsecs'"),
        ("30", "30 has no unit (write '30s' for seconds)"),
        ("", "is not a duration: write numbers with units"),
        ("soon", "is not a duration: write numbers with units"),
        ("5s later", "is not a duration"),
        ("1 month", "months and years have no fixed length"),
        ("2y", "months and years have no fixed length"),
        ("1M", "months and years have no fixed length"),
        (np.timedelta64("NaT", "s"), "is not a length of time"),
        (pd.NaT, "pass a duration"),
        (np.timedelta64(1, "M"), "give it a unit of fixed length"),
        (without_unit(1), "give it a unit of fixed length"),
        (2.5, "pass a duration, such as '30s'"),
        (None, "pass a duration, such as '30s'"),
    ],
)
def test_what_is_refused(value: object, message: str) -> None:
    with pytest.raises(GraphError) as error:
        durations.nanoseconds(value, "the gap")
    assert error.value.message.startswith("the gap cannot be ")
    assert message in error.value.message


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999_999))
def test_text_is_as_exact_as_a_timedelta(h: int, m: int, s: int, us: int) -> None:
    text = f"{h}h {m}min {s} sec {us}us"
    same = datetime.timedelta(hours=h, minutes=m, seconds=s, microseconds=us)
    assert durations.nanoseconds(text, "it") == durations.nanoseconds(same, "it")
    assert durations.in_unit(text, "us", "it") == same // datetime.timedelta(microseconds=1)


@given(st.integers(-(10**18), 10**18))
def test_numpy_and_pandas_agree(ns: int) -> None:
    assert durations.in_unit(np.timedelta64(ns, "ns"), "ns", "it") == ns
    assert durations.in_unit(pd.Timedelta(ns, "ns"), "ns", "it") == ns
    assert durations.nanoseconds(np.timedelta64(ns, "ns"), "it") == Fraction(ns)


def test_a_unit_that_is_too_coarse_says_which_is_not() -> None:
    with pytest.raises(GraphError, match=r"not a whole number of s.*unit='ms'"):
        durations.in_unit("100ms", "s", "the gap")
    with pytest.raises(GraphError, match=r"not a whole number of us.*unit='ns'"):
        durations.in_unit("5ns", "us", "the gap")
    with pytest.raises(GraphError, match=r"not a whole number of us.*round it"):
        durations.in_unit("0.5ns", "us", "the gap")


def test_calendar_parts() -> None:
    assert durations.calendar("1 day") == durations.Calendar(1, "day")
    assert durations.calendar("2w") == durations.Calendar(2, "week")
    assert durations.calendar("3 Months") == durations.Calendar(3, "month")
    assert durations.calendar("1 quarter") == durations.Calendar(3, "month")
    assert durations.calendar("1y") == durations.Calendar(12, "month")
    for other in ("24h", "1 day 1 hour", "0 days", "1.5 days", datetime.timedelta(1), 7):
        assert durations.calendar(other) is None


def test_seconds_of_the_wall_clock() -> None:
    assert durations.seconds(2, "every=") == 2.0
    assert durations.seconds("1.5 s", "every=") == 1.5
    assert durations.seconds(np.timedelta64(5, "m"), "every=") == 300.0
    assert durations.seconds(datetime.timedelta(minutes=1), "every=") == 60.0
    with pytest.raises(GraphError, match="every= cannot be True"):
        durations.seconds(True, "every=")
