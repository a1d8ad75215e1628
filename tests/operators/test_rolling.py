"""Moving windows against their twin and Polars, and what they keep and refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import BatchError, GraphError
from jeton.state import join_side
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules

SCHEMA = pa.schema(
    [
        ("time", pa.int64()),
        ("key", pa.int64()),
        ("word", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
    ]
)
KEYS: list[tuple[str, ...]] = [("key",), ("word",), ("key", "word"), ()]


def rows(*, nan: bool = True) -> st.SearchStrategy[list[Row]]:
    numbers: list[float | None] = [0.5, -1.0, 2.25, None]
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 30),
            "key": st.sampled_from([0, 1, 2**40, -1, None]),
            "word": st.sampled_from(["", "a", "längere Wörter", None]),
            "n": st.sampled_from([1, 2, 3, -7, None]),
            "x": st.sampled_from([*numbers, math.nan] if nan else numbers),
        }
    )
    return st.lists(row, max_size=40)


def by_values(row: Row) -> list[Any]:
    """Nulls last, NaN the greatest number."""
    return [
        (value is None, value != value, 0 if value is None or value != value else value)
        for value in (row[name] for name in SCHEMA.names)
    ]


def aggregated(window: list[Row]) -> Row:
    """The results of a window."""
    integers = [row["n"] for row in window if row["n"] is not None]
    numbers = [row["x"] for row in window if row["x"] is not None]
    greatest = max(numbers, key=lambda x: (x != x, x if x == x else 0), default=None)
    return {
        "rows": len(window),
        "sum": sum(integers) if integers else None,
        "mean": sum(numbers) / len(numbers) if numbers else None,
        "max": greatest,
        "last": max(row["time"] for row in window),
    }


AGGREGATES = {
    "rows": jt.agg.count(),
    "sum": jt.agg.sum("n"),
    "mean": jt.agg.mean("x"),
    "max": jt.agg.max("x"),
    "last": jt.agg.max("time"),
}


def check(
    key: tuple[str, ...],
    rows: list[Row],
    schedule: Schedule,
    window: Callable[[Row, list[Row]], list[Row]],
    options: dict[str, int],
) -> None:
    def build(flow: jt.Flow) -> None:
        rolled = flow.input("in", schema=SCHEMA).key_by(*key).rolling(**options)
        stream = rolled.aggregate(**AGGREGATES)
        assert stream.schema is not None
        assert stream.schema.names == [*SCHEMA.names[1:], *AGGREGATES]
        flow.output("out", stream)

    expected = []
    ordered = sorted(rows, key=by_values)
    for row in ordered:
        same = [other for other in ordered if all(other[n] == row[n] for n in key)]
        expected.append(row | aggregated(window(row, same)))
    found = run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})
    assert_same(found["out"], expected)


@pytest.mark.parametrize("key", KEYS, ids="-".join)
@settings(max_examples=30)
@given(rows=rows(), schedule=schedules(), size=st.sampled_from([1, 2, 7, 2**62]))
def test_windows_by_time_equal_their_twin(
    key: tuple[str, ...], rows: list[Row], schedule: Schedule, size: int
) -> None:
    def window(row: Row, same: list[Row]) -> list[Row]:
        return [other for other in same if row["time"] - size < other["time"] <= row["time"]]

    check(key, rows, schedule, window, {"size": size})


@pytest.mark.parametrize("key", KEYS, ids="-".join)
@settings(max_examples=30)
@given(rows=rows(), schedule=schedules(), count=st.sampled_from([1, 2, 3, 10, 1000]))
def test_windows_by_rows_equal_their_twin(
    key: tuple[str, ...], rows: list[Row], schedule: Schedule, count: int
) -> None:
    def window(row: Row, same: list[Row]) -> list[Row]:
        # Rows that are equal in every column stand for each other: which is which is the same.
        at = next(number for number, other in enumerate(same) if other is row)
        return same[max(at + 1 - count, 0) : at + 1]

    check(key, rows, schedule, window, {"rows": count})


@settings(max_examples=30)
@given(rows=rows(nan=False), size=st.integers(1, 9))
def test_windows_by_time_equal_those_of_polars(rows: list[Row], size: int) -> None:
    flow = jt.Flow("polars")
    rolled = flow.input("in", schema=SCHEMA).key_by("key").rolling(size)
    flow.output("out", rolled.aggregate(**AGGREGATES))
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    found = flow.run({"in": table}, workers=2)["out"].select(["time", "key", "rows", "sum", "max"])
    frame = pl.DataFrame(pl.from_arrow(table)).sort("time")
    windows = frame.rolling("time", period=f"{size}i", group_by="key", closed="right")
    # The sum of no values is zero in Polars, and null here and in SQL.
    known = pl.col("n").is_not_null().any()
    expected = windows.agg(
        rows=pl.len(), sum=pl.when(known).then(pl.col("n").sum()), max=pl.col("x").max()
    )
    assert_same(found.to_pylist(), expected.to_dicts())


def test_times_matter_to_some_aggregates() -> None:
    flow = jt.Flow("lists")
    stream = flow.input("in").key_by()
    aggregates = {
        "all": jt.agg.collect("n"),
        "first": jt.agg.first("n"),
        "n_last": jt.agg.last("n"),
    }
    flow.output("size", stream.rolling(10).aggregate(**aggregates))
    flow.output("rows", stream.rolling(rows=2).aggregate(**aggregates))
    result = flow.run({"in": {"time": [12, 0, 5], "n": [3, 9, 1]}})
    assert result["size"]["all"].to_pylist() == [[9], [9, 1], [1, 3]]
    for table in result["size"], result["rows"]:
        assert table["first"].to_pylist() == [9, 9, 1]
        assert table["n_last"].to_pylist() == [9, 1, 3]


def test_windows_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_side, "MOST_PAIRS", 7)
    flow = jt.Flow("pieces")
    flow.output("out", flow.input("in").key_by().rolling(10).sum("n"))
    table = flow.run({"in": {"time": range(50), "n": range(50)}})["out"]
    assert table["sum"].to_pylist() == [sum(range(max(n - 9, 0), n + 1)) for n in range(50)]


@pytest.mark.parametrize("options", [{"size": 3}, {"rows": 3}], ids=["time", "rows"])
def test_state_stays_small_while_times_advance(options: dict[str, int]) -> None:
    flow = jt.Flow("bounded")
    rolled = flow.input("in").key_by("key").rolling(**options)
    flow.output("out", rolled.sum("n"))
    with flow.open() as run:
        for time in range(200):
            run.input("in").send({"time": [time] * 10, "key": range(10), "n": [time] * 10})
            run.input("in").advance_to(time + 1)
            run.run_to_rest()
            [operator] = [o for o in run.workers[0].operators if o.plan.name == "sum"]
            states: list[Any] = [kept.state for kept in operator.kept.values()]
            # What is in reach, and as much again that is dropped only now and then.
            assert sum(map(len, states)) <= 2 * 4 * 10
        found = run.finish()["out"]
    sums = dict(zip(found["time"].to_pylist(), found["sum"].to_pylist(), strict=True))
    assert sums == {t: sum(range(max(t - 2, 0), t + 1)) for t in range(200)}


def test_what_is_refused() -> None:
    stream = jt.Flow("refused").input("in", schema={"key": int, "sum": int})
    keyed = stream.key_by("key")
    with pytest.raises(GraphError, match=r"a number of records as rows="):
        keyed.rolling()
    with pytest.raises(GraphError, match=r"a number of records as rows="):
        keyed.rolling(3, rows=3)
    with pytest.raises(GraphError, match="size of a moving window is greater than zero"):
        keyed.rolling(0)
    with pytest.raises(GraphError, match="needs an integer, at least one, not 0"):
        keyed.rolling(rows=0)
    with pytest.raises(GraphError, match="column 'sum', but there is one already"):
        keyed.rolling(3).sum("sum")
    with pytest.raises(GraphError, match="integer times"):
        stream.iterate(lambda s: (s.key_by("key").rolling(3).count(), s))
    flow = jt.Flow("late")
    flow.output("out", flow.input("in").key_by().rolling(3).sum("sum"))
    with pytest.raises(BatchError, match="column 'sum', but there is one already"):
        flow.run({"in": {"time": [0], "sum": [1]}})


@settings(max_examples=40)
@given(st.permutations(range(7)), st.integers(1, 3))
def test_ties_do_not_follow_the_order_of_arrival(order: list[int], workers: int) -> None:
    """With rows=, records of one time are ordered by their columns, and the last is the own."""
    records = [
        (0, "b", 1),
        (0, "a", 2),
        (0, "a", 1),
        (1, "c", 0),
        (1, "b", 5),
        (1, "b", 4),
        (2, "a", 9),
    ]
    flow = jt.Flow("ties")
    keyed = flow.input("in").key_by()
    found = {"first": jt.agg.first("n"), "last": jt.agg.last("n"), "all": jt.agg.collect("n")}
    flow.output("rows", keyed.rolling(rows=3).aggregate(**found))
    flow.output("time", keyed.rolling(2).aggregate(**found))
    with flow.open(workers=workers) as run:
        for place, at in enumerate(order):
            time, word, n = records[at]
            run.input("in", place % workers).send({"time": [time], "word": [word], "n": [n]})
        result = run.finish()
    ordered = sorted(records)
    for at, row in enumerate(
        sorted(result["rows"].to_pylist(), key=lambda r: (r["time"], r["word"], r["n"]))
    ):
        window = [n for _, _, n in ordered[max(at - 2, 0) : at + 1]]
        assert [row["first"], row["last"], row["all"]] == [window[0], window[-1], window]
        assert row["last"] == row["n"]
    for row in result["time"].to_pylist():
        pairs = sorted((t, n) for t, _, n in records if row["time"] - 2 < t <= row["time"])
        values = [n for _, n in pairs]
        assert [row["first"], row["last"], row["all"]] == [values[0], values[-1], values]
