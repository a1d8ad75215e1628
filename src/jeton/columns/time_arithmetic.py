"""Arithmetic with times that cannot wrap, though every 64-bit integer may be a time.

NumPy and Numba let 64-bit integers wrap around without a word. Whatever adds to times or takes
their differences does it here: sums stop at the ends of time where only an order is asked for, and
are refused where a result would have to bear a time that there is not. Differences of two times do
not fit in 64 bits with a sign, but they do without one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jeton.columns import compiled as nb
from jeton.core.errors import TimeError
from jeton.core.times import END_OF_TIME

Integers = npt.NDArray[np.int64]

LEAST: Final = -(2**63)
MOST: Final = END_OF_TIME
FARTHEST: Final = 2**64 - 1
"""From the least time to the last."""


def shifted(times: Integers, step: int) -> Integers:
    """Times moved by a ``step`` of any size; those beyond an end of time stop there.

    >>> shifted(np.array([0, MOST - 1]), 5), shifted(np.array([3]), -(2**64))
    (array([                  5, 9223372036854775807]), array([-9223372036854775808]))
    """
    while step > MOST:
        times, step = np.minimum(times, 0) + MOST, step - MOST
    while step < -MOST:
        times, step = np.maximum(times, -1) - MOST, step + MOST
    if step >= 0:
        return np.minimum(times, MOST - step) + step
    return np.maximum(times, LEAST - step) + step


def later(times: Integers, step: int, what: str) -> Integers:
    """Times moved on by ``step``, at which ``what`` ends.

    >>> later(np.array([3]), 5, "a session")
    array([8])
    >>> later(np.array([MOST]), 1, "its session")
    Traceback (most recent call last):
    ...
    jeton.core.errors.TimeError: a record is at 9223372036854775807: its session would end after \
9223372036854775807, the last time there is
    """
    late = times > MOST - step
    if late.any():
        raise past_the_end(times[late.argmax()], what)
    return times + step


def past_the_end(time: Any, what: str) -> TimeError:
    """The error for a record whose answer would be at a time that does not exist."""
    return TimeError(
        f"a record is at {int(time)}: {what} would end after {MOST}, the last time there is"
    )


def earlier(ends: Integers, size: int, what: str) -> Integers:
    """The starts of windows with these ends.

    >>> earlier(np.array([10]), 10, "its window of 10")
    array([0])
    """
    early = ends < LEAST + size
    if early.any():
        raise before_the_start(ends[early.argmax()], what)
    return ends - size


def before_the_start(end: Any, what: str) -> TimeError:
    """The error for a window whose start would be at a time that does not exist."""
    return TimeError(
        f"a window has a record or its end at {int(end)}: {what} would start before {LEAST}, the "
        "first time there is"
    )


def window_ends(times: Integers, size: int, offset: int) -> Integers:
    """The end of each time's window ``[start, start + size)``; offsets are less than the size.

    >>> window_ends(np.array([-11, -10, 0, 9]), 10, 0)
    array([-10,   0,  10,  10])
    """
    ends, wrong = _window_ends(times, size, offset)
    if wrong >= 0:
        raise past_the_end(times[wrong], f"its window of {size}")
    found: Integers = ends
    return found


def sliding_ends(
    times: Integers, size: int, every: int, offset: int
) -> tuple[Integers, npt.NDArray[np.intp]]:
    """The ends of all windows that each time is in, and the rows of these times.

    >>> sliding_ends(np.array([-3, 12]), 20, 10, 0)
    (array([ 0, 10, 20, 30]), array([0, 0, 1, 1]))
    """
    into = times - times // every * every - offset
    first = every - np.where(into < 0, into + every, into)
    # How far each window's end is from the time, which may take all 64 bits.
    steps = np.arange(-(-size // every), dtype=np.uint64) * np.uint64(every)
    gaps = first.view(np.uint64)[:, None] + steps
    inside = gaps <= np.uint64(size)
    if len(times) and int(times.max()) > MOST - size:
        left = np.uint64(MOST) - times.view(np.uint64)
        wrong = (inside & (gaps > left[:, None])).any(axis=1)
        if wrong.any():
            raise past_the_end(times[wrong.argmax()], f"a window of {size}")
    ends = (times.view(np.uint64)[:, None] + gaps).view(np.int64)
    return ends[inside], np.nonzero(inside)[0]


@nb.njit(cache=True)
def within(times, start, end):  # type: ignore[no-untyped-def]
    """Whether all times lie between start and end."""
    inside = True
    for i in range(len(times)):
        inside &= (times[i] >= start) & (times[i] < end)
    return inside


@nb.njit(cache=True)
def extent(times):  # type: ignore[no-untyped-def]
    """The least and the greatest of some times, in one pass.

    >>> extent(np.array([5, 3, 9]))
    (3, 9)
    """
    least = most = times[0]
    for i in range(len(times)):
        least = min(least, times[i])
        most = max(most, times[i])
    return least, most


@nb.njit(cache=True, inline="always")
def distance(after, before):  # type: ignore[no-untyped-def]
    """From one time to another that is not before it, without a sign."""
    return np.uint64(after) - np.uint64(before)


@nb.njit(cache=True, inline="always")
def apart(after, before, gap):  # type: ignore[no-untyped-def]
    """Whether one time is at least ``gap`` after another."""
    return after > before and distance(after, before) >= np.uint64(gap)


@nb.njit(cache=True)
def _window_ends(times, size, offset):  # type: ignore[no-untyped-def]
    """Neighbours mostly share a window, which saves the division."""
    ends = np.empty(len(times), np.int64)
    start = np.int64(MOST)
    end = np.int64(LEAST)
    for i in range(len(times)):
        time = times[i]
        if time >= end or time < start:
            into = time % size - offset
            if into < 0:
                into += size
            if time > MOST - (size - into):
                return ends, i
            end = time + (size - into)
            start = max(time, LEAST + into) - into
        ends[i] = end
    return ends, -1
