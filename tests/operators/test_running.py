"""Rolling aggregates against their twins: as records come, in order of time, and in loops."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import BatchError, GraphError
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules
from tests.operators.value_types import VALUE_TYPES, schema_for, through_arrow, typed_rows


def aggregates(name: str) -> dict[str, Any]:
    """The aggregates that exist for values of a type."""
    found = {
        "n": jt.agg.count(),
        "known": jt.agg.count("value"),
        "least": jt.agg.min("value"),
        "most": jt.agg.max("value"),
    }
    if VALUE_TYPES[name].sums:
        found |= {"total": jt.agg.sum("value"), "average": jt.agg.mean("value")}
    return found


def aggregated(group: list[Row], name: str) -> Row:
    """The same, slowly."""
    values = [row["value"] for row in group if row["value"] is not None]
    found: Row = {
        "n": len(group),
        "known": len(values),
        "least": min(values, default=None),
        "most": max(values, default=None),
    }
    if VALUE_TYPES[name].sums:
        found["total"] = sum(values) if values else None
        found["average"] = float(sum(values)) / len(values) if values else None
    return found


def rolled(rows: list[Row], name: str) -> list[Row]:
    groups: dict[Any, list[Row]] = defaultdict(list)
    found = []
    for row in rows:
        groups[row["key"]].append(row)
        found.append(row | aggregated(groups[row["key"]], name))
    return found


@pytest.mark.parametrize("name", VALUE_TYPES)
@settings(max_examples=15)
@given(data=st.data(), schedule=schedules())
def test_in_order_of_time_it_equals_its_twin(
    name: str, data: st.DataObject, schedule: Schedule
) -> None:
    schema = schema_for(name)
    rows = through_arrow(data.draw(typed_rows(name, distinct_times=True)), schema)

    def build(flow: jt.Flow) -> None:
        rolling = flow.input("in").key_by("key").running(ordered=True)
        flow.output("out", rolling.aggregate(**aggregates(name)))

    found = run_twin(build, {"in": rows}, schedule, schema={"in": schema})
    assert_same(found["out"], rolled(sorted(rows, key=lambda row: row["time"]), name))


@pytest.mark.parametrize("name", VALUE_TYPES)
@settings(max_examples=10)
@given(data=st.data(), schedule=schedules())
def test_per_time_it_equals_its_twin(name: str, data: st.DataObject, schedule: Schedule) -> None:
    schema = schema_for(name)
    rows = through_arrow(data.draw(typed_rows(name)), schema)

    def build(flow: jt.Flow) -> None:
        flow.output("out", flow.input("in").key_by("key").tumbling(5).aggregate(**aggregates(name)))

    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[(row["time"] // 5 + 1) * 5, row["key"]].append(row)
    expected = [
        {"time": end, "key": key, **aggregated(group, name)} for (end, key), group in groups.items()
    ]
    found = run_twin(build, {"in": rows}, schedule, schema={"in": schema})
    assert_same(found["out"], expected)


@settings(max_examples=60)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"time": st.integers(0, 9), "key": st.sampled_from(["a", "b", "", None])}
        ),
        max_size=30,
    ),
    schedule=schedules(),
)
def test_counts_as_they_come_do_not_depend_on_the_schedule(
    rows: list[Row], schedule: Schedule
) -> None:
    def build(flow: jt.Flow) -> None:
        flow.output("out", flow.input("in").key_by("key").running().count())

    schema = pa.schema([("time", pa.int64()), ("key", pa.string())])
    found = run_twin(build, {"in": rows}, schedule, schema={"in": schema})["out"]
    # The same records, and of each key the counts from 1 upwards, whichever record got which.
    assert_same([{"time": r["time"], "key": r["key"]} for r in found], rows)
    sizes = Counter(row["key"] for row in rows)
    expected = Counter((key, n + 1) for key, size in sizes.items() for n in range(size))
    assert Counter((row["key"], row["count"]) for row in found) == expected


@pytest.mark.parametrize("name", ["int8", "uint64", "float32", "bool", "text", "decimal"])
@settings(max_examples=15)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_as_they_come_on_one_worker_it_equals_its_twin(
    name: str, data: st.DataObject, seed: int
) -> None:
    schema = schema_for(name)
    rows = through_arrow(data.draw(typed_rows(name)), schema)
    flow = jt.Flow("rolling")
    flow.output("out", flow.input("in").key_by("key").running().aggregate(**aggregates(name)))
    random = Random(seed)
    with flow.open(seed=seed) as run:
        at = 0
        while at < len(rows):
            size = random.randint(1, 5)
            run.input("in").send(pa.Table.from_pylist(rows[at : at + size], schema=schema))
            at += size
            run.turn()
        found = run.finish()["out"].to_pylist()
    assert_same(found, rolled(rows, name))


LOOP_ROWS = st.lists(
    st.fixed_dictionaries(
        {"time": st.integers(0, 3), "key": st.integers(0, 2), "n": st.integers(0, 4)}
    ),
    min_size=1,
    max_size=15,
)


def around(rows: list[Row]) -> list[Row]:
    """All appearances of records that go round a loop ``n`` times."""
    return [row | {"round": r, "n": row["n"] - r} for row in rows for r in range(row["n"] + 1)]


def counting_down(flow: jt.Flow, inside: Any) -> jt.Stream:
    """A loop in which each record goes round ``n`` times; ``inside`` sees every appearance."""

    def body(stream: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        going = stream.filter(lambda batch: batch["n"] > 0)
        again = going.with_columns(
            n=lambda batch: batch["n"] - 1, round=lambda batch: batch["round"] + 1
        )
        return again, inside(stream)

    return flow.input("in").with_columns(round=lambda batch: batch["n"] * 0).iterate(body)


@settings(max_examples=40)
@given(rows=LOOP_ROWS, schedule=schedules())
def test_groups_of_each_round_of_a_loop(rows: list[Row], schedule: Schedule) -> None:
    def inside(stream: jt.Stream) -> jt.Stream:
        return stream.key_by("key").each_time().aggregate(
            records=jt.agg.count(), round=jt.agg.max("round"), least=jt.agg.min("n")
        )  # fmt: skip

    def build(flow: jt.Flow) -> None:
        flow.output("out", counting_down(flow, inside))

    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in around(rows):
        groups[row["time"], row["key"], row["round"]].append(row)
    expected = [
        {"time": time, "key": key, "round": r, "records": len(g), "least": min(x["n"] for x in g)}
        for (time, key, r), g in groups.items()
    ]
    found = run_twin(build, {"in": rows}, replace(schedule, restart=None))
    assert_same(found["out"], expected)


@settings(max_examples=40)
@given(rows=LOOP_ROWS, schedule=schedules())
def test_in_order_inside_a_loop(rows: list[Row], schedule: Schedule) -> None:
    # One outer time, so that rounds are in order: the count so far ends with each round.
    rows = [row | {"time": 0} for row in rows]

    def build(flow: jt.Flow) -> None:
        flow.output(
            "out",
            counting_down(flow, lambda s: s.key_by("key").running(ordered=True).count()),
        )

    found = run_twin(build, {"in": rows}, replace(schedule, restart=None))["out"]
    assert_same([{k: v for k, v in row.items() if k != "count"} for row in found], around(rows))
    appearances = around(rows)
    for row in found:
        of_key = [other for other in appearances if other["key"] == row["key"]]
        before = sum(other["round"] < row["round"] for other in of_key)
        upto = sum(other["round"] <= row["round"] for other in of_key)
        assert before < row["count"] <= upto


def test_a_record_waits_until_its_own_time_is_complete() -> None:
    flow = jt.Flow("waits")
    flow.output("out", flow.input("in").key_by("k").running(ordered=True).count())
    with flow.open() as run:
        run.input("in").send({"time": [5], "k": [1]})
        for time, emitted in ((5, 0), (6, 1)):
            run.input("in").advance_to(time)
            run.run_to_rest()
            assert run.results()["out"].num_rows == emitted
        run.finish()


def test_a_rolling_aggregate_keeps_all_columns() -> None:
    flow = jt.Flow("columns")
    flow.output("out", flow.input("in", time="ts").key_by("key").running(ordered=True).max("ts"))
    rows = {"ts": [2, 1], "key": ["a", "a"], "bin": [7, 8], "time": [0, 0]}
    with flow.open(workers=2) as run:
        run.input("in").send(rows)
        run.run_to_rest()
        snapshot = run.snapshot()  # columns called like its own, and two records that wait
    with flow.open(workers=3, restore=snapshot) as run:
        found = run.finish()["out"].to_pylist()
    assert found == [
        {"ts": 1, "key": "a", "bin": 8, "time": 0, "max": 1},
        {"ts": 2, "key": "a", "bin": 7, "time": 0, "max": 2},
    ]


def test_aggregates_may_be_called_like_anything() -> None:
    flow = jt.Flow("names")
    windows = flow.input("in").key_by("value").tumbling(10)
    flow.output(
        "out", windows.aggregate(key=jt.agg.max("n"), bin=jt.agg.count(), end=jt.agg.count())
    )
    with flow.open(workers=2) as run:
        run.input("in").send({"time": [1, 1], "value": [5, 6], "n": [7, 8]})
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=3, restore=snapshot) as run:
        found = run.finish()["out"].to_pylist()
    assert_same(
        found,
        [{"time": 10, "value": v, "key": v + 2, "bin": 1, "end": 1} for v in (5, 6)],
    )


ADDED = {
    "count": lambda s: s.key_by("k").running().count(name="n"),
    "ordered sum": lambda s: s.key_by("k").running(ordered=True).sum("n", name="n"),
    "aggregates": lambda s: s.key_by("k").running().aggregate(x=jt.agg.count(), n=jt.agg.max("n")),
    "rank": lambda s: s.key_by("k").tumbling(10).top_k(1, by="n", name="n"),
    "join": lambda s: s.key_by("k").join(s.key_by("k"), suffix=""),
}


@pytest.mark.parametrize("make", ADDED.values(), ids=ADDED)
@pytest.mark.parametrize("declared", [True, False])
def test_no_column_of_the_records_is_overwritten(make: Any, declared: bool) -> None:
    flow = jt.Flow("names")

    def run() -> None:
        schema = {"k": int, "n": int} if declared else None
        flow.output("out", make(flow.input("in", schema=schema)))
        assert not declared, "the flow can be refused before it runs"
        flow.run({"in": {"time": [0, 1], "k": [7, 7], "n": [30, 40]}})

    with pytest.raises((GraphError, BatchError), match="'n'"):
        run()


@pytest.mark.parametrize("key", ["of.sum.value", "type.sum"])
def test_keys_may_have_the_names_of_columns_of_snapshots(key: str) -> None:
    flow = jt.Flow("names")
    flow.output("out", flow.input("in").key_by(key).running().sum("n"))
    with flow.open() as run:
        run.input("in").send({"time": [0, 0], key: [7, 8], "n": [30, 40]})
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(restore=snapshot) as run:
        run.input("in").send({"time": [1, 1], key: [7, 8], "n": [1, 2]})
        assert run.finish()["out"]["sum"].to_pylist() == [31, 42]


@pytest.mark.parametrize("name", ["time", "event_time"])
def test_ranks_do_not_take_the_place_of_times(name: str) -> None:
    windows = jt.Flow("names").input("in").key_by("k").tumbling(10)
    with pytest.raises(GraphError, match=rf"top_k cannot put ranks into the column '{name}'"):
        windows.top_k(1, by="n", name=name)
