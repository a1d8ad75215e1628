"""Misuse of the containers: an error that says so, never a hang or another key's values."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.core.times import ProductTimes
from jeton.errors import BatchError, JetonError, SnapshotError

KEYS: dict[str, Any] = {"integers": np.array([1, 2, 3]), "text": pa.array(["a", "b", "c"])}


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("slots", [[99], [-1], "twice", "again"])
def test_a_slot_that_is_not_in_use_is_not_removed(key: str, timed: bool, slots: Any) -> None:
    keys = jt.state.KeySlots(1, timed=timed)
    times = np.array([7], dtype=np.uint64) if timed else None
    found = keys.find([KEYS[key]], 3, times)[0].copy()
    if slots == "again":
        keys.remove(found[:1])
    gone = {"twice": found[[1, 1]], "again": found[:1]}.get(str(slots), np.array(slots))
    with pytest.raises(BatchError, match="remove each slot once"):
        keys.remove(np.asarray(gone, dtype=np.int64))


def test_keys_of_another_shape_are_refused() -> None:
    one, timed = np.array([1, 2]), np.array([5], dtype=np.uint64)
    keys = jt.state.KeySlots(1)
    keys.find([one], 2)
    with pytest.raises(BatchError, match=r"keys of 2 columns do not fit KeySlots\(1\)"):
        keys.find([one, one], 2)
    with pytest.raises(BatchError, match="only KeySlots with timed=True take times"):
        keys.find([one], 2, timed)
    with pytest.raises(BatchError, match="needs a time for each key"):
        jt.state.KeySlots(1, timed=True).find([one], 2)


def test_fractions_are_not_cut_off_in_a_snapshot() -> None:
    values: jt.state.KeyedValues[Any] = jt.state.KeyedValues(type=pa.int64())
    values[1] = 2.0
    assert values.snapshot().num_rows == 1
    values[1] = 1.75
    with pytest.raises(SnapshotError, match="cannot be stored"):
        values.snapshot()


@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("count", [0, 2, 4])
def test_times_are_as_many_as_keys(key: str, count: int, again: bool, lookup: bool) -> None:
    keys = jt.state.KeySlots(1, timed=True)
    if again:
        keys.find([KEYS[key]], 3, np.array([7], dtype=np.uint64))
    with pytest.raises(BatchError, match=f"there are {count} times for 3 keys"):
        (keys.lookup if lookup else keys.find)([KEYS[key]], 3, np.zeros(count, dtype=np.uint64))


@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("key", KEYS)
def test_key_columns_have_a_row_for_each_key(key: str, again: bool, lookup: bool) -> None:
    column = KEYS[key]
    one, two = jt.state.KeySlots(1), jt.state.KeySlots(2)
    if again:
        one.find([column], 3)
        two.find([column, column], 3)
    with pytest.raises(BatchError, match="a key column has 3 rows, but there are 2 keys"):
        (one.lookup if lookup else one.find)([column], 2)
    with pytest.raises(BatchError, match="a key column has 2 rows, but there are 3 keys"):
        (two.lookup if lookup else two.find)([column, column[:2]], 3)


def test_times_before_keys_may_be_signed_and_are_integers() -> None:
    for times in (np.array([-1, 5, -1]), [-1, 5, -1], np.array([-1, 0, 5, 0, -1, 0])[::2]):
        keys = jt.state.KeySlots(1, timed=True)
        slots = keys.find([np.array([1, 1, 1])], 3, times)[0].copy()  # type: ignore[arg-type]
        assert len(set(slots.tolist())) == 2
        assert keys.times(slots).view(np.int64).tolist() == [-1, 5, -1]
    for wrong in (np.array([0.5]), np.array([[1]]), "abc"):
        with pytest.raises(BatchError, match="times before keys"):
            jt.state.KeySlots(1, timed=True).find([np.array([1])], 1, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "column",
    [
        ["a", "b", "a"],
        pa.chunked_array([["a"], ["b", "a"]]),
        np.array(["a", "b", "a"]),
        np.array(["a", "b", "a"], dtype=object),
    ],
)
def test_keys_come_as_anything_that_makes_a_column(column: Any) -> None:
    keys = jt.state.KeySlots(1)
    assert keys.find([column], 3)[0].tolist() == [0, 1, 0]
    assert keys.lookup([column], 3).tolist() == [0, 1, 0]
    assert jt.state.hash_columns([column]).tolist() == (
        jt.state.hash_columns([pa.array(["a", "b", "a"])]).tolist()
    )


@pytest.mark.parametrize("column", [7, [1, "a"], np.zeros((2, 2)), pa.array([[1], [2]]), None])
@pytest.mark.parametrize("again", [False, True])
def test_anything_else_is_not_a_key_column(column: Any, again: bool) -> None:
    keys = jt.state.KeySlots(1)
    if again:
        keys.find([np.array([0.5, 1.5])], 2)
    with pytest.raises(BatchError):
        keys.find([column], 2)
    with pytest.raises(BatchError):
        jt.state.hash_columns([column])


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("slots", [[-1], [5000], [0, -5], [0.5], [[0]]])
def test_only_slots_that_were_made_have_values(key: str, slots: Any) -> None:
    keys = jt.state.KeySlots(1, timed=True)
    keys.find([KEYS[key]], 3, np.array([7], dtype=np.uint64))
    for wrong in (slots, np.array(slots)):
        with pytest.raises(BatchError, match="slots are"):
            keys.values(wrong)
        with pytest.raises(BatchError, match="slots are"):
            keys.times(wrong)
        with pytest.raises(BatchError):
            keys.remove(wrong)
    assert cols_list(keys.values([0, 2])[0]) == cols_list(KEYS[key].take(np.array([0, 2])))  # type: ignore[arg-type]
    assert len(keys) == 3


def cols_list(column: Any) -> list[Any]:
    found: list[Any] = pa.array(column).to_pylist()
    return found


@pytest.mark.parametrize("kind", [jt.IntegerTimes(), ProductTimes(jt.IntegerTimes())])
def test_due_slots_take_a_time_for_each_slot(kind: Any) -> None:
    due = jt.state.DueSlots.of(kind)
    for count in (0, 1, 3):
        times = np.zeros(count if kind.total else (count, 2), dtype=np.int64)
        with pytest.raises(BatchError, match=f"there are {count} times for 2 slots"):
            due.add(times, np.array([0, 1]))


def test_due_slots_take_times_and_slots_as_lists() -> None:
    due = jt.state.DueSlots.of(jt.IntegerTimes())
    due.add([5, 3], [0, 1])  # type: ignore[arg-type]
    assert [each.tolist() for each in due.due(jt.Antichain(), inclusive=False)] == [[3, 5], [1, 0]]
    for wrong in ([0.5, 1.5], ["a", "b"], [[1], [2]]):
        with pytest.raises(JetonError):
            due.add(wrong, [0, 1])  # type: ignore[arg-type]
    with pytest.raises(BatchError, match="slots are"):
        due.add([1, 2], [0.5, 1.5])  # type: ignore[arg-type]


def test_sorted_runs_need_rows_with_integer_times() -> None:
    runs = jt.state.SortedRuns(jt.concat)
    batch = jt.Batch({"n": [1]}, times=[1])
    with pytest.raises(BatchError, match="one or more rows"):
        runs.add(batch.slice(0, 0))
    with pytest.raises(BatchError, match="1 rows with 2 times"):
        runs.add(Rows(np.array([1, 2]), 1))  # type: ignore[arg-type]
    with pytest.raises(BatchError, match="of type float64"):
        runs.add(Rows(np.array([1.5]), 1))  # type: ignore[arg-type]


class Rows:
    """Rows with times of their own making."""

    def __init__(self, times: Any, rows: int) -> None:
        self.times = times
        self._rows = rows

    def __len__(self) -> int:
        return self._rows


def test_orders_are_of_integers_of_equal_number() -> None:
    one, two = np.array([1, 2, 3]), np.array([1, 2])
    for keys in ([one, two], [two, one], [], [np.array([0.5])], [np.array([[1]])], [["a"]]):
        with pytest.raises(BatchError):
            jt.state.sort_order(keys)  # type: ignore[arg-type]
        with pytest.raises(BatchError):
            jt.state.merge_order(keys, 0)  # type: ignore[arg-type]
    for split in (-1, 4):
        with pytest.raises(BatchError, match=f"none to split at {split}"):
            jt.state.merge_order([one], split)
    narrow = np.array([3, -1, 2], dtype=np.int32)
    order = jt.state.sort_order([narrow])  # type: ignore[list-item]
    assert order is not None
    assert order.tolist() == [1, 2, 0]


def test_columns_of_one_key_are_equally_long() -> None:
    one, two = np.array([1, 2, 3]), np.array([1, 2])
    with pytest.raises(BatchError, match="a key column has 2 rows"):
        jt.state.hash_columns([one, two])
    with pytest.raises(BatchError, match="a key column has 1 rows"):
        jt.state.same_values(one, one[:1])


KINDS: dict[str, Any] = {
    "bool": True, "int": 1, "float": 1.0, "str": "1", "bytes": b"1", "tuple": (1,), "pair": (1, 1),
}  # fmt: skip


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_keys_of_different_types_are_not_merged(one: str, other: str) -> None:
    values: jt.state.KeyedValues[str] = jt.state.KeyedValues()
    values[KINDS[one]] = "first"
    if one == other:
        values[KINDS[other]] = "second"
        assert list(values.values()) == ["second"]
        return
    assert KINDS[other] not in values
    with pytest.raises(KeyError):
        del values[KINDS[other]]
    with pytest.raises(SnapshotError, match="each part of a key has one type"):
        values[KINDS[other]] = "second"
    assert values.snapshot().num_rows == 1
    del values[KINDS[one]]
    values[KINDS[other]] = "second"
    assert list(values) == [KINDS[other]]


def test_parts_of_keys_have_one_type_or_are_null() -> None:
    values: jt.state.KeyedValues[int] = jt.state.KeyedValues()
    values[None, "a"] = 1
    values[1, None] = 2
    values[np.int8(1), "a"] = 3
    for wrong in ((True, "a"), (1.0, None), (None, b"a"), None):
        with pytest.raises(SnapshotError, match="beside others, which are tuples of type int, str"):
            values[wrong] = 4
    again: jt.state.KeyedValues[int] = jt.state.KeyedValues()
    again.restore(values.snapshot(), [])
    assert dict(again) == {(None, "a"): 1, (1, None): 2, (1, "a"): 3}


def test_integers_beyond_64_bits_are_not_keys() -> None:
    values: jt.state.KeyedValues[int] = jt.state.KeyedValues()
    values[2**64 - 1], values[1] = 1, 2
    again: jt.state.KeyedValues[int] = jt.state.KeyedValues()
    again.restore(values.snapshot(), [])
    assert dict(again) == {2**64 - 1: 1, 1: 2}
    [bin_, _] = values.snapshot().column("bin").to_pylist()
    assert [bin_] == jt.state.bins_of([np.array([2**64 - 1], dtype=np.uint64)]).tolist()
    with pytest.raises(SnapshotError, match="no type of 64 bits holds both"):
        values[-1] = 3
    for number in (2**64, -(2**63) - 1):
        with pytest.raises(SnapshotError, match="64 bits at most"):
            values[number] = 3
    assert values.snapshot().num_rows == 2


def test_keys_that_cannot_be_stored_are_refused_at_once() -> None:
    values: jt.state.KeyedValues[int] = jt.state.KeyedValues()
    with pytest.raises(SnapshotError, match="surrogates not allowed"):
        values["\ud800"] = 1
    with pytest.raises(
        SnapshotError, match=r"date is not a type of keys.*int, float, str.*Convert"
    ):
        values[date(2026, 1, 1)] = 1
    with pytest.raises(BatchError, match=r"cannot be keys: keys are integers.*text of the whole"):
        jt.state.hash_columns([pa.array([[1]])])


def test_keys_by_time_are_not_merged_either() -> None:
    seen: list[Any] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        waiting: jt.state.KeyedTimes[str] = jt.state.KeyedTimes(info.kind)
        info.keep(waiting, token)

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, _ in input:
                waiting.push(ref, 10, 1, "one")
                seen.append(((10, 1) in waiting, (10, True) in waiting, (10, 1.0) in waiting))
                for wrong in (True, 1.0, "1", (1,)):
                    with pytest.raises(SnapshotError, match="each part of a key has one type"):
                        waiting.push(ref, 10, wrong, "other")
                    with pytest.raises(SnapshotError, match="each part of a key has one type"):
                        waiting.get_or(ref, 20, wrong, lambda: "other")
                seen.append(len(waiting))
                seen.append([each[1:] for each in waiting.pop_before(jt.Antichain())])
                waiting.push(ref, 10, "1", "text")
                seen.append(len(waiting))
            seen.append([each[1:] for each in waiting.pop_before(jt.Antichain())])
            waiting.settle()

        token.drop()
        return step

    flow = jt.Flow("kept")
    flow.output("out", flow.input("in").unary_frontier(build))
    flow.run({"in": {"time": [0], "n": [1]}})
    assert seen[:5] == [(True, False, False), 1, [(1, "one")], 1, [("1", "text")]]
