"""Sums, means, extremes and orders that depend on the values alone, against Python's numbers."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import BatchError
from jeton.state import fold_loops
from jeton.state.accumulators import Numeric
from tests.operators.twins import Row, Schedule, run_twin, schedule_of, schedules

MOST = 2**63 - 1
EXACT = Context(prec=200)
NAN, INF = float("nan"), float("inf")

WHEN: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda keyed: keyed.tumbling(100),
    "sliding": lambda keyed: keyed.sliding(100, every=100),
    "session": lambda keyed: keyed.session_window(100),
}


def rows(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Row]]:
    row = {"time": st.integers(0, 99), "key": st.sampled_from(["a", "b"]), "x": values}
    return st.lists(st.fixed_dictionaries(row), max_size=15)


def schema(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("time", pa.int64()), ("key", pa.string()), ("x", kind)])


def result_of(
    when: str, aggregates: dict[str, Any], kind: pa.DataType, rows: list[Row], schedule: Schedule
) -> dict[str, Row]:
    """The results of each key, all of whose records are in one window."""

    def build(flow: jt.Flow) -> None:
        flow.output("out", WHEN[when](flow.input("in").key_by("key")).aggregate(**aggregates))

    found = run_twin(build, {"in": rows}, schedule, schema={"in": schema(kind)})["out"]
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"]: {name: row[name] for name in aggregates} for row in found}


def grouped(rows: list[Row]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        groups[row["key"]].append(row["x"])
    return {key: [value for value in group if value is not None] for key, group in groups.items()}


INTEGERS = {
    "int64": (pa.int64(), -(2**63), MOST, (-(2**63), MOST)),
    "uint64": (pa.uint64(), 0, 2**64 - 1, (0, 2**64 - 1)),
    "uint32": (pa.uint32(), 0, 2**32 - 1, (-(2**63), MOST)),
}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", INTEGERS)
@settings(max_examples=8)
@given(data=st.data(), schedule=schedules())
def test_sums_of_integers_are_exact_or_refused(
    when: str, name: str, data: st.DataObject, schedule: Schedule
) -> None:
    kind, least, most, (low, high) = INTEGERS[name]
    extremes = st.sampled_from([least, least + 1, most - 1, most, most // 2, 0, 1, None])
    table = data.draw(rows(extremes | st.integers(least, most)))
    sums = {key: sum(values) if values else None for key, values in grouped(table).items()}
    aggregates = {"wide": jt.agg.sum("x", widen=True), "mean": jt.agg.mean("x")}
    found = result_of(when, aggregates, kind, table, schedule)
    assert {key: row["wide"] for key, row in found.items()} == sums
    for key, values in grouped(table).items():
        mean = found[key]["mean"]
        expected = float(sum(values)) / len(values) if values else None
        assert mean == (None if expected is None else pytest.approx(expected, rel=1e-14))
    wrong = {k: v for k, v in sums.items() if v is not None and not low <= v <= high}
    if not wrong:
        found = result_of(when, {"sum": jt.agg.sum("x")}, kind, table, schedule)
        assert {key: row["sum"] for key, row in found.items()} == sums
        return
    with pytest.raises(BatchError, match="widen=True") as error:
        result_of(when, {"sum": jt.agg.sum("x")}, kind, table, schedule)
    text = str(error.value)
    assert any(f"is {v}," in text and f"key={k!r}" in text for k, v in wrong.items())
    assert error.value.operator == "sum"
    assert error.value.time >= 100


def test_an_exact_sum_is_told_in_whatever_order_its_values_come() -> None:
    for seed in range(20):
        values = [MOST, 1, -5, MOST, -MOST, -1, 3]
        random.Random(seed).shuffle(values)
        table = [{"time": 0, "key": "a", "x": value} for value in values]
        found = result_of(
            "tumbling", {"sum": jt.agg.sum("x")}, pa.int64(), table, schedule_of(seed)
        )
        assert found["a"]["sum"] == MOST - 2


def test_rolling_sums_that_overflow_name_key_and_time() -> None:
    flow = jt.Flow("rolling")
    flow.output("sums", flow.input("in").key_by("key").running(ordered=True).sum("n"))
    table = {"time": [1, 2, 3], "key": ["a", "b", "b"], "n": [MOST, -MOST, -2]}
    with pytest.raises(BatchError, match=r"-9223372036854775809.*key='b'.*'sum'.*time 3"):
        flow.run({"in": table}, workers=2)


SIZES = st.sampled_from([1, 2**20, 2**42, 2**61, MOST])
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "roll", "clear", "merge", "restart"]),
        st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 1), SIZES), max_size=6),
    ),
    max_size=12,
)


@settings(max_examples=200)
@given(acts=ACTS, signed=st.booleans())
def test_sums_are_exact_within_the_bound_and_beyond(
    acts: list[tuple[str, list[tuple[int, int, int]]]], signed: bool
) -> None:
    dtype = np.int64 if signed else np.uint64
    sums, twin = Numeric("sum", widen=True), [0, 0, 0]
    every = np.arange(3)
    sums.add(every, np.zeros(3, dtype), 3)
    for act, rows in acts:
        slots = np.array([slot for slot, _, _ in rows], dtype=np.int64)
        numbers = [size * (sign if signed else abs(sign)) for _, sign, size in rows]
        values = np.array(numbers, dtype=dtype)
        if act == "add":
            sums.add(slots, values, 3)
        elif act == "roll":
            rolled = pa.array(sums.roll(slots, values, 3)).to_pylist()
        elif act == "clear":
            sums.clear(np.array([1]))
            sums.add(np.array([1]), np.zeros(1, dtype), 3)
            twin[1] = 0
        elif act == "merge":
            sums.merge(np.array([0]), np.array([2]))
            twin[0] += twin[2]
        else:
            saved, sums = sums.save(every), Numeric("sum", widen=True)
            sums.load(every, saved, 3)
        if act in ("add", "roll"):
            for row, (slot, number) in enumerate(zip(slots.tolist(), numbers, strict=True)):
                twin[slot] += number
                assert act == "add" or rolled[row] == twin[slot]
        assert pa.array(sums.result(every)).to_pylist() == twin


def test_integers_are_added_without_care_while_no_sum_can_overflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    careful: list[str] = []

    def watched(name: str) -> Callable[..., None]:
        loop = getattr(fold_loops, name)

        def run(*arguments: Any) -> None:
            careful.append(name)
            loop(*arguments)

        return run

    for name in ("add_exactly", "roll_exactly"):
        monkeypatch.setattr(fold_loops, name, watched(name))
    slots, size = np.zeros(2, dtype=np.int64), 2**40
    sums = Numeric("sum")
    for _ in range(3):
        sums.add(slots, np.array([size, -size]), 1)
        sums.roll(slots, np.array([-size, size - 1]), 1)
    assert not careful
    assert list(sums.result(np.array([0]))) == [-3]
    # A bound that is too far away is found again, with one careful batch.
    sums._bound = MOST
    for _ in range(3):
        sums.add(slots, np.array([size, -size]), 1)
    assert careful == ["add_exactly"]
    assert list(sums.result(np.array([0]))) == [-3]


def test_integers_followed_by_other_numbers_keep_what_they_carried() -> None:
    flow = jt.Flow("mixed")
    keyed = flow.input("in").key_by().tumbling(10)
    flow.output("out", keyed.aggregate(sum=jt.agg.sum("n"), mean=jt.agg.mean("n")))
    with flow.open() as run:
        run.input("in").send({"time": [0, 0], "n": [MOST, MOST]})
        run.run_to_rest()
        run.input("in").send({"time": [0], "n": [0.5]})
        run.finish()
        (row,) = run.results()["out"].to_pylist()
    assert row["sum"] == 2.0**64
    assert row["mean"] == 2.0**64 / 3


DECIMALS = {
    "decimal128(38, 2)": (pa.decimal128(38, 2), 38),
    "decimal128(5, 0)": (pa.decimal128(5, 0), 38),
    "decimal256(76, 3)": (pa.decimal256(76, 3), 76),
}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", DECIMALS)
@settings(max_examples=6)
@given(data=st.data(), schedule=schedules())
def test_sums_of_decimals_are_exact_or_refused(
    when: str, name: str, data: st.DataObject, schedule: Schedule
) -> None:
    kind, digits = DECIMALS[name]
    most = 10**kind.precision - 1
    unscaled = st.sampled_from([most, -most, most // 2, 1, 0]) | st.integers(-most, most)
    values = unscaled.map(lambda n: EXACT.scaleb(Decimal(n), -kind.scale)) | st.none()
    table = data.draw(rows(values))
    sums = {}
    for key, group in grouped(table).items():
        total = Decimal(0)
        for value in group:
            total = EXACT.add(total, value)
        sums[key] = total if group else None
    limit = EXACT.scaleb(Decimal(10**digits), -kind.scale)
    if all(total is None or total.copy_abs() < limit for total in sums.values()):
        found = result_of(when, {"sum": jt.agg.sum("x")}, kind, table, schedule)
        assert {key: row["sum"] for key, row in found.items()} == sums
    else:
        with pytest.raises(BatchError, match=rf"not a decimal\d+\({digits}, .*key='[ab]'.*'sum'"):
            result_of(when, {"sum": jt.agg.sum("x")}, kind, table, schedule)


def test_what_a_reduction_makes_of_numbers_must_fit_too() -> None:
    for values, kind in (
        (pa.array([MOST, MOST]), "number of 64 bits"),
        (pa.array([Decimal(99), Decimal(99)], pa.decimal128(2, 0)), r"decimal128\(2, 0\)"),
    ):
        flow = jt.Flow("reduced")
        keyed = flow.input("in").key_by("key").each_time()
        flow.output("out", keyed.reduce("x", lambda a, b: a + b))
        table = pa.table({"time": [7, 7], "key": [1, 1], "x": values})
        with pytest.raises(BatchError, match=rf"not a {kind}.*key=1.*'reduce'.*time 7"):
            flow.run({"in": table})


def spark_order(value: float) -> tuple[bool, float]:
    """NaN is the greatest."""
    return (True, 0.0) if math.isnan(value) else (False, value)


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()], ids=str)
@pytest.mark.parametrize("when", WHEN)
@settings(max_examples=8)
@given(
    rows=rows(st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.5, None])), schedule=schedules()
)
def test_nan_is_the_greatest_number(
    kind: pa.DataType, when: str, rows: list[Row], schedule: Schedule
) -> None:
    if kind == pa.float16():
        rows = [r | {"x": None if r["x"] is None else np.float16(r["x"])} for r in rows]
    aggregates = {"min": jt.agg.min("x"), "max": jt.agg.max("x")}
    found = result_of(when, aggregates, kind, rows, schedule)
    for key, values in grouped(rows).items():
        for name, choose in (("min", min), ("max", max)):
            expected = choose(map(float, values), key=spark_order, default=None)
            result = found[key][name]
            if expected is None or math.isnan(expected):
                assert repr(result) == repr(expected)
            else:
                # Zero is emitted without a sign, whichever came.
                assert repr(float(result)) == repr(expected + 0.0)


def test_nan_in_rolling_extremes_and_in_orders() -> None:
    values = [1.0, NAN, -INF, INF, None]
    flow = jt.Flow("orders")
    numbers = flow.input("in", schema={"x": float})
    rolled = numbers.key_by().running(ordered=True)
    flow.output("out", rolled.aggregate(least=jt.agg.min("x"), most=jt.agg.max("x")))
    for name, ascending in (("up", True), ("down", False)):
        best = numbers.key_by().tumbling(10).top_k(5, by="x", ascending=ascending)
        flow.output(name, best)
    found = flow.run({"in": {"time": [0, 1, 2, 3, 4], "x": values}})
    assert str(found["out"]["least"].to_pylist()) == "[1.0, 1.0, -inf, -inf, -inf]"
    assert str(found["out"]["most"].to_pylist()) == "[1.0, nan, nan, nan, nan]"
    assert str(found["up"]["x"].to_pylist()) == "[-inf, 1.0, inf, nan, None]"
    assert str(found["down"]["x"].to_pylist()) == "[nan, inf, 1.0, -inf, None]"


TIED = pa.schema(
    [
        ("time", pa.int64()),
        ("key", pa.int64()),
        ("z", pa.float64()),
        ("a", pa.string()),
        ("m", pa.list_(pa.int64())),
    ]
)


def tied_rows() -> list[Row]:
    choose = random.Random(7)
    return [
        {
            "time": choose.randint(0, 3),
            "key": choose.randint(0, 2),
            "z": choose.choice([1.0, NAN, 2.0, None]),
            "a": choose.choice(["x", "y", None]),
            "m": choose.choice([[1], [2, 3], []]),
        }
        for _ in range(40)
    ]


def follow(state: list[Any], row: Row) -> tuple[list[Any], list[Row]]:
    seen = [*state, (row["z"], row["a"], row["m"])]
    return seen, [{"n": len(seen), "seen": str(seen)}]


def together(key: Row, left: jt.Batch, right: jt.Batch) -> Row:
    return {"left": str(left.rows()), "right": str(right.rows())}


TIES: dict[str, Callable[[jt.Stream, jt.Stream], jt.Stream]] = {
    "stateful_map": lambda one, _: one.key_by("key").stateful_map(follow, list),
    "rolling": lambda one, _: one.key_by("key").running(ordered=True).count(),
    "top_k": lambda one, _: one.key_by("key").tumbling(2).top_k(3, by="z"),
    "asof_join": lambda one, other: one.key_by("key").asof_join(other.key_by("key")),
    "cogroup": lambda one, other: one.key_by("key").cogroup(other.key_by("key"), together),
}


def answers(name: str, seed: int) -> list[str]:
    table = tied_rows()
    random.Random(seed).shuffle(table)

    def build(flow: jt.Flow) -> None:
        known = pa.schema(list(TIED)[1:])
        flow.output("out", TIES[name](*(flow.input(one, schema=known) for one in inputs)))

    inputs = {"one": table, "other": table}
    found = run_twin(build, inputs, schedule_of(seed), schema=dict.fromkeys(inputs, TIED))
    return sorted(map(str, found["out"]))


@pytest.mark.parametrize("name", TIES)
def test_ties_are_broken_by_values_alone(name: str) -> None:
    first = answers(name, 0)
    for seed in range(1, 12):
        assert answers(name, seed) == first


def test_a_column_of_another_name_changes_nothing() -> None:
    def states(names: tuple[str, str]) -> list[Any]:
        flow = jt.Flow("names")

        def step(state: list[Any], row: Row) -> tuple[list[Any], list[Row]]:
            seen = [*state, (row[names[0]], row[names[1]])]
            return seen, [{"seen": str(seen)}]

        flow.output("out", flow.input("in").key_by().stateful_map(step, list))
        table = {"time": [0, 0, 0], names[0]: [2, 1, 1], names[1]: [5, 7, 6]}
        found: list[Any] = flow.run({"in": table}, workers=2)["out"]["seen"].to_pylist()
        return found

    assert states(("a", "b")) == states(("b", "a")) == states(("z", "a"))
    assert states(("z", "a"))[-1] == "[(1, 6), (1, 7), (2, 5)]"
