"""group_join against its twin: windows that records open, and what falls into them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import BatchError, GraphError, TimeError
from tests.operators.test_top_k import place
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules

LEFT = pa.schema(
    [("time", pa.int64()), ("id", pa.int64()), ("least", pa.int64()), ("note", pa.string()),
     ("ends", pa.int64())]
)  # fmt: skip
RIGHT = pa.schema(
    [("time", pa.int64()), ("item", pa.int64()), ("who", pa.string()), ("n", pa.int64())]
)
KEYS: dict[str, tuple[pa.DataType, Callable[[Any], Any]]] = {
    "integers": (pa.int64(), lambda k: k),
    "text": (pa.string(), lambda k: None if k is None else f"key {k}"),
}


def left_rows() -> st.SearchStrategy[list[Row]]:
    row: st.SearchStrategy[Row] = st.fixed_dictionaries(
        {
            "time": st.integers(0, 25),
            "id": st.sampled_from([1, 2, 3, None]),
            "least": st.integers(0, 3),
            "note": st.sampled_from(["a", "long text", None]),
            "lasts": st.integers(-1, 12),
        }
    )
    return st.lists(
        row.map(lambda row: row | {"ends": row["time"] + row.pop("lasts")}), max_size=14
    )


def right_rows(n: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Row]]:
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 35),
            "item": st.sampled_from([1, 2, 3, 4, None]),
            "who": st.sampled_from(["ann", "bob", None]),
            "n": n,
        }
    )
    return st.lists(row, max_size=40)


def members(left: list[Row], right: list[Row], valid: Any) -> list[tuple[Row, list[Row]]]:
    """The twin: for each left record all right ones in its window, if there are any."""
    found = []
    for one in left:
        inside = [
            row
            for row in right
            if one["id"] is not None
            and row["item"] == one["id"]
            and one["time"] <= row["time"] < one["ends"]
            and valid(one, row)
        ]
        if inside:
            found.append((one | {"time": one["ends"]}, inside))
    return found


def is_valid(one: Row, row: Row) -> bool:
    return row["n"] is not None and row["n"] >= one["least"]


def keyed(rows: list[Row], column: str, key: str) -> list[Row]:
    return [row | {column: KEYS[key][1](row[column])} for row in rows]


def typed(schema: pa.Schema, column: str, key: str) -> pa.Schema:
    at = schema.get_field_index(column)
    return schema.set(at, pa.field(column, KEYS[key][0]))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("declared", [True, False])
@settings(max_examples=40)
@given(left=left_rows(), right=right_rows(st.integers(0, 5)), schedule=schedules())
def test_aggregates_equal_their_twin(
    key: str, declared: bool, left: list[Row], right: list[Row], schedule: Schedule
) -> None:
    left, right = keyed(left, "id", key), keyed(right, "item", key)
    schemas = {"left": typed(LEFT, "id", key), "right": typed(RIGHT, "item", key)}

    def build(flow: jt.Flow) -> None:
        known = {n: s.remove(0) if declared else None for n, s in schemas.items()}
        a = flow.input("left", schema=known["left"]).key_by("id")
        b = flow.input("right", schema=known["right"]).key_by("item")
        valid = jt.col("n") >= jt.col("least")
        wanted: dict[str, Any] = {
            "count": jt.agg.count(),
            "people": jt.agg.count_distinct("who"),
            "total": jt.agg.sum("n"),
            "most": jt.agg.max("n"),
            "last": jt.agg.last("n"),
            "all": jt.agg.collect("n"),
        }
        some = a.group_join(b, until="ends", where=valid)
        flow.output("some", some.aggregate(**wanted))
        flow.output("every", a.group_join(b, until="ends").count())

    found = run_twin(build, {"left": left, "right": right}, schedule, schema=schemas)
    expected = []
    for one, inside in members(left, right, is_valid):
        last = max(row["time"] for row in inside)
        expected.append(
            one
            | {
                "count": len(inside),
                "people": len({row["who"] for row in inside} - {None}),
                "total": sum(row["n"] for row in inside),
                "most": max(row["n"] for row in inside),
                "last": max(row["n"] for row in inside if row["time"] == last),
                "all": [row["n"] for row in sorted(inside, key=lambda r: (r["time"], r["n"]))],
            }
        )
    assert_same(found["some"], expected)
    everything = members(left, right, lambda *_: True)
    assert_same(found["every"], [one | {"count": len(inside)} for one, inside in everything])


COMPARED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "integers": (pa.int64(), [0, 1, 2]),
    "integers or nulls": (pa.int64(), [0, 1, 2, None]),
    "numbers": (pa.float64(), [0.0, 1.0, -0.0, float("nan")]),
    "short": (pa.int16(), [0, 1, 2]),
    "text": (pa.string(), ["0", "1"]),
}
CONDITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("types", [(a, b) for a in COMPARED for b in COMPARED if a <= b])
@settings(max_examples=15)
@given(data=st.data(), left=left_rows(), swapped=st.booleans(), schedule=schedules())
def test_columns_are_compared_as_a_function_compares_them(
    condition: str,
    types: tuple[str, str],
    data: st.DataObject,
    left: list[Row],
    swapped: bool,
    schedule: Schedule,
) -> None:
    """Comparisons of numbers are part of the search of windows; the function is not."""
    if "text" in types and types != ("text", "text"):
        types = ("text", "text")
    (left_type, some), (right_type, others) = COMPARED[types[0]], COMPARED[types[1]]
    for row in left:
        row["least"] = data.draw(st.sampled_from(some))
    right = data.draw(right_rows(st.sampled_from(others)))
    compare = CONDITIONS[condition]

    def build(flow: jt.Flow) -> None:
        a, b = flow.input("left").key_by("id"), flow.input("right").key_by("item")
        names = ("n", "least") if swapped else ("least", "n")
        compared = compare(*map(jt.col, names))
        function = lambda pair: compare(*(pair[name] for name in names))  # noqa: E731
        for name, where in (("expression", compared), ("function", function)):
            flow.output(name, a.group_join(b, until="ends", where=where).count())
            best = a.group_join(b, until="ends", where=where).top("n")
            flow.output(f"top by {name}", best)

    schema = {
        "left": LEFT.set(2, pa.field("least", left_type)),
        "right": RIGHT.set(3, pa.field("n", right_type)),
    }
    found = run_twin(build, {"left": left, "right": right}, schedule, schema=schema)
    assert_same(found["expression"], found["function"])
    assert_same(found["top by expression"], found["top by function"])


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "integers": (pa.int64(), [1, 2, 3]),
    "integers or nulls": (pa.int64(), [1, 2, None]),
    "large": (pa.uint64(), [1, 2**64 - 1, 2**63]),
    "numbers": (pa.float64(), [1.5, float("nan"), -0.5, float("-inf")]),
    "text": (pa.string(), ["x", "y", None]),
}


@pytest.mark.parametrize("values", VALUES)
@settings(max_examples=25)
@given(data=st.data(), left=left_rows(), ascending=st.booleans(), schedule=schedules())
def test_top_equals_its_twin(
    values: str, data: st.DataObject, left: list[Row], ascending: bool, schedule: Schedule
) -> None:
    kind, some = VALUES[values]
    right = data.draw(right_rows(st.sampled_from(some)))
    schema = RIGHT.set(3, pa.field("n", kind))

    def build(flow: jt.Flow) -> None:
        a, b = flow.input("left").key_by("id"), flow.input("right").key_by("item")
        joined = a.group_join(b, until="ends", where=lambda pair: pair.times >= 3)
        flow.output("top", joined.top("n", ascending=ascending))

    found = run_twin(
        build, {"left": left, "right": right}, schedule, schema={"left": LEFT, "right": schema}
    )
    expected = []
    for one, inside in members(left, right, lambda _, row: row["time"] >= 3):
        best = min(
            inside,
            key=lambda row: (place(row["n"], ascending), row["time"], place(row["who"])),
        )
        own = {"who": best["who"], "n": best["n"], "event_time": best["time"]}
        expected.append(one | own)
    assert_same(found["top"], expected)


def test_columns_of_both_sides_may_have_one_name() -> None:
    flow = jt.Flow("names")
    schema = {"id": int, "n": int, "ends": int}
    a = flow.input("a", schema=schema).key_by("id")
    b = flow.input("b", schema={"id": int, "n": int}).key_by("id")
    joined = a.group_join(b, until="ends", where=jt.col("n_b") > jt.col("n"), suffix="_b")
    top = joined.top("n")
    assert top.schema is not None
    assert top.schema.names == ["id", "n", "ends", "n_b", "event_time"]
    flow.output("top", top)
    flow.output("sum", joined.sum("n"))
    inputs = {
        "a": {"time": [0], "id": [1], "n": [5], "ends": [9]},
        "b": {"time": [1, 2, 3], "id": [1, 1, 1], "n": [5, 6, 7]},
    }
    found = flow.run(inputs)
    own = {"time": 9, "id": 1, "n": 5, "ends": 9}
    assert found["top"].to_pylist() == [own | {"n_b": 7, "event_time": 3}]
    assert found["sum"].to_pylist() == [own | {"sum": 13}]


def test_a_compared_column_is_the_one_that_a_pair_has() -> None:
    """Under a name of both sides it is the left one, with the suffix the right one."""
    flow = jt.Flow("same names")
    a, b = flow.input("left").key_by("id"), flow.input("right").key_by("id")
    for name, where in {
        "left first": jt.col("n") > jt.col("n_right"),
        "right first": jt.col("n_right") > jt.col("n"),
        "left alone": jt.col("n") >= jt.col("n"),
        "time": jt.col("time") > jt.col("n"),
    }.items():
        flow.output(name, a.group_join(b, until="ends", where=where).sum("n", name="sum"))
    left = {"time": [0, 0], "id": [1, 2], "n": [5, 2], "ends": [9, 9]}
    right = {"time": [3, 4, 5], "id": [1, 2, 1], "n": [3, 4, 8]}
    result = flow.run({"left": left, "right": right})
    sums = {
        name: dict(zip(*(t[column].to_pylist() for column in ("id", "sum")), strict=True))
        for name, t in result.items()
    }
    assert sums == {
        "left first": {1: 3},
        "right first": {1: 8, 2: 4},
        "left alone": {1: 11, 2: 4},
        "time": {2: 4},
    }


def test_ends_and_own_times_are_timestamps() -> None:
    flow = jt.Flow("stamps")
    a, b = flow.input("a").key_by("id"), flow.input("b").key_by("id")
    flow.output("top", a.group_join(b, until="ends").top("n"))
    at = [datetime(2024, 1, 1, hour) for hour in range(4)]
    left = {"time": [at[0]], "id": [1], "ends": pa.array([at[3]], pa.timestamp("ms"))}
    found = flow.run({"a": left, "b": {"time": [at[1], at[3]], "id": [1, 1], "n": [1, 2]}})
    (row,) = found["top"].to_pylist()
    assert (row["time"], row["event_time"], row["n"]) == (at[3], at[1], 1)


def test_results_come_when_windows_are_complete_and_records_are_kept_no_longer() -> None:
    from tests.helpers import held, operator

    flow = jt.Flow("early")
    a, b = flow.input("a").key_by("id"), flow.input("b").key_by("id")
    flow.output("counts", a.group_join(b, until="ends").count().probe("counts"))
    with flow.open() as run:
        left, right = run.input("a"), run.input("b")
        left.send({"time": [0, 0], "id": [1, 2], "ends": [10, 20]})
        right.send({"time": [3, 15], "id": [1, 1]})
        run.run_to_rest()
        assert held(run, "group_join") == {10: 1}
        state = {name: kept.state for name, kept in operator(run, "group_join").kept.items()}
        assert state["recent"].snapshot().num_rows == 2
        left.advance_to(4)
        run.run_to_rest()
        # The one batch goes as a whole, once no window can be opened that its last record is in.
        assert state["recent"].snapshot().num_rows == 2
        left.advance_to(16)
        run.run_to_rest()
        assert state["recent"].snapshot().num_rows == 0
        right.advance_to(9)
        run.run_to_rest()
        assert run.results()["counts"].num_rows == 0
        right.advance_to(10)
        run.run_to_rest()
        assert run.results()["counts"]["count"].to_pylist() == [1]
        assert held(run, "group_join") == {20: 1}
        # A window without a record is forgotten in silence.
        right.advance_to(20)
        run.run_to_rest()
        assert held(run, "group_join") == {}
        assert state["state"].snapshot().num_rows == 0
        assert list(run.probe("counts").frontier) == [16]


def test_texts_of_windows_that_are_over_are_forgotten() -> None:
    from tests.helpers import operator

    flow = jt.Flow("long")
    a, b = flow.input("a").key_by("id"), flow.input("b").key_by("id")
    flow.output("top", a.group_join(b, until="ends").top("n"))
    with flow.open() as run:
        for at in range(0, 60_000, 1000):
            ids = np.arange(at, at + 1000)
            text = [f"text {n}" for n in ids]
            run.input("a").send({"time": ids, "id": ids, "ends": ids + 2000, "text": text})
            run.input("b").send({"time": ids + 1, "id": ids, "n": ids, "who": text})
            for name in ("a", "b"):
                run.input(name).advance_to(at + 1000)
            run.run_to_rest()
        windows: Any = operator(run, "group_join").kept["state"].state
        for rows in (windows._rows, windows._best._records):
            assert max(c._bytes.rows for c in rows._columns.values() if c._bytes) < 20_000
        found = run.finish()["top"]
    assert found.num_rows == 60_000
    assert found["text"].to_pylist() == found["who"].to_pylist()


def test_mistakes_are_refused() -> None:
    flow = jt.Flow("refused")
    a = flow.input("a", schema={"id": int, "ends": int, "count": int}).key_by("id")
    b = flow.input("b", schema={"id": int, "n": int}).key_by("id")
    with pytest.raises(GraphError, match="no column 'end'"):
        a.group_join(b, until="end")
    with pytest.raises(GraphError, match="no column 'm'"):
        a.group_join(b, until="ends").sum("m")
    with pytest.raises(GraphError, match="no column 'm'"):
        a.group_join(b, until="ends").top("m")
    with pytest.raises(GraphError, match="adds a column 'count', but the left side has one"):
        a.group_join(b, until="ends").count()
    with pytest.raises(GraphError, match="reads a column 'price', which neither side has"):
        a.group_join(b, until="ends", where=jt.col("price") > 1)
    with pytest.raises(GraphError, match="takes an expression such as"):
        a.group_join(b, until="ends", where="n > 1")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="needs the other stream keyed too"):
        a.group_join(flow.input("c"), until="ends")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="is the time column"):
        a.group_join(flow.input("d").key_by("time"), until="ends")
    text = flow.input("e", schema={"id": str}).key_by("id")
    with pytest.raises(GraphError, match="are never equal"):
        a.group_join(text, until="ends")


def test_values_that_make_no_sense_are_refused() -> None:
    flow = jt.Flow("refused")
    a, b = flow.input("a").key_by("id"), flow.input("b").key_by("id")
    flow.output("out", a.group_join(b, until="ends").count())
    right = {"time": [0], "id": [1]}
    with pytest.raises(TimeError, match="column 'ends', which ends windows has 1 nulls"):
        flow.run({"a": {"time": [0], "id": [1], "ends": pa.array([None], pa.int64())}, "b": right})
    with pytest.raises(BatchError, match="are never equal"):
        flow.run({"a": {"time": [0], "id": ["x"], "ends": [5]}, "b": right})
