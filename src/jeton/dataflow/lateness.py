"""Lateness: which records come too late, as if they came one by one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jeton.columns import compiled as nb
from jeton.core.times import END_OF_TIME


@nb.njit(cache=True)
def sift(
    times: npt.NDArray[np.int64], floor: int, bound: int, lateness: int, least: int
) -> tuple[npt.NDArray[np.bool_], int, int]:
    """Which times are late when they come, how many of them, and the floor after all.

    A time is late if it is below the floor of its partition or the bound of the whole input. Each
    raises the floor to itself less the lateness, but not below the least time there is.

    >>> late, count, floor = sift(np.array([3, 9, 4, 5]), 2, 2, 4, 0)
    >>> late.tolist(), count, floor
    ([False, False, True, False], 1, 5)
    """
    late = np.zeros(len(times), np.bool_)
    count = 0
    # From here on a time less the lateness does not overflow.
    safe = END_OF_TIME if least > END_OF_TIME - lateness else least + lateness
    for i in range(len(times)):
        time = times[i]
        if time < floor or time < bound:
            late[i] = True
            count += 1
        if time > safe:
            floor = max(floor, time - lateness)
    return late, count, floor


def passed(
    times: npt.NDArray[np.int64], floor: int, bound: int, lateness: int, least: int
) -> npt.NDArray[np.int64]:
    """For each record the time below which it would have been late when it came: see `sift`.

    >>> passed(np.array([3, 9, 4, 5]), 2, 2, 4, 0)
    array([2, 2, 5, 5])
    """
    safe = min(least + lateness, END_OF_TIME)
    # What would overflow is not used.
    raised = np.where(times > safe, times - lateness, least)
    before = np.concatenate([np.array([max(floor, bound)], np.int64), raised[:-1]])
    floors: npt.NDArray[np.int64] = np.maximum.accumulate(before)
    return floors
