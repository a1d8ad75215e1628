"""Columns of rows that are appended, against lists: the types that they take, and nulls."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jeton.columns.column import as_column, to_arrow
from jeton.state import row_columns
from jeton.state.row_columns import row_column

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [0, -1, 2**63 - 1, -(2**63)],
    pa.uint64(): [0, 2**64 - 1],
    pa.int8(): [0, -128],
    pa.float64(): [0.0, 1.5, float("inf")],
    pa.float32(): [0.0, 1.5],
    pa.bool_(): [True, False],
    pa.timestamp("us"): [datetime(2026, 1, 2, 3, 4, 5, 6), datetime(1969, 1, 1)],
    pa.timestamp("ms", "UTC"): [datetime(2026, 1, 2), datetime(1969, 1, 1)],
    pa.duration("s"): [timedelta(seconds=5), timedelta(days=-1)],
    pa.date32(): [date(2026, 1, 2), date(1900, 1, 1)],
    pa.date64(): [date(2026, 1, 2)],
    pa.time32("s"): [time(1, 2, 3)],
    pa.time64("us"): [time(1, 2, 3, 4)],
    pa.string(): ["", "a", "längere Wörter"],
    pa.large_string(): ["", "b"],
    pa.binary(): [b"", b"\0\xff"],
    pa.large_binary(): [b"xyz"],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
@given(data=st.data())
def test_columns_are_lists(kind: pa.DataType, data: st.DataObject) -> None:
    plain = st.sampled_from(VALUES[kind])
    # Arrow has truth values in bits: with nulls, they have no column.
    value = plain if kind == pa.bool_() else st.one_of(plain, plain, st.none())
    parts = data.draw(
        st.lists(st.lists(st.one_of(value, plain), min_size=1, max_size=9), max_size=8)
    )
    column, rows = row_column(as_column(pa.array(VALUES[kind], kind))), list[Any]()
    assert column is not None
    column.reserve(slice(0, 0), room := 4)
    before: list[tuple[Any, list[Any]]] = []
    for part in parts:
        # Of a longer array, so that it does not start where its memory does.
        given = as_column(pa.array([*VALUES[kind][:1], *part], kind)[1:])
        assert column.fits(given)
        if len(rows) + len(part) > room:
            stays: Any = slice(data.draw(st.integers(0, len(rows))), len(rows))
            if data.draw(st.booleans()):
                stays = np.flatnonzero(data.draw(st.lists(st.booleans(), max_size=len(rows))))
            rows = np.array([*rows, None], object)[:-1][stays].tolist()
            column.reserve(stays, room := 2 * len(rows) + len(part))
        column.add(len(rows), len(rows) + len(part), given)
        rows += pa.array(part, kind).to_pylist()
        start = data.draw(st.integers(0, len(rows)))
        before.append((column.cut(start, len(rows)), rows[start:]))
        places = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1))), np.int64)
        taken = to_arrow(column.take(places))
        assert taken.type == kind
        taken.validate(full=True)
        assert taken.to_pylist() == [rows[place] for place in places]
    for cut, expected in before:
        assert to_arrow(cut).type == kind
        assert to_arrow(cut).to_pylist() == expected


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a"]).dictionary_encode(),
        pa.array([[1]]),
        pa.array([None]),
        pa.array([True, None]),
        pa.array([1], pa.decimal128(20, 2)),
        np.array(["2026-01-02"], "M8[D]"),
        np.array([1j]),
    ],
)
def test_types_without_a_column(column: Any) -> None:
    assert row_column(column) is None


def test_other_types_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, words, flags = map(row_column, (np.array([1]), pa.array(["a"]), np.array([True])))
    assert numbers is not None
    assert words is not None
    assert flags is not None
    assert numbers.fits(pa.array([1, None]))
    assert not numbers.fits(np.array([1.0]))
    assert not numbers.fits(pa.array([1, None], pa.int32()))
    assert not words.fits(pa.array(["a"], pa.large_string()))
    assert not words.fits(np.array([1]))
    assert not flags.fits(pa.array([True, None]))
    monkeypatch.setattr(row_columns, "_MOST_SHORT", 20)
    assert words.fits(pa.array(["short"]))
    assert not words.fits(pa.array(["too long for offsets of 32 bits"]))
