"""distinct against its twin: ever, in windows, and in loops."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import GraphError
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules
from tests.operators.value_types import VALUE_TYPES, schema_for, through_arrow, typed_rows

SCHEMA = pa.schema([("time", pa.int64()), ("key", pa.int64()), ("word", pa.string())])


def rows() -> st.SearchStrategy[list[Row]]:
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 30),
            "key": st.one_of(st.integers(0, 3), st.sampled_from([2**40, -1, None])),
            "word": st.sampled_from(["", "a", "längere Wörter", None]),
        }
    )
    return st.lists(row, max_size=30)


def firsts(rows: list[Row], key: tuple[str, ...]) -> list[Row]:
    """The twin: the least time of each key."""
    least: dict[Any, int] = {}
    for row in rows:
        values = tuple(row[name] for name in key)
        least[values] = min(row["time"], least.get(values, row["time"]))
    return [{"time": t, **dict(zip(key, k, strict=True))} for k, t in least.items()]


@pytest.mark.parametrize("key", [("key",), ("word",), ("key", "word")], ids="-".join)
@settings(max_examples=40)
@given(rows=rows(), schedule=schedules())
def test_distinct_equals_its_twin(
    key: tuple[str, ...], rows: list[Row], schedule: Schedule
) -> None:
    def build(flow: jt.Flow) -> None:
        stream = flow.input("in")
        flow.output("ever", stream.distinct(*key))
        flow.output("windows", stream.key_by(*key).tumbling(10).distinct())

    found = run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})
    assert_same(found["ever"], firsts(rows, key))
    ends = [row | {"time": (row["time"] // 10 + 1) * 10} for row in rows]
    in_windows = {(r["time"], *(r[name] for name in key)) for r in ends}
    expected = [{"time": t, **dict(zip(key, k, strict=True))} for t, *k in in_windows]
    assert_same(found["windows"], expected)


@pytest.mark.parametrize("name", VALUE_TYPES)
@settings(max_examples=8)
@given(data=st.data(), schedule=schedules())
def test_distinct_values_of_all_types(name: str, data: st.DataObject, schedule: Schedule) -> None:
    schema = schema_for(name)
    rows = through_arrow(data.draw(typed_rows(name)), schema)

    def build(flow: jt.Flow) -> None:
        flow.output("out", flow.input("in").distinct("value"))

    found = run_twin(build, {"in": rows}, schedule, schema={"in": schema})
    assert_same(found["out"], firsts(rows, ("value",)))


LOOP_ROWS = st.lists(
    st.fixed_dictionaries(
        {"time": st.integers(0, 4), "node": st.integers(0, 12), "left": st.integers(0, 4)}
    ),
    max_size=15,
)


@settings(max_examples=60)
@given(rows=LOOP_ROWS, schedule=schedules())
def test_distinct_in_a_loop_tells_each_least_time(rows: list[Row], schedule: Schedule) -> None:
    # Records walk from node to node; each node comes at every least (time, round) it is at.
    def body(stream: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        going = stream.filter(lambda batch: batch["left"] > 0)
        again = going.with_columns(
            node=lambda b: (b["node"] * 5 + 1) % 13, left=lambda b: b["left"] - 1
        )
        return again, stream.distinct("node")

    def build(flow: jt.Flow) -> None:
        flow.output("out", flow.input("in").iterate(body))

    at: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for row in rows:
        node = row["node"]
        for r in range(row["left"] + 1):
            at[node].add((row["time"], r))
            node = (node * 5 + 1) % 13
    expected = [
        {"time": t, "node": node}
        for node, times in at.items()
        for t, r in times
        if not any((a, b) != (t, r) and a <= t and b <= r for a, b in times)
    ]
    found = run_twin(build, {"in": rows}, replace(schedule, restart=None))
    assert_same(found["out"], expected)


def test_distinct_in_a_loop_is_remembered_over_a_restart() -> None:
    flow = jt.Flow("loop")

    def body(stream: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        first = stream.distinct("node")
        return first.map(lambda batch: {"node": batch["node"] // 2}), first

    flow.output("out", flow.input("in").iterate(body))
    with flow.open(workers=2) as run:
        run.input("in").send({"time": [0], "node": [12]})
        for worker in range(2):
            run.input("in", worker).advance_to(1)
        run.run_to_rest()
        assert sorted(run.results()["out"]["node"].to_pylist()) == [0, 1, 3, 6, 12]
        snapshot = run.snapshot()
    with flow.open(workers=3, restore=snapshot) as run:
        # 7 comes to 3 and 1 in rounds in which they were known already, and no earlier.
        run.input("in").send({"time": [1, 1], "node": [7, 1]})
        found = run.finish()["out"].to_pylist()
    # 1 was known from round 3 on: here it comes in round 0, which is earlier.
    assert_same(found, [{"time": 1, "node": n} for n in (7, 3, 1, 0)])


def test_distinct_without_columns_needs_a_schema() -> None:
    flow = jt.Flow("schema")
    known = flow.input("known", schema={"a": int, "b": str})
    schema = known.distinct().schema
    assert schema is not None
    assert schema.names == ["a", "b"]
    with pytest.raises(GraphError, match="not known"):
        flow.input("unknown").distinct()
    with pytest.raises(GraphError, match="key columns"):
        known.key_by().distinct()
    with pytest.raises(GraphError, match="key columns"):
        known.key_by().tumbling(10).distinct()


def test_a_key_waits_until_its_time_is_complete() -> None:
    flow = jt.Flow("waits")
    flow.output("out", flow.input("in").distinct("k"))
    with flow.open() as run:
        run.input("in").send({"time": [5, 3], "k": ["a", "a"]})
        run.input("in").advance_to(3)
        run.run_to_rest()
        assert run.results()["out"].num_rows == 0
        run.input("in").advance_to(4)
        run.run_to_rest()
        assert run.results()["out"].to_pylist() == [{"time": 3, "k": "a"}]
        assert run.finish()["out"].num_rows == 1
