"""Columns whose type differs from batch to batch: one answer, or an error that says so."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import BatchError


def both(make: Any, left: pa.Array, right: pa.Array, *, typed: bool, column: str) -> pa.Table:
    """The result of two inputs that become one stream, with or without their schemas."""
    flow = jt.Flow("both")

    def declared(array: pa.Array) -> dict[str, Any] | None:
        return {"k": pa.int64(), "n": pa.int64(), column: array.type} if typed else None

    streams = [
        flow.input(name, schema=declared(array)) for name, array in (("l", left), ("r", right))
    ]
    flow.output("o", make(streams[0].concat(streams[1])))
    rows = {
        name: {"time": [0], "k": [1], "n": [1], column: array}
        for name, array in (("l", left), ("r", right))
    }
    return flow.run(rows)["o"]


MIXED = [
    (pa.array([1]), pa.array([1.0])),
    (pa.array([-1]), pa.array([2**64 - 1], pa.uint64())),
    (pa.array([5], pa.timestamp("s")), pa.array([5], pa.timestamp("ms"))),
    (pa.array([5], pa.timestamp("s", "UTC")), pa.array([5], pa.timestamp("ms", "UTC"))),
    (pa.array([5], pa.duration("s")), pa.array([5000], pa.duration("ms"))),
    (pa.array([1], pa.date32()), pa.array([86400000], pa.date64())),
    (pa.array([Decimal("1.5")]), pa.array([Decimal("1.50")])),
    (pa.array(["a"]), pa.array([b"a"])),
]


@pytest.mark.parametrize(("left", "right"), MIXED, ids=lambda array: str(array.type))
@pytest.mark.parametrize(
    "make",
    [lambda s: s.key_by("k").tumbling(10).sum("n"), lambda s: s.key_by("k").distinct()],
    ids=["sum", "distinct"],
)
def test_keys_of_types_that_are_never_equal_are_refused(
    make: Any, left: pa.Array, right: pa.Array
) -> None:
    with pytest.raises(BatchError, match=r"a key column is of type .* cast it"):
        both(make, left, right, typed=False, column="k")


def largest(token: Any, info: Any) -> Any:
    """An operator of a user's own, which compares no keys."""
    token.drop()

    def step(input: Any, output: Any) -> None:
        for ref, batch in input:
            assert len(batch), "announcements of types are not for operators"
            output.session(ref).give(batch)

    return step


KEYED = {
    "running": lambda s: s.running().count(),
    "ordered": lambda s: s.running(ordered=True).count(),
    "tumbling": lambda s: s.tumbling(10).sum("n"),
    "session_window": lambda s: s.session_window(10).count(),
    "top_k": lambda s: s.tumbling(10).top_k(1, by="n"),
    "distinct": lambda s: s.distinct(),
    "stateful_map": lambda s: s.stateful_map(lambda state, row: (state, [{"n": 1}]), 0),
    "own": lambda s: s.unary_frontier(largest),
}


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("operator", "keys"),
    [*((name, 0) for name in KEYED), *(("running", pair) for pair in range(1, len(MIXED)))],
)
def test_keys_that_are_never_equal_are_refused_on_any_number_of_workers(
    operator: str, keys: int, workers: int
) -> None:
    left, right = MIXED[keys]
    flow = jt.Flow("keys")
    flow.output("out", KEYED[operator](flow.input("in").key_by("k")))
    with flow.open(workers=workers, seed=workers) as run:
        for worker, keys in ((0, left), (workers - 1, right)):
            run.input("in", worker).send(pa.table({"time": [0], "k": keys, "n": [1]}))
        with pytest.raises(BatchError, match=r"a key column is of type .* cast it"):
            run.finish()


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("make", [KEYED["running"], KEYED["ordered"]])
def test_restored_keys_are_of_the_type_of_new_ones(make: Any, workers: int) -> None:
    flow = jt.Flow("keys")
    flow.output("out", make(flow.input("in").key_by("k")))
    with flow.open(workers=2) as run:
        run.input("in").send({"time": [0], "k": [1], "n": [1]})
        run.run_to_rest()
        snapshot = run.snapshot()
    for key in (0, 1):
        with flow.open(workers=workers, restore=snapshot) as run:
            run.input("in").send({"time": [1], "k": [key + 0.5], "n": [1]})
            with pytest.raises(BatchError, match=r"double, but it was int64 before: cast it"):
                run.finish()


