"""Keys with ``spread`` or ``combine``: the same results as without, however records are divided."""

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
from jeton.dataflow.operators import partial_windows
from jeton.dataflow.pacts import SpreadExchange
from jeton.errors import BatchError, GraphError, SnapshotError, TimeError
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


Parts = dict[str, Any]
"""The options of `key_by` with which groups are aggregated in parts."""

PARTS: list[Parts] = [{"spread": 2}, {"spread": 3}, {"spread": 8}, {"combine": True}]


def both(
    flow: jt.Flow, key: tuple[str, ...], when: Grouping, aggregates: dict[str, Any], parts: Parts
) -> None:
    """The same groups twice: as they are, and in parts."""
    rows = flow.input("rows")
    flow.output("plain", when(rows.key_by(*key)).aggregate(**aggregates))
    flow.output("parts", when(rows.key_by(*key, **parts)).aggregate(**aggregates))


@pytest.mark.parametrize("name", VALUE_TYPES)
@settings(max_examples=12)
@given(
    data=st.data(),
    schedule=schedules(),
    parts=st.sampled_from(PARTS),
    most=st.sampled_from([0, 2, 1000]),
)
def test_every_aggregate_of_every_type(
    name: str, data: st.DataObject, schedule: Schedule, parts: Parts, most: int
) -> None:
    rows = [row | {"ends": row["time"] + row["key"]} for row in data.draw(typed_rows(name))]
    when = WINDOWS[data.draw(st.sampled_from(list(WINDOWS)))]
    kinds = {"time": pa.int64(), "key": pa.int64(), "value": VALUE_TYPES[name].kind}
    with pytest.MonkeyPatch.context() as patch:
        # Partial windows are sent before they are complete once there are more than this.
        patch.setattr(partial_windows, "MOST_PARTIAL", most)
        found = run_twin(
            lambda flow: both(flow, ("key",), when, every_aggregate(name), parts),
            {"rows": rows},
            schedule,
            schema={"rows": pa.schema(kinds | {"ends": pa.int64()})},
        )
    assert_same(found["parts"], found["plain"])
    assert len(rows) == 0 or found["parts"]


KEYS = [("key",), ("word",), ("x",), ("key", "word"), ()]


@pytest.mark.parametrize("key", KEYS, ids=repr)
@settings(max_examples=25)
@given(data=st.data(), schedule=schedules(), parts=st.sampled_from(PARTS))
def test_keys_with_nulls_and_nan(
    key: tuple[str, ...], data: st.DataObject, schedule: Schedule, parts: Parts
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
        lambda flow: both(flow, key, when, aggregates, parts),
        {"rows": rows},
        schedule,
        schema={"rows": pa.schema(kinds | {"ends": pa.int64()})},
    )
    assert_same(found["parts"], found["plain"])


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
@pytest.mark.parametrize("parts", [{"spread": 2}, {"combine": True}], ids=str)
def test_types_that_differ_between_workers(when: str, seed: int, parts: Parts) -> None:
    random = Random(f"{when} {seed}")
    kinds = [pa.null(), pa.int8(), pa.int64(), pa.float32(), pa.float64()]
    flow = jt.Flow("types")
    both(flow, ("key",), WINDOWS[when], NUMBERS, parts)
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
    assert_same(found["parts"].to_pylist(), found["plain"].to_pylist())


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


@pytest.mark.parametrize("parts", [{"spread": 2}, {"combine": True}], ids=str)
def test_results_come_at_the_same_frontier_as_without(parts: Parts) -> None:
    for name, when in WINDOWS.items():
        flow = jt.Flow("frontiers")
        both(flow, ("key",), when, {"n": jt.agg.count()}, parts)
        with flow.open(workers=2) as run:
            source = run.input("rows")
            run.input("rows", 1).close()
            source.send({"time": range(30), "key": [1] * 30, "ends": range(5, 35)})
            for time in range(31):
                source.advance_to(time)
                run.run_to_rest()
                found = run.results()
                assert_same(found["parts"].to_pylist(), found["plain"].to_pylist())
                assert found["parts"].num_rows or time < 30, name


