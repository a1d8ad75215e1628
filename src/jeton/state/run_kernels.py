"""Compiled loops over runs: rows sorted by key id and, within each key, by position in time."""

from __future__ import annotations

from typing import Any

import numpy as np

from jeton.columns import compiled as nb
from jeton.columns.time_arithmetic import LEAST, MOST, Integers, distance


def sorting(ids: Integers, at: Integers) -> Integers | None:
    """The order by id, then by position; ``None`` if the rows are in it already.

    >>> sorting(np.array([2, 1, 1]), np.array([5, 9, 7]))
    array([2, 1, 0])
    """
    if len(ids) < 2 or _is_sorted(ids, at):
        return None
    first, early = int(ids.min()), int(at.min())
    bits = (int(at.max()) - early).bit_length()
    if (int(ids.max()) - first).bit_length() + bits <= 63:
        # Both in one word: half the time of sorting by two.
        return np.argsort(((ids - first) << bits) | (at - early)).astype(np.int64, copy=False)
    return np.lexsort((at, ids)).astype(np.int64, copy=False)


@nb.njit(cache=True)
def _is_sorted(ids: Integers, at: Integers) -> bool:
    for i in range(1, len(ids)):
        if ids[i] < ids[i - 1] or (ids[i] == ids[i - 1] and at[i] < at[i - 1]):
            return False
    return True


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


@nb.njit(cache=True)
def merging(ids: Integers, at: Integers, other_ids: Integers, other_at: Integers) -> Integers:
    """The order of two runs, one behind the other, in which they are one run."""
    order = np.empty(len(ids) + len(other_ids), np.int64)
    i = j = 0
    for k in range(len(order)):
        if j == len(other_ids) or (
            i < len(ids)
            and (ids[i] < other_ids[j] or (ids[i] == other_ids[j] and at[i] <= other_at[j]))
        ):
            order[k] = i
            i += 1
        else:
            order[k] = len(ids) + j
            j += 1
    return order


@nb.njit(cache=True)
def span(times: Integers) -> tuple[bool, int, int]:
    """Whether times are in order, and the least and the greatest of them.

    >>> span(np.array([3, 5, 5])), span(np.array([5, 3, 4]))
    ((True, 3, 5), (False, 3, 5))
    """
    first = last = times[0]
    in_order = True
    for time in times:
        if time < last:
            in_order = False
            first = min(first, time)
        else:
            last = time
    return in_order, first, last
