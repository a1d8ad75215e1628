"""Fused loops: slots found and values folded in one pass, where keys are small integers.

Each does in one loop over a batch what an index and an accumulator do in several. It ends early at
the first row that needs more room or another index: the caller takes the rest the usual way.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from jeton.columns import compiled as nb
from jeton.columns.time_arithmetic import LEAST, MOST
from jeton.state.fold_loops import HOW, combine

NOTHING: Final = -2
"""In place of the code of a fold: slots are found, and nothing is folded."""
COUNT: Final = -1
"""The same: records are counted."""
MEAN: Final = HOW["mean"]
_ONE: Final = np.uint64(1)
_FEW: Final = np.uint64(16)
"""The first stretch of rows whose times are looked at together."""
_MANY: Final = np.uint64(1024)
"""Rows after one with a new key, or of another window, that are folded as if more were to come."""
_SHORT: Final = np.uint64(256)
"""Rows in a row of one window from which on they have a loop of their own."""
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
"""A multiplier that spreads times over panes."""


@nb.njit(cache=True)
def count_up(present, count, keys, out, new):  # type: ignore[no-untyped-def]
    """Count keys that are their own slots; how many were counted, and how many of them are new."""
    found = 0
    size = np.uint64(min(len(present), len(count)))
    for i in range(len(keys)):
        key = keys[i]
        if key >= size:
            return i, found
        number = count[key] + 1
        # One that has been counted is there: only others are looked up.
        if number == 1 and not present[key]:
            present[key] = 1
            new[found] = i
            found += 1
        count[key] = number
        out[i] = number
    return len(keys), found


@nb.njit(cache=True)
def roll_up(present, how, value, seen, values, keys, out, new):  # type: ignore[no-untyped-def]
    """The same for values that are folded: ``out`` gets the result after each."""
    found = 0
    size = np.uint64(min(len(present), len(seen)))
    for i in range(len(keys)):
        key = keys[i]
        if key >= size:
            return i, found
        number = seen[key] + 1
        if number > 1:
            result = combine(how, value[key], values[i])
        else:
            result = values[i]
            if not present[key]:
                present[key] = 1
                new[found] = i
                found += 1
        value[key] = result
        seen[key] = number
        # Not one expression: it would have the type of means, which rounds great integers.
        if how == MEAN:
            out[i] = result / number
        else:
            out[i] = result
    return len(keys), found


@nb.njit(cache=True)
def pane_of(times, open_keys, time):  # type: ignore[no-untyped-def]
    """The pane of a time, an empty one if it has none yet, or -1.

    The number of panes is a power of two. A time is looked for from a place of its own on, so that
    one that has a pane is found at once; only a new one goes past all of them.
    """
    last = len(times) - 1
    pane = int((time * _SPREAD) >> np.uint64(40)) & last
    empty = -1
    for _ in range(len(times)):
        if open_keys[pane] == 0:
            if empty < 0:
                empty = pane
        elif times[pane] == time:
            return pane
        pane = (pane + 1) & last
    if empty >= 0:
        times[empty] = time
    return empty


@nb.njit(cache=True)
def _end_of_window(times, first, start, end):  # type: ignore[no-untyped-def]
    """The first row from ``first`` on whose time is not from ``start`` up to ``end``.

    Rows are looked at in stretches that double, which processors do for several at once.
    """
    rows = np.uint64(len(times))
    at = first
    step = _FEW
    while at < rows:
        last = min(at + step, rows)
        inside = True
        for i in range(at, last):
            inside &= (times[i] >= start) & (times[i] < end)
        if not inside:
            while times[at] >= start and times[at] < end:
                at += _ONE
            return at
        at = last
        step += step
    return rows


# Loops over keys that are there already, up to the first that needs more. They have nothing else to
# do, which makes them almost as fast as loops over arrays by key.


@nb.njit(cache=True)
def _find_known(cells, pane, keys, first, stop, slots):  # type: ignore[no-untyped-def]
    width = np.uint64(cells.shape[1])
    for i in range(first, stop):
        key = keys[i]
        if key >= width:
            return i
        slot = cells[pane, key]
        if slot < 0:
            return i
        slots[i] = slot
    return stop


@nb.njit(cache=True)
def _count_known(cells, pane, keys, first, stop, seen, slots):  # type: ignore[no-untyped-def]
    notes = len(slots) > 0
    width = np.uint64(cells.shape[1])
    for i in range(first, stop):
        key = keys[i]
        if key >= width:
            return i
        slot = cells[pane, key]
        if slot < 0:
            return i
        seen[np.uint64(slot)] += 1
        if notes:
            slots[i] = slot
    return stop


@nb.njit(cache=True)
def _fold_known(how, cells, pane, keys, first, stop, value, seen, values, slots):  # type: ignore[no-untyped-def]
    notes = len(slots) > 0
    width = np.uint64(cells.shape[1])
    for i in range(first, stop):
        key = keys[i]
        if key >= width:
            return i
        slot = cells[pane, key]
        if slot < 0:
            return i
        at = np.uint64(slot)
        number = seen[at]
        if number == 0:
            return i
        value[at] = combine(how, value[at], values[i])
        seen[at] = number + 1
        if notes:
            slots[i] = slot
    return stop


@nb.njit(cache=True)
def _slot_for_new(free, state, room):  # type: ignore[no-untyped-def]
    """Take a slot that is below ``room``; -1 if there is none."""
    if state[1] > 0:
        slot = free[state[1] - 1]
        if slot >= room:
            return np.int64(-1)
        state[1] -= 1
    else:
        slot = state[0]
        if slot >= room:
            return np.int64(-1)
        state[0] += 1
    return slot


@nb.njit(cache=True)
def _fold_any(  # type: ignore[no-untyped-def]
    how, cells, pane_times, open_keys, stored_ends, stored_keys, free, state, room,
    size, offset, beyond, times, keys, first, stop, value, seen, values, counts, slots, opened,
    found,
):  # fmt: skip
    """Fold rows of any windows, whether their keys are there or not.

    Returns the first row that needs more room, or ``stop``, and how many keys were new so far.
    """
    width = np.uint64(cells.shape[1])
    notes = len(slots) > 0
    counted = len(counts) > 0
    count = np.int64(1)
    pane = np.int64(-1)
    start, end = np.int64(MOST), np.int64(LEAST)
    for i in range(first, stop):
        time = times[i]
        if time >= end or time < start:
            into = time % size - offset
            if into < 0:
                into += size
            if time > MOST - (size - into):
                return i, found
            end = time + (size - into)
            start = max(time, LEAST + into) - into
            pane = pane_of(pane_times, open_keys, np.uint64(end - beyond))
        key = keys[i]
        if pane < 0 or key >= width:
            return i, found
        if counted:
            count = counts[i]
        slot = np.int64(cells[pane, key])
        if slot < 0:
            slot = _slot_for_new(free, state, room)
            if slot < 0:
                return i, found
            cells[pane, key] = slot
            open_keys[pane] += 1
            stored_ends[slot] = np.uint64(end - beyond)
            stored_keys[slot] = key
            opened[found] = slot
            found += 1
            # Folded here, and not below: that a slot is new is hard to predict, once is enough.
            if how >= 0:
                value[slot] = values[i]
            if how != NOTHING:
                seen[slot] = count
        elif how >= 0:
            if count:
                if seen[slot]:
                    value[slot] = combine(how, value[slot], values[i])
                else:
                    value[slot] = values[i]
                seen[slot] += count
        elif how == COUNT:
            seen[slot] += count
        if notes:
            slots[i] = slot
    return stop, found


@nb.njit(cache=True)
def fold_in_windows(  # type: ignore[no-untyped-def]
    cells, pane_times, open_keys, stored_ends, stored_keys, free, state,
    size, offset, beyond, times, keys, how, value, seen, values, counts, slots, opened,
):  # fmt: skip
    """Find keys in the windows of their times, and fold values in.

    A row stands for as many values as ``counts`` says, which are folded already; if that is empty,
    for one. Returns how many rows were folded, and how many keys were new: their slots are in
    ``opened``. Those of all rows are in ``slots``, unless that is empty.
    """
    rows = np.uint64(len(keys))
    counted = len(counts) > 0
    room = min(len(free), len(stored_keys))
    if how != NOTHING:
        room = min(room, len(seen))
    found = 0
    # Without a sign, a row is not taken for a place from the end of an array.
    i = np.uint64(0)
    while i < rows:
        time = times[i]
        into = time % size - offset
        if into < 0:
            into += size
        if time > MOST - (size - into):
            break
        end = time + (size - into)
        start = max(time, LEAST + into) - into
        place = pane_of(pane_times, open_keys, np.uint64(end - beyond))
        if place < 0:
            break
        pane = np.uint64(place)
        stop = _end_of_window(times, i + _ONE, start, end)
        # Where times go back and forth between windows, a loop for each would begin all the time.
        is_long = stop - i >= _SHORT or stop == rows
        if not is_long:
            stop = min(rows, i + _MANY)
        while i < stop:
            if is_long and not counted and open_keys[pane] > 0:
                if how >= 0:
                    i = _fold_known(how, cells, pane, keys, i, stop, value, seen, values, slots)
                elif how == COUNT:
                    i = _count_known(cells, pane, keys, i, stop, seen, slots)
                else:
                    i = _find_known(cells, pane, keys, i, stop, slots)
                if i == stop:
                    break
            # Where one key is new, more of those that follow are.
            until = min(stop, i + _MANY)
            i, found = _fold_any(
                how, cells, pane_times, open_keys, stored_ends, stored_keys, free, state, room,
                size, offset, beyond, times, keys, i, until, value, seen, values, counts, slots,
                opened, found,
            )  # fmt: skip
            if i < until:
                return np.int64(i), found
    return np.int64(i), found
