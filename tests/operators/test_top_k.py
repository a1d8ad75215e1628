"""top_k against its twin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
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

SCHEMA = pa.schema(
    [("time", pa.int64()), ("key", pa.string()), ("price", pa.float64()), ("who", pa.string())]
)


def rows() -> st.SearchStrategy[list[Row]]:
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 30),
            "key": st.sampled_from(["a", "b", None]),
            "price": st.sampled_from([1.0, 2.0, 2.5, None, float("nan"), float("-inf")]),
            "who": st.sampled_from(["ann", "bob", None]),
        }
    )
    return st.lists(row, max_size=30)


def place(value: Any, ascending: bool = True) -> tuple[Any, ...]:
    """Where a value comes: NaN is the greatest, nulls come last in either direction."""
    if value is None:
        return (2, 0)
    if value != value:
        return (1, 0) if ascending else (-1, 0)
    return (0, value) if ascending else (0, _Reversed(value))


class _Reversed:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(self.value == other.value)


def best(
    rows: list[Row],
    ends: Callable[[int], list[int]],
    k: int,
    by: str,
    ascending: bool,
    own_times: bool,
    ties: bool = False,
    key: Sequence[str] = ("key",),
) -> list[Row]:
    """The twin: sort each group by value, time and all columns, and number the first."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        for end in ends(row["time"]):
            groups[end, *(row[name] for name in key)].append(row)
    found = []
    for (end, *_), group in groups.items():
        names = [name for name in group[0] if name != "time"]
        group.sort(
            key=lambda row: (
                place(row[by], ascending), row["time"], *(place(row[name]) for name in names),
            )
        )  # fmt: skip
        values = [place(row[by], ascending) for row in group]
        for number, row in enumerate(group, start=1):
            rank = 1 + values.index(values[number - 1]) if ties else number
            if rank > k:
                break
            own = {"event_time": row["time"]} if own_times else {}
            found.append(row | {"time": end, "rank": rank} | own)
    return found


