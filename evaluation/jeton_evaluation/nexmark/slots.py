"""Slots: small numbers for large ones, so that what is kept for each key is in arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

import jeton as jt
from jeton.idioms.keyed_state import plain

Integers = npt.NDArray[np.int64]

GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
"""Ids follow each other: multiplied by it, their upper bits are spread evenly."""
_FIRST_BITS: Final = 10


class Slots:
    """A number for each key, from 0 on, in the order in which keys come first.

    >>> slots = Slots()
    >>> slots.of(np.array([1007, 1003, 1007])), slots.keys
    (array([0, 1, 0]), array([1007, 1003]))
    """

    def __init__(self) -> None:
        # By hash: one more than the slot, 0 where there is none.
        self._places = np.zeros(1 << _FIRST_BITS, np.int64)
        self._keys = np.empty(1 << (_FIRST_BITS - 1), np.int64)
        self._used = 0

    def of(self, keys: Integers) -> Integers:
        """The slots of keys; new ones get new slots."""
        most = self._used + len(keys)
        if most > len(self._keys):
            bits = most.bit_length()
            known, self._keys = self.keys, np.empty(1 << bits, np.int64)
            self._places = np.zeros(2 << bits, np.int64)
            _find(self._places, self._keys, 0, known, np.empty(len(known), np.int64))
        found = np.empty(len(keys), np.int64)
        self._used = _find(self._places, self._keys, self._used, plain(keys), found)
        return found

    @property
    def keys(self) -> Integers:
        """All keys, in order of their slots."""
        return self._keys[: self._used]

    def __len__(self) -> int:
        return self._used


def grown(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """An array with room for so many slots: the same one, or a larger one with zeros behind.

    >>> grown(np.array([5, 6]), 3).tolist()
    [5, 6, 0, 0]
    """
    if len(array) >= length:
        return array
    larger = np.zeros((1 << (length - 1).bit_length(), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


@jt.njit(cache=True, inline="always")
def shift_of(table: Any) -> Any:
    """By how much to shift a hash, so that it is a place in a table of this size."""
    shift = 64
    while (1 << (64 - shift)) < len(table):
        shift -= 1
    return np.uint64(shift)


@jt.njit(cache=True)
def _find(places: Any, known: Any, used: int, keys: Any, out: Any) -> int:
    """Write the slots of keys, and the keys that are new; returns how many are known then."""
    mask, shift = len(places) - 1, shift_of(places)
    for i in range(len(keys)):
        key = keys[i]
        at = np.int64((np.uint64(key) * GOLDEN) >> shift)
        while places[at] != 0 and known[places[at] - 1] != key:
            at = (at + 1) & mask
        if places[at] == 0:
            known[used] = key
            used += 1
            places[at] = used
        out[i] = places[at] - 1
    return used
