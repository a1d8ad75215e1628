"""Key tables against a dictionary: small keys, great ones, many times at once, keys that go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jeton.state.key_table import KeyTable

SMALL = st.integers(0, 40)
ANY = st.one_of(SMALL, st.integers(1000, 5000), st.sampled_from([2**21, 2**40, 2**64 - 1]))
TIME = st.one_of(st.integers(0, 3), st.integers(0, 60))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("words", [1, 2, 3])
@given(data=st.data())
def test_slots_are_those_of_a_dictionary(words: int, dense: bool, data: st.DataObject) -> None:
    if dense and words == 3:
        return  # no dense index for keys of hashes
    table = KeyTable(words, dense=dense)
    known: dict[tuple[int, ...], int] = {}
    key = st.tuples(*([TIME] if words > 1 else []), *[ANY] * (words - (words > 1)))
    for rows in data.draw(st.lists(st.lists(key, min_size=1, max_size=30), max_size=6)):
        columns = tuple(np.array(column, dtype=np.uint64) for column in zip(*rows, strict=True))
        slots, new = table.find_or_add(columns)
        first = []
        for row, slot in enumerate(slots.tolist()):
            if rows[row] not in known:
                first.append(row)
                assert slot not in known.values(), "a slot in use was given to another key"
                known[rows[row]] = slot
            assert known[rows[row]] == slot
        assert new.tolist() == first
        assert table.find(columns).tolist() == slots.tolist()
        gone = [k for k in known if data.draw(st.booleans(), label="forget")]
        table.remove(np.array([known.pop(k) for k in gone], dtype=np.int64))
        assert len(table) == len(known)
        assert table.find(columns).tolist() == [known.get(row, -1) for row in rows]
        live = table.live()
        assert live.tolist() == sorted(known.values())
        assert table.slots_made > max(known.values(), default=-1)
        by_slot = {slot: k for k, slot in known.items()}
        emitted = zip(*(word.tolist() for word in table.words(live)), strict=True)
        assert list(emitted) == [by_slot[slot] for slot in live.tolist()]


@given(keys=st.lists(SMALL, min_size=1, max_size=30), time=TIME, before=st.lists(ANY, max_size=9))
def test_a_single_time_stands_for_all_keys(keys: list[int], time: int, before: list[int]) -> None:
    short, full = KeyTable(2, dense=True), KeyTable(2, dense=True)
    one, many = np.array([time], np.uint64), np.full(len(keys), time, np.uint64)
    words = np.array(keys, np.uint64)
    for other in before:
        earlier = (np.array([99], np.uint64), np.array([other], np.uint64))
        short.find_or_add(earlier)
        full.find_or_add(earlier)
    found, new = short.find_or_add((one, words))
    expected, expected_new = full.find_or_add((many, words))
    assert found.tolist() == expected.tolist()
    assert new.tolist() == expected_new.tolist()


@pytest.mark.parametrize("rows", [1, 5000])
def test_a_table_grows_as_far_as_it_must(rows: int) -> None:
    table = KeyTable(1)
    for start in range(0, 20_000, rows) if rows > 1 else range(0, 3000):
        keys = np.arange(start, start + rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        slots, new = table.find_or_add((keys,))
        assert len(new) == rows
        assert (table.find_or_add((keys,))[0] == slots).all()