WHEN: dict[str, Any] = {
    "each time": (lambda k: k.each_time(), lambda t: [t], False),
    "tumbling": (lambda k: k.tumbling(10), lambda t: [(t // 10 + 1) * 10], True),
    "sliding": (
        lambda k: k.sliding(10, every=5),
        lambda t: [end for end in range(0, 60, 5) if end - 10 <= t < end],
        True,
    ),
}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("by", ["price", "who"])
@settings(max_examples=30)
@given(rows=rows(), k=st.integers(1, 4), ascending=st.booleans(), schedule=schedules())
def test_top_k_equals_its_twin(
    when: str, by: str, rows: list[Row], k: int, ascending: bool, schedule: Schedule
) -> None:
    windows, ends, own_times = WHEN[when]

    def build(flow: jt.Flow) -> None:
        keyed = flow.input("in").key_by("key")
        flow.output("out", windows(keyed).top_k(k, by=by, ascending=ascending))

    found = run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})
    assert_same(found["out"], best(rows, ends, k, by, ascending, own_times))


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("by", ["price", "who", "number"])
@pytest.mark.parametrize("key", [["key"], []], ids=str)
@settings(max_examples=20)
@given(
    rows=rows(),
    k=st.integers(1, 4),
    ascending=st.booleans(),
    ties=st.booleans(),
    schedule=schedules(),
)
def test_top_k_with_ties_and_of_all_records_together(
    when: str,
    by: str,
    key: list[str],
    rows: list[Row],
    k: int,
    ascending: bool,
    ties: bool,
    schedule: Schedule,
) -> None:
    windows, ends, own_times = WHEN[when]
    # Often in a few long batches of one window, which most records do not reach the best of.
    many = [
        {name: row[name] for name in SCHEMA.names}
        | {"number": (7 * at + 3 * copy) % 5 - 2, "time": row["time"] // 10 * 10}
        for at, row in enumerate(rows)
        for copy in range(12)
    ]
    schema = SCHEMA.append(pa.field("number", pa.int64()))

    def build(flow: jt.Flow) -> None:
        keyed = flow.input("in").key_by(*key)
        flow.output("out", windows(keyed).top_k(k, by=by, ascending=ascending, ties=ties))

    found = run_twin(build, {"in": many}, schedule, schema={"in": schema})
    expected = best(many, ends, k, by, ascending, own_times, ties, key)
    assert_same(found["out"], expected)


@pytest.mark.parametrize("name", VALUE_TYPES)
@settings(max_examples=8)
@given(data=st.data(), ascending=st.booleans(), schedule=schedules())
def test_top_k_by_all_types_of_values(
    name: str, data: st.DataObject, ascending: bool, schedule: Schedule
) -> None:
    schema = schema_for(name)
    rows = through_arrow(data.draw(typed_rows(name)), schema)

    def build(flow: jt.Flow) -> None:
        keyed = flow.input("in").key_by("key")
        flow.output("out", keyed.tumbling(10).top_k(2, "value", ascending=ascending))

    found = run_twin(build, {"in": rows}, schedule, schema={"in": schema})
    expected = best(rows, WHEN["tumbling"][1], 2, "value", ascending, True)
    assert_same(found["out"], expected)


@settings(max_examples=25)
@given(rows=rows(), schedule=schedules())
def test_top_k_of_all_records_together_in_a_loop(rows: list[Row], schedule: Schedule) -> None:
    # Each round keeps the best of each key and drops it: what leaves is sorted by rounds.
    def body(stream: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        ranked = stream.key_by("key").each_time().top_k(100, "price", name="place")
        going = ranked.filter(lambda batch: batch["place"] > 1)
        again = going.with_columns(round=lambda b: b["round"] + 1)
        return again.select("key", "price", "who", "round"), ranked.filter(
            lambda batch: batch["place"] == 1
        )

    def build(flow: jt.Flow) -> None:
        start = flow.input("in").with_columns(round=lambda batch: batch["time"] * 0)
        flow.output("out", start.iterate(body))

    found = run_twin(build, {"in": rows}, replace(schedule, restart=None), schema={"in": SCHEMA})
    expected = [
        {**row, "round": row["rank"] - 1, "place": 1}
        for row in best(rows, lambda t: [t], 100, "price", False, False)
    ]
    for row in expected:
        del row["rank"]
    assert_same(found["out"], expected)


def test_memory_stays_small_however_many_records_a_window_has() -> None:
    from tests.helpers import operator

    flow = jt.Flow("small")
    flow.output("out", flow.input("in").key_by("k").tumbling(10**9).top_k(3, "n"))
    with flow.open() as run:
        for at in range(0, 10_000, 100):
            times = list(range(at, at + 100))
            run.input("in").send({"time": times, "k": [t % 2 for t in times], "n": times})
            run.run_to_rest()
        (waiting,) = operator(run, "top_k").kept.values()
        assert len(waiting.state) < 2000  # type: ignore[arg-type]
        found = run.finish()["out"].to_pylist()
    assert [(row["k"], row["n"], row["rank"]) for row in sorted(found, key=lambda r: -r["n"])] == [
        (1, 9999, 1), (0, 9998, 1), (1, 9997, 2), (0, 9996, 2), (1, 9995, 3), (0, 9994, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("key", [["number"], ["key"], ["key", "number"], []], ids=str)
@pytest.mark.parametrize("by", ["large", "price", "who", "at"])
@pytest.mark.parametrize(("ascending", "ties"), [(False, False), (True, True)])
def test_many_records_in_batches_that_are_merged_equal_the_twin(
    key: list[str], by: str, ascending: bool, ties: bool
) -> None:
    """So many that records are sorted as words, and that those waiting are thinned out."""
    random = Random(len(by))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {
            "time": random.randrange(3000),
            "key": random.choice(["a", "b", "a longer key", None]),
            "number": random.choice([-(2**62), 0, 1, 2**62]),
            "price": random.choice([1.0, 2.0, -0.5, None, float("nan"), random.random()]),
            "large": 2**60 + random.randrange(9) * random.choice([1, 1, 2**61 // 9]),
            "who": random.choice(["ann", "bob", None]),
            "at": start + timedelta(microseconds=random.randrange(4)),
        }
        for _ in range(4000)
    ]
    fields = [("number", pa.int64()), ("large", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
    schema = pa.schema([*SCHEMA, *fields])
    rows = pa.Table.from_pylist(rows, schema).to_pylist()

    def build(flow: jt.Flow) -> None:
        keyed = flow.input("in").key_by(*key)
        flow.output("out", keyed.tumbling(1000).top_k(40, by, ascending=ascending, ties=ties))

    schedule = Schedule(workers=2, seed=7, piece=100, restart=0.5, workers_after=1, mixed=False)
    found = run_twin(build, {"in": rows}, schedule, schema={"in": schema})
    expected = best(rows, lambda t: [(t // 1000 + 1) * 1000], 40, by, ascending, True, ties, key)
    assert_same(found["out"], expected)


def test_what_top_k_cannot_do_is_refused() -> None:
    flow = jt.Flow("refused")
    keyed = flow.input("in", schema={"k": int, "rank": int, "n": int}).key_by("k")
    with pytest.raises(GraphError, match="at least one"):
        keyed.tumbling(10).top_k(0, "n")
    with pytest.raises(GraphError, match="no column 'm'"):
        keyed.tumbling(10).top_k(1, "m")
    with pytest.raises(BatchError, match="'rank'"):
        keyed.tumbling(10).top_k(1, "n")
    schema = keyed.tumbling(10).top_k(1, "n", name="place").schema
    assert schema is not None
    assert schema.names == ["k", "rank", "n", "event_time", "place"]
    other = jt.Flow("lists")
    other.output("out", other.input("in").key_by("k").each_time().top_k(1, "list"))
    with pytest.raises(BatchError, match="no order"):
        other.run({"in": {"time": [0], "k": [1], "list": [[1, 2]]}})


def test_the_best_are_told_as_soon_as_the_window_is_complete() -> None:
    flow = jt.Flow("early")
    keyed = flow.input("in").key_by()
    flow.output("window", keyed.tumbling(10).top_k(1, "n"))
    flow.output("time", keyed.each_time().top_k(1, "n"))
    with flow.open() as run:
        run.input("in").send({"time": [8, 9], "n": [5, 4]})
        for time, emitted in ((8, (0, 0)), (9, (0, 1)), (10, (1, 2))):
            run.input("in").advance_to(time)
            run.run_to_rest()
            result = run.results()
            assert (result["window"].num_rows, result["time"].num_rows) == emitted
        run.finish()
