"""SlotPool: the slots of keys, and those that are free."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jeton.columns import compiled as nb
from jeton.columns.column import plain
from jeton.core.errors import BatchError

Slots = npt.NDArray[np.int64]

_INTEGERS: Final = np.dtype(np.int64)


class SlotPool:
    """Slots in use with the words of their keys, and the slots that are free.

    Slots are numbers from 0 on; those released are used again before new ones are made. Compiled
    loops take slots by themselves, from `free` and `state`, and store the words of their keys.
    """

    def __init__(self, words: int, made: int = 0, free: Slots | None = None) -> None:
        given = np.empty(0, dtype=np.int64) if free is None else free
        self.free = grown(given, made + 512)
        self.state = np.array([made, len(given)], dtype=np.int64)
        """The number of slots ever made, and of those among them that are free."""
        self.stored = tuple(np.zeros(len(self.free), np.uint64) for _ in range(words))

    def live(self) -> Slots:
        """All slots in use, in ascending order."""
        return np.flatnonzero(~self.are_free()).astype(np.int64)

    def are_free(self) -> npt.NDArray[np.bool_]:
        """Whether each slot is free; where few are, that costs next to nothing."""
        free = np.zeros(self.slots_made, dtype=bool)
        free[self.free[: int(self.state[1])]] = True
        return free

    def used_of(self, slots: Slots) -> Slots:
        """Those of some slots that are in use."""
        return slots[~self.are_free()[slots]] if self.state[1] else slots

    def words(self, slots: Slots) -> tuple[npt.NDArray[np.uint64], ...]:
        """The words of the keys of slots."""
        return tuple([stored.take(slots) for stored in self.stored])

    def key_words(self, slots: Slots) -> npt.NDArray[np.uint64]:
        """The last of these words, in an array of their own."""
        return self.stored[-1].take(slots)

    @property
    def slots_made(self) -> int:
        """One more than the greatest slot ever made."""
        return int(self.state[0])

    def __len__(self) -> int:
        """The number of slots in use."""
        return int(self.state[0] - self.state[1])

    def release(self, slots: Slots) -> None:
        """Mark slots as free."""
        free = int(self.state[1])
        self.free[free : free + len(slots)] = slots
        self.state[1] += len(slots)

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` new slots."""
        if self.slots_made + rows > len(self.free):
            # Most are unused as long as no key is removed: memory that is not copied is not taken.
            free = self.free[: int(self.state[1])]
            size = max(self.slots_made + rows, 2 * len(self.free))
            self.free = grown(free, size)
            self.stored = tuple(grown(stored, len(self.free)) for stored in self.stored)


class UniqueIndex(SlotPool):
    """Keys of which none comes twice, nor is looked up: each that comes gets a slot of its own.

    >>> index = UniqueIndex()
    >>> index.find_or_add((np.array([7, 9], dtype=np.uint64),))
    (array([0, 1]), array([0, 1]))
    >>> index.remove(np.array([0]))
    >>> index.find_or_add((np.array([8, 6], dtype=np.uint64),))[0], len(index)
    (array([0, 2]), 3)
    """

    def __init__(self) -> None:
        super().__init__(words=1)
        self._used = np.zeros(len(self.free), np.uint8)

    def find_or_add(self, words: tuple[npt.NDArray[np.uint64], ...]) -> tuple[Slots, Slots]:
        """Slots, those that are free first, and the rows, all of which are new."""
        [keys] = words
        rows = len(keys)
        self.reserve(rows)
        self._used = grown(self._used, len(self.free))
        made, free = self.state.tolist()
        again = min(free, rows)
        slots = np.empty(rows, np.int64)
        slots[:again] = self.free[free - again : free][::-1]
        slots[again:] = np.arange(made, made + rows - again)
        self.state[:] = made + rows - again, free - again
        self.stored[0][slots] = keys
        self._used[slots] = 1
        return slots, np.arange(rows)

    def find(self, words: tuple[npt.NDArray[np.uint64], ...]) -> Slots:
        """No key is looked up."""
        raise BatchError("keys of which each comes once (unique=True) are not looked up")

    def remove(self, slots: Slots) -> None:
        """Remove keys; their slots will be used for others."""
        require_in_use(unset(self._used, slots))
        self.release(slots)


def grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """An array with room for ``size`` slots: the same one, or a longer copy with zeros behind.

    A copy is at least twice as long, so that arrays that grow with every batch are seldom copied.

    >>> grown(np.array([5, 6, 7]), 4).tolist()
    [5, 6, 7, 0, 0, 0]
    """
    if len(array) >= size:
        return array
    longer = np.zeros((max(size, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    longer[: len(array)] = array
    return longer


def as_slots(slots: Any) -> Slots:
    """Slots as compiled loops take them: an array of 64-bit integers.

    >>> as_slots([0, 2])
    array([0, 2])
    """
    if type(slots) is np.ndarray and slots.dtype is _INTEGERS and slots.ndim == 1:
        return plain(slots)
    given = np.asarray(slots)
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise BatchError(f"slots are an array of integers, not {given.ndim}-d of {given.dtype}")
    return plain(given.astype(np.int64, copy=False))


@nb.njit(cache=True)
def are_made(slots: Slots, made: int) -> bool:
    """Whether slots are from 0 to below ``made``.

    >>> are_made(np.array([0, 2]), 3), are_made(np.array([0, -1]), 3)
    (True, False)
    """
    outside = False  # a loop without an early end, which processors run for several slots at once
    for i in range(len(slots)):
        outside |= (slots[i] < 0) | (slots[i] >= made)
    return not outside


def require_in_use(removed: bool) -> None:
    """Refuse to remove a slot that is not in use."""
    if not removed:
        raise BatchError(
            "a slot was removed that is not in use: remove each slot once, as find() or lookup() "
            "returned it"
        )


@nb.njit(cache=True)
def unset(used, slots):  # type: ignore[no-untyped-def]
    """Mark slots as not in use; whether all of them were."""
    for slot in slots:
        if not used[slot]:
            return False
        used[slot] = 0
    return True
