"""Values whose type changes between batches: a clear error, or an exact answer."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import BatchError
from jeton.storage.checkpoints import Checkpoints

VALUES = {
    "int": pa.array([5]),
    "float": pa.array([0.5]),
    "text": pa.array(["a"]),
    "bytes": pa.array([b"a"]),
    "bool": pa.array([True]),
    "decimal": pa.array([Decimal("1.5")]),
    "finer decimal": pa.array([Decimal("1.25")]),
    "seconds": pa.array([5], pa.timestamp("s")),
    "milliseconds": pa.array([5], pa.timestamp("ms")),
    "instant": pa.array([5], pa.timestamp("s", "UTC")),
    "duration": pa.array([5], pa.duration("s")),
    "list": pa.array([[5]]),
    "uint64": pa.array([2**64 - 1], pa.uint64()),
}
NEVER = [
    ("int", "text"),
    ("float", "text"),
    ("text", "bytes"),
    ("int", "bool"),
    ("text", "seconds"),
    ("int", "decimal"),
    ("int", "duration"),
    ("decimal", "finer decimal"),
    ("seconds", "milliseconds"),
    ("seconds", "instant"),
]
AGGREGATES: dict[str, Any] = {
    "first": jt.agg.first,
    "last": jt.agg.last,
    "collect": jt.agg.collect,
    "min": jt.agg.min,
    "max": jt.agg.max,
    "count_distinct": jt.agg.count_distinct,
    "approx_count_distinct": jt.agg.approx_count_distinct,
    "reduce": lambda column: jt.agg.reduce(column, lambda a, b: a),
}
NUMERIC: dict[str, Any] = {
    "sum": jt.agg.sum,
    "mean": jt.agg.mean,
    "var": jt.agg.var,
    "std": jt.agg.std,
    "median": jt.agg.median,
    "approx_quantile": lambda column: jt.agg.approx_quantile(column, 0.5),
}


def run(aggregate: Any, *values: pa.Array, windows: str = "tumbling", restart: bool = False) -> Any:
    flow = jt.Flow("types")
    keyed = flow.input("in").key_by()
    kinds: dict[str, Any] = {
        "tumbling": lambda: keyed.tumbling(100),
        "running": keyed.running,
        "rolling": lambda: keyed.rolling(100),
        "session": lambda: keyed.session_window(10),
    }
    flow.output("out", kinds[windows]().aggregate(found=aggregate))
    snapshot = None
    opened = flow.open()
    for time, each in enumerate(values):
        opened.input("in").send(pa.table({"time": [time], "v": each}))
        if restart and time == 0:
            opened.run_to_rest()
            snapshot = opened.snapshot()
            opened.close()
            opened = flow.open(restore=snapshot)
    with opened:
        return opened.finish()["out"]["found"].to_pylist()


@pytest.mark.parametrize(
    ("pair", "windows"),
    [
        *((pair, "tumbling") for pair in NEVER),
        *((NEVER[0], windows) for windows in ("running", "rolling", "session")),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", AGGREGATES)
@pytest.mark.parametrize("restart", [False, True], ids=["one run", "restart"])
def test_types_that_do_not_go_together_are_refused(
    name: str, pair: tuple[str, str], windows: str, restart: bool
) -> None:
    left, right = (VALUES[kind] for kind in pair)
    for one, other in ((left, right), (right, left)):
        with pytest.raises(BatchError, match=r"'v'.* is of type|'v'.* are of type") as error:
            run(AGGREGATES[name]("v"), one, other, windows=windows, restart=restart)
        assert str(left.type) in str(error.value)
        assert str(right.type) in str(error.value)
        assert "schema=" in str(error.value)


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("other", ["text", "bool", "decimal", "list", "instant"])
@pytest.mark.parametrize("restart", [False, True], ids=["one run", "restart"])
def test_numbers_are_followed_by_numbers(name: str, other: str, restart: bool) -> None:
    with pytest.raises(BatchError, match=r"column 'v': its values are of type .* before: cast"):
        run(NUMERIC[name]("v"), VALUES["int"], VALUES[other], restart=restart)


@pytest.mark.parametrize("name", [*AGGREGATES, *NUMERIC])
def test_types_that_go_together_go_on_after_a_restart(name: str) -> None:
    aggregate = (AGGREGATES | NUMERIC)[name]("v")
    others = ["float"] if name in NUMERIC else []
    for values in ([pa.array([7], pa.int8())], [VALUES[other] for other in others]):
        values = [VALUES["int"], *values, pa.array([None])]
        assert run(aggregate, *values, restart=True) == run(aggregate, *values)


KEPT: dict[str, Any] = {
    "running": lambda rows: rows.key_by("k").running(),
    "windows": lambda rows: rows.key_by("k").tumbling(100),
    "combined windows": lambda rows: rows.key_by("k", combine=True).tumbling(100),
    "spread windows": lambda rows: rows.key_by("k", spread=2).tumbling(100),
    "panes": lambda rows: rows.key_by("k", combine=True).sliding(100, every=10),
    "sessions": lambda rows: rows.key_by("k").session_window(50),
    "intervals": lambda rows: (
        rows.with_columns(end=lambda batch: batch.times + 90)
        .key_by("k")
        .group_join(rows.key_by("k"), until="end")
    ),
}


def kept(when: str) -> jt.Flow:
    flow = jt.Flow("kept")
    groups = KEPT[when](flow.input("in"))
    values = {"first": jt.agg.first("v"), "list": jt.agg.collect("v"), "least": jt.agg.min("v")}
    flow.output("out", groups.aggregate(**values))
    return flow


def ints_then_floats(flow: jt.Flow, restore: Any = None, *, workers: int = 1) -> list[Any]:
    with flow.open(workers=workers, restore=restore) as opened:
        if restore is None:
            opened.input("in").send(ROWS)
        opened.input("in").send({"time": [2] * 6, "k": range(6), "v": [0.5] * 6})
        return sorted(map(str, opened.finish()["out"].to_pylist()))


ROWS = {"time": [0, 1] * 6, "k": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], "v": range(12)}


def snapshot_of(flow: jt.Flow, *, workers: int) -> jt.state.Snapshot:
    with flow.open(workers=workers) as opened:
        opened.input("in").send(ROWS)
        opened.run_to_rest()
        return opened.snapshot()


@pytest.mark.parametrize("when", KEPT)
def test_whatever_keeps_groups_knows_the_types_of_values_again(when: str, tmp_path: Path) -> None:
    flow = kept(when)
    for workers in (1, 2):
        with pytest.raises(BatchError, match="of type double, but they were int64 before"):
            ints_then_floats(flow, workers=workers)
        for before in (1, 2):
            snapshot = snapshot_of(flow, workers=before)
            with pytest.raises(BatchError, match="of type double, but they were int64 before"):
                ints_then_floats(flow, snapshot, workers=workers)
    store = Checkpoints(tmp_path)
    part = store.write_part(1, 0, snapshot.operators)
    stored = store.commit(1, [part], flow=flow.name)
    with pytest.raises(BatchError, match="of type double, but they were int64 before"):
        ints_then_floats(flow, stored.share(0, 1))


def test_checkpoints_of_changes_know_types_that_came_after_nulls(tmp_path: Path) -> None:
    """The groups that were stored first, and have not changed since, had no type yet."""
    flow = jt.Flow("changes")
    flow.output("out", flow.input("in").key_by("k").running().last("v"))
    store, part = Checkpoints(tmp_path), None
    nothing = pa.table({"time": [0] * 9, "k": range(9), "v": pa.nulls(9, pa.null())})
    with flow.open() as opened:
        for version, rows in enumerate([nothing, {"time": [1], "k": [9], "v": [5]}]):
            opened.input("in").send(rows)
            opened.run_to_rest()
            cut = opened.workers[0].cut({} if part is None else part.tokens)
            part = store.write_part(version, 0, cut, base=part)
            stored = store.commit(version, [part], flow=flow.name)
    snapshot = stored.share(0, 1)
    table = snapshot.operators["last"]["state"]
    assert set(table.column("type.last").to_pylist()) != {None}
    with flow.open(restore=snapshot) as opened:
        opened.input("in").send({"time": [2], "k": [0], "v": [0.5]})
        with pytest.raises(BatchError, match="of type double, but they were int64 before"):
            opened.finish()


@pytest.mark.parametrize("when", KEPT)
def test_snapshots_of_earlier_versions_have_no_types_and_can_be_restored(when: str) -> None:
    flow = kept(when)
    snapshot = snapshot_of(flow, workers=2)
    earlier = replace(
        snapshot,
        operators={
            operator: {
                name: table.select([c for c in table.column_names if not c.startswith("type.")])
                for name, table in kept.items()
            }
            for operator, kept in snapshot.operators.items()
        },
    )
    assert str(earlier.operators) != str(snapshot.operators)
    found = []
    for restored in (snapshot, earlier):
        with flow.open(workers=2, restore=restored) as opened:
            opened.input("in").send({"time": [2] * 6, "k": range(6), "v": range(6)})
            found.append(sorted(map(str, opened.finish()["out"].to_pylist())))
    assert found[0] == found[1]
    assert found[0]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("other", ["float", "uint64", "text"])
def test_a_sketch_takes_values_with_equal_hashes_only(other: str, restart: bool) -> None:
    sketch = jt.agg.approx_count_distinct("v")
    with pytest.raises(BatchError, match="before: cast them to one type"):
        run(sketch, VALUES["int"], VALUES[other], restart=restart)
    narrow = pa.array([5], pa.int8())
    assert run(sketch, VALUES["int"], narrow, pa.array([None]), restart=restart) == [1]


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("swapped", [False, True])
def test_extremes_of_integers_and_floats_are_not_rounded(name: str, swapped: bool) -> None:
    aggregate = AGGREGATES[name]("v")
    big, small = pa.array([2**53 + 1]), pa.array([0.5])
    pair = (small, big) if swapped else (big, small)
    with pytest.raises(BatchError, match=r"beyond 2\*\*53"):
        run(aggregate, *pair)
    expected = {"min": 0.5, "max": 7.0}[name]
    assert run(aggregate, *(pa.array([7]), small)[:: -1 if swapped else 1]) == [expected]


def test_nulls_and_no_values_fit_every_type() -> None:
    for name in AGGREGATES:
        parts = (pa.array([None]), VALUES["text"], pa.array([None]))
        assert len(run(AGGREGATES[name]("v"), *parts)) == 1
    flow = jt.Flow("count")
    flow.output("out", flow.input("in").key_by().tumbling(10).count("v"))
    with flow.open() as opened:
        for values in (np.array([1]), np.array([0.5])):
            opened.input("in").send({"time": [0], "v": values})
        assert opened.finish()["out"]["count"].to_pylist() == [2]


QUICK: dict[str, Any] = {
    "plain": {},
    "combined": {"combine": True},
    "spread": {"spread": 2},
}
"""Ways of windows whose values are folded while their keys are found."""
BARRED = ("bool", "mean")
"""There is no mean of booleans."""


@pytest.mark.parametrize("restart", [False, True], ids=["one run", "restart"])
@pytest.mark.parametrize("by", QUICK)
@pytest.mark.parametrize(
    ("before", "name"),
    [(b, n) for b in ("duration", "bool", "decimal") for n in ("sum", "mean") if (b, n) != BARRED],
)
def test_integers_that_follow_others_are_not_folded_as_if_they_were_those(
    before: str, name: str, by: str, restart: bool
) -> None:
    flow = jt.Flow("mixed")
    rows = flow.input("rows").key_by("key", **QUICK[by])
    flow.output("out", rows.tumbling(10).aggregate(out=NUMERIC[name]("v")))

    def send(run: jt.Run, values: pa.Array) -> None:
        times = pa.array([1] * len(values))
        for _ in range(3):
            run.input("rows").send(pa.table({"time": times, "key": times, "v": values}))
            run.run_to_rest()

    run = flow.open(workers=1)
    send(run, VALUES[before])
    if restart:
        snapshot = run.snapshot()
        run.close()
        run = flow.open(workers=1, restore=snapshot)
    with run, pytest.raises(BatchError, match="of type int64, but they were"):
        send(run, pa.array([1, 2]))


def test_records_of_the_owner_fit_what_others_have_sent_of_a_spread_key() -> None:
    flow = jt.Flow("mixed")
    rows = flow.input("rows").key_by("key", spread=2)
    flow.output("out", rows.tumbling(10).sum("v"))

    def send(run: jt.Run, worker: int, time: int, values: list[Any]) -> None:
        table = {"time": [time] * len(values), "key": [1] * len(values), "v": values}
        run.input("rows", worker).send(pa.table(table))
        run.run_to_rest()

    with flow.open(workers=2) as run:
        send(run, 1, 1, [True] * 40)
        for worker in (0, 1):
            run.input("rows", worker).advance_to(15)
        run.run_to_rest()
        with pytest.raises(BatchError, match="int64, but they were bool"):
            send(run, 0, 16, [1] * 4)


def test_integers_that_others_have_folded_stay_exact_when_their_sums_grow() -> None:
    """The bound of all sums is found again where windows of great sums have gone since."""
    flow = jt.Flow("great")
    rows = flow.input("rows", lateness=0).key_by("key", combine=True)
    flow.output("out", rows.tumbling(10).sum("v"))
    great = 2**61 - 1
    with flow.open(workers=2) as run:
        for window in range(12):
            time = window * 10
            run.input("rows").send(
                {"time": [time, time], "key": [window % 3] * 2, "v": [great, -7]}
            )
            run.run_to_rest()
        sums = run.finish()["out"]["sum"].to_pylist()
    assert sums == [great - 7] * 12
