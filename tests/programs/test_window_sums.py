"""Sums by window and key: against a dictionary, and what closing windows costs."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton_evaluation.programs.window_mean import WindowSums

SIZE = 3


def batch_of(random: Random, keys: list[Any], start: int, count: int) -> jt.Batch:
    times = [start + random.randrange(30) for _ in range(count)]
    chosen = pa.array([random.choice(keys) for _ in range(count)])
    return jt.Batch({"key": chosen, "value": [float(random.randrange(9)) for _ in times]}, times)


@pytest.mark.parametrize("seed", range(12))
def test_against_a_dictionary(seed: int) -> None:
    """Adding and closing in turns; tables grow and shrink, numbers of keys are used again."""
    random = Random(seed)
    many = random.choice([3, 2000])
    keys: list[Any] = [*range(many), None] if seed % 2 else [*map(str, range(many)), None]
    sums = WindowSums(SIZE, "key", "value")
    expected: dict[tuple[int, Any], list[float]] = defaultdict(list)
    for turn in range(25):
        batch = batch_of(random, keys, 10 * turn, random.choice([1, 5, 900]))
        before = {end for end, _ in expected}
        for row in batch.rows():
            expected[(row["time"] // SIZE + 1) * SIZE, row["key"]].append(row["value"])
        opened = sums.add(0, batch).tolist()
        assert opened == sorted(set(opened))
        assert set(opened) >= {end for end, _ in expected} - before
        if random.random() < 0.7:
            limit = random.choice([10 * turn, 10 * turn + random.randrange(40), None])
            emitted = sums.take(limit)
            found = [] if emitted is None else [tuple(row.values()) for row in emitted.rows()]
            done = [key for key in expected if limit is None or key[0] <= limit]
            means = [(*key, sum(expected[key]) / len(expected[key])) for key in done]
            assert sorted(found, key=str) == sorted(means, key=str)
            for key in done:
                del expected[key]
        assert sums.least == min((end for end, _ in expected), default=None)
        assert sums.pending.tolist() == sorted({end for end, _ in expected})
        again = WindowSums(SIZE, "key", "value")
        again.restore(sums.snapshot(), ())
        assert again.pending.tolist() == sums.pending.tolist()
        sums = again if random.random() < 0.3 else sums


def test_closing_a_window_leaves_the_others_where_they_are() -> None:
    sums = WindowSums(1, "key", "value")
    count = 50_000
    sums.add(0, jt.Batch({"key": np.zeros(count, int), "value": np.ones(count)}, np.arange(count)))
    sums.take(1)
    tracemalloc.start()
    for end in range(2, 12):
        assert len(sums.take(end) or ()) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < count, "a copy of all windows needs dozens of bytes for each"


def test_keys_are_forgotten_with_their_last_window() -> None:
    sums = WindowSums(10, "key", "value")
    for turn in range(50):
        keys = ["always", *(f"{turn}.{n}" for n in range(20))]
        sums.add(0, jt.Batch({"key": keys, "value": [1.0] * 21}, [10 * turn] * 21))
        emitted = sums.take(10 * turn)
        assert emitted is None or emitted.rows()[0]["key"] == "always"
        assert len(sums) == 21
    sums.take(None)
    assert len(sums) == 0
