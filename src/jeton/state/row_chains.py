"""RowChains: the rows of one side of a join, each linked to the one before it with the same key.

A chain has the rows of one key from the latest to the earliest. Rows that come in order of time, or
nearly so, are linked in a step or two, and partners near the end of a chain are found as quickly.
Nothing is sorted or merged. Where rows come in another order, or partners lie far back, chains
would be slow: the loops notice that and stop.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from jeton.columns import compiled as nb
from jeton.columns.batch import Batch
from jeton.columns.column import Column, plain
from jeton.columns.time_arithmetic import LEAST, MOST, Integers
from jeton.state.hash_index import HashIndex
from jeton.state.row_columns import RowColumn, Rows, row_column, some_rows
from jeton.state.slot_pool import Slots

_SMALL: Final = 4096
"""So few rows that are over may stay."""
_ROOM: Final = 8192
"""The room for rows at least: to move few rows takes as long as to add some."""
_STRETCH: Final = np.uint64(64)
_ONE: Final = np.uint64(1)
_MOST_ROWS: Final = 1 << 30
_MOST_NUMBER: Final = np.iinfo(np.int32).max
"""The greatest number of a row."""
_MOST_SMALL: Final = 1 << 21
"""Keys from here on are not small."""
_PATIENCE: Final = 16
"""The steps along chains for each row of a batch, at most, that do not lead to a partner."""


class IntegerKeys:
    """Slots for keys of a single integer, the same for both sides of a join.

    Small integers are their own slots; once there are others, keys are hashed.

    >>> keys, left, right = IntegerKeys(), RowChains(), RowChains()
    >>> keys.slots(np.array([7, 9, 7]), left, right)
    array([7, 9, 7])
    >>> keys.slots(np.array([-1, 7], dtype=np.int8), left, right)
    array([0, 1])
    """

    def __init__(self) -> None:
        self._index: HashIndex | None = None
        self._small = 1024
        """Small integers are less than this."""

    def slots(self, keys: npt.NDArray[Any], *chains: RowChains) -> Slots:
        """The slot of each key; ``chains`` are all rows that slots were given for."""
        words = plain(keys.astype(np.int64, copy=False))
        if self._index is None:
            greatest = int(_greatest(words))
            if greatest < self._small:
                return words
            if greatest < _MOST_SMALL:
                self._small = 1 << greatest.bit_length()
                return words
            unused = np.ones(self._small, dtype=bool)
            for each in chains:
                each.unmark(unused)
            used = np.flatnonzero(~unused).astype(np.int64)
            self._index = HashIndex.adopt(used, (used.view(np.uint64),))
        return self._index.find_or_add((words.view(np.uint64),))[0]

    @property
    def slots_made(self) -> int:
        """One more than the greatest slot there may be."""
        return self._small if self._index is None else self._index.slots_made

    def sweep(self, *chains: RowChains) -> None:
        """Forget keys without rows, once they are many more than there are rows."""
        index = self._index
        if index is not None and len(index) > 2 * sum(map(len, chains)) + _SMALL:
            unused = ~index.are_free()
            for each in chains:
                each.unmark(unused)
            index.remove(np.flatnonzero(unused).astype(np.int64))


class Found(NamedTuple):
    """Pairs of rows, and where to go on."""

    asking: Slots
    rows: Slots
    """The partners of asking rows."""
    times: Integers
    """The later time of each pair."""
    stop: int
    """The first asking row that has not been looked at."""
    is_slow: bool
    """Whether chains are too slow to go on."""


class RowChains:
    """Rows in the order in which they came, and chains through those of a key.

    Rows are numbered as they come, and those that are over go from the front: a number before the
    first row that is left ends a chain. So rows that come in order are linked once, and never
    looked at again.

    >>> chains, keys = RowChains(), np.array([7, 8, 7])
    >>> batch = Batch({"key": keys}, times=[1, 2, 3])
    >>> chains.fits(batch)
    True
    >>> chains.add(keys, batch, slots_made=9)
    True
    >>> found = chains.partners(np.array([7]), np.array([5]), -3, 0, 0, 100)
    >>> chains.take(found.rows), found.times, found.stop, found.is_slow
    ({'key': array([7])}, array([5]), 1, False)
    """

    def __init__(self) -> None:
        self._first = 0
        """The number of the first row that is left."""
        self._end = 0
        """One more than the number of the last row."""
        self._base = 0
        """The number of the row at the start of the arrays."""
        self._head = np.empty(0, dtype=np.int32)
        """The latest row of each slot; before the first row, or -1, if it has none."""
        self._before = np.empty(0, dtype=np.int32)
        """For each row the next one of its chain, which is not later."""
        self._slots: Slots = np.empty(0, dtype=np.int64)
        self._times: Integers = np.empty(0, dtype=np.int64)
        self._columns: dict[str, RowColumn] | None = None
        self._time_name = ""
        self._full = _SMALL
        """The number of rows at which to look for those that are over, behind others that stay."""
        self._latest = LEAST

    @property
    def is_new(self) -> bool:
        """Whether there have been no rows yet."""
        return self._columns is None

    def fits(self, batch: Batch) -> bool:
        """Whether chains can have a batch's columns, beside the rows here.

        The first batch decides on the types of columns.
        """
        kept, columns = self._columns, batch.columns
        if kept is None:
            made = {name: row_column(column) for name, column in columns.items()}
            known = {name: column for name, column in made.items() if column is not None}
            if len(known) < len(made):
                return False
            self._columns, self._time_name = known, batch.time_name
            return True
        if len(kept) != len(columns):
            return False
        for name, mine in kept.items():
            column = columns.get(name)
            if column is None or not mine.fits(column):
                return False
        return True

    def add(self, slots: Slots, batch: Batch, slots_made: int) -> bool:
        """Add rows that fit, with the slots of their keys.

        Returns whether chains are good for these rows. If not, only `batch` works from then on.
        """
        rows = len(batch)
        if not rows:
            return True
        if self._end + rows - self._base > len(self._times):
            self._reserve(rows)
        if slots_made > len(self._head):
            head = np.full(max(slots_made, 2 * len(self._head)), -1, dtype=np.int32)
            head[: len(self._head)] = self._head
            self._head = head
        first = self._end - self._base
        end = first + rows
        assert self._columns is not None
        for name, column in self._columns.items():
            column.add(first, end, batch.columns[name])
        self._end += rows
        return self._link(slots, plain(batch.times), first, _patience(rows))

    def _link(self, slots: Slots, times: Integers, start: int, patience: int) -> bool:
        """Have rows in the arrays from a place on, and in chains; whether that took few steps."""
        good, self._latest = _link(
            self._head, self._before, self._slots, self._times, slots, times,
            self._base, self._first, start, patience, self._latest,
        )  # fmt: skip
        return bool(good) and self._end - self._first < _MOST_ROWS

    def partners(
        self, slots: Slots, times: Integers, lower: int, upper: int, start: int, most: int
    ) -> Found:
        """Pairs of asking rows from ``start`` on with rows here, ``lower`` to ``upper`` from them.

        Asking rows are taken until there are ``most`` pairs.
        """
        return Found(
            *_partners(
                self._head, self._before, self._times, self._base, self._first,
                slots, times, lower, upper, start, most, _patience(len(slots)),
            )
        )  # fmt: skip

    def take(self, rows: Slots, without: Collection[str] = ()) -> dict[str, Column]:
        """The columns of some rows that `partners` found, but for some."""
        kept = self._columns or {}
        return {name: c.take(rows) for name, c in kept.items() if name not in without}

    def batch(self) -> Batch:
        """All rows, in arrays whose values do not change."""
        start, stop = self._first - self._base, self._end - self._base
        columns: dict[str, Column]
        columns = {n: column.cut(start, stop) for n, column in (self._columns or {}).items()}
        return Batch.trusted(columns, self._times[start:stop], self._time_name)

    def slots(self) -> Slots:
        """The slots of all rows."""
        return self._slots[self._first - self._base : self._end - self._base]

    def drop_before(self, time: int) -> None:
        """Drop rows before a time: those behind rows that stay before they are the larger part."""
        if self._first == self._end:
            return
        if time > self._latest:
            self._first = self._end
            self._full, self._latest = _SMALL, LEAST
            return
        start = self._first - self._base
        if self._times[start] < time:
            self._first += _passed(self._times, start, self._end - self._base, time)
        if len(self) >= self._full:
            times = self._times[self._first - self._base : self._end - self._base]
            self.keep(np.flatnonzero(times >= time))

    def keep(self, stays: Slots) -> None:
        """Keep some rows, given by their places in `batch`, and drop the others."""
        count = len(stays)
        self._full = 2 * count + _SMALL
        if count == len(self):
            return
        self._move(stays + (self._first - self._base), self._full)
        self._renumber(self._end, count)

    def unmark(self, marks: npt.NDArray[np.bool_]) -> None:
        """Set the marks of slots that have rows to false."""
        # Not all chains lead to rows that are over.
        marks[self.slots()] = False

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory the rows take."""
        arrays = (self._times, self._slots, self._before)
        width = sum(column.width for column in (self._columns or {}).values())
        return (width + sum(array.itemsize for array in arrays)) * len(self)

    def __len__(self) -> int:
        """The number of rows."""
        return self._end - self._first

    def _reserve(self, rows: int) -> None:
        """Make room for rows, without those that have gone."""
        start, stop = self._first - self._base, self._end - self._base
        self._move(slice(start, stop), max(2 * (stop - start) + 4 * rows, _ROOM))
        if self._outgrow_numbers(self._first):
            self._renumber(self._first, stop - start)
        else:
            self._base = self._first

    def _renumber(self, first: int, count: int) -> None:
        """Number and link rows that are at the start of the arrays: from a number on, or anew."""
        if self._outgrow_numbers(first):
            first = 0
            self._head.fill(-1)
        self._base, self._first, self._end = first, first, first + count
        self._latest = LEAST
        self._link(self._slots[:count], self._times[:count], 0, MOST)

    def _outgrow_numbers(self, base: int) -> bool:
        """Whether numbers from ``base`` on are too few for all rows that there is room for."""
        return base + len(self._times) > _MOST_NUMBER

    def _move(self, rows: Rows, room: int) -> None:
        """Have some rows at the start of new arrays: a checkpoint may still read those before."""
        self._times = some_rows(self._times, rows, room)
        self._slots = some_rows(self._slots, rows, room)
        self._before = some_rows(self._before, rows, room)
        for column in (self._columns or {}).values():
            column.reserve(rows, room)


