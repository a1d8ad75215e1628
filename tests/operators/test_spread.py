"""Spread keys: the same results as without ``spread``, however records are divided."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.dataflow.pacts import SpreadExchange
from jeton.errors import BatchError, GraphError, SnapshotError
from jeton.state.bins import Placement
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules
from tests.operators.value_types import VALUE_TYPES, typed_rows

Grouping = Callable[[jt.KeyedStream], Any]

WINDOWS: dict[str, Grouping] = {
    "each time": lambda keyed: keyed.each_time(),
    "tumbling": lambda keyed: keyed.tumbling(10, bounds=True),
    "tumbling with an offset": lambda keyed: keyed.tumbling(10, offset=3),
    "sliding": lambda keyed: keyed.sliding(15, every=5, bounds=True),
    "until": lambda keyed: keyed.until("ends"),
}


@jt.kernel
def farther(a: float, b: float) -> float:
    return a if abs(a) > abs(b) or (abs(a) == abs(b) and a > b) else b


@jt.kernel
def one_more(count: int, value: float) -> int:
    return count + 1


def added(a: int, b: int) -> int:
    return a + b


def every_aggregate(name: str) -> dict[str, Any]:
    """All aggregates that a type of values has."""
    kind = VALUE_TYPES[name].kind
    agg = jt.agg
    found = {
        "n": agg.count(),
        "known": agg.count("value"),
        "different": agg.count_distinct("value"),
        "about": agg.approx_count_distinct("value"),
        "least": agg.min("value"),
        "most": agg.max("value"),
        "first": agg.first("value"),
        "last": agg.last("value"),
        "all": agg.collect("value"),
        "greatest": agg.reduce("value", max),
        "nulls": agg.fold("value", 0, lambda n, value: n + (value is None), merge=added),
    }
    if VALUE_TYPES[name].sums:
        found |= {"sum": agg.sum("value"), "mean": agg.mean("value")}
    if pa.types.is_integer(kind):
        found["wide"] = agg.sum("value", widen=True)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        found["mean"] = agg.mean("value")
    if VALUE_TYPES[name].sums and not pa.types.is_boolean(kind):
        found |= {
            "var": agg.var("value"),
            "std": agg.std("value", ddof=0),
            "quarter": agg.quantile("value", 0.25),
            "median": agg.median("value"),
            "about median": agg.approx_quantile("value", 0.5),
        }
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        found |= {
            "farthest": agg.reduce("value", farther),
            "kernel": agg.fold("value", 0, one_more, merge=added),
        }
    return found


def both(
    flow: jt.Flow, key: tuple[str, ...], when: Grouping, aggregates: dict[str, Any], spread: int
) -> None:
    """The same groups twice: as they are, and with a spread key."""
    rows = flow.input("rows")
    flow.output("plain", when(rows.key_by(*key)).aggregate(**aggregates))
    flow.output("spread", when(rows.key_by(*key, spread=spread)).aggregate(**aggregates))


@pytest.mark.parametrize("name", VALUE_TYPES)
@settings(max_examples=12)
@given(data=st.data(), schedule=schedules(), spread=st.sampled_from([2, 3, 8]))
def test_every_aggregate_of_every_type(
    name: str, data: st.DataObject, schedule: Schedule, spread: int
) -> None:
    rows = [row | {"ends": row["time"] + row["key"]} for row in data.draw(typed_rows(name))]
    when = WINDOWS[data.draw(st.sampled_from(list(WINDOWS)))]
    kinds = {"time": pa.int64(), "key": pa.int64(), "value": VALUE_TYPES[name].kind}
    found = run_twin(
        lambda flow: both(flow, ("key",), when, every_aggregate(name), spread),
        {"rows": rows},
        schedule,
        schema={"rows": pa.schema(kinds | {"ends": pa.int64()})},
    )
    assert_same(found["spread"], found["plain"])
    assert len(rows) == 0 or found["spread"]


KEYS = [("key",), ("word",), ("x",), ("key", "word"), ()]


@pytest.mark.parametrize("key", KEYS, ids=repr)
@settings(max_examples=25)
@given(data=st.data(), schedule=schedules())
def test_keys_with_nulls_and_nan(
    key: tuple[str, ...], data: st.DataObject, schedule: Schedule
) -> None:
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 30),
            "key": st.one_of(st.integers(0, 2), st.sampled_from([2**40, -7]), st.none()),
            "word": st.sampled_from(["", "a", "längere Wörter", None]),
            "x": st.sampled_from([0.0, -0.0, 1.5, float("nan"), None]),
            "ends": st.integers(30, 40),
        }
    )
    rows: list[Row] = data.draw(st.lists(row, max_size=30))
    when = WINDOWS[data.draw(st.sampled_from(list(WINDOWS)))]
    kinds = {"time": pa.int64(), "key": pa.int64(), "word": pa.string(), "x": pa.float64()}
    aggregates = {
        "n": jt.agg.count(),
        "most": jt.agg.max("x"),
        "sum": jt.agg.sum("x"),
        "words": jt.agg.collect("word"),
    }
    found = run_twin(
        lambda flow: both(flow, key, when, aggregates, 4),
        {"rows": rows},
        schedule,
        schema={"rows": pa.schema(kinds | {"ends": pa.int64()})},
    )
    assert_same(found["spread"], found["plain"])


NUMBERS = {
    "n": jt.agg.count("value"),
    "sum": jt.agg.sum("value"),
    "mean": jt.agg.mean("value"),
    "least": jt.agg.min("value"),
    "most": jt.agg.max("value"),
    "var": jt.agg.var("value"),
    "median": jt.agg.median("value"),
    "about": jt.agg.approx_quantile("value", 0.5),
    "farthest": jt.agg.reduce("value", farther),
    "python": jt.agg.reduce("value", max),
}
"""Aggregates of numbers whose types may differ from batch to batch."""


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("when", ["each time", "tumbling", "sliding"])
def test_types_that_differ_between_workers(when: str, seed: int) -> None:
    random = Random(f"{when} {seed}")
    kinds = [pa.null(), pa.int8(), pa.int64(), pa.float32(), pa.float64()]
    flow = jt.Flow("types")
    both(flow, ("key",), WINDOWS[when], NUMBERS, 2)
    with flow.open(workers=3, seed=seed) as run:
        for _ in range(random.choice([2, 12])):
            kind = random.choice(kinds)
            size = random.choice([0, 1, 1, 4])
            values = [
                None if pa.types.is_null(kind) else random.choice([0, 1, 2, 100, None])
                for _ in range(size)
            ]
            times, keys = ([random.randint(0, most) for _ in range(size)] for most in (25, 1))
            columns = {
                "time": pa.array(times, pa.int64()),
                "key": pa.array(keys, pa.int64()),
                "value": pa.array(values, kind),
            }
            run.input("rows", random.randrange(3)).send(pa.table(columns))
            for _ in range(random.randrange(4)):
                run.turn()
        found = run.finish()
    assert_same(found["spread"].to_pylist(), found["plain"].to_pylist())


DECIMAL = pa.array([Decimal("1.00")], pa.decimal128(5, 2))


@pytest.mark.parametrize(
    ("first", "second", "how"),
    [
        (pa.array([1]), pa.array(["a"]), "max"),
        (pa.array(["a"]), pa.array([1]), "max"),
        (pa.array(["a"]), pa.array([1]), "count_distinct"),
        (pa.array([True]), pa.array([1]), "sum"),
        (pa.array([1]), DECIMAL, "sum"),
        (DECIMAL, pa.array([1]), "mean"),
        (pa.array([1.5]), DECIMAL, "var"),
        (pa.array([1]), pa.array(["a"]), "first"),
        (pa.array([1]), pa.array([1.5]), "approx_count_distinct"),
    ],
)
def test_partial_results_that_do_not_go_together_are_refused_where_they_meet(
    first: pa.Array, second: pa.Array, how: str
) -> None:
    flow = jt.Flow("types")
    groups = flow.input("rows").key_by("key", spread=2).tumbling(10)
    flow.output("out", getattr(groups, how)("value"))
    with flow.open(workers=2) as run:
        for worker in destinations(8):
            # Each worker gets values of one type only.
            values = (first, second)[worker]
            run.input("rows").send(pa.table({"time": [0], "key": [1], "value": values}))
        with pytest.raises(BatchError, match=r"of type .* before: cast") as caught:
            run.finish()
    assert caught.value.operator == how


def destinations(records: int) -> list[int]:
    """The workers to which the records of the key 1 go, one after the other, of two workers."""
    route = SpreadExchange("key", spread=2).router(Placement.even(2), 0)
    single = jt.Batch({"key": [1]}, times=[0])
    return [worker for _ in range(records) for worker, _ in route(single)]


def test_results_come_at_the_same_frontier_as_without() -> None:
    for name, when in WINDOWS.items():
        flow = jt.Flow("frontiers")
        both(flow, ("key",), when, {"n": jt.agg.count()}, 2)
        with flow.open(workers=2) as run:
            source = run.input("rows")
            run.input("rows", 1).close()
            source.send({"time": range(30), "key": [1] * 30, "ends": range(5, 35)})
            for time in range(31):
                source.advance_to(time)
                run.run_to_rest()
                found = run.results()
                assert_same(found["spread"].to_pylist(), found["plain"].to_pylist())
                assert found["spread"].num_rows or time < 30, name


def test_calendar_windows_and_zones() -> None:
    flow = jt.Flow("months")
    days = np.arange("2024-01-25", "2024-04-05", dtype="datetime64[D]").astype("datetime64[us]")
    stamps = pa.array(days).cast(pa.timestamp("us", "UTC"))
    for name, spread in (("plain", None), ("spread", 3)):
        keyed = flow.input(f"{name} rows").key_by("key", spread=spread)
        months = keyed.tumbling("1 month", zone="Europe/Berlin", bounds=True)
        flow.output(f"{name} months", months.count())
        flow.output(f"{name} weeks", keyed.tumbling("1 week").count())
        sliding = keyed.sliding("2 months", every="1 month", bounds=True)
        flow.output(f"{name} sliding", sliding.last("key"))
    table = pa.table({"time": stamps, "key": [n % 2 for n in range(len(days))]})
    found = flow.run({"plain rows": table, "spread rows": table}, workers=3)
    for what in ("months", "weeks", "sliding"):
        assert found[f"spread {what}"].schema == found[f"plain {what}"].schema
        assert_same(found[f"spread {what}"].to_pylist(), found[f"plain {what}"].to_pylist())
        assert found[f"spread {what}"].num_rows


def test_distinct_keys_of_windows() -> None:
    flow = jt.Flow("visitors")
    keyed = flow.input("visits").key_by("who", spread=4)
    flow.output("out", keyed.tumbling(10).distinct())
    visits = {"time": [1, 2, 12, 3], "who": ["ann", "ann", "ann", "bob"]}
    found = flow.run({"visits": visits}, workers=3)["out"].to_pylist()
    assert_same(
        found,
        [{"time": 10, "who": who} for who in ("ann", "bob")] + [{"time": 20, "who": "ann"}],
    )


def test_a_schema_is_the_same_with_and_without() -> None:
    schema = {"key": str, "value": float, "ends": int}
    for when in WINDOWS.values():
        streams = [
            when(jt.Flow("f").input("rows", schema=schema).key_by("key", spread=spread)).aggregate(
                n=jt.agg.count(), mean=jt.agg.mean("value")
            )
            for spread in (None, 8)
        ]
        assert streams[0].schema == streams[1].schema
        assert streams[1].schema is not None


@pytest.mark.parametrize("seed", [None, *range(5)])
def test_each_time_in_a_loop(seed: int | None) -> None:
    def halves(spread: int | None) -> Callable[[jt.Stream], tuple[jt.Stream, jt.Stream]]:
        def body(numbers: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
            sums = numbers.key_by("key", spread=spread).each_time().sum("n", name="n")
            smaller = sums.with_columns(n=lambda batch: batch["n"] // 2)
            return smaller.filter(lambda batch: batch["n"] > 0), smaller

        return body

    flow = jt.Flow("halves")
    rows = flow.input("rows")
    flow.output("plain", rows.iterate(halves(None)))
    flow.output("spread", rows.iterate(halves(3)))
    numbers = {"time": [0, 0, 0, 1, 1], "key": [1, 1, 2, 1, 1], "n": [5, 7, 9, 100, 3]}
    found = flow.run({"rows": numbers}, workers=3, seed=seed)
    assert_same(found["spread"].to_pylist(), found["plain"].to_pylist())


def counts(spread: int | None, *, name: str | None = None) -> jt.Flow:
    flow = jt.Flow("counts")
    rows = flow.input("rows")
    keyed = (rows if name is None else rows.named(name)).key_by("key", spread=spread)
    flow.output("out", keyed.tumbling(10).aggregate(n=jt.agg.count(), all=jt.agg.collect("v")))
    return flow


@pytest.mark.parametrize(("before", "after"), [(None, 8), (2, 8), (8, 2)])
@pytest.mark.parametrize(("workers", "workers_after"), [(1, 3), (3, 2), (2, 4)])
@pytest.mark.parametrize("name", [None, "by key"])
def test_a_snapshot_goes_on_with_another_spread(
    before: int | None, after: int, workers: int, workers_after: int, name: str | None
) -> None:
    halves = (
        {"time": [1, 2, 3, 12, 13], "key": [7, 7, 8, 7, 7], "v": [1, 2, 3, 4, 5]},
        {"time": [4, 5, 6, 14, 15], "key": [7, 7, 8, 7, 9], "v": [6, 7, 8, 9, 10]},
    )
    with counts(before, name=name).open(workers=workers) as run:
        run.input("rows").send(halves[0])
        run.run_to_rest()
        snapshot = run.snapshot()
    with counts(after, name=name).open(workers=workers_after, restore=snapshot) as run:
        run.input("rows").send(halves[1])
        found = run.finish()["out"].to_pylist()
    expected = [
        {"time": 10, "key": 7, "n": 4, "all": [1, 2, 6, 7]},
        {"time": 10, "key": 8, "n": 2, "all": [3, 8]},
        {"time": 20, "key": 7, "n": 3, "all": [4, 5, 9]},
        {"time": 20, "key": 9, "n": 1, "all": [10]},
    ]
    assert_same(found, expected)


def test_without_spread_a_snapshot_of_partial_windows_is_refused() -> None:
    with counts(2).open(workers=2) as run:
        for worker in range(2):
            run.input("rows", worker).send({"time": [1] * 8, "key": [7] * 8, "v": [1] * 8})
        run.run_to_rest()
        snapshot = run.snapshot()
    with pytest.raises(SnapshotError, match=r"no operators \['count-collect-partial'\]"):
        counts(None).open(restore=snapshot)


def test_a_fold_begins_once_for_each_partial_result() -> None:
    flow = jt.Flow("folds")
    rows = flow.input("rows").key_by("key", spread=2).tumbling(10)
    flow.output("out", rows.fold("v", 0, one_more, merge=added, name="n"))
    nulls = pa.array([None, None, 1, None, 2, 3], pa.int64())
    table = pa.table({"time": [0] * 6, "key": [1] * 6, "v": nulls})
    for workers in (1, 2, 3):
        assert flow.run({"rows": table}, workers=workers)["out"]["n"].to_pylist() == [3]


def test_the_plan_shows_all_operators(capsys: pytest.CaptureFixture[str]) -> None:
    flow = jt.Flow("plan")
    rows = flow.input("rows", schema={"key": int, "v": int})
    flow.output("sums", rows.key_by("key", spread=8).tumbling(10).sum("v"))
    flow.output("counts", rows.named("hits").key_by(spread=4).each_time().count())
    flow.explain()
    _, *lines, waits = capsys.readouterr().out.splitlines()
    assert waits == "Waits for times to pass: 2 sum-partial, 3 sum, 6 hits-partial, 7 hits"
    shown = [line.split(maxsplit=1)[1] for line in lines]
    assert [" ".join(line.split()) for line in shown] == [
        "rows input, times in 'time' → key: int64, v: int64",
        "sum-split from 0 rows by 'key', spread=8 → key: int64, v: int64 | key: int64, v: int64",
        "sum-partial from 1 sum-split",
        "sum from 1 sum-split; 2 sum-partial by 'key' → key: int64, sum: int64",
        "sums output, from 3 sum",
        "hits-split from 0 rows by spread=4 → key: int64, v: int64 | key: int64, v: int64",
        "hits-partial from 5 hits-split",
        "hits from 5 hits-split; 6 hits-partial by Gather → count: int64",
        "counts output, from 7 hits",
    ]


@pytest.mark.parametrize("spread", [1, 0, -2, True, False, 2.0, "8", [2]])
def test_a_spread_is_an_integer_from_two_on(spread: Any) -> None:
    with pytest.raises(GraphError, match=r"an integer from 2 on, not "):
        jt.Flow("f").input("rows").key_by("key", spread=spread)


def test_a_spread_of_numpy_is_an_integer() -> None:
    three: Any = np.int32(3)
    assert jt.Flow("f").input("rows").key_by("key", spread=three).named("n").spread == 3


WHOLE: dict[str, Callable[[jt.KeyedStream, jt.KeyedStream], Any]] = {
    "running": lambda a, b: a.running(),
    "rolling": lambda a, b: a.rolling(10),
    "session_window": lambda a, b: a.session_window(10),
    "distinct": lambda a, b: a.distinct(),
    "deduplicate": lambda a, b: a.deduplicate(),
    "stateful_map": lambda a, b: a.stateful_map(lambda state, row: (state, []), 0),
    "join": lambda a, b: a.join(b),
    "asof_join": lambda a, b: a.asof_join(b),
    "interval_join": lambda a, b: a.interval_join(b, 0, 1),
    "cogroup": lambda a, b: a.cogroup(b, lambda key, left, right: None),
    "join_static": lambda a, b: a.join_static({"key": [1]}),
    "unary_frontier": lambda a, b: a.unary_frontier(lambda token, info: lambda input, output: None),
    "top_k": lambda a, b: a.tumbling(10).top_k(1, by="v"),
}


@pytest.mark.parametrize("operator", WHOLE)
def test_other_operators_need_whole_keys(operator: str) -> None:
    flow = jt.Flow("f")
    schema = {"key": int, "v": int}
    left, right = (flow.input(name, schema=schema) for name in ("left", "right"))
    said = rf"{operator}\(\) needs all records of a key on one worker.*spread over 8"
    with pytest.raises(GraphError, match=said):
        WHOLE[operator](left.key_by("key", spread=8), right.key_by("key"))


@pytest.mark.parametrize("operator", ["join", "asof_join", "interval_join", "cogroup"])
def test_so_does_the_other_side_of_a_join(operator: str) -> None:
    flow = jt.Flow("f")
    left, right = flow.input("left"), flow.input("right")
    with pytest.raises(GraphError, match=rf"{operator}\(\) needs all records"):
        WHOLE[operator](left.key_by("key"), right.key_by("key", spread=2))


def test_aggregates_that_do_not_merge_are_refused() -> None:
    windows = jt.Flow("f").input("rows").key_by("key", spread=2).tumbling(10)
    with pytest.raises(GraphError, match=r"'last_two' cannot .* spread key.*merge function"):
        windows.fold("v", (), lambda state, v: (*state, v)[-2:], name="last_two")


@pytest.mark.parametrize("column", ["of.n.count", "type.n", "jeton.guest"])
def test_keys_with_names_that_partial_results_use_are_refused(column: str) -> None:
    windows = jt.Flow("f").input("rows").key_by(column, spread=2).tumbling(10)
    with pytest.raises(
        GraphError, match=rf"'{column}' has a name that partial results use: rename"
    ):
        windows.count()