@pytest.mark.parametrize("parts", [{"spread": 3}, {"combine": True}], ids=str)
def test_calendar_windows_and_zones(parts: Parts) -> None:
    flow = jt.Flow("months")
    days = np.arange("2024-01-25", "2024-04-05", dtype="datetime64[D]").astype("datetime64[us]")
    stamps = pa.array(days).cast(pa.timestamp("us", "UTC"))
    options: dict[str, Parts] = {"plain": {}, "parts": parts}
    for name, option in options.items():
        keyed = flow.input(f"{name} rows").key_by("key", **option)
        months = keyed.tumbling("1 month", zone="Europe/Berlin", bounds=True)
        flow.output(f"{name} months", months.count())
        flow.output(f"{name} weeks", keyed.tumbling("1 week").count())
        sliding = keyed.sliding("2 months", every="1 month", bounds=True)
        flow.output(f"{name} sliding", sliding.last("key"))
    table = pa.table({"time": stamps, "key": [n % 2 for n in range(len(days))]})
    found = flow.run({"plain rows": table, "parts rows": table}, workers=3)
    for what in ("months", "weeks", "sliding"):
        assert found[f"parts {what}"].schema == found[f"plain {what}"].schema
        assert_same(found[f"parts {what}"].to_pylist(), found[f"plain {what}"].to_pylist())
        assert found[f"parts {what}"].num_rows


@pytest.mark.parametrize("parts", [{"spread": 4}, {"combine": True}], ids=str)
def test_distinct_keys_of_windows(parts: Parts) -> None:
    flow = jt.Flow("visitors")
    keyed = flow.input("visits").key_by("who", **parts)
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
            when(jt.Flow("f").input("rows", schema=schema).key_by("key", **parts)).aggregate(
                n=jt.agg.count(), mean=jt.agg.mean("value")
            )
            for parts in ({}, *PARTS)
        ]
        assert all(stream.schema == streams[0].schema for stream in streams)
        assert streams[0].schema is not None


