"""Aggregates beyond sums and extremes, for every kind of group, against Polars and plain Python."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import BatchError, GraphError, SnapshotError
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules
from tests.operators.value_types import VALUE_TYPES, schema_for, through_arrow, typed_rows

Groups = Iterable[tuple[Row, list[Row]]]

NUMBERS = st.sampled_from([math.nan, None, -0.0, 0.0, 0.5, 3.25, -2.5, 1e9, 1e9 + 1])


def windows(rows: list[Row]) -> dict[str, list[tuple[Row, list[Row]]]]:
    """The records of each group of each kind."""
    kinds: dict[str, Callable[[int], list[int]]] = {
        "tumbling": lambda t: [t // 10 * 10 + 10],
        "sliding": lambda t: [t // 10 * 10 + 10, t // 10 * 10 + 20],
        "each_time": lambda t: [t],
        "until": lambda t: [t + t % 3],
    }
    found: dict[str, list[tuple[Row, list[Row]]]] = {}
    for kind, ends in kinds.items():
        groups: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for row in rows:
            for end in ends(row["time"]):
                groups[end, row["key"]].append(row)
        found[kind] = [({"time": end, "key": key}, kept) for (end, key), kept in groups.items()]
    sessions: list[tuple[Row, list[Row]]] = []
    latest: dict[int, tuple[Row, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: row["time"]):
        head, kept = latest.get(row["key"], ({"time": -1}, []))
        if row["time"] >= head["time"]:
            head, kept = latest[row["key"]] = ({"key": row["key"], "start": row["time"]}, [])
            sessions.append((head, kept))
        head["time"] = row["time"] + 5
        kept.append(row)
    return found | {"session": sessions}


def build(aggregates: dict[str, jt.agg.Aggregate]) -> Callable[[jt.Flow], None]:
    def add(flow: jt.Flow) -> None:
        stream = flow.input("in")
        keyed = stream.key_by("key")
        flow.output("tumbling", keyed.tumbling(10).aggregate(**aggregates))
        flow.output("sliding", keyed.sliding(20, every=10).aggregate(**aggregates))
        flow.output("each_time", keyed.each_time().aggregate(**aggregates))
        flow.output("session", keyed.session_window(5).aggregate(**aggregates))
        ending = stream.with_columns(ends=lambda b: b.times + b.times % 3).key_by("key")
        flow.output("until", ending.until("ends").aggregate(**aggregates))

    return add


def check(
    name: str,
    rows: list[Row],
    schedule: Schedule,
    aggregates: dict[str, jt.agg.Aggregate],
    expected: Callable[[list[Row]], Row],
) -> None:
    """Every kind of window gives what ``expected`` makes of the records of each group."""
    found = run_twin(build(aggregates), {"in": rows}, schedule, schema={"in": schema_for(name)})
    for kind, groups in windows(rows).items():
        assert_same(found[kind], [head | expected(kept) for head, kept in groups])


def order(value: Any) -> Any:
    """NaN is the greatest number."""
    return (value != value, 0 if value != value else value)


def in_time(rows: list[Row]) -> list[Any]:
    """Values that are not null by time, then by value."""
    known = [row for row in rows if row["value"] is not None]
    return [r["value"] for r in sorted(known, key=lambda r: (r["time"], order(r["value"])))]


def picked(rows: list[Row]) -> Row:
    values = in_time(rows)
    return {
        "distinct": pl.Series(values).n_unique() if values else 0,
        "first": values[0] if values else None,
        "last": values[-1] if values else None,
        "all": values,
    }


PICKED = {
    "distinct": jt.agg.count_distinct("value"),
    "first": jt.agg.first("value"),
    "last": jt.agg.last("value"),
    "all": jt.agg.collect("value"),
}


@pytest.mark.parametrize("name", VALUE_TYPES)
@settings(max_examples=6)
@given(data=st.data(), schedule=schedules())
def test_first_last_distinct_and_all_values_of_every_type(
    name: str, data: st.DataObject, schedule: Schedule
) -> None:
    rows = through_arrow(data.draw(typed_rows(name)), schema_for(name))
    check(name, rows, schedule, PICKED, picked)


def float_rows(*, distinct_times: bool = False) -> st.SearchStrategy[list[Row]]:
    row = st.fixed_dictionaries(
        {"time": st.integers(0, 40), "key": st.integers(0, 2), "value": NUMBERS}
    )
    unique = (lambda row: row["time"]) if distinct_times else None
    return st.lists(row, max_size=20, unique_by=unique)


@settings(max_examples=20)
@given(rows=float_rows(), schedule=schedules())
def test_nan_equals_itself_and_is_the_greatest(rows: list[Row], schedule: Schedule) -> None:
    check("float64", rows, schedule, PICKED, picked)


def spread(rows: list[Row]) -> Row:
    values = pl.Series(in_time(rows), dtype=pl.Float64)
    some = values.drop_nans() if len(values) else values
    usual = len(some) == len(values)
    return {
        "var": values.var(),
        "std": values.std(ddof=0),
        "median": values.median() if usual else _between(values.to_list(), 0.5),
        "high": values.quantile(0.9, "linear") if usual else _between(values.to_list(), 0.9),
    }


def _between(values: list[float], q: float) -> float:
    values = sorted(values, key=order)
    place = (len(values) - 1) * q
    low = math.floor(place)
    part = place - low
    return values[low] if not part else values[low] * (1 - part) + values[low + 1] * part


SPREAD = {
    "var": jt.agg.var("value"),
    "std": jt.agg.std("value", ddof=0),
    "median": jt.agg.median("value"),
    "high": jt.agg.quantile("value", 0.9),
}


@settings(max_examples=20)
@given(rows=float_rows(), schedule=schedules())
def test_variances_and_quantiles_equal_those_of_polars(rows: list[Row], schedule: Schedule) -> None:
    check("float64", rows, schedule, SPREAD, spread)


@pytest.mark.parametrize("name", ["int8", "uint64", "float32", "bool", "decimal"])
@settings(max_examples=5)
@given(data=st.data(), schedule=schedules())
def test_variances_and_quantiles_of_other_numbers(
    name: str, data: st.DataObject, schedule: Schedule
) -> None:
    rows = through_arrow(data.draw(typed_rows(name)), schema_for(name))

    def expected(kept: list[Row]) -> Row:
        return spread([row | {"value": row["value"] and float(row["value"])} for row in kept])

    check(name, rows, schedule, SPREAD, expected)


@settings(max_examples=20)
@given(rows=float_rows(distinct_times=True), schedule=schedules())
def test_running_results_after_each_record(rows: list[Row], schedule: Schedule) -> None:
    def add(flow: jt.Flow) -> None:
        groups = flow.input("in").key_by("key").running(ordered=True)
        flow.output("out", groups.aggregate(**PICKED, **SPREAD))

    found = run_twin(add, {"in": rows}, schedule, schema={"in": schema_for("float64")})
    so_far: dict[int, list[Row]] = defaultdict(list)
    expected = []
    for row in sorted(rows, key=lambda row: row["time"]):
        kept = so_far[row["key"]]
        kept.append(row)
        expected.append(row | picked(kept) | spread(kept))
    assert_same(found["out"], expected)


TEMPORAL = ["duration", "seconds", "nanoseconds", "with a zone"]


@pytest.mark.parametrize("name", TEMPORAL)
@settings(max_examples=6)
@given(data=st.data(), schedule=schedules())
def test_sums_and_means_of_durations_and_timestamps(
    name: str, data: st.DataObject, schedule: Schedule
) -> None:
    schema = schema_for(name)
    kind = schema.field("value").type
    rows = through_arrow(data.draw(typed_rows(name)), schema)

    def ticks(kept: list[Row]) -> list[int]:
        known = [row["value"] for row in kept if row["value"] is not None]
        found: list[int] = pa.array(known, kind).cast(pa.int64()).to_pylist()
        return found

    def typed(value: int | None) -> Any:
        return pa.array([value], pa.int64()).cast(kind)[0].as_py()

    def expected(kept: list[Row]) -> Row:
        values = ticks(kept)
        found = {"mean": typed(sum(values) // len(values) if values else None)}
        return found | ({"sum": typed(sum(values) if values else None)} if sums else {})

    sums = name == "duration"
    aggregates = {"mean": jt.agg.mean("value")}
    check(
        name, rows, schedule, aggregates | ({"sum": jt.agg.sum("value")} if sums else {}), expected
    )


def test_a_mean_of_timestamps_whose_sum_has_more_than_64_bits_is_exact() -> None:
    flow = jt.Flow("many")
    flow.output("out", flow.input("in").key_by().running(ordered=True).mean("at"))
    ticks = [2**62 + 3 * n for n in range(40)]
    rows = pa.table({"time": list(range(40)), "at": pa.array(ticks, pa.timestamp("ns"))})
    means = flow.run({"in": rows})["out"]["mean"].cast(pa.int64()).to_pylist()
    assert means == [sum(ticks[: n + 1]) // (n + 1) for n in range(40)]


def test_a_sum_of_durations_beyond_64_bits_is_an_error() -> None:
    flow = jt.Flow("long")
    flow.output("out", flow.input("in").key_by().each_time().sum("d"))
    rows = pa.table({"time": [0, 0], "d": pa.array([2**62, 2**62], pa.duration("s"))})
    with pytest.raises(BatchError, match="a sum of durations is 9223372036854775808 s"):
        flow.run({"in": rows})


def test_the_variance_keeps_its_digits_far_from_zero() -> None:
    values = 1e9 + np.tile([4.0, 7.0, 13.0, 16.0], 250)
    flow = jt.Flow("far")
    keyed = flow.input("in").key_by()
    flow.output("windows", keyed.tumbling(2000).var("x", ddof=0))
    flow.output("sessions", keyed.session_window(5).var("x", ddof=0))
    order = np.random.default_rng(1).permutation(1000)
    rows = {"time": np.arange(1000)[order], "x": values[order]}
    with flow.open() as run:
        for start in range(0, 1000, 10):
            run.input("in").send({name: v[start : start + 10] for name, v in rows.items()})
            run.run_to_rest()
        found = run.finish()
    assert found["windows"]["var"].to_pylist() == pytest.approx([22.5], rel=1e-6)
    assert found["sessions"]["var"].to_pylist() == pytest.approx([22.5], rel=1e-6)


KNOWN = {
    "number": pa.array([7.0]),
    "text": pa.array(["seven"]),
    "time": pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("ms", tz="Europe/Rome")),
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("first", [True, False])
def test_a_column_whose_type_is_not_known_at_first_or_for_a_while(name: str, first: bool) -> None:
    flow = jt.Flow("nulls")
    numbers = SPREAD if name == "number" else {}
    groups = flow.input("in").key_by("k").tumbling(100)
    columns = ("distinct", "first", "last", "all")
    flow.output("out", groups.aggregate(**PICKED, **numbers))
    unknown = pa.table({"time": [0, 1], "k": [1, 2], "value": pa.nulls(2)})
    known = pa.table({"time": [2], "k": [1], "value": KNOWN[name]})
    with flow.open(workers=2) as run:
        run.input("in").send(unknown if first else known)
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=3, restore=snapshot) as run:
        run.input("in").send(known if first else unknown)
        found = {row["k"]: row for row in run.finish()["out"].to_pylist()}
    value = known["value"][0].as_py()
    assert [found[1][column] for column in columns] == [1, value, value, [value]]
    assert [found[2][column] for column in columns] == [0, None, None, []]
    for column in numbers:
        assert found[2][column] is None


@pytest.mark.parametrize("name", VALUE_TYPES)
def test_types_of_results_are_known_when_the_flow_is_built(name: str) -> None:
    kind = VALUE_TYPES[name].kind
    flow = jt.Flow("types")
    stream = flow.input("in", schema=schema_for(name))
    flow.output("out", stream.key_by("key").tumbling(10).aggregate(**PICKED))
    known = flow.output_schema("out")
    assert known is not None
    assert known.field("first").type == known.field("last").type == kind
    assert known.field("all").type == pa.list_(kind)
    assert known.field("distinct").type == pa.int64()


@pytest.mark.parametrize("make", [jt.agg.var, jt.agg.std, jt.agg.median])
def test_text_has_no_variance(make: Callable[[str], jt.agg.Aggregate]) -> None:
    flow = jt.Flow("text")
    flow.output("out", flow.input("in").key_by().tumbling(10).aggregate(x=make("word")))
    with pytest.raises(BatchError, match=r"values of type string have no .*: cast them to numbers"):
        flow.run({"in": {"time": [1], "word": ["a"]}})


def test_dates_have_no_mean() -> None:
    flow = jt.Flow("dates")
    flow.output("out", flow.input("in").key_by().tumbling(10).mean("day"))
    with pytest.raises(BatchError, match=r"values of type date32\[day\] have no mean"):
        flow.run({"in": {"time": [1], "day": [dt.date(2026, 1, 1)]}})


def test_the_first_value_keeps_the_type_of_a_column_with_a_dictionary() -> None:
    flow = jt.Flow("dictionary")
    keyed = flow.input("in").key_by("k")
    flow.output("first", keyed.tumbling(10).first("word"))
    flow.output("running", keyed.running().last("word"))
    words = pa.array(["b", None, "a", None]).dictionary_encode()
    found = flow.run({"in": pa.table({"time": [1, 1, 2, 3], "k": [1, 1, 1, 2], "word": words})})
    assert found["first"]["first"].type == words.type
    assert found["first"]["first"].to_pylist() == ["b", None]
    assert found["running"]["last"].type == words.type
    assert found["running"]["last"].to_pylist() == ["b", "b", "a", None]


def test_values_of_groups_in_a_loop_have_one_time() -> None:
    def body(stream: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        going = stream.filter(lambda batch: batch["n"] > 0)
        again = going.with_columns(n=lambda batch: batch["n"] - 1)
        groups = stream.key_by("k").each_time()
        return again, groups.aggregate(all=jt.agg.collect("n"), first=jt.agg.first("n"))

    flow = jt.Flow("loop")
    flow.output("out", flow.input("in").iterate(body))
    rows = flow.run({"in": {"time": [0, 0], "k": [1, 1], "n": [2, 1]}})["out"].to_pylist()
    found = sorted((row["all"], row["first"]) for row in rows)
    assert found == [([0], 0), ([0, 1], 0), ([1, 2], 1)]


def test_running_results_by_time_are_refused_in_a_loop() -> None:
    flow = jt.Flow("loop")
    inside = flow.input("in").enter(flow.loop())
    with pytest.raises(GraphError, match="'first' needs times in order"):
        inside.key_by("k").running().first("n")


def test_wrong_parameters_are_errors_at_the_call() -> None:
    with pytest.raises(GraphError, match="from 0 to 1, not 50"):
        jt.agg.quantile("x", 50)
    with pytest.raises(GraphError, match="ddof must be an integer from 0 on, not -1"):
        jt.agg.var("x", ddof=-1)


def sketched(rows: list[Row]) -> Row:
    """Sketches of few values: the count is exact, the quantile that of its bucket."""
    values = sorted(in_time(rows), key=order)
    return {
        "about": pl.Series(values).n_unique() if values else 0,
        "low": _lower(values, 0.25),
        "high": _lower(values, 0.9),
    }


def _lower(values: list[float], q: float) -> str | None:
    return _rounded(values[math.floor((len(values) - 1) * q)]) if values else None


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value + 0.0:.3g}"


SKETCHED = {
    "about": jt.agg.approx_count_distinct("value", rsd=0.01),
    "low": jt.agg.approx_quantile("value", 0.25, error=1e-5),
    "high": jt.agg.approx_quantile("value", 0.9, error=1e-5),
}


@settings(max_examples=10)
@given(rows=float_rows(), schedule=schedules())
def test_sketches_of_few_values_are_close_in_every_kind_of_group(
    rows: list[Row], schedule: Schedule
) -> None:
    found = run_twin(build(SKETCHED), {"in": rows}, schedule, schema={"in": schema_for("float64")})
    for kind, groups in windows(rows).items():
        close = [row | {n: _rounded(row[n]) for n in ("low", "high")} for row in found[kind]]
        assert_same(close, [head | sketched(kept) for head, kept in groups])


def test_running_sketches() -> None:
    flow = jt.Flow("running")
    flow.output("out", flow.input("in").key_by().running(ordered=True).aggregate(**SKETCHED))
    values = [5.0, None, -2.5, 5.0, math.inf, math.nan, -math.inf]
    found = flow.run({"in": {"time": list(range(7)), "value": pa.array(values)}})["out"].to_pylist()
    assert [row["about"] for row in found] == [1, 1, 2, 2, 3, 4, 5]
    highs = ["5", "5", "-2.5", "5", "5", "inf", "inf"]
    assert [_rounded(row["high"]) for row in found] == highs


def test_the_error_of_estimated_counts_is_as_promised() -> None:
    flow = jt.Flow("estimates")
    keyed = flow.input("in").key_by("k").tumbling(10)
    flow.output("out", keyed.aggregate(n=jt.agg.approx_count_distinct("x")))
    sizes = [1, 3, 10, 100, 500, 1000, 5000, 20_000]
    numbers = np.concatenate([np.arange(size) for size in sizes])
    keys = np.repeat(np.arange(len(sizes)), sizes)
    rows = {"time": np.zeros(len(keys), dtype=np.int64), "k": keys, "x": numbers}
    table = flow.run({"in": rows}, workers=2)["out"]
    found = dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))
    errors = [abs(found[k] / size - 1) for k, size in enumerate(sizes)]
    assert max(errors) < 3 * 0.05


def test_state_of_a_sketch_with_other_parameters_is_refused() -> None:
    def flow_with(aggregate: jt.agg.Aggregate) -> jt.Flow:
        flow = jt.Flow("sketch")
        flow.output("out", flow.input("in").key_by().tumbling(10).aggregate(x=aggregate))
        return flow

    pairs = [
        (jt.agg.approx_count_distinct("x"), jt.agg.approx_count_distinct("x", rsd=0.01)),
        (jt.agg.approx_quantile("x", 0.5), jt.agg.approx_quantile("x", 0.5, error=0.1)),
    ]
    for before, after in pairs:
        with flow_with(before).open() as run:
            run.input("in").send({"time": [1], "x": [1.0]})
            run.run_to_rest()
            snapshot = run.snapshot()
        with (
            pytest.raises(SnapshotError, match="as before"),
            flow_with(after).open(restore=snapshot),
        ):
            pass


@pytest.mark.parametrize("order", [[0, 2, 4], [0, 4, 2], [4, 0, 2]])
def test_variances_of_sessions_that_had_only_nulls(order: list[int]) -> None:
    flow = jt.Flow("sessions")
    flow.output("o", flow.input("i").key_by("k").session_window(3).std("v", ddof=0))
    with flow.open() as run:
        for time in order:
            value = pa.array([1e200 if time == 0 else None], pa.float64())
            run.input("i").send(pa.table({"time": [time], "k": [1], "v": value}))
            run.run_to_rest()
        assert run.finish()["o"]["std"].to_pylist() == [0.0]


@pytest.mark.parametrize("low", [0.0, -math.inf])
def test_ranks_of_quantiles_are_exact(low: float) -> None:
    """100 * 0.29 is a little less than 29."""
    flow = jt.Flow("ranks")
    groups = flow.input("i").key_by().each_time()
    flow.output(
        "o", groups.aggregate(a=jt.agg.approx_quantile("x", 0.29), e=jt.agg.quantile("x", 0.29))
    )
    rows = {"time": [0] * 101, "x": [low] * 29 + [1000.0] * 72}
    (found,) = flow.run({"i": rows})["o"].to_pylist()
    assert found["a"] == pytest.approx(1000.0, rel=0.01)
    assert found["e"] == 1000.0
