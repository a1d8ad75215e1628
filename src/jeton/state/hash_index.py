"""HashIndex: the open-addressing hash table from keys to slots, the only one of the library.

A key is one or more 64-bit words, the first of which may be a time. `KeySlots` uses it for all keys
but small integers, which have a dense index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from jeton.columns import compiled as nb
from jeton.state.slot_pool import SlotPool, Slots, require_in_use

if TYPE_CHECKING:
    from jeton.columns.keys import Hashes


_MANY: Final = 4096


class HashIndex(SlotPool):
    """Keys of any words, in an open-addressing table that is at most half full.

    >>> index = HashIndex(1)
    >>> slots, new = index.find_or_add((np.array([7, 9, 7], dtype=np.uint64),))
    >>> slots, new
    (array([0, 1, 0]), array([0, 1]))
    >>> index.remove(np.array([0]))
    >>> index.find_or_add((np.array([8], dtype=np.uint64),))[0], len(index)
    (array([0]), 2)
    """

    def __init__(self, words: int, made: int = 0, free: Slots | None = None) -> None:
        super().__init__(words, made, free)
        self.table = np.full(1024, -1, dtype=np.int32)
        """The slots of keys, -1 where there is none: compiled loops search it from `home_of` on."""

    @classmethod
    def adopt(cls, slots: Slots, words: tuple[Hashes, ...]) -> HashIndex:
        """An index that finds slots made elsewhere by these words."""
        made = int(slots.max()) + 1 if len(slots) else 0
        index = cls(len(words), made, np.setdiff1d(np.arange(made), slots, assume_unique=True))
        for stored, values in zip(index.stored, words, strict=True):
            stored[slots] = values
        index._rehash(len(slots) + 512)
        return index

    def find_or_add(self, words: tuple[Hashes, ...]) -> tuple[Slots, Slots]:
        """Slots and new rows. A single time, the first word, is that of all keys."""
        rows = len(words[-1])
        self.reserve(rows)
        if 2 * (len(self) + rows) > len(self.table):
            self._rehash(len(self) + rows)
        slots = np.empty(rows, dtype=np.int64)
        new = np.empty(rows, dtype=np.int64)
        found = _find_or_add(
            self.table, self.stored, _repeated(words), self.free, self.state, slots, new
        )
        return slots, new[:found]

    def find(self, words: tuple[Hashes, ...]) -> Slots:
        """The slot of each key, -1 for those that are not there."""
        slots = np.empty(len(words[-1]), dtype=np.int64)
        _find(self.table, self.stored, _repeated(words), slots)
        return slots

    def remove(self, slots: Slots) -> None:
        """Remove keys; their slots will be used for others."""
        if len(slots) >= _MANY and 2 * len(slots) > len(self):
            self._keep_others(slots)
            return
        require_in_use(_remove(self.table, self.stored, slots))
        self.release(slots)

    def _keep_others(self, slots: Slots) -> None:
        """Remove most keys: to insert the others anew takes less time."""
        stays = ~self.are_free()
        require_in_use(bool(stays[slots].all()))
        stays[slots] = False
        others = np.flatnonzero(stays).astype(np.int64)
        require_in_use(len(others) == len(self) - len(slots))
        self.release(slots)
        self.table.fill(-1)
        _insert(self.table, self.stored, others)

    def _rehash(self, keys: int) -> None:
        # Narrow, so that more of the table is near the processor.
        width = np.int32 if self.slots_made + keys < 1 << 31 else np.int64
        self.table = np.full(1 << (2 * keys - 1).bit_length(), -1, dtype=width)
        _insert(self.table, self.stored, self.live())


def _repeated(words: tuple[Hashes, ...]) -> tuple[Hashes, ...]:
    """Words for each row: a single first one is that of all rows."""
    rows = len(words[-1])
    return words if len(words[0]) == rows else (np.repeat(words[0], rows), *words[1:])


@nb.njit(cache=True, inline="always")
def home_of(word, mask):  # type: ignore[no-untyped-def]
    """The place where the search of a key of one word starts, in a table of ``mask`` + 1 places.

    The high bits of a product are spread best.
    """
    return ((word * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask


@nb.njit(cache=True, inline="always")
def _home(words, row, mask):  # type: ignore[no-untyped-def]
    """The place where a key's search starts: that of `home_of` if it has one word."""
    state = words[0][row] * np.uint64(0x9E3779B97F4A7C15)
    for k in range(1, len(words)):
        state = (state ^ (state >> np.uint64(32))) + words[k][row]
        state = state * np.uint64(0xD6E8FEB86659FD93)
    return (state >> np.uint64(20)) & mask


@nb.njit(cache=True)
def _find_or_add(table, stored, words, free, state, slots, new):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(table) - 1)
    found = 0
    for i in range(len(slots)):
        at = _home(words, i, mask)
        while True:
            slot = np.int64(table[at])
            if slot < 0:
                if state[1] > 0:
                    state[1] -= 1
                    slot = free[state[1]]
                else:
                    slot = state[0]
                    state[0] += 1
                table[at] = slot
                for k in range(len(words)):
                    stored[k][slot] = words[k][i]
                new[found] = i
                found += 1
                break
            same = True
            for k in range(len(words)):
                if stored[k][slot] != words[k][i]:
                    same = False
                    break
            if same:
                break
            at = (at + np.uint64(1)) & mask
        slots[i] = slot
    return found


@nb.njit(cache=True)
def _find(table, stored, words, slots):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(table) - 1)
    for i in range(len(slots)):
        at = _home(words, i, mask)
        while True:
            slot = np.int64(table[at])
            same = True
            if slot >= 0:
                for k in range(len(words)):
                    if stored[k][slot] != words[k][i]:
                        same = False
                        break
            if same:
                break
            at = (at + np.uint64(1)) & mask
        slots[i] = slot


@nb.njit(cache=True)
def _insert(table, stored, slots):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(table) - 1)
    for slot in slots:
        at = _home(stored, slot, mask)
        while table[at] >= 0:
            at = (at + np.uint64(1)) & mask
        table[at] = slot


@nb.njit(cache=True)
def _remove(table, stored, slots):  # type: ignore[no-untyped-def]
    """Take keys out, moving back those that had to step aside; whether all of them were there."""
    mask = np.uint64(len(table) - 1)
    one = np.uint64(1)
    for slot in slots:
        at = _home(stored, slot, mask)
        while table[at] != slot:
            if table[at] < 0:
                return False
            at = (at + one) & mask
        hole = at
        at = (at + one) & mask
        while table[at] >= 0:
            home = _home(stored, np.int64(table[at]), mask)
            # It may move back if its home does not lie between the hole and where it is.
            if ((at - home) & mask) >= ((at - hole) & mask):
                table[hole] = table[at]
                hole = at
            at = (at + one) & mask
        table[hole] = -1
    return True
