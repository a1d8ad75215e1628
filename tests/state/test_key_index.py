"""Indices of keys against a dictionary: small keys, great ones, many times, keys that go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jeton.errors import BatchError
from jeton.state.dense_index import PanedIndex
from jeton.state.hash_index import HashIndex
from jeton.state.key_slots import KeySlots

SMALL = st.integers(0, 40)
ANY = st.one_of(SMALL, st.integers(1000, 5000), st.sampled_from([2**21, 2**40, 2**64 - 1]))
TIME = st.one_of(st.integers(0, 3), st.integers(0, 60))


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("timed", [False, True])
@given(data=st.data())
def test_slots_are_those_of_a_dictionary(timed: bool, compact: bool, data: st.DataObject) -> None:
    keys = KeySlots(1, timed=timed, compact=compact)
    known: dict[tuple[int, int], int] = {}
    key = st.tuples(TIME if timed else st.just(0), ANY)
    for rows in data.draw(st.lists(st.lists(key, min_size=1, max_size=30), max_size=6)):
        ends, words = (np.array(column, dtype=np.uint64) for column in zip(*rows, strict=True))
        times = ends if timed else None
        slots, new = keys.find([words], len(rows), times)
        slots = slots.copy()
        first = []
        for row, slot in enumerate(slots.tolist()):
            if rows[row] not in known:
                first.append(row)
                assert slot not in known.values(), "a slot in use was given to another key"
                known[rows[row]] = slot
            assert known[rows[row]] == slot
        assert new.tolist() == first
        assert keys.lookup([words], len(rows), times).tolist() == slots.tolist()
        gone = [k for k in known if data.draw(st.booleans(), label="forget")]
        keys.remove(np.array([known.pop(k) for k in gone], dtype=np.int64))
        assert len(keys) == len(known)
        found = keys.lookup([words], len(rows), times).tolist()
        assert found == [known.get(row, -1) for row in rows]
        live = keys.live()
        assert live.tolist() == sorted(known.values())
        assert keys.slots_made > max(known.values(), default=-1)
        by_slot = {slot: k for k, slot in known.items()}
        ends = keys.times(live) if timed else np.zeros(len(live), dtype=np.uint64)
        emitted = zip(ends.tolist(), keys.values(live)[0].tolist(), strict=True)
        assert list(emitted) == [by_slot[slot] for slot in live.tolist()]


@given(keys=st.lists(SMALL, min_size=1, max_size=30), time=TIME, before=st.lists(ANY, max_size=9))
def test_a_single_time_stands_for_all_keys(keys: list[int], time: int, before: list[int]) -> None:
    short, full = KeySlots(1, timed=True), KeySlots(1, timed=True)
    one, many = np.array([time], np.uint64), np.full(len(keys), time, np.uint64)
    words = np.array(keys, np.uint64)
    for other in before:
        for table in (short, full):
            table.find([np.array([other], np.uint64)], 1, np.array([99], np.uint64))
    found, new = short.find([words], len(words), one)
    expected, expected_new = full.find([words], len(words), many)
    assert found.tolist() == expected.tolist()
    assert new.tolist() == expected_new.tolist()


@pytest.mark.parametrize("each", [1, 5, 900])
def test_times_with_few_keys_are_hashed(each: int) -> None:
    """Panes that are all but empty would take far more memory than their keys, and as much time."""
    keys, known = KeySlots(1, timed=True), dict[tuple[int, int], int]()
    random = np.random.default_rng(each)
    for first in range(0, 300, 20):
        words = np.tile(random.permutation(900)[:each].astype(np.uint64), 20)
        times = np.repeat(np.arange(first, first + 20, dtype=np.uint64), each)
        slots, new = keys.find([words], len(words), times)
        assert len(new) == len(words)
        known |= zip(zip(times.tolist(), words.tolist(), strict=True), slots.tolist(), strict=True)
        assert len(set(known.values())) == len(known)
    times, words = (np.array(each, np.uint64) for each in zip(*known, strict=True))
    assert keys.lookup([words], len(words), times).tolist() == list(known.values())
    assert isinstance(keys.index, PanedIndex if each == 900 else HashIndex)


@pytest.mark.parametrize("rows", [1, 5000])
def test_a_table_grows_as_far_as_it_must(rows: int) -> None:
    table = HashIndex(1)
    for start in range(0, 20_000, rows) if rows > 1 else range(0, 3000):
        keys = np.arange(start, start + rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        slots, new = table.find_or_add((keys,))
        assert len(new) == rows
        assert (table.find_or_add((keys,))[0] == slots).all()


def test_most_keys_go_at_once() -> None:
    index = HashIndex(1)
    words = np.arange(10_000, dtype=np.uint64) * np.uint64(977)
    slots, _ = index.find_or_add((words,))
    index.remove(slots[1000:])
    assert len(index) == 1000
    assert (index.find((words,)) >= 0).tolist() == [True] * 1000 + [False] * 9000
    again, new = index.find_or_add((words,))
    assert new.tolist() == list(range(1000, 10_000))
    assert len(np.unique(again)) == index.slots_made == 10_000
    with pytest.raises(BatchError, match="remove each slot once"):
        index.remove(np.append(again[:6000], again[0]))
