"""Values whose type changes between batches: a clear error, or an exact answer."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import BatchError

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
def test_types_that_do_not_go_together_are_refused(
    name: str, pair: tuple[str, str], windows: str
) -> None:
    left, right = (VALUES[kind] for kind in pair)
    for one, other in ((left, right), (right, left)):
        with pytest.raises(BatchError, match=r"'v'.* is of type|'v'.* are of type") as error:
            run(AGGREGATES[name]("v"), one, other, windows=windows)
        assert str(left.type) in str(error.value)
        assert str(right.type) in str(error.value)
        assert "schema=" in str(error.value)


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("other", ["text", "bool", "decimal", "list", "instant"])
def test_numbers_are_followed_by_numbers(name: str, other: str) -> None:
    with pytest.raises(BatchError, match=r"column 'v': its values are of type .* before: cast"):
        run(NUMERIC[name]("v"), VALUES["int"], VALUES[other])


@pytest.mark.parametrize("name", [*list(AGGREGATES)[:-1], *NUMERIC])
def test_after_a_restart_too(name: str) -> None:
    aggregate = (AGGREGATES | NUMERIC)[name]("v")
    with pytest.raises(BatchError, match=r"cast (it|them)"):
        run(aggregate, VALUES["int"], VALUES["text"], restart=True)


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
