"""Sorted runs against a list: blocks in, blocks out, in order of time."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import jeton as jt
from jeton.state.sorted_runs import merge_from


@pytest.mark.parametrize("seed", range(12))
def test_taken_in_order(seed: int) -> None:
    random = Random(seed)
    runs = jt.state.SortedRuns(jt.concat)
    expected: list[tuple[int, int]] = []
    number = 0
    for turn in range(60):
        count = random.choice([1, 3, 40])
        times = [turn + random.randrange(20) for _ in range(count)]
        if random.random() < 0.3:
            times.sort()
        numbers = list(range(number, number + count))
        number += count
        expected += zip(times, numbers, strict=True)
        assert runs.add(jt.Batch({"n": numbers}, times)) == min(times)
        if random.random() < 0.4:
            limit = random.choice([turn, turn + 10, turn - 5, None])
            inclusive = random.random() < 0.5
            taken = runs.take(limit, inclusive=inclusive)
            done = [t for t in expected if limit is None or t[0] < limit + inclusive]
            # Rows of equal times come in the order in which they were added.
            found = [] if taken is None else [(row["time"], row["n"]) for row in taken.rows()]
            assert found == sorted(done, key=lambda row: row[0])
            expected = [row for row in expected if row not in done]
        assert len(runs) == len(expected)
        assert runs.least == min((time for time, _ in expected), default=None)
        assert runs.times == sorted({time for time, _ in expected})
        whole = runs.whole
        assert (0 if whole is None else len(whole)) == len(expected)
        assert len(list(runs)) < 24


def test_merges_drop_rows_that_are_not_needed() -> None:
    def last(batch: jt.Batch) -> jt.Batch:
        return batch.slice(len(batch) - 1, len(batch))

    runs = jt.state.SortedRuns(jt.concat, shrink=last)
    for time in range(100):
        runs.add(jt.Batch({"n": [time]}, [time]))
    assert len(runs) < 15
    taken = runs.take(None)
    assert taken is not None
    assert taken.times[-1] == 99


@pytest.mark.parametrize("different", [1, 50, 3000, 10**9])
def test_rows_that_must_stay_are_looked_at_seldom_and_others_do_not_pile_up(different: int) -> None:
    """Of each number the row with the least time is kept."""
    looked_at = 0

    def first(batch: jt.Batch) -> jt.Batch:
        nonlocal looked_at
        looked_at += len(batch)
        return batch.take(np.sort(np.unique(batch.column("n"), return_index=True)[1]))

    random = np.random.default_rng(different)
    runs = jt.state.SortedRuns(jt.concat, shrink=first)
    least: dict[int, int] = {}
    for turn in range(500):
        numbers, times = random.integers(0, different, 40), turn * 40 + np.arange(40)
        runs.add(jt.Batch({"n": numbers}, times))
        for number, time in zip(numbers.tolist(), times.tolist(), strict=True):
            least.setdefault(number, time)
        assert len(runs) <= 4 * len(least) + 1000
    assert looked_at < 6 * 500 * 40
    taken = runs.take(None)
    assert taken is not None
    assert first(taken).times.tolist() == sorted(least.values())


@pytest.mark.parametrize("most", [1, 12])
def test_runs_are_few_and_rows_are_moved_seldom(most: int) -> None:
    random = Random(most)
    sizes: list[int] = []
    added = moved = 0
    for _ in range(3000):
        sizes.append(random.choice([1, 1, 1, 50]))
        added += sizes[-1]
        while (start := merge_from(sizes, most)) is not None:
            moved += sum(sizes[start:])
            sizes[start:] = [sum(sizes[start:])]
        assert len(sizes) <= most + np.log2(added) + 1
    assert moved < added * 2 * np.log2(added)
