"""SlotChains: for each slot a chain of rows, to which rows and whole chains are appended."""

from __future__ import annotations

import numpy as np

from jeton.columns import compiled as nb
from jeton.state.slot_pool import Slots, grown


class SlotChains:
    """Chains of rows, small numbers from 0 on, each of which is in one chain at most.

    >>> chains = SlotChains()
    >>> chains.append(np.array([7, 4, 7]), np.array([0, 1, 2]))
    >>> chains.join(np.array([4]), np.array([7]))
    >>> chains.rows(np.array([4, 7]))
    (array([1, 0, 2]), array([0, 3, 3]))
    """

    def __init__(self) -> None:
        empty = np.zeros(0, dtype=np.int64)
        self._lengths = self._first = self._last = self._next = empty

    def append(self, slots: Slots, rows: Slots) -> None:
        """Append one row to the chain of each slot."""
        if len(slots):
            self._reserve(int(slots.max()) + 1)
            self._next = grown(self._next, int(rows.max()) + 1)
            _append(slots, rows, self._lengths, self._first, self._last, self._next)

    def join(self, into: Slots, others: Slots) -> None:
        """Append the chains of ``others`` to those of ``into``, pair by pair, and empty them."""
        if len(into):
            self._reserve(int(max(into.max(), others.max())) + 1)
            _join(into, others, self._lengths, self._first, self._last, self._next)

    def rows(self, slots: Slots) -> tuple[Slots, Slots]:
        """The rows of some chains, one chain after the other, and where each begins and ends."""
        if len(slots):
            self._reserve(int(slots.max()) + 1)
        offsets = np.zeros(len(slots) + 1, dtype=np.int64)
        np.cumsum(self._lengths[slots], out=offsets[1:])
        return _walk(slots, offsets, self._first, self._next), offsets

    def clear(self, slots: Slots) -> None:
        """Empty some chains."""
        if len(slots):
            self._reserve(int(slots.max()) + 1)
            self._lengths[slots] = 0

    def _reserve(self, size: int) -> None:
        self._lengths, self._first, self._last = (
            grown(kept, size) for kept in (self._lengths, self._first, self._last)
        )


@nb.njit(cache=True)
def _append(slots, rows, lengths, first, last, after):  # type: ignore[no-untyped-def]
    for i in range(len(slots)):
        slot, row = slots[i], rows[i]
        if lengths[slot]:
            after[last[slot]] = row
        else:
            first[slot] = row
        last[slot] = row
        lengths[slot] += 1


@nb.njit(cache=True)
def _join(into, others, lengths, first, last, after):  # type: ignore[no-untyped-def]
    for i in range(len(into)):
        slot, other = into[i], others[i]
        if lengths[other]:
            if lengths[slot]:
                after[last[slot]] = first[other]
            else:
                first[slot] = first[other]
            last[slot] = last[other]
            lengths[slot] += lengths[other]
            lengths[other] = 0


@nb.njit(cache=True)
def _walk(slots, offsets, first, after):  # type: ignore[no-untyped-def]
    rows = np.empty(offsets[-1], np.int64)
    for i in range(len(slots)):
        row = first[slots[i]] if offsets[i + 1] > offsets[i] else 0
        for at in range(offsets[i], offsets[i + 1]):
            rows[at] = row
            row = after[row]
    return rows