def _patience(rows: int) -> int:
    return _PATIENCE * rows + _SMALL


@nb.njit(cache=True)
def _greatest(words):  # type: ignore[no-untyped-def]
    """The greatest of some words without signs."""
    most = np.uint64(0)
    for i in range(len(words)):
        most = max(most, np.uint64(words[i]))
    return most


@nb.njit(cache=True)
def _passed(times, start, end, time):  # type: ignore[no-untyped-def]
    """How many rows there are from ``start`` to the first that is not before a time."""
    # In stretches, which processors look at for several rows at once.
    row, last = np.uint64(start), np.uint64(end)
    while row + _STRETCH <= last:
        before = True
        for i in range(row, row + _STRETCH):
            before &= times[i] < time
        if not before:
            break
        row += _STRETCH
    while row < last and times[row] < time:
        row += _ONE
    return np.int64(row) - start


# Rows have numbers in chains, from which their places in the arrays are ``base`` away.


@nb.njit(cache=True)
def _link(  # type: ignore[no-untyped-def]
    head, before, slots_at, times_at, slots, times, base, first, start, patience, latest
):
    """Put rows into the arrays from ``start`` on, and link them into their chains.

    No row before is later than ``latest``. Returns whether all were linked, and the latest time.
    """
    slots_at[start : start + len(slots)] = slots
    times_at[start : start + len(slots)] = times
    for i in range(len(slots)):
        row = start + i
        slot = np.uint64(slots[i])
        time = times[i]
        later = np.int64(head[slot])
        in_order = time >= latest
        latest = max(latest, time)
        # Where rows come in order of time, no other one needs to be looked at.
        if in_order or later < first or times_at[later - base] <= time:
            before[row] = later
            head[slot] = row + base
            continue
        earlier = np.int64(before[later - base])
        while earlier >= first and times_at[earlier - base] > time:
            later, earlier = earlier, np.int64(before[earlier - base])
            patience -= 1
            if patience < 0:
                return False, latest
        before[row] = earlier
        before[later - base] = row + base
    return True, latest