def test_types_of_keys_are_announced_once() -> None:
    flow = jt.Flow("keys")
    flow.output("out", flow.input("in").key_by("k").running().count())
    with flow.open(workers=2) as run:
        keys = [np.array([1], dtype) for dtype in (np.int64, np.int64, np.int32, np.int32)]
        for time, key in enumerate(keys):
            run.input("in").send({"time": [time], "k": key})
        assert run.finish()["out"]["count"].to_pylist() == [1, 2, 3, 4]
        # One with each record that another worker owns, and one with each of two types else.
        assert sum(port.messages for port in run.network.ports) in (2, 4)


@pytest.mark.parametrize(
    ("left", "right", "rows"),
    [
        (pa.array([1]), pa.array([1.0]), 1),
        (pa.array([5], pa.timestamp("s")), pa.array([5], pa.timestamp("ms")), 2),
        (pa.array([5], pa.timestamp("s")), pa.array([5000], pa.timestamp("ms")), 1),
        (pa.array([5], pa.duration("s")), pa.array([5000], pa.duration("ms")), 1),
        (pa.array([1], pa.int8()), pa.array([1], pa.uint32()), 1),
        (pa.array(["a"]), pa.array(["a"], pa.large_string()), 1),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_streams_of_known_types_become_one_type(left: pa.Array, right: pa.Array, rows: int) -> None:
    found = both(lambda s: s.key_by("k").tumbling(10).sum("n"), left, right, typed=True, column="k")
    assert found["sum"].to_pylist() == [2 // rows] * rows
    assert len(set(found["k"].to_pylist())) == rows


@pytest.mark.parametrize("make", [pa.timestamp, pa.duration])
def test_extremes_of_several_units(make: Any) -> None:
    def least(s: Any) -> Any:
        return s.key_by().tumbling(10).min("v")

    left, right = pa.array([5], make("s")), pa.array([7000], make("ms"))
    found = both(least, left, right, typed=True, column="v")["min"]
    assert found.cast(make("ms")).cast(pa.int64()).to_pylist() == [5000]
    with pytest.raises(BatchError, match=r"they were .*\[s\] before: cast"):
        both(least, left, right, typed=False, column="v")


def test_sums_stay_exact_or_are_refused() -> None:
    signed, unsigned = pa.array([-1]), pa.array([2**63 + 5], pa.uint64())
    with pytest.raises(BatchError, match=r"no type of integers holds both"):
        both(lambda s: s.key_by().tumbling(10).sum("v"), signed, unsigned, typed=False, column="v")


def test_integers_and_text_of_any_width_are_the_same_keys() -> None:
    flow = jt.Flow("widths")
    flow.output("o", flow.input("i").key_by("k").running().count())
    with flow.open() as run:
        for dtype in (np.int8, np.uint32, np.int64):
            run.input("i").send({"time": [0], "k": np.array([7], dtype)})
        assert run.finish()["o"]["count"].to_pylist() == [1, 2, 3]


def test_ties_do_not_depend_on_the_order_of_columns_in_each_stream() -> None:
    def first(order: list[str]) -> list[Any]:
        flow = jt.Flow("ties")
        left = flow.input("l", schema={"k": int, "q": int, "z": int})
        right = flow.input("r", schema={"k": int, "z": int, "q": int})
        flow.output("o", left.concat(right).key_by("k").tumbling(10).top_k(1, by="k"))
        rows = {
            "l": {"time": [0], "k": [1], "q": [2], "z": [1]},
            "r": {"time": [0], "k": [1], "z": [2], "q": [1]},
        }
        with flow.open() as run:
            for name in order:
                run.input(name).send(rows[name])
                run.turn()
                run.input(name).close()
            return list(run.finish()["o"]["q"].to_pylist())

    assert first(["l", "r"]) == first(["r", "l"]) == [1]
