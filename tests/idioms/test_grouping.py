"""Sorting by several arrays against NumPy's own, slower way."""

from __future__ import annotations

import numpy as np
import pytest

from jeton.idioms.grouping import grouping, order_of
from jeton.state import merge_order, sort_order

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("values", [1, 2, 50, 10**18])
@pytest.mark.parametrize("length", [0, 1, 2, 1000])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_order_merge_and_groups(count: int, length: int, values: int) -> None:
    keys = [RNG.integers(-values, values, length) for _ in range(count)]
    expected = np.lexsort(tuple(reversed(keys)))
    order, starts = grouping(keys)
    assert order.tolist() == order_of(keys).tolist() == expected.tolist()
    rows = np.stack(keys, axis=1)[order].tolist()
    assert starts.tolist() == [i for i, row in enumerate(rows) if i == 0 or row != rows[i - 1]]
    loose = sort_order(keys, stable=False)
    assert np.stack(keys, axis=1)[slice(None) if loose is None else loose].tolist() == rows
    split = length // 3
    first = order_of([key[:split] for key in keys])
    second = order_of([key[split:] for key in keys]) + split
    halves = np.concatenate([first, second]).astype(np.intp)
    parts = [key[halves] for key in keys]
    merged = merge_order(parts, split)
    assert np.stack(parts, axis=1)[merged].tolist() == rows


def test_hashes_without_a_sign_are_grouped_as_well() -> None:
    keys = [np.array([2**63, 1, 2**63, 1], dtype=np.uint64)]
    order, starts = grouping([key.view(np.int64) for key in keys])
    assert order.tolist() == [0, 2, 1, 3]
    assert starts.tolist() == [0, 2]
