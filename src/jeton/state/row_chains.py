"""RowChains: the rows of one side of a join, each linked to the one before it with the same key.

A chain has the rows of one key from the latest to the earliest. Rows that come in order of time, or
nearly so, are linked in a step or two, and partners near the end of a chain are found as quickly.
Nothing is sorted or merged. Where rows come in another order, or partners lie far back, chains
would be slow: the loops notice that and stop.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jeton.columns import compiled as nb
from jeton.columns.batch import Batch
from jeton.columns.column import Column, plain
from jeton.columns.time_arithmetic import LEAST, MOST, Integers
from jeton.state.hash_index import HashIndex
from jeton.state.slot_pool import Slots

_SMALL: Final = 4096
"""So few rows that are over may stay."""
_MOST_ROWS: Final = 1 << 30
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
        words = plain(keys.astype(np.int64, copy=False)).view(np.uint64)
        if self._index is None:
            greatest = int(_greatest(words))
            if greatest < self._small:
                return words.view(np.int64)
            if greatest < _MOST_SMALL:
                self._small = 1 << greatest.bit_length()
                return words.view(np.int64)
            unused = np.ones(self._small, dtype=bool)
            for each in chains:
                each.unmark(unused)
            used = np.flatnonzero(~unused).astype(np.int64)
            self._index = HashIndex.adopt(used, (used.view(np.uint64),))
        return self._index.find_or_add((words,))[0]

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


class RowChains:
    """Rows with plain columns, in the order in which they came, and chains through those of a key.

    >>> chains, keys = RowChains(), np.array([7, 8, 7])
    >>> batch = Batch({"key": keys}, times=[1, 2, 3])
    >>> chains.fits(batch), chains.add(keys, batch, slots_made=9)
    (True, True)
    >>> asking, found, stop, slow = chains.partners(np.array([7]), np.array([5]), -3, 0, 0, 100)
    >>> chains.take(found).rows(), stop, slow
    ([{'time': 3, 'key': 7}], 1, False)
    """

    def __init__(self) -> None:
        self._rows = 0
        self._head = np.empty(0, dtype=np.int32)
        """The latest row of each slot, or -1."""
        self._before = np.empty(0, dtype=np.int32)
        """For each row the next one of its chain, which is not later, or -1."""
        self._slots: Slots = np.empty(0, dtype=np.int64)
        self._times: Integers = np.empty(0, dtype=np.int64)
        self._columns: dict[str, npt.NDArray[Any]] | None = None
        self._time_name = ""
        self._full = _SMALL
        """The number of rows at which to look for those that are over."""
        self._middle = MOST
        """Half of the rows were not after this time, when rows were last dropped."""
        self._latest = LEAST

    @property
    def names(self) -> list[str] | None:
        """The names of the columns, once there have been rows."""
        return None if self._columns is None else list(self._columns)

    def fits(self, batch: Batch) -> bool:
        """Whether a batch has nothing but plain columns, of the same types as the rows here."""
        kept = self._columns
        if kept is None:
            return all(isinstance(column, np.ndarray) for column in batch.columns.values())
        if len(kept) != len(batch.columns):
            return False
        for name, column in batch.columns.items():
            mine = kept.get(name)
            if mine is None or not isinstance(column, np.ndarray):
                return False
            if column.dtype is not mine.dtype and column.dtype != mine.dtype:
                return False
        return True

    def add(self, slots: Slots, batch: Batch, slots_made: int) -> bool:
        """Add rows that fit, with the slots of their keys.

        Returns whether chains are good for these rows. If not, only `batch` works from then on.
        """
        first, rows = self._rows, len(batch)
        end = first + rows
        if self._columns is None:
            self._columns = {n: np.empty(0, dtype=c.dtype) for n, c in batch.columns.items()}
            self._time_name = batch.time_name
        if end > len(self._times):
            self._reserve(end)
        if slots_made > len(self._head):
            head = np.full(slots_made, -1, dtype=np.int32)
            head[: len(self._head)] = self._head
            self._head = head
        columns = self._columns
        for name, column in batch.columns.items():
            columns[name][first:end] = column
        self._times[first:end] = batch.times
        self._slots[first:end] = slots
        self._rows = end
        linked, latest = _link(
            self._head, self._before, self._slots, self._times, first, end, _patience(rows)
        )
        if latest > self._latest:
            self._latest = latest
        return bool(linked == end) and end < _MOST_ROWS

    def partners(
        self, slots: Slots, times: Integers, lower: int, upper: int, start: int, most: int
    ) -> tuple[Slots, Slots, int, bool]:
        """Pairs of asking rows from ``start`` on with rows here, ``lower`` to ``upper`` from them.

        Asking rows are taken until there are ``most`` pairs. Returns the asking rows, their
        partners, where to go on, and whether chains are too slow to do so.
        """
        found: tuple[Slots, Slots, int, bool] = _partners(
            self._head, self._before, self._times,
            slots, times, lower, upper, start, most, _patience(len(slots)),
        )  # fmt: skip
        return found

    def take(self, rows: Slots, names: list[str] | None = None) -> Batch:
        """Some rows, with some of their columns."""
        kept = self._columns or {}
        columns: dict[str, Column]
        columns = {name: kept[name].take(rows) for name in (kept if names is None else names)}
        return Batch.trusted(columns, self._times.take(rows), self._time_name)

    def batch(self) -> Batch:
        """All rows, in arrays whose values do not change."""
        rows = self._rows
        kept = self._columns or {}
        columns: dict[str, Column] = {name: column[:rows] for name, column in kept.items()}
        return Batch.trusted(columns, self._times[:rows], self._time_name)

    def drop_before(self, time: int) -> None:
        """Drop rows before a time: not at once, but before they are the larger part."""
        if not self._rows:
            return
        if time > self._latest:
            self.keep(np.empty(0, dtype=np.int64))
        elif time > self._middle or self._rows >= self._full:
            self.keep(np.flatnonzero(self._times[: self._rows] >= time))

    def keep(self, stays: Slots) -> None:
        """Keep some rows, given in order, and drop the others."""
        _unlink(self._head, self._slots, self._rows)
        count = self._rows = len(stays)
        self._full = room = 2 * count + _SMALL
        rows: Slots | slice = stays
        if count and stays[-1] - stays[0] == count - 1:
            rows = slice(int(stays[0]), int(stays[0]) + count)
        # In new arrays: a checkpoint may still read those before.
        self._times = _some(self._times, rows, room)
        self._slots = _some(self._slots, rows, room)
        self._before = np.empty(room, dtype=np.int32)
        if self._columns is not None:
            self._columns = {name: _some(c, rows, room) for name, c in self._columns.items()}
        self._middle, self._latest = MOST, LEAST
        if count:
            _, latest = _link(self._head, self._before, self._slots, self._times, 0, count, MOST)
            self._middle = int(np.partition(self._times[:count], count // 2)[count // 2])
            self._latest = latest

    def unmark(self, marks: npt.NDArray[np.bool_]) -> None:
        """Set the marks of slots that have rows to false."""
        used = self._head[: len(marks)] >= 0
        marks[: len(used)] &= ~used

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory the rows take."""
        arrays = [*(self._columns or {}).values(), self._times, self._slots, self._before]
        return sum(array.itemsize for array in arrays) * self._rows

    def __len__(self) -> int:
        """The number of rows."""
        return self._rows

    def _reserve(self, rows: int) -> None:
        """Make room for rows, in new arrays: a checkpoint may still read those before."""
        room = max(2 * len(self._times), rows, 1024)
        every = slice(self._rows)
        self._times = _some(self._times, every, room)
        self._slots = _some(self._slots, every, room)
        self._before = _some(self._before, every, room)
        if self._columns is not None:
            self._columns = {name: _some(c, every, room) for name, c in self._columns.items()}


