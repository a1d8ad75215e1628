"""Batches: columns of equal length, each record with its own time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jeton as jt
from jeton import Batch
from jeton.errors import BatchError, TimeError


def letters() -> Batch:
    return Batch({"n": [1, 2, 3], "word": ["a", None, "c"]}, times=[3, 7, 12])


def test_columns_of_unequal_lengths_are_refused() -> None:
    with pytest.raises(BatchError, match=r"'n' has 2 values, but there are 3 times"):
        Batch({"n": [1, 2]}, times=[0, 0, 0])
    with pytest.raises(BatchError, match=r"'m' has 1 values"):
        letters().with_columns({"m": [1]})
    with pytest.raises(BatchError, match="mask has 1 values"):
        letters().filter([True])


def test_unknown_column_gets_a_suggestion() -> None:
    with pytest.raises(BatchError, match="no column 'wrod': did you mean 'word'"):
        letters()["wrod"]
    with pytest.raises(BatchError, match="'n', 'word', 'time'") as caught:
        letters()["zzz"]
    assert "did you mean" not in str(caught.value)


def test_time_column_is_read_by_name_but_not_replaced() -> None:
    batch = Batch({"n": [1]}, times=[5], time_name="ts")
    assert batch["ts"].tolist() == [5]
    assert "ts" in batch
    assert batch.names == ("n",)
    with pytest.raises(BatchError, match="time column"):
        batch.with_columns({"ts": [6]})
    with pytest.raises(BatchError, match="time column"):
        Batch({"ts": [1]}, times=[5], time_name="ts")


def test_nulls_and_text_are_kept() -> None:
    batch = letters()
    assert batch["word"].tolist() == ["a", None, "c"]
    assert [row["word"] for row in batch.rows()] == ["a", None, "c"]
    assert batch.filter(np.array([False, True, True]))["word"].tolist() == [None, "c"]
    assert batch.take(np.array([2, 0]))["word"].tolist() == ["c", "a"]
    assert batch.slice(1, 3)["word"].tolist() == [None, "c"]


def test_numbers_with_nulls_are_kept() -> None:
    batch = Batch({"n": [1, None, 3]}, times=[0, 0, 0])
    assert batch["n"].tolist() == [1, None, 3]
    assert jt.concat([batch, Batch({"n": [4]}, times=[1])])["n"].tolist() == [1, None, 3, 4]


def test_null_in_a_mask_counts_as_false() -> None:
    assert letters().filter(pa.array([True, None, False]))["n"].tolist() == [1]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Zurich"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_are_kept(unit: str, zone: str | None) -> None:
    moments = [datetime(2024, 5, 1, tzinfo=UTC if zone else None), None]
    column = pa.array(moments, pa.timestamp(unit, zone))
    table = Batch({"at": column}, times=[0, 1]).to_arrow()
    assert table.schema.field("at").type == pa.timestamp(unit, zone)
    assert table["at"].to_pylist() == column.to_pylist()


def test_timestamps_without_nulls_are_numpy() -> None:
    column = Batch({"at": [datetime(2024, 5, 1), datetime(2024, 5, 2)]}, times=[0, 1]).column("at")
    assert isinstance(column, np.ndarray)
    assert column.dtype.kind == "M"


def test_empty_batches() -> None:
    batch = Batch({"n": [], "word": []}, times=[])
    assert len(batch) == 0
    assert batch.rows() == []
    assert list(batch.by_time()) == []
    assert list(batch.split_by(lambda times: times // 10)) == []
    assert len(letters().filter([False] * 3)) == 0
    assert len(letters().slice(1, 1)) == 0
    empty = letters().slice(0, 0)
    assert jt.concat([empty, letters()])["word"].tolist() == ["a", None, "c"]


def test_split_by_windows() -> None:
    parts = list(letters().split_by(lambda times: (times // 10 + 1) * 10))
    assert [(end, part["n"].tolist()) for end, part in parts] == [(10, [1, 2]), (20, [3])]
    assert all(type(end) is int for end, _ in parts)


def test_split_by_keeps_order_and_sorts_parts() -> None:
    batch = Batch({"n": [1, 2, 3, 4]}, times=[15, 3, 12, 1])
    parts = [(key, part["n"].tolist()) for key, part in batch.split_by(lambda t: t // 10)]
    assert parts == [(0, [2, 4]), (1, [1, 3])]


def test_split_by_one_part_is_the_batch() -> None:
    batch = letters()
    ((key, part),) = batch.split_by(lambda times: times // 100)
    assert key == 0
    assert part is batch


def test_split_by_needs_one_value_for_each_time() -> None:
    with pytest.raises(BatchError, match="one value for each time"):
        list(letters().split_by(lambda times: times[:1]))


def test_by_time() -> None:
    batch = Batch({"n": [1, 2, 3, 4]}, times=[5, 3, 5, 9])
    parts = [(time, part["n"].tolist()) for time, part in batch.by_time()]
    assert parts == [(3, [2]), (5, [1, 3]), (9, [4])]


def test_arrow_round_trip_copies_nothing() -> None:
    table = pa.table({"time": [1, 2], "n": [1.5, 2.5], "word": ["a", "b"]})
    again = Batch.from_arrow(table).to_arrow()
    assert again.equals(table)
    for name in table.column_names:
        before = table[name].chunk(0).buffers()
        after = again[name].chunk(0).buffers()
        assert [b and b.address for b in before[1:]] == [b and b.address for b in after[1:]]


def test_chunked_tables_become_one_batch() -> None:
    table = pa.concat_tables([pa.table({"time": [i], "w": [str(i)]}) for i in range(3)])
    assert Batch.from_arrow(table)["w"].tolist() == ["0", "1", "2"]


def test_arrow_without_the_time_column_is_refused() -> None:
    with pytest.raises(BatchError, match="no time column 'ts'"):
        Batch.from_arrow(pa.table({"t": [1]}), time="ts")


def test_times_that_are_none_are_refused() -> None:
    with pytest.raises(BatchError, match=r"has nulls \(1\)"):
        Batch.from_arrow(pa.table({"time": pa.array([1, None])}))
    with pytest.raises(BatchError, match="string"):
        Batch.from_arrow(pa.table({"time": ["1"]}))
    with pytest.raises(TimeError):
        Batch({"n": [1]}, times=[1.5])


def test_columns_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BatchError, match="do not make a column"):
        Batch({"n": [1, "a"]}, times=[0, 0])
    with pytest.raises(BatchError, match="one dimension"):
        Batch({"n": np.zeros((2, 2))}, times=[0, 0])


def test_concat_needs_the_same_columns() -> None:
    with pytest.raises(BatchError, match="cannot be put together"):
        jt.concat([letters(), Batch({"n": [1]}, times=[0])])


def test_concat_widens_types() -> None:
    mixed = jt.concat([Batch({"n": [1]}, times=[0]), Batch({"n": [2.5]}, times=[0])])
    assert mixed["n"].tolist() == [1.0, 2.5]
    mixed = jt.concat([Batch({"n": [1, None]}, times=[0, 0]), Batch({"n": [2.5]}, times=[0])])
    assert mixed["n"].tolist() == [1.0, None, 2.5]


@given(
    st.lists(st.integers() | st.booleans() | st.floats() | st.none() | st.text(), max_size=4)
    | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1)
    | st.lists(st.floats(), min_size=1)
    | st.lists(st.booleans(), min_size=1)
)
def test_few_values_and_many_make_the_same_column(values: list[Any]) -> None:
    def made(values: list[Any]) -> Any:
        try:
            return Batch({"n": values}, [0] * len(values)).to_arrow()["n"]
        except BatchError as error:
            return str(error)

    few, many = made(values), made(values * 64)
    if isinstance(few, str) or isinstance(many, str):
        assert few == many
    else:
        assert few.type == many.type
        assert repr(many.to_pylist()[: len(few)]) == repr(few.to_pylist())
