"""Joins with a table against Polars, and what they refuse."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.dataflow.operators import join_static
from jeton.dataflow.operators.join_static import StaticTable
from jeton.errors import BatchError, GraphError
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules

LEFT = pa.schema(
    [
        ("time", pa.int64()),
        ("key", pa.int64()),
        ("word", pa.string()),
        ("x", pa.float64()),
    ]
)
RIGHT = pa.schema(
    [("id", pa.int32()), ("word", pa.large_string()), ("x", pa.float64()), ("note", pa.string())]
)
KEYS = {
    "integers": (("key",), ("id",)),
    "text": (("word",), ("word",)),
    "numbers": (("x",), ("x",)),
    "several": (("key", "word"), ("id", "word")),
}
VALUES: dict[str, list[Any]] = {
    "key": [0, 1, 2**30, -7, None],
    "word": ["", "a", "längere Wörter", None],
    "x": [0.5, -1.0, math.nan, None],
    "note": ["p", "q", None],
}


def rows(schema: pa.Schema) -> st.SearchStrategy[list[Row]]:
    values = {"time": list(range(20)), "id": VALUES["key"], **VALUES}
    return st.lists(
        st.fixed_dictionaries({name: st.sampled_from(values[name]) for name in schema.names}),
        max_size=20,
    )


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("key", list(KEYS))
@settings(max_examples=30)
@given(left=rows(LEFT), right=rows(RIGHT), schedule=schedules(), unique=st.booleans())
def test_join_static_equals_the_join_of_polars(
    how: Any, key: str, left: list[Row], right: list[Row], schedule: Schedule, unique: bool
) -> None:
    left_key, right_key = KEYS[key]
    table = pa.Table.from_pylist(right, schema=RIGHT)
    frame = pl.DataFrame(pl.from_arrow(table))
    if unique:
        frame = frame.unique(list(right_key), keep="first")
        table = frame.to_arrow().cast(RIGHT)

    def build(flow: jt.Flow) -> None:
        stream = flow.input("in", schema=LEFT)
        joined = stream.key_by(*left_key).join_static(table, on=right_key, how=how)
        assert joined.schema is not None
        values = [name for name in RIGHT.names if name not in right_key]
        renamed = [name + "_right" if name in LEFT.names else name for name in values]
        assert joined.schema.names == [*LEFT.names[1:], *renamed]
        flow.output("out", joined)

    mine = pl.DataFrame(pl.from_arrow(pa.Table.from_pylist(left, schema=LEFT)))
    # Polars drops a right key only where the names are equal, and wants equal types.
    others = frame.with_columns(pl.col("id").cast(pl.Int64))
    expected = mine.join(
        others.rename({its: f"on {n}" for n, its in enumerate(right_key)}),
        left_on=list(left_key),
        right_on=[f"on {n}" for n in range(len(right_key))],
        how=how,
        suffix="_right",
        coalesce=True,
    )
    found = run_twin(build, {"in": left}, schedule, schema={"in": LEFT})
    assert_same(found["out"], expected.to_dicts())


PEOPLE = {"id": [7, 8], "name": ["Ann", "Bob"]}


@pytest.mark.parametrize(
    "table",
    [
        PEOPLE,
        pa.table(PEOPLE),
        pd.DataFrame(PEOPLE),
        pl.DataFrame(PEOPLE),
        [{"id": 7, "name": "Ann"}, {"id": 8, "name": "Bob"}],
    ],
    ids=["dictionary", "arrow", "pandas", "polars", "rows"],
)
def test_tables_of_any_kind(table: Any) -> None:
    flow = jt.Flow("kinds")
    bids = flow.input("bids").key_by("bidder")
    flow.output("out", bids.join_static(table, on="id"))
    found = flow.run({"bids": {"time": [0, 1], "bidder": [8, 9]}})["out"].to_pylist()
    assert found == [{"time": 0, "bidder": 8, "name": "Bob"}]


def test_a_table_travels_without_its_index() -> None:
    rows = StaticTable(pa.table(PEOPLE), ["key"], ["id"], outer=False, suffix="_right")
    batch = jt.Batch({"key": [7]}, times=[3])
    before = len(pickle.dumps(rows))
    expected = [{"time": 3, "key": 7, "name": "Ann"}]
    assert rows.join(batch).rows() == expected
    assert len(pickle.dumps(rows)) == before
    assert pickle.loads(pickle.dumps(rows)).join(batch).rows() == expected


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = jt.Flow("refused").input("in", schema={"key": int, "name": str, "name_right": str})
    keyed = stream.key_by("key")
    with pytest.raises(GraphError, match="needs key columns"):
        stream.key_by().join_static(PEOPLE)
    with pytest.raises(GraphError, match=r"no column 'key'.* in the table: name its key with on="):
        keyed.join_static(PEOPLE)
    with pytest.raises(GraphError, match="different lengths"):
        keyed.join_static(PEOPLE, on=["id", "name"])
    with pytest.raises(GraphError, match="how='full' is not known"):
        keyed.join_static(PEOPLE, on="id", how="full")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"'key' \(int64\) and 'name' \(string\) are never equal"):
        keyed.join_static(PEOPLE, on="name")
    with pytest.raises(GraphError, match="would be called 'name_right'"):
        keyed.join_static(PEOPLE, on="id")
    monkeypatch.setattr(join_static, "MOST_BYTES", 100)
    with pytest.raises(GraphError, match="800 bytes, and join_static takes at most 100"):
        keyed.join_static({"key": np.arange(100)})
    unknown = jt.Flow("unknown")
    unknown.output("out", unknown.input("in").key_by("key").join_static({"key": [1]}))
    with pytest.raises(BatchError, match=r"'key' \(string\) and 'key' \(int64\) are never equal"):
        unknown.run({"in": {"time": [0], "key": ["a"]}})


@pytest.mark.parametrize("nulls", [False, True])
def test_integers_with_and_without_a_sign(nulls: bool) -> None:
    signed = pa.array([7, -1, None] if nulls else [7, -1])
    unsigned = pa.array([7, 2**64 - 1, None] if nulls else [7, 2**64 - 1], pa.uint64())
    for keys, known in ((signed, unsigned), (unsigned, signed)):
        flow = jt.Flow("signs")
        table = pa.table({"k": known, "v": pa.array(range(len(known)))})
        flow.output("out", flow.input("in").key_by("k").join_static(table, how="left"))
        found = flow.run({"in": pa.table({"time": [0] * len(keys), "k": keys})})["out"]
        assert found["k"].to_pylist() == keys.to_pylist()
        assert found["v"].to_pylist() == [0, *[None] * (len(keys) - 1)]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_null_among_integer_keys_loses_no_match(workers: int) -> None:
    flow = jt.Flow("nulls")
    joined = flow.input("in").key_by("k").join_static({"k": [1], "y": [10]}, how="left")
    flow.output("out", joined)
    keys = pa.array([*[1] * 999, None], pa.int64())
    for _ in range(2):  # the runs share the table's index
        found = flow.run({"in": pa.table({"time": range(1000), "k": keys})}, workers=workers)
        assert found["out"]["y"].null_count == 1
    with flow.open() as run:
        some = pa.table({"time": [0, 1], "k": pa.array([1, None], pa.int64())})
        run.input("in").send(some.slice(0, 1))
        run.run_to_rest()
        run.input("in").send({"time": [5], "k": [1]})
        assert run.finish()["out"]["y"].to_pylist() == [10, 10]


def test_runs_do_not_change_what_others_may_look_up() -> None:
    flow = jt.Flow("types")
    empty = pa.table({"k": pa.nulls(1), "y": [10]})
    flow.output("out", flow.input("in").key_by("k").join_static(empty, how="left"))
    for keys in (["a"], [1], [0.5]):
        found = flow.run({"in": {"time": [0], "k": keys}})["out"]
        assert found["y"].to_pylist() == [None]