def _some(array: npt.NDArray[Any], rows: Slots | slice, room: int) -> npt.NDArray[Any]:
    """Some rows of an array, in a new one with more room."""
    taken = array[rows]
    longer = np.empty(room, dtype=array.dtype)
    longer[: len(taken)] = taken
    return longer


def _patience(rows: int) -> int:
    return _PATIENCE * rows + _SMALL


@nb.njit(cache=True)
def _greatest(words):  # type: ignore[no-untyped-def]
    most = np.uint64(0)
    for i in range(len(words)):
        most = max(most, words[i])
    return most


@nb.njit(cache=True)
def _link(head, before, slots, times, start, end, patience):  # type: ignore[no-untyped-def]
    """Link rows into their chains; the first that was not linked, and the latest time."""
    latest = np.int64(LEAST)
    for row in range(start, end):
        slot = np.uint64(slots[row])
        time = times[row]
        latest = max(latest, time)
        later = head[slot]
        if later < 0 or times[later] <= time:
            before[row] = later
            head[slot] = row
            continue
        earlier = before[later]
        while earlier >= 0 and times[earlier] > time:
            later, earlier = earlier, before[earlier]
            patience -= 1
            if patience < 0:
                return row, latest
        before[row] = earlier
        before[later] = row
    return end, latest


@nb.njit(cache=True)
def _unlink(head, slots, rows):  # type: ignore[no-untyped-def]
    """Have no rows in the chains."""
    for row in range(rows):
        head[np.uint64(slots[row])] = -1


@nb.njit(cache=True)
def _partners(  # type: ignore[no-untyped-def]
    head, before, rows_at, slots, times, lower, upper, start, most, patience
):
    size = np.uint64(len(head))
    asking = np.empty(max(64, len(slots) // 4), np.int64)
    found = np.empty(len(asking), np.int64)
    count = 0
    for i in range(start, len(slots)):
        slot = np.uint64(slots[i])
        row = head[slot] if slot < size else np.int32(-1)
        if row < 0:
            continue
        if count >= most:
            return asking[:count], found[:count], i, False
        time = times[i]
        if (lower > 0 and time > MOST - lower) or (upper < 0 and time < LEAST - upper):
            continue  # all of it lies beyond an end of time
        first = time + lower if lower > 0 or time >= LEAST - lower else np.int64(LEAST)
        last = time + upper if upper < 0 or time <= MOST - upper else np.int64(MOST)
        while row >= 0 and rows_at[row] > last:
            row = before[row]
            patience -= 1
            if patience < 0:
                return asking[:count], found[:count], i, True
        while row >= 0 and rows_at[row] >= first:
            if count == len(asking):
                asking = np.concatenate((asking, np.empty_like(asking)))
                found = np.concatenate((found, np.empty_like(found)))
            asking[count] = i
            found[count] = row
            count += 1
            row = before[row]
    return asking[:count], found[:count], len(slots), False
