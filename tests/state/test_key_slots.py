"""KeySlots against a dictionary: keys of any type, with lookups of keys that are not there."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jeton as jt
from jeton.columns import column as cols
from jeton.state.key_columns import SlotColumn

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


def _forms(values: list[int | None], random: Random) -> Any:
    """Integers as a batch may bring them: of NumPy or Arrow, part of a column with nulls or not."""
    if None in values:
        return pa.array(values, random.choice([pa.int64(), pa.int32()]))
    forms = [
        np.array(values, dtype=np.int64),
        np.array(values, dtype=np.int32),
        pa.array(values, pa.int64()),
        pa.array(values, pa.int32()),
        pa.array([None, *values, None], pa.int64()).slice(1, len(values)),
        pa.array([None, *values], pa.int32()).slice(1),
        pa.array(values, pa.int16()).dictionary_encode(),
    ]
    return random.choice(forms)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("nulls", [False, True])
def test_integers_in_all_forms(nulls: bool, compact: bool, timed: bool) -> None:
    for seed in range(20):
        random = Random(seed)
        keys = jt.state.KeySlots(1, timed=timed, compact=compact)
        known: dict[Any, int] = {}
        for _ in range(40):
            values = [random.randrange(-3, 40) for _ in range(random.choice([1, 3, 20]))]
            chosen = [None if random.random() < 0.1 else value for value in values]
            if not (nulls and random.random() < 0.5):
                chosen = list(values)
            looked = chosen if random.random() < 0.5 else [*chosen, None]
            times = [random.randrange(3) for _ in looked] if timed else [0] * len(looked)
            words = [np.array(times, dtype=np.uint64)] if timed else []
            slots = keys.lookup([_forms(looked, random)], len(looked), *words)
            pairs = list(zip(times, looked, strict=True))
            assert slots.tolist() == [known.get(pair, -1) for pair in pairs]
            if random.random() < 0.5:
                rows = len(chosen)
                words = [word[:rows] for word in words]
                found, new = keys.find([_forms(chosen, random)], rows, *words)
                pairs = pairs[:rows]
                assert new.tolist() == [
                    row
                    for row, pair in enumerate(pairs)
                    if pair not in known and pair not in pairs[:row]
                ]
                for pair, slot in zip(pairs, found.tolist(), strict=True):
                    assert known.setdefault(pair, slot) == slot
        assert len(known) == len(set(known.values())) == len(keys)


FAMILIES = [
    ("i1", "i2", "i4", "i8", "u1", "u2", "u4"),
    ("u1", "u2", "u4", "u8"),
    ("M8[us]",),
    ("m8[ms]",),
    ("?",),
]
"""Types of which keys may come in turns."""


@st.composite
def _batches(draw: st.DrawFn) -> list[Any]:
    """Columns of integers of several types, and perhaps some with a null at the end."""
    made: list[Any] = []
    family = draw(st.sampled_from(FAMILIES))
    for kind in draw(st.lists(st.sampled_from(family), min_size=1, max_size=6)):
        dtype = np.dtype(kind)
        bits = 8 * dtype.itemsize
        least, most = (0, 2**bits - 1) if dtype.kind == "u" else (-(2 ** (bits - 1)) + 1, 2**31)
        least, most = (0, 1) if kind == "?" else (least, min(most, 2 ** (bits - 1) - 1))
        small = st.integers(0, min(most, 60))
        numbers = draw(st.lists(small | small | st.integers(least, most), max_size=12))
        raw = np.array(numbers, dtype="u8" if dtype.kind == "u" else "i8")
        made.append(raw.astype(dtype))
    if draw(st.booleans()) and family[0] == "i1":
        made.append(pa.array([5, None, -1], pa.int8()))
    return made


@given(batches=_batches(), timed=st.booleans(), compact=st.booleans(), seed=st.integers(0, 99))
def test_values_of_integers_are_those_of_a_column_that_keeps_them(
    batches: list[Any], timed: bool, compact: bool, seed: int
) -> None:
    random = Random(seed)
    keys, twin = jt.state.KeySlots(1, timed=timed, compact=compact), SlotColumn()
    for column in batches:
        rows = len(column)
        times = [np.array([random.randrange(2) for _ in range(rows)], np.uint64)] if timed else []
        slots, new = keys.find([column], rows, *times)
        twin.put(slots[new], column, keys.slots_made, rows=new)
        live = keys.live()
        found, kept = keys.values(live)[0], twin.get(live)
        assert cols.to_arrow(found).type == cols.to_arrow(kept).type or not len(live)
        assert cols.to_arrow(found).equals(cols.to_arrow(kept)) or not len(live)
        gone = live[[random.random() < 0.3 for _ in live]]
        if len(gone):
            keys.remove(gone)
            assert len(keys.live()) == len(live) - len(gone)


def test_values_do_not_change_with_what_comes_later() -> None:
    for timed in (False, True):
        keys = jt.state.KeySlots(1, timed=timed)
        times = [np.zeros(3, np.uint64)] if timed else []
        slots, _ = keys.find([np.array([3, 1, 2])], 3, *times)
        [values] = keys.values(slots)
        keys.remove(slots.copy())
        keys.find([np.array([7, 8, 9])], 3, *times)
        slots[:] = 0
        assert np.asarray(values).tolist() == [3, 1, 2]


def test_a_lookup_changes_nothing() -> None:
    keys = jt.state.KeySlots(1)
    keys.find([np.array([1, 2, 3], dtype=np.uint32)], 3)
    for column in (pa.array([2, None]), np.array([2, 2], dtype=np.int64), pa.nulls(2)):
        keys.lookup([column], 2)
    # Beside signed integers, these would be refused: but no key is one.
    assert keys.find([np.array([3, 2**63], dtype=np.uint64)], 2)[1].tolist() == [1]


def test_unique_keys_get_slots_of_their_own() -> None:
    random = Random(1)
    keys = jt.state.KeySlots(0, timed=True, unique=True)
    number = 0
    known: dict[int, int] = {}
    for _ in range(60):
        count = random.choice([0, 1, 7, 600])
        times = np.arange(number, number + count, dtype=np.uint64)
        number += count
        slots, new = keys.find([], count, times)
        assert new.tolist() == list(range(count))
        known.update(zip(slots.tolist(), times.tolist(), strict=True))
        gone = random.sample(sorted(known), len(known) // 2)
        keys.remove(np.array(gone, dtype=np.int64))
        for slot in gone:
            del known[slot]
        live = keys.live()
        assert dict(zip(live.tolist(), keys.times(live).tolist(), strict=True)) == known
        assert len(keys) == len(known)
    assert keys.slots_made < 2 * 600 + 600


def test_misuse_of_unique_keys_is_refused() -> None:
    with pytest.raises(jt.errors.BatchError, match="can be unique=True"):
        jt.state.KeySlots(1, timed=True, unique=True)
    keys = jt.state.KeySlots(0, timed=True, unique=True)
    slots, _ = keys.find([], 2, np.arange(2, dtype=np.uint64))
    with pytest.raises(jt.errors.BatchError, match="not looked up"):
        keys.lookup([], 2, np.arange(2, dtype=np.uint64))
    keys.remove(slots[:1])
    with pytest.raises(jt.errors.BatchError, match="not in use"):
        keys.remove(slots)


WIDER = [
    (np.int32, np.int64, 2**40 + 5),
    (np.int8, np.uint8, 200),
    (np.uint8, np.int8, -56),
    (np.int16, np.uint16, 60_000),
]


@pytest.mark.parametrize(("kind", "other", "great"), WIDER)
def test_a_new_key_of_another_type_after_known_ones_of_it(
    kind: Any, other: Any, great: int
) -> None:
    keys = jt.state.KeySlots(1)
    keys.find([np.array([1, 2], kind)], 2)
    keys.find([np.array([1, 2], other)], 2)
    slots, new = keys.find([np.array([great], other)], 1)
    assert new.tolist() == [0]
    assert keys.values(slots)[0].tolist() == [great]
    assert sorted(keys.values(keys.live())[0].tolist()) == sorted([1, 2, great])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
def test_answers_do_not_depend_on_when_a_wider_key_comes(
    order: tuple[int, ...], workers: int
) -> None:
    great = 2**40 + 5
    parts = [(1, 5, pa.int32()), (1, 5, pa.int64()), (2, great, pa.int64())]
    tables = [pa.table({"time": [t], "k": pa.array([k], kind)}) for t, k, kind in parts]
    flow = jt.Flow("counts")
    keyed = flow.input("n").key_by("k")
    flow.output("tumbling", keyed.tumbling(10).count())
    flow.output("running", keyed.running().count())
    with flow.open(workers=workers) as run:
        for at in order:
            run.input("n").send(tables[at])
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=workers, restore=snapshot) as run:
        run.input("n").send(pa.table({"time": [3, 3], "k": [great, 5]}))
        result = run.finish()
    counts = {row["k"]: row["count"] for row in result["tumbling"].to_pylist()}
    assert counts == {5: 3, great: 2}
    counts = {row["k"]: row["count"] for row in result["running"].to_pylist()}
    assert counts == {5: 3, great: 2}
