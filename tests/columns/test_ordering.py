"""Orders by words that hold a whole row, against NumPy's by one array after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jeton as jt
from jeton.columns.ordering import order_by, packed_order

TYPES = (np.int64, np.int8, np.uint8, np.uint64, np.int32)


@given(
    rows=st.integers(512, 700),
    kinds=st.lists(
        st.tuples(st.sampled_from(TYPES), st.sampled_from([0, 3, 100, 10**6, 2**62])),
        min_size=1,
        max_size=3,
    ),
    seed=st.integers(0, 99),
)
def test_packed_order_is_that_of_lexsort(
    rows: int, kinds: list[tuple[Any, int]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    keys = []
    for kind, reach in kinds:
        info = np.iinfo(kind)
        low, high = max(int(info.min), -reach), min(int(info.max), reach)
        keys.append(random.integers(low, high, rows, dtype=kind, endpoint=True))
    order = packed_order(keys)
    if order is None:
        assert any(reach > 100 for _, reach in kinds), "these fit into a word"
    else:
        assert order.tolist() == np.lexsort(keys[::-1]).tolist()


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_the_ends_of_a_type_do_not_fit_and_values_beside_them_do(kind: Any) -> None:
    info = np.iinfo(kind)
    assert packed_order([np.array([info.min, info.max] * 400, kind)]) is None
    near = np.array([info.max - n % 7 for n in range(800)], kind)
    order = packed_order([near])
    assert order is not None
    assert order.tolist() == np.argsort(near, kind="stable").tolist()


@pytest.mark.parametrize("most", [1, 9, 2000, 10**6])
@pytest.mark.parametrize("rows", [0, 1, 40, 2000])
def test_records_of_equal_keys_and_times_are_in_order_of_their_columns(
    rows: int, most: int
) -> None:
    random = np.random.default_rng(most)
    keys, times, values = (random.integers(0, most, rows) for most in (5, most, 9))
    texts = np.array(["b", "a", ""])[random.integers(0, 3, rows)].tolist()
    batch = jt.Batch({"n": values, "text": pa.array(texts, pa.string())}, times)
    ranks = np.unique(np.array(texts, dtype=str), return_inverse=True)[1]
    order = order_by(batch, keys)
    assert order.tolist() == np.lexsort((ranks, values, times, keys)).tolist()


@pytest.mark.parametrize("sorted_by", ["nothing", "first", "both"])
@pytest.mark.parametrize("equal", [1, 40, 2000])
def test_pairs_are_sorted_like_lexsort(sorted_by: str, equal: int) -> None:
    random = np.random.default_rng(equal)
    first = random.integers(0, 4000 // equal, 4000)
    second = random.integers(-(2**62), 2**62, 4000)
    if sorted_by != "nothing":
        first.sort()
    if sorted_by == "both":
        second = np.arange(4000)
    order = jt.state.sort_order([first, second])
    expected = np.lexsort((second, first)).tolist()
    assert (list(range(4000)) if order is None else order.tolist()) == expected
