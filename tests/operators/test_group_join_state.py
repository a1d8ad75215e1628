"""group_join across restarts, migrations and batches of other types: the same answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import BatchError, GraphError

AGGREGATES: dict[str, dict[str, Any]] = {
    "count": {"out": jt.agg.count()},
    "sum": {"out": jt.agg.sum("n")},
    "last": {"out": jt.agg.last("n")},
    "median": {"out": jt.agg.median("n")},
    "several": {"a": jt.agg.count(), "b": jt.agg.mean("n"), "c": jt.agg.first("n")},
}


def flow_of(name: str) -> jt.Flow:
    flow = jt.Flow("windows")
    left, right = flow.input("left").key_by("id"), flow.input("right").key_by("id")
    joined = left.group_join(right, until="ends")
    out = joined.top("n") if name == "top" else joined.aggregate(**AGGREGATES[name])
    flow.output("out", out)
    return flow


@pytest.mark.parametrize("name", [*AGGREGATES, "top"])
def test_windows_without_records_survive_restarts(name: str) -> None:
    """Some windows have records when state is stored, and some get their first one later."""
    ids = np.arange(500)
    many = {"time": np.full(500, 4), "id": ids, "ends": np.full(500, 20)}
    steps: list[dict[str, dict[str, Any]]] = [
        {"left": {"time": [0], "id": [7], "ends": [30]}},
        {"right": {"time": [3, 3], "id": [7, 7], "n": [5, 6]}},
        {"left": many},
        {"right": {"time": [6, 6, 7], "id": [7, 8, 9], "n": [1, 2, 3]}},
        {"left": many},
        {"right": {"time": ids[:50] % 9 + 8, "id": ids[:50], "n": ids[:50]}},
    ]
    flow = flow_of(name)
    whole = flow.run(_together(steps))["out"]
    rows: list[Any] = []
    run = flow.open(workers=2)
    for number, step in enumerate(steps):
        for input_name, table in step.items():
            run.input(input_name).send(table)
        run.run_to_rest()
        snapshot = run.snapshot()
        rows += run.results()["out"].to_pylist()
        run.close()
        run = flow.open(workers=1 + number % 3, restore=snapshot)
        run.migrate({bin: bin % len(run.workers) for bin in range(0, 256, 3)})
        run.run_to_rest()
    rows += run.finish()["out"].to_pylist()
    run.close()
    assert sorted(map(str, rows)) == sorted(map(str, whole.to_pylist()))


def _together(steps: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    whole: dict[str, dict[str, Any]] = {}
    for step in steps:
        for name, table in step.items():
            before = whole.setdefault(name, {column: [] for column in table})
            for column, values in table.items():
                before[column] = [*before[column], *map(int, values)]
    return whole


@pytest.mark.parametrize(
    "types", [("int64", "float64"), ("float64", "int64"), ("uint8", "uint32"), ("int32", "int64")]
)
@pytest.mark.parametrize("ascending", [True, False])
def test_the_top_record_does_not_depend_on_the_types_of_batches(
    types: tuple[str, str], ascending: bool
) -> None:
    flow = jt.Flow("types")
    left, right = flow.input("left").key_by("id"), flow.input("right").key_by("id")
    flow.output("out", left.group_join(right, until="ends").top("n", ascending=ascending))
    with flow.open() as run:
        run.input("left").send({"time": [0], "id": [1], "ends": [10]})
        run.run_to_rest()
        for number, value in enumerate([7, 9, 8, 6, 7]):
            values = np.array([value], dtype=types[number % 2])
            run.input("right").send({"time": [number], "id": [1], "n": values})
            run.run_to_rest()
        assert run.finish()["out"]["n"].to_pylist() == [6 if ascending else 9]


@pytest.mark.parametrize("restarts", [False, True])
def test_conditions_on_times_of_records_that_were_stored(restarts: bool) -> None:
    flow = jt.Flow("times")
    left, right = flow.input("left").key_by("id"), flow.input("right").key_by("id")
    late = jt.col("time") >= jt.col("least")
    flow.output("out", left.group_join(right, until="ends", where=late).count())
    at = [datetime(2024, 1, 1, hour) for hour in range(5)]
    run = flow.open()
    run.input("right").send({"time": at[1:4], "id": [1, 1, 1]})
    run.run_to_rest()
    if restarts:
        snapshot = run.snapshot()
        run.close()
        run = flow.open(workers=2, restore=snapshot)
    stamps = pa.array([at[4], at[2]], pa.timestamp("us"))
    run.input("left").send({"time": at[:1], "id": [1], "ends": stamps[:1], "least": stamps[1:]})
    assert run.finish()["out"]["count"].to_pylist() == [2]
    run.close()


@pytest.mark.parametrize("lasts", [1, 3, 40])
@pytest.mark.parametrize("name", ["count", "top"])
def test_a_key_with_many_windows(name: str, lasts: int) -> None:
    """So many that few of them are open at a record's time: they are searched, not walked."""
    random = np.random.default_rng(lasts)
    starts = random.integers(0, 1000, 600)
    left = {"time": starts, "id": np.arange(600) % 2, "ends": starts + lasts}
    times, ids = random.integers(0, 1000, 500), random.integers(0, 3, 500)
    right = {"time": times, "id": ids, "n": np.arange(500)}
    expected = []
    for start, key in zip(starts.tolist(), left["id"].tolist(), strict=True):
        inside = np.flatnonzero((ids == key) & (times >= start) & (times < start + lasts))
        if len(inside):
            own = [start + lasts, key]
            found = len(inside) if name == "count" else max(inside.tolist())
            expected.append([*own, found])
    flow = flow_of(name)
    result = "out" if name == "count" else "n"
    # Records before their windows, after them, and some of both.
    for first in ({"right": right}, {"left": left}, {"left": _cut(left, 300)}):
        with flow.open(workers=2) as run:
            for input_name, table in first.items():
                run.input(input_name).send(table)
            run.run_to_rest()
            run.input("right").send(right if "right" not in first else _cut(right, 0))
            if "right" in first:
                run.input("left").send(left)
            elif len(first["left"]["time"]) == 300:
                run.input("left").send({column: values[300:] for column, values in left.items()})
            out = run.finish()["out"].select(["time", "id", result])
        assert sorted(map(list, zip(*out.to_pydict().values(), strict=True))) == sorted(expected)


