"""Lateness: which records come too late, as if they came one by one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jeton.dataflow import compiled as nb


@nb.njit(cache=True)
def sift(
    times: npt.NDArray[np.int64], floor: int, lateness: int, least: int
) -> tuple[npt.NDArray[np.bool_], int, int]:
    """Which times are below the floor when they come, how many of them, and the floor after all.

    Each time raises the floor to itself less the lateness, if that is a time at all.

    >>> late, count, floor = sift(np.array([3, 9, 4, 5]), 2, 4, 0)
    >>> late.tolist(), count, floor
    ([False, False, True, False], 1, 5)
    """
    late = np.zeros(len(times), np.bool_)
    count = 0
    for i in range(len(times)):
        time = times[i]
        if time < floor:
            late[i] = True
            count += 1
        # Never below the least time there is, so that nothing overflows.
        floor = max(floor, max(time, least + lateness) - lateness)
    return late, count, floor
