"""Compiled loops over runs: rows sorted by key id and, within each key, by position in time."""

from __future__ import annotations

from typing import Any

import numpy as np

from jeton.columns import compiled as nb
from jeton.columns.time_arithmetic import LEAST, MOST, Integers, distance


@nb.njit(cache=True, inline="always")
def _seek(ids, at, start, key, time, after):  # type: ignore[no-untyped-def]
    """The first row from ``start`` on that is not before (key, time); with ``after``, past it.

    Steps double until they overshoot: the target is usually near, since those who ask come in
    order too.
    """
    low = start
    high = start
    step = 1
    while high < len(ids) and (
        ids[high] < key or (ids[high] == key and (at[high] < time or (after and at[high] == time)))
    ):
        low = high + 1
        high += step
        step *= 2
    high = min(high, len(ids))
    while low < high:
        middle = (low + high) // 2
        if ids[middle] < key or (
            ids[middle] == key and (at[middle] < time or (after and at[middle] == time))
        ):
            low = middle + 1
        else:
            high = middle
    return low


@nb.njit(cache=True)
def find_ranges(
    run_ids: Integers, run_at: Integers, ids: Integers, at: Integers, lower: int, upper: int
) -> Any:
    """For each asking row, the rows of a run with its id and ``lower``…``upper`` away from it.

    Returns where those start, how many they are, and how many there are in all.
    """
    first = np.empty(len(ids), np.int64)
    count = np.empty(len(ids), np.int64)
    total = 0
    start = stop = 0
    for i in range(len(ids)):
        if (lower > 0 and at[i] > MOST - lower) or (upper < 0 and at[i] < LEAST - upper):
            # All of it lies beyond an end of time.
            first[i] = start
            count[i] = 0
            continue
        from_ = at[i] + lower if lower > 0 or at[i] >= LEAST - lower else np.int64(LEAST)
        to = at[i] + upper if upper < 0 or at[i] <= MOST - upper else np.int64(MOST)
        start = _seek(run_ids, run_at, start, ids[i], from_, False)
        stop = _seek(run_ids, run_at, max(start, stop), ids[i], to, True)
        first[i] = start
        count[i] = stop - start
        total += stop - start
    return first, count, total


@nb.njit(cache=True)
def expand(first: Integers, count: Integers, start: int, stop: int) -> tuple[Integers, Integers]:
    """All pairs of asking rows ``start``…``stop`` with the rows in their ranges."""
    total = 0
    for i in range(start, stop):
        total += count[i]
    asking = np.empty(total, np.int64)
    found = np.empty(total, np.int64)
    at = 0
    for i in range(start, stop):
        for k in range(count[i]):
            asking[at] = i
            found[at] = first[i] + k
            at += 1
    return asking, found


@nb.njit(cache=True)
def find_last(
    run_ids: Integers, run_at: Integers, ids: Integers, at: Integers, tolerance: np.uint64
) -> Any:
    """For each asking row, the last row of a run with its id that is not after it.

    Returns that row's number, or -1 if there is none within ``tolerance`` (an unsigned number),
    and its position.
    """
    found = np.empty(len(ids), np.int64)
    position = np.empty(len(ids), np.int64)
    past = 0
    for i in range(len(ids)):
        past = _seek(run_ids, run_at, past, ids[i], at[i], True)
        found[i] = -1
        position[i] = LEAST
        last = past - 1
        if last >= 0 and run_ids[last] == ids[i] and distance(at[i], run_at[last]) <= tolerance:
            found[i] = last
            position[i] = run_at[last]
    return found, position