def _cut(table: dict[str, Any], rows: int) -> dict[str, Any]:
    return {column: values[:rows] for column, values in table.items()}


@pytest.mark.parametrize("bins", [range(1), range(256), range(1, 256), range(0, 256, 2)])
def test_windows_without_a_key_move_with_the_first_bin(bins: range) -> None:
    flow = jt.Flow("no key")
    left, right = flow.input("left").key_by(), flow.input("right").key_by()
    flow.output("out", left.group_join(right, until="ends").count())
    windows = {"time": [0] * 50, "id": list(range(50)), "ends": [20] * 50}
    with flow.open(workers=2) as run:
        run.input("left").send(windows)
        run.input("right").send({"time": [1, 2]})
        run.run_to_rest()
        run.migrate(dict.fromkeys(bins, 1))
        run.run_to_rest()
        run.input("left").send(windows)
        run.input("right").send({"time": [3, 4]})
        assert run.finish()["out"]["count"].to_pylist() == [4] * 100


@pytest.mark.parametrize("of_left", [True, False])
@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        (np.array([3]), np.array([0.5]), True),
        (np.array([2], np.uint64), np.array([-1]), True),
        (np.array([16777217], np.int32), np.array([0.5], np.float64), True),
        (np.array([2**53 + 1]), np.array([0.5]), False),
        (np.array([2**63], np.uint64), np.array([-1]), False),
        (np.array([True]), np.array([7]), False),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_columns_that_change_their_type_keep_their_values_or_are_refused(
    of_left: bool, first: Any, second: Any, fits: bool, swapped: bool
) -> None:
    """As in all other operators: no integer is rounded, and no truth becomes a number."""
    flow = jt.Flow("types")
    left, right = flow.input("left").key_by("id"), flow.input("right").key_by("id")
    joined = left.group_join(right, until="ends")
    flow.output("out", joined.count() if of_left else joined.top("n"))
    values = [second, first] if swapped else [first, second]

    def run() -> list[Any]:
        with flow.open() as run:
            for name in ("left", "right"):
                for key, x in enumerate(values):
                    row: dict[str, Any] = {"time": [0], "id": [key], "ends": [9], "x": x}
                    if name == "right":
                        row = {"time": [1], "id": [key], "n": [1], "x": x}
                    if of_left is (name == "right"):
                        del row["x"]
                    run.input(name).send(row)
                    run.run_to_rest()
            found: list[Any] = run.finish()["out"].sort_by([("id", "ascending")])["x"].to_pylist()
            return found

    if fits:
        assert run() == [values[0].item(), values[1].item()]
    else:
        with pytest.raises(BatchError, match="cast it to one type, or give the input a schema"):
            run()


@pytest.mark.parametrize("name", ["top", "least", "collected"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_times_of_right_records_survive_restarts(name: str, kind: pa.DataType) -> None:
    """Of records in windows, and of those that came before their window."""

    def times(*hours: int) -> pa.Array:
        return pa.array([hour * 3_600_000_000 for hour in hours]).cast(kind)

    steps = [
        ("right", {"time": times(2, 3, 3), "id": [1, 2, 2], "n": [5, 6, 7]}),
        ("left", {"time": times(1, 2), "id": [1, 2], "ends": times(9, 9)}),
        ("right", {"time": times(4, 1), "id": [2, 1], "n": [8, 9]}),
        ("right", {"time": times(4, 5), "id": [2, 1], "n": [1, 1]}),
    ]
    found = []
    for restarts in (False, True):
        flow = jt.Flow("times")
        left, right = flow.input("left").key_by("id"), flow.input("right").key_by("id")
        joined = left.group_join(right, until="ends")
        if name == "collected":
            out = joined.aggregate(all=jt.agg.collect("time"), last=jt.agg.max("time"))
        else:
            out = joined.top("time", ascending=name == "least")
        flow.output("out", out)
        run = flow.open(workers=2)
        for input_name, table in steps:
            run.input(input_name).send(table)
            run.run_to_rest()
            if restarts:
                snapshot = run.snapshot()
                run.close()
                run = flow.open(workers=3, restore=snapshot)
                run.migrate({bin: bin % 3 for bin in range(0, 256, 2)})
                run.run_to_rest()
        found.append(run.finish()["out"].sort_by([("id", "ascending")]).to_pylist())
        run.close()
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_the_top_record_by_its_key_is_refused() -> None:
    flow = jt.Flow("key")
    left, right = flow.input("left").key_by("id"), flow.input("right").key_by("item")
    with pytest.raises(GraphError, match="all records of a window have the same 'item'"):
        left.group_join(right, until="ends").top("item")
