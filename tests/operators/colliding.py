"""Different keys with equal hashes: made by undoing the last step of the hash."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

import jeton as jt

_ALL = (1 << 64) - 1
_FACTOR = 0xD6E8FEB86659FD93


def _mixed(word: int) -> int:
    for _ in range(2):
        word = ((word ^ (word >> 32)) * _FACTOR) & _ALL
    return word ^ (word >> 32)


def colliding(count: int, *, seed: int = 7) -> list[str]:
    """Texts of 16 letters that all have the same hash."""
    letters = random.Random(seed)
    first = _word(letters)
    goal = (_mixed((16 * 31 + first) & _ALL) * 31 + _word(letters)) & _ALL
    found: dict[str, None] = {}
    while len(found) < count:
        one = _word(letters)
        other = (goal - _mixed((16 * 31 + one) & _ALL) * 31) & _ALL
        data = one.to_bytes(8, "big") + other.to_bytes(8, "big")
        if all(0x20 < byte < 0x7F for byte in data):
            found[data.decode("ascii")] = None
    keys = list(found)
    assert len(np.unique(jt.state.hash_columns([pa.array(keys)]))) == 1
    return keys


def _word(letters: random.Random) -> int:
    return int.from_bytes(bytes(letters.randrange(0x21, 0x7F) for _ in range(8)), "big")
