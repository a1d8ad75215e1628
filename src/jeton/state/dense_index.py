"""Dense indices: the quick ways from keys to slots while keys are small integers.

With `DirectIndex` a key is its own slot. With `PanedIndex` a key has a time before it, and is
looked up in the array of that time (a *pane*), as long as few times are open at once. Where keys
or times outgrow them, `KeySlots` goes over to hashing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from jeton.columns import compiled as nb
from jeton.state import fused_loops as fused
from jeton.state.slot_pool import SlotPool, Slots, require_in_use, unset

if TYPE_CHECKING:
    from jeton.columns.keys import Hashes
    from jeton.columns.time_columns import Times
    from jeton.state.accumulators import Folding, Values

_NONE: Final[Slots] = np.empty(0, dtype=np.int64)
_LIMIT: Final = 1 << 21
"""Keys from here on are not small."""
_PANES: Final = 16
"""Panes at first: a power of two."""
_CELLS: Final = 1 << 22
"""The most cells of all panes together: 16 MiB."""
_FEW: Final = 1 << 18
"""So few cells of all panes may be empty: 1 MiB."""
_SPARSE: Final = 16
"""With more cells than that for each key, times have too few keys for panes of their own."""


class Scratch:
    """An array that is reused: to allocate a large one costs more than to fill it."""

    __slots__ = ("_array",)

    def __init__(self) -> None:
        self._array = np.empty(1024, dtype=np.int64)

    def of(self, size: int) -> Slots:
        """An array of ``size`` numbers, valid until the next call."""
        return self.holding(size)[:size]

    def holding(self, size: int) -> Slots:
        """The same array, with room for ``size`` numbers or more."""
        if size > len(self._array):
            self._array = np.empty(max(size, 2 * len(self._array)), dtype=np.int64)
        return self._array


class DirectIndex:
    """Keys of one small integer: each is its own slot.

    >>> DirectIndex().find_or_add((np.array([7, 9, 7], dtype=np.uint64),))
    (array([7, 9, 7]), array([0, 1]))
    """

    def __init__(self) -> None:
        self._present = np.zeros(1024, dtype=np.uint8)
        self._live = 0
        self._new = Scratch()

    def find_or_add(self, words: tuple[Hashes, ...]) -> tuple[Slots, Slots] | None:
        """Slots and new rows, or ``None`` if a key is too great."""
        [keys] = words
        new = self._new.of(len(keys))
        found, greatest = _mark(self._present, keys, new)
        if greatest >= len(self._present):
            self._present[keys[new[:found]].astype(np.int64)] = 0
            if greatest >= _LIMIT:
                return None
            wider = np.zeros(1 << greatest.bit_length(), dtype=np.uint8)
            wider[: len(self._present)] = self._present
            self._present = wider
            return self.find_or_add(words)
        self._live += found
        return keys.view(np.int64), new[:found].copy()

    def roll_up(self, keys: Hashes, folding: Folding, out: Values) -> tuple[int, Slots]:
        """Find keys and fold values in, in one loop, up to the first key that is too great.

        ``out`` gets the result after each of them. Returns how many there were, and the rows of new
        ones. These are valid until the next call.
        """
        new = self._new.holding(len(keys))
        how, value, seen, values, _ = folding
        if how == fused.COUNT:
            done, found = fused.count_up(self._present, seen, keys, out, new)
        else:
            done, found = fused.roll_up(self._present, how, value, seen, values, keys, out, new)
        if not found:
            return done, _NONE
        self._live += found
        return done, new[:found]

    def find(self, words: tuple[Hashes, ...]) -> Slots:
        """The slot of each key, -1 for those that are not there."""
        [keys] = words
        slots = np.empty(len(keys), dtype=np.int64)
        _present(self._present, keys, slots)
        return slots

    def remove(self, slots: Slots) -> None:
        """Remove keys."""
        require_in_use(unset(self._present, slots))
        self._live -= len(slots)

    def live(self) -> Slots:
        """All slots in use."""
        return np.flatnonzero(self._present).astype(np.int64)

    def are_free(self) -> npt.NDArray[np.bool_]:
        """Whether each slot is free."""
        free: npt.NDArray[np.bool_] = self._present == 0
        return free

    def words(self, slots: Slots) -> tuple[Hashes, ...]:
        """The words of the keys of slots."""
        return (slots.view(np.uint64),)

    def key_words(self, slots: Slots) -> Hashes:
        """The last of these words, in an array of their own."""
        return slots.view(np.uint64).copy()

    @property
    def slots_made(self) -> int:
        """One more than the greatest slot there may be."""
        return len(self._present)

    def __len__(self) -> int:
        return self._live


class Grid(NamedTuple):
    """Windows of equal size that follow each other."""

    size: int
    offset: int
    beyond: int = 0
    """How far the end of a window is from the time that it is known by."""


class PanedIndex(SlotPool):
    """Keys of a time and one small integer, while keys and open times are few enough.

    Workers that are ahead of others have many windows open, so the number of panes grows too.

    >>> ends = np.array([10, 10, 20], dtype=np.uint64)
    >>> PanedIndex().find_or_add((ends, np.array([7, 7, 7], dtype=np.uint64)))
    (array([0, 0, 1]), array([0, 2]))
    """

    def __init__(self) -> None:
        super().__init__(words=2)
        self._cells = np.full((_PANES, 1024), -1, dtype=np.int32)
        self._times = np.zeros(_PANES, dtype=np.uint64)
        self._open = np.zeros(_PANES, dtype=np.int64)
        self._slots = Scratch()
        self._new = Scratch()

    def find_or_add(self, words: tuple[Hashes, ...]) -> tuple[Slots, Slots] | None:
        """Slots and new rows, or ``None`` if a key is too great or too many times are open.

        A single time is that of all keys. The slots are valid until the next call.
        """
        ends, keys = words
        self.reserve(len(keys))
        slots, new = self._slots.of(len(keys)), self._new.of(len(keys))
        found, unfit = _find(
            self._cells, (self._times, self._open), self.stored, (self.free, self.state),
            ends, keys, slots, new,
        )  # fmt: skip
        if unfit >= 0:
            made = self._make_room(int(keys[unfit]))
            self.remove(slots[new[:found]])
            return self.find_or_add(words) if made else None
        return slots, new[:found].copy()

    def fold(
        self, grid: Grid, times: Times, keys: Hashes, folding: Folding, *, noted: bool
    ) -> tuple[int, Slots, Slots]:
        """Find the keys in the windows of their times, and fold values in, in one loop.

        The loop ends at the first row that needs more room. Returns how many rows there were before
        it, the slots of all of these if they are ``noted``, and those of new keys. Both are valid
        until the next call.
        """
        rows = len(keys)
        slots = self._slots.holding(rows) if noted else _NONE
        opened = self._new.holding(rows)
        done, found = fused.fold_in_windows(
            self._cells, self._times, self._open, *self.stored, self.free, self.state,
            *grid, times, keys, *folding, slots, opened,
        )  # fmt: skip
        return done, slots[:done], opened[:found] if found else _NONE

    def find(self, words: tuple[Hashes, ...]) -> Slots:
        """The slot of each key, -1 for those that are not there."""
        ends, keys = words
        slots = np.full(len(keys), -1, dtype=np.int64)
        fits = keys < self._cells.shape[1]
        for pane in np.flatnonzero(self._open).tolist():
            mine = np.flatnonzero((ends == self._times[pane]) & fits)
            slots[mine] = self._cells[pane, keys[mine].astype(np.int64)]
        return slots

    def remove(self, slots: Slots) -> None:
        """Remove keys; their slots will be used for others."""
        require_in_use(_forget(self._cells, self._times, self._open, *self.stored, slots))
        self.release(slots)

    def _make_room(self, key: int) -> bool:
        """Make room for a key, or for one more time if it fits; returns whether there is any."""
        panes, width = self._cells.shape
        most = _CELLS
        if key >= width:
            width = 1 << key.bit_length()
        else:
            panes *= 2
            most = min(most, max(_FEW, _SPARSE * len(self)))
        if panes * width > most:
            return False
        before, times, opened = self._cells, self._times, self._open
        self._cells = np.full((panes, width), -1, dtype=np.int32)
        self._times = np.zeros(panes, dtype=np.uint64)
        self._open = np.zeros(panes, dtype=np.int64)
        for pane in np.flatnonzero(opened):
            place = fused.pane_of(self._times, self._open, times[pane])
            self._cells[place, : before.shape[1]] = before[pane]
            self._open[place] = opened[pane]
        return True


@nb.njit(cache=True)
def _mark(present, keys, new):  # type: ignore[no-untyped-def]
    """Mark keys as present; how many were not, and the greatest key if one is out of range."""
    found = 0
    size = np.uint64(len(present))
    greatest = np.uint64(0)
    for i in range(len(keys)):
        key = keys[i]
        if key >= size:
            greatest = max(greatest, key)
        elif not present[key]:
            present[key] = 1
            new[found] = i
            found += 1
    return found, greatest


@nb.njit(cache=True)
def _present(present, keys, slots):  # type: ignore[no-untyped-def]
    size = np.uint64(len(present))
    for i in range(len(keys)):
        slots[i] = np.int64(keys[i]) if keys[i] < size and present[keys[i]] else -1


@nb.njit(cache=True)
def _find(cells, panes, stored, made, ends, keys, slots, new):  # type: ignore[no-untyped-def]
    """Fill in slots; how many are new, and the first row that does not fit or -1."""
    times, open_keys = panes
    stored_ends, stored_keys = stored
    free, state = made
    size = np.uint64(cells.shape[1])
    found = 0
    pane = -1
    last = np.uint64(0)
    stride = 0 if len(ends) == 1 else 1
    for i in range(len(keys)):
        if pane < 0 or ends[i * stride] != last:
            last = ends[i * stride]
            pane = fused.pane_of(times, open_keys, last)
        key = keys[i]
        if pane < 0 or key >= size:
            return found, i
        slot = np.int64(cells[pane, key])
        if slot < 0:
            if state[1] > 0:
                state[1] -= 1
                slot = free[state[1]]
            else:
                slot = state[0]
                state[0] += 1
            cells[pane, key] = slot
            open_keys[pane] += 1
            stored_ends[slot] = last
            stored_keys[slot] = key
            new[found] = i
            found += 1
        slots[i] = slot
    return found, -1


@nb.njit(cache=True)
def _forget(cells, times, open_keys, stored_ends, stored_keys, slots):  # type: ignore[no-untyped-def]
    pane = 0
    for slot in slots:
        time = stored_ends[slot]
        if open_keys[pane] == 0 or times[pane] != time:
            pane = fused.pane_of(times, open_keys, time)
        if pane < 0 or open_keys[pane] == 0 or cells[pane, stored_keys[slot]] != slot:
            return False
        cells[pane, stored_keys[slot]] = -1
        open_keys[pane] -= 1
    return True
