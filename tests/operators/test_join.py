"""Joins by time, as-of and interval joins, against their twins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules

LEFT = pa.schema(
    [
        ("time", pa.int64()),
        ("key", pa.int64()),
        ("word", pa.string()),
        ("value", pa.int64()),
    ]
)
RIGHT = pa.schema(
    [
        ("time", pa.int64()),
        ("id", pa.int32()),
        ("word", pa.string()),
        ("value", pa.float64()),
        ("note", pa.string()),
    ]
)
KEYS = {
    "integers": (("key",), ("id",)),
    "text": (("word",), ("word",)),
    "several": (("key", "word"), ("id", "word")),
    "none": ((), ()),
}

KEY = [0, 1, 2, 2**30, -7, None]
WORD = ["", "a", "längere Wörter", None]
LEFT_VALUES: dict[str, list[Any]] = {"key": KEY, "word": WORD, "value": [-3, 0, 2, 3, None]}
RIGHT_VALUES: dict[str, list[Any]] = {
    "id": KEY,
    "word": WORD,
    "value": [0.5, -1.0, None],
    "note": ["x", "y", None],
}


def rows(latest: int, values: dict[str, list[Any]]) -> st.SearchStrategy[list[Row]]:
    """A few rows that Hypothesis chooses and can make simpler, or many at random."""
    times = st.integers(0, latest)
    row = {"time": times, **{name: st.sampled_from(known) for name, known in values.items()}}

    def many(seed: int, size: int) -> list[Row]:
        random = Random(seed)
        return [
            {"time": random.randint(0, latest), **{n: random.choice(v) for n, v in values.items()}}
            for _ in range(size)
        ]

    return st.one_of(
        st.lists(st.fixed_dictionaries(row), max_size=25),
        st.builds(many, st.integers(0, 10_000), st.integers(20, 50)),
    )


def lefts(latest: int = 40) -> st.SearchStrategy[list[Row]]:
    return rows(latest, LEFT_VALUES)


def rights(latest: int = 40) -> st.SearchStrategy[list[Row]]:
    return rows(latest, RIGHT_VALUES)


Pairing = Callable[[Row, list[Row]], list[tuple[int, Row]]]
"""From a left row and the right rows of its key to times and partners."""


def twin(
    left: list[Row],
    right: list[Row],
    key: str,
    pairing: Pairing,
    alone: Callable[[int], int] | None = None,
    right_alone: Callable[[int], int] | None = None,
) -> list[Row]:
    """Any join, row by row.

    ``alone`` is when a left row without a partner is sent, ``right_alone`` when a right one is.
    """
    left_key, right_key = KEYS[key]
    expected = []

    def emit(time: int, row: Row, partner: Row) -> None:
        values = {
            name + ("_right" if name in LEFT.names else ""): value
            for name, value in partner.items()
            if name not in (*right_key, "time")
        }
        expected.append({**row, "time": time, **values})

    met: set[int] = set()
    for row in left:
        mine = [row[name] for name in left_key]
        same = [r for r in right if None not in mine and [r[n] for n in right_key] == mine]
        found = pairing(row, same)
        met.update(id(partner) for _, partner in found)
        if not found and alone is not None:
            found = [(alone(row["time"]), dict.fromkeys(RIGHT.names))]
        for time, partner in found:
            emit(time, row, partner)
    for row in right:
        if right_alone is not None and id(row) not in met:
            keys = {mine: row[name] for mine, name in zip(left_key, right_key, strict=True)}
            emit(right_alone(row["time"]), dict.fromkeys(LEFT.names) | keys, row)
    return expected


def check(
    join: Callable[[jt.KeyedStream, jt.KeyedStream], jt.Stream],
    key: str,
    left: list[Row],
    right: list[Row],
    schedule: Schedule,
    expected: list[Row],
) -> None:
    left_key, right_key = KEYS[key]

    def build(flow: jt.Flow) -> None:
        mine = flow.input("left", schema=LEFT).key_by(*left_key)
        others = flow.input("right", schema=RIGHT).key_by(*right_key)
        joined = join(mine, others)
        assert joined.schema is not None
        names = [n for n in RIGHT.names if n not in (*right_key, "time")]
        renamed = [n + "_right" if n in LEFT.names else n for n in names]
        assert joined.schema.names == [*LEFT.names[1:], *renamed]
        flow.output("out", joined)

    inputs = {"left": left, "right": right}
    found = run_twin(build, inputs, schedule, schema={"left": LEFT, "right": RIGHT})
    assert_same(found["out"], expected)


HOWS = ["inner", "left", "right", "full"]


def same_time(time: int) -> int:
    return time


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("key", list(KEYS))
@settings(max_examples=30)
@given(left=lefts(4), right=rights(4), schedule=schedules())
def test_join_equals_its_twin(
    how: Any, key: str, left: list[Row], right: list[Row], schedule: Schedule
) -> None:
    def pairing(row: Row, same: list[Row]) -> list[tuple[int, Row]]:
        return [(row["time"], r) for r in same if r["time"] == row["time"]]

    alone = same_time if how in ("left", "full") else None
    right_alone = same_time if how in ("right", "full") else None
    expected = twin(left, right, key, pairing, alone, right_alone)
    check(lambda a, b: a.join(b, how=how), key, left, right, schedule, expected)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("key", ["x", "word"])
@settings(max_examples=30)
@given(data=st.data(), workers=st.integers(1, 3))
def test_join_equals_that_of_polars(how: Any, key: str, data: st.DataObject, workers: int) -> None:
    """Times are a key there; NaN equals NaN, and nulls equal nothing."""
    kinds = {"time": pa.int64(), "x": pa.float64(), "word": pa.string()}
    values: dict[str, list[Any]] = {
        "x": [0.5, -1.0, math.nan, None],
        "word": WORD,
        "a": [1, 2],
        "b": [3, None],
    }
    tables = {}
    for name, own in {"left": "a", "right": "b"}.items():
        schema = pa.schema({"time": kinds["time"], key: kinds[key], own: pa.int64()})
        some = data.draw(rows(3, {column: values[column] for column in (key, own)}))
        tables[name] = pa.Table.from_pylist(some, schema=schema)
    flow = jt.Flow("polars")
    left, right = (flow.input(name, schema=table.schema) for name, table in tables.items())
    flow.output("out", left.key_by(key).join(right.key_by(key), how=how))
    found = flow.run(tables, workers=workers)["out"]
    mine, others = (pl.DataFrame(pl.from_arrow(table)) for table in tables.values())
    expected = mine.join(others, on=["time", key], how=how, coalesce=True)
    assert_same(found.to_pylist(), expected.to_dicts())


INTERVALS = [(-5, 5), (-9, -3), (3, 9), (0, 0), (-4, 0), (0, 2**62)]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("key", list(KEYS))
@settings(max_examples=40)
@given(left=lefts(), right=rights(), schedule=schedules(), interval=st.sampled_from(INTERVALS))
def test_interval_join_equals_its_twin(
    how: Any,
    key: str,
    left: list[Row],
    right: list[Row],
    schedule: Schedule,
    interval: tuple[int, int],
) -> None:
    lower, upper = interval

    def pairing(row: Row, same: list[Row]) -> list[tuple[int, Row]]:
        time = row["time"]
        return [
            (max(time, r["time"]), r) for r in same if time + lower <= r["time"] <= time + upper
        ]

    alone = (lambda time: time + max(upper, 0)) if how in ("left", "full") else None
    right_alone = (lambda time: time + max(-lower, 0)) if how in ("right", "full") else None
    expected = twin(left, right, key, pairing, alone, right_alone)
    join = partial(jt.KeyedStream.interval_join, lower=lower, upper=upper, how=how)
    check(join, key, left, right, schedule, expected)


def order(row: Row) -> list[tuple[bool, Any]]:
    """The greatest of equals: column by column, nulls least."""
    return [(row[name] is not None, row[name]) for name in RIGHT.names]


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("key", list(KEYS))
@settings(max_examples=40)
@given(
    # Close times bring many equal ones, far ones gaps: both matter here.
    data=st.one_of(st.tuples(lefts(6), rights(6)), st.tuples(lefts(), rights())),
    schedule=schedules(),
    tolerance=st.sampled_from([None, 0, 3, 2**63]),
)
def test_asof_join_equals_its_twin(
    how: Any,
    key: str,
    data: tuple[list[Row], list[Row]],
    schedule: Schedule,
    tolerance: int | None,
) -> None:
    left, right = data

    def pairing(row: Row, same: list[Row]) -> list[tuple[int, Row]]:
        time = row["time"]
        least = 0 if tolerance is None else time - tolerance
        near = [r for r in same if least <= r["time"] <= time]
        latest = max((r["time"] for r in near), default=None)
        last = [r for r in near if r["time"] == latest]
        return [(time, max(last, key=order))] if last else []

    expected = twin(left, right, key, pairing, (lambda time: time) if how == "left" else None)
    join = partial(jt.KeyedStream.asof_join, tolerance=tolerance, how=how)
    check(join, key, left, right, schedule, expected)


@settings(max_examples=30)
@given(left=lefts(4), right=rights(4), schedule=schedules(), how=st.sampled_from(HOWS))
def test_join_in_a_loop_equals_its_twin(
    left: list[Row], right: list[Row], schedule: Schedule, how: Any
) -> None:
    """Each round, those records of both sides meet that have counted down to it."""
    left = [row | {"value": (row["value"] or 0) % 3} for row in left]
    right = [row | {"value": abs(row["value"] or 0.0)} for row in right]

    def build(flow: jt.Flow) -> None:
        loop = flow.loop("rounds")

        def around(stream: jt.Stream) -> jt.Stream:
            again = loop.feedback(schema=stream.schema)
            whole = stream.enter(loop).concat(again.stream)
            going = whole.filter(lambda batch: batch["value"] > 0)
            again.connect(going.with_columns(value=lambda batch: batch["value"] - 1))
            return whole

        mine = around(flow.input("left", schema=LEFT))
        others = around(flow.input("right", schema=RIGHT))
        joined = mine.key_by("key").join(others.key_by("id"), how=how)
        flow.output("out", joined.leave())

    expected = []
    for number in range(4):
        mine = [row | {"value": row["value"] - number} for row in left if row["value"] >= number]
        others = [
            row | {"value": row["value"] - number}
            for row in right
            if number == 0 or row["value"] > number - 1
        ]

        def pairing(row: Row, same: list[Row]) -> list[tuple[int, Row]]:
            return [(row["time"], r) for r in same if r["time"] == row["time"]]

        alone = same_time if how in ("left", "full") else None
        right_alone = same_time if how in ("right", "full") else None
        expected += twin(mine, others, "integers", pairing, alone, right_alone)
    inputs = {"left": left, "right": right}
    # A snapshot needs loops at rest, so that there is nothing to go on from in the middle of one.
    schedule = replace(schedule, restart=None)
    found = run_twin(build, inputs, schedule, schema={"left": LEFT, "right": RIGHT})
    assert_same(found["out"], expected)
