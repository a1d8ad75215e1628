"""KeyTable: from keys to small dense numbers (*slots*), a whole batch at a time.

Values of a key live in plain arrays indexed by its slot. A key is one to three 64-bit words, the
first of which may be a time. Keys that are small integers are found by a dense index, all others in
an open-addressing hash table, the only one of the library. Slots of removed keys are used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from jeton.columns import compiled as nb
from jeton.state.dense_index import DirectIndex, PanedIndex
from jeton.state.slot_pool import SlotPool, Slots, grown

if TYPE_CHECKING:
    from jeton.columns.keys import Hashes


class Index(Protocol):
    """An index from keys to slots."""

    def find_or_add(self, words: tuple[Hashes, ...]) -> tuple[Slots, Slots] | None:
        """The slot of each key and the rows that brought new ones; ``None`` if keys do not fit."""
        ...

    def find(self, words: tuple[Hashes, ...]) -> Slots:
        """The slot of each key, -1 for those that are not there."""
        ...

    def remove(self, slots: Slots) -> None:
        """Remove keys."""
        ...

    def live(self) -> Slots:
        """All slots in use."""
        ...

    def words(self, slots: Slots) -> tuple[Hashes, ...]:
        """The words of the keys of slots."""
        ...

    @property
    def slots_made(self) -> int:
        """The length that arrays of values must have."""
        ...

    def __len__(self) -> int: ...


class KeyTable:
    """Slots for keys of ``words`` words; with ``dense``, by a dense index while they are small.

    >>> table = KeyTable(1)
    >>> slots, new = table.find_or_add((np.array([7, 9, 7], dtype=np.uint64),))
    >>> slots, new
    (array([0, 1, 0]), array([0, 1]))
    >>> table.remove(np.array([0]))
    >>> table.find_or_add((np.array([8], dtype=np.uint64),))[0], len(table)
    (array([0]), 2)
    """

    def __init__(self, words: int, *, dense: bool = False) -> None:
        self._index: Index = (
            HashIndex(words) if not dense else DirectIndex() if words == 1 else PanedIndex()
        )

    def find_or_add(self, words: tuple[Hashes, ...]) -> tuple[Slots, Slots]:
        """The slot of each key, and the rows at which a key was seen for the first time."""
        found = self._index.find_or_add(words)
        if found is None:
            live = self._index.live()
            self._index = HashIndex.adopt(live, self._index.words(live))
            found = self._index.find_or_add(words)
            assert found is not None, "everything fits into a hash table"
        return found

    def find(self, words: tuple[Hashes, ...]) -> Slots:
        """The slot of each key, -1 for those that are not there."""
        return self._index.find(words)

    def remove(self, slots: Slots) -> None:
        """Remove keys; their slots will be used for others."""
        self._index.remove(slots)

    def live(self) -> Slots:
        """All slots in use, in ascending order."""
        return self._index.live()

    def words(self, slots: Slots) -> tuple[Hashes, ...]:
        """The words of the keys of slots."""
        return self._index.words(slots)

    def rekey(self, slots: Slots, words: tuple[Hashes, ...]) -> None:
        """Find the slots, which are all those in use, by other words from now on."""
        self._index = HashIndex.adopt(slots, words)

    @property
    def slots_made(self) -> int:
        """The length of arrays of values: one more than the greatest slot there may be."""
        return self._index.slots_made

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._index)


class HashIndex:
    """Keys of any words, in an open-addressing table that is at most half full."""

    def __init__(self, words: int) -> None:
        self._table = np.full(1024, -1, dtype=np.int64)
        self._pool = SlotPool()
        self._stored = tuple(np.zeros(len(self._pool.free), np.uint64) for _ in range(words))

    @classmethod
    def adopt(cls, slots: Slots, words: tuple[Hashes, ...]) -> HashIndex:
        """An index that finds slots made elsewhere by these words."""
        index = cls(len(words))
        made = int(slots.max()) + 1 if len(slots) else 0
        index._pool = SlotPool(made, np.setdiff1d(np.arange(made), slots, assume_unique=True))
        index._stored = tuple(np.zeros(len(index._pool.free), np.uint64) for _ in words)
        for stored, values in zip(index._stored, words, strict=True):
            stored[slots] = values
        index._rehash(len(slots) + 512)
        return index

    def find_or_add(self, words: tuple[Hashes, ...]) -> tuple[Slots, Slots] | None:
        """Slots and new rows. A single time, the first word, is that of all keys."""
        rows = len(words[-1])
        self._reserve(rows)
        slots = np.empty(rows, dtype=np.int64)
        new = np.empty(rows, dtype=np.int64)
        free, state = self._pool.free, self._pool.state
        found = _find_or_add(self._table, self._stored, _repeated(words), free, state, slots, new)
        return slots, new[:found]

    def find(self, words: tuple[Hashes, ...]) -> Slots:
        """The slot of each key, -1 for those that are not there."""
        slots = np.empty(len(words[-1]), dtype=np.int64)
        _find(self._table, self._stored, _repeated(words), slots)
        return slots

    def remove(self, slots: Slots) -> None:
        """Remove keys."""
        _remove(self._table, self._stored, slots)
        self._pool.release(slots)

    def live(self) -> Slots:
        """All slots in use, in ascending order."""
        return self._pool.live()

    def words(self, slots: Slots) -> tuple[Hashes, ...]:
        """The words of the keys of slots."""
        return tuple(stored[slots] for stored in self._stored)

    @property
    def slots_made(self) -> int:
        """One more than the greatest slot ever made."""
        return self._pool.made

    def __len__(self) -> int:
        return len(self._pool)

    def _reserve(self, rows: int) -> None:
        """Make room for as many new keys as there are rows."""
        size = self._pool.reserve(rows)
        if size is not None:
            self._stored = tuple(grown(stored, size) for stored in self._stored)
        if 2 * (len(self) + rows) > len(self._table):
            self._rehash(len(self) + rows)

    def _rehash(self, keys: int) -> None:
        self._table = np.full(1 << (2 * keys - 1).bit_length(), -1, dtype=np.int64)
        _insert(self._table, self._stored, self.live())


def _repeated(words: tuple[Hashes, ...]) -> tuple[Hashes, ...]:
    """Words for each row: a single first one is that of all rows."""
    rows = len(words[-1])
    return words if len(words[0]) == rows else (np.repeat(words[0], rows), *words[1:])


@nb.njit(cache=True, inline="always")
def _home(words, row, mask):  # type: ignore[no-untyped-def]
    """The place where a key's search starts: the high bits of a product are spread best."""
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
            slot = table[at]
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
            slot = table[at]
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
    """Take keys out, moving back those that had to step aside for them."""
    mask = np.uint64(len(table) - 1)
    one = np.uint64(1)
    for slot in slots:
        at = _home(stored, slot, mask)
        while table[at] != slot:
            at = (at + one) & mask
        hole = at
        at = (at + one) & mask
        while table[at] >= 0:
            home = _home(stored, table[at], mask)
            # It may move back if its home does not lie between the hole and where it is.
            if ((at - home) & mask) >= ((at - hole) & mask):
                table[hole] = table[at]
                hole = at
            at = (at + one) & mask
        table[hole] = -1