@nb.njit(cache=True)
def _partners(  # type: ignore[no-untyped-def]
    head, before, rows_at, base, begin, slots, times, lower, upper, start, most, patience
):
    size = np.uint64(len(head))
    asking = np.empty(max(64, len(slots) // 4), np.int64)
    found = np.empty(len(asking), np.int64)
    later = np.empty(len(asking), np.int64)
    count = 0
    stop = len(slots)
    slow = False
    for i in range(start, len(slots)):
        slot = np.uint64(slots[i])
        row = np.int64(head[slot]) if slot < size else np.int64(-1)
        if row < begin:
            continue
        if count >= most:
            stop = i
            break
        time = times[i]
        if (lower > 0 and time > MOST - lower) or (upper < 0 and time < LEAST - upper):
            continue  # all of it lies beyond an end of time
        first = time + lower if lower > 0 or time >= LEAST - lower else np.int64(LEAST)
        last = time + upper if upper < 0 or time <= MOST - upper else np.int64(MOST)
        while row >= begin and rows_at[row - base] > last:
            row = np.int64(before[row - base])
            patience -= 1
            if patience < 0:
                break
        if patience < 0:
            stop, slow = i, True
            break
        while row >= begin and rows_at[row - base] >= first:
            if count == len(asking):
                asking = np.concatenate((asking, np.empty_like(asking)))
                found = np.concatenate((found, np.empty_like(found)))
                later = np.concatenate((later, np.empty_like(later)))
            asking[count] = i
            found[count] = row - base
            later[count] = max(time, rows_at[row - base])
            count += 1
            row = np.int64(before[row - base])
    return asking[:count], found[:count], later[:count], stop, slow
