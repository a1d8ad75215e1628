"""Keys and values whose types, nulls or units differ between sides, batches and workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import BatchError, GraphError
from jeton.state.bins import BINS, Placement
from jeton.state.snapshot import bins_of
from jeton.storage.checkpoints import Checkpoints

WORKERS = [1, 2, 3, 4]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("join", ["join", "interval_join", "asof_join"])
def test_a_dictionary_of_integers_joins_by_its_values(join: str, workers: int) -> None:
    flow = jt.Flow("join")
    left = flow.input("left", schema={"k": int, "a": int}).key_by("k")
    right = flow.input("right", schema={"k": int, "b": int}).key_by("k")
    joined = {
        "join": lambda: left.join(right),
        "interval_join": lambda: left.interval_join(right, -5, 5),
        "asof_join": lambda: left.asof_join(right, how="inner"),
    }[join]()
    flow.output("out", joined)
    plain = pa.table({"time": [0, 0, 0], "k": [5, 6, 7], "a": [5, 6, 7]})
    keys = pa.array([7, 8, 9]).dictionary_encode()
    coded = pa.table({"time": [0, 0, 0], "k": keys, "b": [7, 8, 9]})
    found = flow.run({"left": plain, "right": coded}, workers=workers)["out"].to_pylist()
    assert [(row["k"], row["a"], row["b"]) for row in found] == [(7, 7, 7)]


def test_the_latest_of_a_window_is_top_k_by_the_time_column() -> None:
    rows = {"ts": [1, 2, 9], "k": [7, 7, 7], "x": ["first", "second", "last"]}
    for ascending, expected in ((False, "last"), (True, "first")):
        flow = jt.Flow("latest")
        windows = flow.input("in", time="ts").key_by("k").tumbling(10)
        flow.output("out", windows.top_k(1, by="ts", ascending=ascending))
        assert flow.run({"in": rows})["out"]["x"].to_pylist() == [expected]


def test_windows_cannot_be_by_the_time_column() -> None:
    with pytest.raises(GraphError, match=r"'time' is the time column.*copy it"):
        jt.Flow("f").input("in").key_by("time").tumbling(10).count()


@pytest.mark.parametrize("workers", WORKERS)
def test_an_exchange_function_may_return_nulls(workers: int) -> None:
    def counting(token: Any, info: Any) -> Any:
        token.drop()
        counts: jt.state.KeyedValues[int] = jt.state.KeyedValues()

        def step(input: Any, output: Any) -> None:
            for ref, batch in input:
                for key in batch["k"].to_pylist() if batch["k"] is not None else []:
                    counts[key] = counts.get(key, 0) + 1
                    output.session(ref).give(k=[key], n=[counts[key]])

        return step

    flow = jt.Flow("f")
    rows = flow.input("in").map(lambda batch: {"k": pa.array(batch["k"])})
    flow.output("out", rows.unary(counting, pact=jt.Exchange(lambda batch: batch["k"])))
    with flow.open(workers=workers) as run:
        source = run.input("in")
        source.send({"time": [0, 0], "k": pa.array([1, None])})
        source.send({"time": [0, 0], "k": pa.array([1, None])})
        rows_out = run.finish()["out"].to_pylist()
    assert sorted(row["n"] for row in rows_out if row["k"] == 1) == [1, 2]


def test_a_sum_keeps_its_carry_beside_floating_point_numbers() -> None:
    flow = jt.Flow("f")
    flow.output("out", flow.input("in").key_by("k").running().mean("x"))
    big = 2**62
    with flow.open(workers=2) as run:
        run.input("in", 0).send({"time": [0] * 4, "k": [1] * 4, "x": [big] * 4})
        run.input("in", 1).send({"time": [0], "k": [2], "x": [0.5]})
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(restore=snapshot) as run:
        run.input("in").send({"time": [1], "k": [1], "x": [float(big)]})
        [row] = run.finish()["out"].to_pylist()
    assert row["mean"] == float(big)


KERNEL = jt.kernel(lambda a, b: a + b)
BIG = 2**53 + 1
LARGE: dict[str, tuple[Any, list[int], list[float]]] = {
    "small sum": (jt.agg.sum("v"), [1, 2], [0.5]),
    "sum beyond 2**53": (jt.agg.sum("v"), [BIG, 0], [0.5]),
    "sum beyond 2**63, until one more": (jt.agg.sum("v"), [-(2**62), *[2**63 - 1] * 2], [1.5]),
    "wide sum": (jt.agg.sum("v", widen=True), [2**63 - 1, 2**63 - 1], [0.5]),
    "mean": (jt.agg.mean("v"), [2**62, 2**62, 2**62, 2**62], [1e300]),
    "least": (jt.agg.min("v"), [BIG, BIG + 2], [0.5]),
    "greatest": (jt.agg.max("v"), [BIG, -BIG], [0.5, float("nan")]),
    "reduced": (jt.agg.reduce("v", KERNEL), [BIG, 2], [0.5]),
    "last": (jt.agg.last("v"), [1, BIG], [0.5]),
    "list": (jt.agg.collect("v"), [5, BIG], [0.5, 1.5]),
}
"""Aggregates, integers of one worker and floating-point numbers of another."""


def divided(name: str) -> tuple[jt.Flow, dict[str, Any], dict[str, Any]]:
    """A flow whose results are text, and records for it of either type, each for its own worker."""
    aggregate, integers, reals = LARGE[name]
    flow = jt.Flow("divided")
    found = flow.input("in").key_by("k").tumbling(100).aggregate(x=aggregate)
    flow.output("out", found.map(lambda batch: {"k": batch["k"], "x": texts(batch["x"])}))
    keys = np.arange(8)
    owners = Placement.even(2).owners[bins_of([keys]) % BINS]
    assert set(owners) == {0, 1}
    rows = []
    parts: tuple[list[Any], list[Any]] = (integers, reals)
    for worker, values in enumerate(parts):
        own = keys[owners == worker]
        times = [*range(len(values))] * len(own)
        rows.append({"time": times, "k": own.repeat(len(values)), "v": values * len(own)})
    return flow, rows[0], rows[1]


def texts(column: Any) -> pa.Array:
    return pa.array([repr(value) for value in pa.array(column).to_pylist()])


def in_order(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("earlier", [False, True], ids=["", "one more restart"])
def test_integers_stay_exact_beside_the_floating_point_numbers_of_another_worker(
    name: str, earlier: bool
) -> None:
    flow, integers, reals = divided(name)

    def results(*, restart: bool) -> list[tuple[Any, ...]]:
        run = flow.open(workers=2)
        for rows in (integers, reals):
            run.input("in").send(rows)
            if restart and (rows is reals or earlier):
                run.run_to_rest()
                snapshot = run.snapshot()
                run.close()
                run = flow.open(workers=2, restore=snapshot)
        with run:
            every = len(LARGE[name][1])
            run.input("in").send({key: values[::every] for key, values in integers.items()})
            return in_order(run.finish()["out"])

    expected = results(restart=False)
    assert results(restart=True) == expected
    if name == "sum beyond 2**53":
        assert {row[-1] for row in expected} == {str(2 * BIG), "0.5"}


@pytest.mark.parametrize("name", ["sum beyond 2**53", "wide sum", "mean", "reduced"])
def test_one_worker_goes_on_with_integers_and_floating_point_numbers(
    name: str, tmp_path: Path
) -> None:
    """Both become floating-point numbers then, as if one worker had seen both."""
    flow, integers, reals = divided(name)
    with flow.open(workers=1) as run:
        run.input("in").send(integers)
        run.run_to_rest()
        run.input("in").send(reals)
        expected = in_order(run.finish()["out"])
    store = Checkpoints(tmp_path)
    with flow.open(workers=2) as run:
        run.input("in").send(integers)
        run.input("in").send(reals)
        run.run_to_rest()
        snapshot = run.snapshot()
        parts = [store.write_part(1, w.index, w.snapshot()) for w in run.workers]
    stored = store.commit(1, parts, flow=flow.name)
    for restored in (snapshot, stored.share(0, 1)):
        with flow.open(restore=restored) as run:
            assert in_order(run.finish()["out"]) == expected


def test_snapshots_of_earlier_versions_have_all_numbers_in_one_column() -> None:
    flow, _, reals = divided("mean")
    with flow.open(workers=2) as run:
        run.input("in").send(reals)
        run.run_to_rest()
        snapshot = run.snapshot()
        expected = in_order(run.finish()["out"])
    table = snapshot.operators["mean"]["state"]
    names = [name.replace("x.real", "x.value") for name in table.column_names]
    assert names != table.column_names
    earlier = {**snapshot.operators, "mean": {"state": table.rename_columns(names)}}
    with flow.open(workers=2, restore=replace(snapshot, operators=earlier)) as run:
        assert in_order(run.finish()["out"]) == expected


@pytest.mark.parametrize("kinds", [("s", "ms"), ("ms", "s")])
def test_extremes_of_zoned_times_are_of_one_unit(kinds: tuple[str, str]) -> None:
    flow = jt.Flow("f")
    flow.output("out", flow.input("in").key_by("k").running().max("x"))
    with flow.open() as run:
        source = run.input("in")
        for time, unit in enumerate(kinds):
            stamps = pa.array([1000], pa.timestamp(unit, "UTC"))
            source.send(pa.table({"time": [time], "k": [1], "x": stamps}))
        with pytest.raises(BatchError, match=r"values are of type .* before: cast"):
            run.finish()


@pytest.mark.filterwarnings("ignore::jeton.errors.SlowKernel")
def test_a_reduced_integer_stays_exact_beside_a_worker_with_nulls() -> None:
    flow = jt.Flow("f")
    keyed = flow.input("in").key_by("k")
    flow.output("out", keyed.running().reduce("x", jt.kernel(lambda a, b: a + b)))
    big = 2**53
    with flow.open(workers=2) as run:
        run.input("in", 0).send({"time": [0], "k": [1], "x": [big]})
        for key in range(2, 9):
            run.input("in", 1).send(
                pa.table({"time": [0], "k": [key], "x": pa.array([None], pa.int64())})
            )
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(restore=snapshot) as run:
        run.input("in").send({"time": [1], "k": [1], "x": [1]})
        [row] = run.finish()["out"].to_pylist()
    assert row["reduce"] == big + 1


def test_nat_is_null() -> None:
    stamps = np.array(["2026-01-01", "NaT"], dtype="datetime64[us]")
    flow = jt.Flow("f")
    made = flow.input("in").map(lambda batch: {"x": stamps})
    flow.output("out", made.key_by().tumbling(10).aggregate(n=jt.agg.count("x")))
    assert flow.run({"in": {"time": [0, 1], "k": [1, 1]}})["out"]["n"].to_pylist() == [1]


def test_keys_are_compared_with_all_types_before() -> None:
    flow = jt.Flow("f")
    flow.output("out", flow.input("in").key_by("k").running().count())
    with flow.open() as run:
        source = run.input("in")
        for time, (kind, key) in enumerate([("u4", 1), ("u8", 2**64 - 1), ("i8", -1)]):
            source.send({"time": [time], "k": np.array([key], dtype=kind)})
        with pytest.raises(BatchError, match="int64, but it was uint64 before"):
            run.finish()


def test_every_nan_is_one_key_of_keyed_times() -> None:
    kind = jt.IntegerTimes()
    times: jt.state.KeyedTimes[int] = jt.state.KeyedTimes(kind)
    flow = jt.Flow("f")

    def build(token: Any, info: Any) -> Any:
        for value in (1, 2):
            times.push(token, 5, float("nan"), value)
        token.drop()
        return lambda input, output: None

    flow.input("in").unary(build)
    with flow.open():
        assert len(times) == 1
        assert (5, float("nan")) in times


def test_list_views_keep_their_values() -> None:
    views = pa.ListViewArray.from_arrays(
        pa.array([2, 0, 0], pa.int32()), pa.array([2, 0, 2], pa.int32()), pa.array([1, 2, 5, 6])
    )
    flow = jt.Flow("f")
    flow.output("out", flow.input("in"))
    table = pa.table({"time": [0, 1, 2], "x": views})
    assert flow.run({"in": table})["out"]["x"].to_pylist() == views.to_pylist()