@pytest.mark.parametrize("seed", [None, *range(5)])
@pytest.mark.parametrize("parts", [{"spread": 3}, {"combine": True}], ids=str)
def test_each_time_in_a_loop(seed: int | None, parts: Parts) -> None:
    def halves(parts: Parts) -> Callable[[jt.Stream], tuple[jt.Stream, jt.Stream]]:
        def body(numbers: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
            sums = numbers.key_by("key", **parts).each_time().sum("n", name="n")
            smaller = sums.with_columns(n=lambda batch: batch["n"] // 2)
            return smaller.filter(lambda batch: batch["n"] > 0), smaller

        return body

    flow = jt.Flow("halves")
    rows = flow.input("rows")
    flow.output("plain", rows.iterate(halves({})))
    flow.output("parts", rows.iterate(halves(parts)))
    numbers = {"time": [0, 0, 0, 1, 1], "key": [1, 1, 2, 1, 1], "n": [5, 7, 9, 100, 3]}
    found = flow.run({"rows": numbers}, workers=3, seed=seed)
    assert_same(found["parts"].to_pylist(), found["plain"].to_pylist())


def counts(parts: Parts, *, name: str | None = None) -> jt.Flow:
    flow = jt.Flow("counts")
    rows = flow.input("rows")
    keyed = (rows if name is None else rows.named(name)).key_by("key", **parts)
    flow.output("out", keyed.tumbling(10).aggregate(n=jt.agg.count(), all=jt.agg.collect("v")))
    return flow


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"spread": 8}),
        ({"spread": 2}, {"spread": 8}),
        ({"spread": 8}, {"spread": 2}),
        ({}, {"combine": True}),
        ({"combine": True}, {"combine": True}),
        ({"spread": 8}, {"combine": True}),
        ({"combine": True}, {"spread": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize(("workers", "workers_after"), [(1, 3), (3, 2), (2, 4)])
@pytest.mark.parametrize("name", [None, "by key"])
def test_a_snapshot_goes_on_in_other_parts(
    before: Parts, after: Parts, workers: int, workers_after: int, name: str | None
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


@pytest.mark.parametrize("parts", [{"spread": 2}, {"combine": True}], ids=str)
def test_without_parts_a_snapshot_of_partial_windows_is_refused(parts: Parts) -> None:
    with counts(parts).open(workers=2) as run:
        for worker in range(2):
            run.input("rows", worker).send({"time": [1] * 8, "key": [7] * 8, "v": [1] * 8})
        run.run_to_rest()
        snapshot = run.snapshot()
    with pytest.raises(SnapshotError, match=r"no operators \['count-collect-partial'\]"):
        counts({}).open(restore=snapshot)


@pytest.mark.parametrize("parts", [{"spread": 2}, {"combine": True}], ids=str)
def test_a_fold_begins_once_for_each_partial_result(parts: Parts) -> None:
    flow = jt.Flow("folds")
    rows = flow.input("rows").key_by("key", **parts).tumbling(10)
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
    flow.output("means", rows.key_by("key", combine=True).tumbling(10).mean("v"))
    flow.explain()
    _, *lines, waits = capsys.readouterr().out.splitlines()
    assert waits == (
        "Waits for times to pass: 2 sum-partial, 3 sum, 6 hits-partial, 7 hits, 9 mean-partial, "
        "10 mean"
    )
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
        "mean-partial from 0 rows",
        "mean from 9 mean-partial by 'key' → key: int64, mean: double",
        "means output, from 10 mean",
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
@pytest.mark.parametrize(
    ("parts", "how"),
    [({"spread": 8}, "spread over 8"), ({"combine": True}, "combines its own first")],
    ids=str,
)
def test_other_operators_need_whole_keys(operator: str, parts: Parts, how: str) -> None:
    flow = jt.Flow("f")
    schema = {"key": int, "v": int}
    left, right = (flow.input(name, schema=schema) for name in ("left", "right"))
    said = rf"{operator}\(\) needs all records of a key on one worker.*{how}"
    with pytest.raises(GraphError, match=said):
        WHOLE[operator](left.key_by("key", **parts), right.key_by("key"))


@pytest.mark.parametrize("operator", ["join", "asof_join", "interval_join", "cogroup"])
def test_so_does_the_other_side_of_a_join(operator: str) -> None:
    flow = jt.Flow("f")
    left, right = flow.input("left"), flow.input("right")
    with pytest.raises(GraphError, match=rf"{operator}\(\) needs all records"):
        WHOLE[operator](left.key_by("key"), right.key_by("key", spread=2))


@pytest.mark.parametrize("parts", [{"spread": 2}, {"combine": True}], ids=str)
@pytest.mark.parametrize("when", WINDOWS)
def test_aggregates_that_do_not_merge_are_refused(parts: Parts, when: str) -> None:
    windows = WINDOWS[when](jt.Flow("f").input("rows").key_by("key", **parts))
    said = rf"'last_two' cannot .* {next(iter(parts))}=.*merge function"
    with pytest.raises(GraphError, match=said):
        windows.fold("v", (), lambda state, v: (*state, v)[-2:], name="last_two")


@pytest.mark.parametrize(
    ("column", "parts"),
    [
        ("of.n.count", {"spread": 2}),
        ("type.n", {"spread": 2}),
        ("jeton.guest", {"spread": 2}),
        ("of.n.count", {"combine": True}),
        ("type.n", {"combine": True}),
    ],
)
def test_keys_with_names_that_partial_results_use_are_refused(column: str, parts: Parts) -> None:
    windows = jt.Flow("f").input("rows").key_by(column, **parts).tumbling(10)
    with pytest.raises(
        GraphError, match=rf"'{column}' has a name that partial results use: rename"
    ):
        windows.count()


@pytest.mark.parametrize("parts", [{"spread": 2}, {"combine": True}], ids=str)
@pytest.mark.parametrize("when", ["tumbling", "sliding"])
def test_names_of_aggregates_that_begin_alike(when: str, parts: Parts) -> None:
    aggregates = {"x": jt.agg.sum("v"), "x.n": jt.agg.count(), "x.value": jt.agg.count("v")}
    flow = jt.Flow("names")
    both(flow, ("key",), WINDOWS[when], aggregates, parts)
    with flow.open(workers=2) as run:
        for worker, values in enumerate((pa.array([5] * 8), pa.nulls(8))):
            columns = {"time": [1] * 8, "key": [1, 2] * 4, "v": values}
            run.input("rows", worker).send(pa.table(columns))
        found = run.finish()
    assert_same(found["parts"].to_pylist(), found["plain"].to_pylist())


def test_nothing_but_nulls_beside_a_name_that_begins_alike() -> None:
    flow = jt.Flow("names")
    aggregates = {"x": jt.agg.sum("v"), "x.n": jt.agg.count()}
    both(flow, ("key",), WINDOWS["tumbling"], aggregates, {"combine": True})
    found = flow.run({"rows": pa.table({"time": [1], "key": [1], "v": pa.nulls(1)})})
    assert_same(found["parts"].to_pylist(), found["plain"].to_pylist())


@pytest.mark.parametrize("parts", [{}, {"combine": True}], ids=str)
@pytest.mark.parametrize("how", ["count", "first"])
def test_the_last_sliding_window_may_not_end_after_the_end_of_time(parts: Parts, how: str) -> None:
    windows = (flow := jt.Flow("end")).input("rows").key_by("key", **parts).sliding(16, every=8)
    flow.output("out", windows.count() if how == "count" else windows.first("v"))
    for time in (2**63 - 10, 2**63 - 2):
        with pytest.raises(TimeError, match=r"window of (16|8) would end after"):
            flow.run({"rows": {"time": [time], "key": [1], "v": [1]}}, workers=2)
    fits = {"time": [2**63 - 18], "key": [1], "v": [1]}
    assert flow.run({"rows": fits}, workers=2)["out"].num_rows == 2


@pytest.mark.parametrize("combine", [None, 1, "yes", 0.0])
def test_combine_is_a_boolean(combine: Any) -> None:
    with pytest.raises(GraphError, match=r"combine= is True or False, not ") as caught:
        jt.Flow("f").input("rows").key_by("key", combine=combine)
    assert caught.value.operator == "key_by"


def test_a_key_is_spread_or_combined_but_not_both() -> None:
    with pytest.raises(GraphError, match="Leave one of them out"):
        jt.Flow("f").input("rows").key_by("key", spread=2, combine=True)


@pytest.mark.parametrize("value", [int, float])
@pytest.mark.parametrize("offset", [0, 7])
def test_many_records_of_small_keys_in_few_windows(value: type, offset: int) -> None:
    """Loops that find groups and fold values in one pass know partial windows by other times."""
    random = np.random.default_rng(5)
    times = np.sort(random.integers(-300, 300, 20_000)) + random.integers(0, 20, 20_000)
    rows = {"time": times, "key": random.integers(0, 50, 20_000), "v": np.arange(20_000)}
    flow = jt.Flow("small keys")
    stream = flow.input("rows", schema={"key": int, "v": value})
    for name, keyed in (
        ("plain", stream.key_by("key")),
        ("parts", stream.key_by("key", combine=True)),
    ):
        for how in ("sum", "count", "mean"):
            windows = keyed.tumbling(100, offset=offset, bounds=True)
            column = () if how == "count" else ("v",)
            flow.output(f"{name} {how}", getattr(windows, how)(*column))
    with flow.open(workers=3) as run:
        for part in range(20):
            here = slice(part * 1000, (part + 1) * 1000)
            run.input("rows", part % 3).send({n: column[here] for n, column in rows.items()})
            for worker in range(3):
                run.input("rows", worker).advance_to(int(times[here.start :].min()))
            run.run_to_rest()
        found = run.finish()
    for how in ("sum", "count", "mean"):
        assert found[f"parts {how}"].num_rows > 300
        assert_same(found[f"parts {how}"].to_pylist(), found[f"plain {how}"].to_pylist())
