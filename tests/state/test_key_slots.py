"""KeySlots against a dictionary: keys of any type, with lookups of keys that are not there."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "small": (pa.int64(), list(range(500))),
    "great": (pa.int64(), [n * 2**40 - 2**60 for n in range(500)]),
    "with nulls": (pa.int64(), [*range(300), None]),
    "text": (pa.string(), [f"word {n}" for n in range(500)]),
    "floats": (pa.float64(), [n / 4 for n in range(100)]),
}


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("kind", KEYS)
def test_found_added_and_removed(kind: str, compact: bool) -> None:
    random = Random(kind)
    arrow, values = KEYS[kind]
    keys = jt.state.KeySlots(1, compact=compact)
    known: dict[Any, int] = {}
    for _ in range(30):
        chosen = [random.choice(values) for _ in range(random.choice([1, 5, 300]))]
        column = jt.Batch({"key": pa.array(chosen, arrow)}, [0] * len(chosen)).column("key")
        assert keys.lookup([column], len(chosen)).tolist() == [known.get(k, -1) for k in chosen]
        slots, new = keys.find([column], len(chosen))
        first = [n for n, key in enumerate(chosen) if key not in known and key not in chosen[:n]]
        assert new.tolist() == first
        known.update(zip(chosen, slots.tolist(), strict=True))
        assert len(set(known.values())) == len(known) == len(keys)
        assert keys.lookup([column], len(chosen)).tolist() == slots.tolist()
        assert keys.slots_made > max(known.values())
        if compact:
            assert keys.slots_made <= len(values)
        live = keys.live()
        by_slot = {slot: key for key, slot in known.items()}
        found = pa.array(keys.values(live)[0]).to_pylist()
        assert found == [by_slot[slot] for slot in live.tolist()]
        gone = random.sample(list(known), random.randrange(len(known)))
        keys.remove(np.array([known.pop(key) for key in gone], dtype=np.int64))


def test_the_same_key_at_several_times() -> None:
    keys = jt.state.KeySlots(1, timed=True)
    words = pa.array(["a", "a", "b"])
    times = np.array([10, 20, 10], dtype=np.uint64)
    slots, new = keys.find([words], 3, times)
    assert new.tolist() == [0, 1, 2]
    assert keys.lookup([words], 3, times).tolist() == slots.tolist()
    assert keys.lookup([words], 3, times + np.uint64(10)).tolist() == [slots[1], -1, -1]
    assert keys.times(slots).tolist() == [10, 20, 10]


def test_slots_of_keys_that_are_never_removed_are_in_order() -> None:
    keys = jt.state.KeySlots(1, compact=True)
    known: dict[int, int] = {}
    random = np.random.default_rng(2)
    for size in (1, 10, 400, 200, 5000, 100, 40_000):
        column = random.integers(-(1 << 62), 1 << 62, size).repeat(2)
        found = keys.find([column], len(column))[0].tolist()
        for key, slot in zip(column.tolist(), found, strict=True):
            assert known.setdefault(key, slot) == slot
    assert keys.values(keys.live())[0].tolist() == list(known)
    assert list(known.values()) == list(range(len(known)))
