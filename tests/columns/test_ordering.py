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
from jeton.core.times import IntegerTimes, ProductTimes

TYPES = (np.int64, np.int8, np.uint8, np.uint64, np.int32)


@given(
    rows=st.integers(512, 1500),
    kinds=st.lists(
        st.tuples(
            st.sampled_from(TYPES),
            st.sampled_from([0, 3, 100, 10**6, 2**62, 2**64]),
            st.sampled_from(["any", "in order", "ends"]),
        ),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 99),
)
def test_packed_order_is_that_of_lexsort(
    rows: int, kinds: list[tuple[Any, int, str]], seed: int
) -> None:
    """Values that fit into a word with the place, and those of which only some bits do."""
    random = np.random.default_rng(seed)
    keys = []
    for kind, reach, how in kinds:
        info = np.iinfo(kind)
        low, high = max(int(info.min), -reach), min(int(info.max), reach)
        key = random.integers(low, high, rows, dtype=kind, endpoint=True)
        if how == "in order":
            key.sort()
        elif how == "ends":
            # Most rows are equal in the bits that are sorted by first.
            key = np.where(random.random(rows) < 0.5, kind(low), kind(high))
            key[random.integers(0, rows, 9)] = low // 2 + high // 2
        keys.append(key)
    keys.append(random.integers(0, 2, rows).astype(bool))
    order = packed_order(keys)
    assert order is not None
    assert order.tolist() == np.lexsort(keys[::-1]).tolist()


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_the_ends_of_a_type_and_values_beside_them_are_in_order(kind: Any) -> None:
    info = np.iinfo(kind)
    for some in ([info.min, info.max], [info.max - n for n in range(7)], [info.min, info.min + 1]):
        key = np.array([some[n * n % len(some)] for n in range(800)], kind)
        order = packed_order([key])
        assert order is not None
        assert order.tolist() == np.argsort(key, kind="stable").tolist()


def test_only_integers_are_packed_and_only_if_they_are_many() -> None:
    assert packed_order([np.arange(9)]) is None
    assert packed_order([np.arange(900), np.arange(900) * 0.5]) is None


@pytest.mark.parametrize("rows", [40, 2000])
@pytest.mark.parametrize("most", [3, 2**62])
def test_times_among_the_first_keys_and_times_of_several_parts_are_in_order(
    rows: int, most: int
) -> None:
    random = np.random.default_rng(rows)
    times, keys, values = (random.integers(0, high, rows) for high in (most, most, 5))
    batch = jt.Batch({"n": values}, times)
    expected = np.lexsort((values, keys, batch.times)).tolist()
    assert order_by(batch, batch.times, keys).tolist() == expected
    pairs = jt.Batch(
        {"n": values}, np.stack([times, keys], axis=1), kind=ProductTimes(IntegerTimes())
    )
    assert order_by(pairs).tolist() == expected


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
