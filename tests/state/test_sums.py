"""Sums of integers that may wrap around in 64 bits, against Python's."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from jeton.state.accumulators import Numeric, pylist

SLOTS = 12


def exact(memory: Numeric, slots: np.ndarray) -> list[int | None]:
    """The sums of some groups as Python's integers, from what would be saved."""
    saved = memory.save(slots)
    parts = zip(*(pylist(saved[part]) for part in ("value", "carry", "seen")), strict=True)
    return [value + (carry << 64) if seen else None for value, carry, seen in parts]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_sums_are_exact_whenever_they_begin_to_wrap(seed: int, kind: Any) -> None:
    """Added, removed, merged, saved and loaded; large numbers come late, if they come at all."""
    random, info = Random(seed), np.iinfo(kind)
    memory, size = Numeric("sum"), 3
    sums: dict[int, int | None] = dict.fromkeys(range(SLOTS))
    for turn in range(40):
        what = random.choice(["add", "add", "add", "clear", "merge", "save"])
        size = min(size + random.choice([0, 1]), SLOTS)
        every = np.arange(size)
        memory.add(every[:0], np.empty(0, kind), size)
        if what == "add":
            reach = random.choice([9, 2**62, info.max]) if turn > 5 * (seed % 8) else 9
            numbers = [random.randint(max(info.min, -reach), reach) for _ in range(20)]
            slots = np.array([random.randrange(size) for _ in numbers])
            memory.add(slots, np.array(numbers, kind), size)
            for slot, number in zip(slots.tolist(), numbers, strict=True):
                sums[slot] = (sums[slot] or 0) + number
        elif what == "clear":
            memory.clear(np.array([slot := random.randrange(size)]))
            sums[slot] = None
        elif what == "merge":
            into, other = random.sample(range(size), 2)
            memory.merge(np.array([into]), np.array([other]))
            memory.clear(np.array([other]))
            if sums[other] is not None:
                sums[into] = (sums[into] or 0) + (sums[other] or 0)
            sums[other] = None
        else:
            saved = memory.save(every)
            memory = Numeric("sum")
            memory.load(every, saved, size)
        assert exact(memory, every) == [sums[slot] for slot in range(size)]


def test_sums_that_have_wrapped_go_on_after_floating_point_numbers() -> None:
    memory, one = Numeric("sum"), np.array([0])
    for _ in range(3):
        memory.add(one, np.array([2**63 - 1]), 1)
    memory.add(one, np.array([0.5]), 1)
    assert pylist(memory.result(one)) == [3 * 2.0**63]
    memory.clear(one)
    for _ in range(3):
        memory.add(one, np.array([2**63 - 1]), 300)
    assert exact(memory, one) == [3 * (2**63 - 1)]


def test_sums_stay_exact_when_a_new_bound_shows_that_none_wraps() -> None:
    """The bound grows with each batch, though the sums do not: it is found anew then."""
    numbers = np.tile([2**42, -(2**42)], 500)
    slots, one = np.zeros(len(numbers), np.int64), np.array([0])
    rolled, added = Numeric("sum"), Numeric("sum")
    for _ in range(5):
        assert pylist(rolled.roll(slots, numbers, 1)) == [2**42, 0] * 500
        added.add(slots, numbers, 1)
        # As after thousands of batches.
        rolled._bound = added._bound = 2**63 - 1
    assert exact(rolled, one) == exact(added, one) == [0]
