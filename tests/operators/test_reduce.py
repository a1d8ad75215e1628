"""reduce and fold with functions of the user's, plain and compiled, against their twins."""

from __future__ import annotations

import functools
import warnings
from collections import defaultdict
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import SlowKernel
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules
from tests.operators.value_types import VALUE_TYPES, schema_for, through_arrow, typed_rows


def greater(a: Any, b: Any) -> Any:
    return a if a > b else b


def added_squares(state: Any, x: Any) -> Any:
    return state + x * x


def added(a: Any, b: Any) -> Any:
    return a + b


def rooted(state: Any) -> Any:
    return state**0.5


# Compiled once for all examples.
GREATER, SQUARES = jt.kernel(greater), jt.kernel(added_squares)
ADDED, ROOTED = jt.kernel(added), jt.kernel(rooted)


def windows(rows: list[Row]) -> list[tuple[int, int, list[Any]]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        groups[(row["time"] // 10 + 1) * 10, row["key"]].append(row["value"])
    return [(end, key, values) for (end, key), values in groups.items()]


@pytest.mark.parametrize("name", VALUE_TYPES)
@settings(max_examples=10)
@given(data=st.data(), schedule=schedules())
def test_reduce_equals_its_twin_for_all_types_of_values(
    name: str, data: st.DataObject, schedule: Schedule
) -> None:
    schema = schema_for(name)
    rows = through_arrow(data.draw(typed_rows(name)), schema)

    def build(flow: jt.Flow) -> None:
        keyed = flow.input("in").key_by("key")
        flow.output(
            "out",
            keyed.tumbling(10).aggregate(
                plain=jt.agg.reduce("value", greater),
                compiled=jt.agg.reduce("value", GREATER),
            ),
        )

    expected = []
    for end, key, values in windows(rows):
        known = [value for value in values if value is not None]
        most = functools.reduce(greater, known) if known else None
        expected.append({"time": end, "key": key, "plain": most, "compiled": most})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowKernel)  # text, decimals, times
        found = run_twin(build, {"in": rows}, schedule, schema={"in": schema})
    assert_same(found["out"], expected)


NUMBERS = [name for name, kind in VALUE_TYPES.items() if kind.sums and name != "decimal"]


@pytest.mark.parametrize("name", NUMBERS)
@settings(max_examples=10)
@given(data=st.data(), schedule=schedules())
def test_fold_equals_its_twin(name: str, data: st.DataObject, schedule: Schedule) -> None:
    schema = schema_for(name)
    rows = through_arrow(data.draw(typed_rows(name)), schema)
    rows = [row for row in rows if row["value"] is None or abs(row["value"]) < 2**20]

    def build(flow: jt.Flow) -> None:
        keyed = flow.input("in").key_by("key")
        flow.output(
            "out",
            keyed.tumbling(10).aggregate(
                floats=jt.agg.fold("value", 0.5, SQUARES),
                integers=jt.agg.fold("value", 1, SQUARES),
                root=jt.agg.fold("value", 0.0, SQUARES, finish=ROOTED),
                text=jt.agg.fold("value", 0.0, SQUARES, finish=lambda state: f"{state:.4g}"),
                all=jt.agg.fold("value", list, lambda state, v: sorted([*state, repr(v)])),
            ),
        )

    expected = []
    for end, key, values in windows(rows):
        total = sum(value * value for value in values if value is not None)
        expected.append(
            {
                "time": end,
                "key": key,
                "floats": total + 0.5,
                "integers": total + 1,
                "root": float(total) ** 0.5,
                "text": f"{total:.4g}",
                "all": sorted(map(repr, values)),
            }
        )
    found = run_twin(build, {"in": rows}, schedule, schema={"in": schema})
    assert_same(found["out"], expected)


@settings(max_examples=25)
@given(rows=typed_rows("int32", distinct_times=True), schedule=schedules())
def test_rolling_and_sessions_run_compiled_functions(rows: list[Row], schedule: Schedule) -> None:
    def build(flow: jt.Flow) -> None:
        keyed = flow.input("in").key_by("key")
        flow.output("rolling", keyed.running(ordered=True).fold("value", 0, SQUARES))
        flow.output("most", keyed.session_window(5).reduce("value", GREATER))
        flow.output("compiled", keyed.session_window(5).fold("value", 0, SQUARES, merge=ADDED))
        flow.output("plain", keyed.session_window(5).fold("value", 0, SQUARES, merge=added))

    rows = [row for row in rows if row["value"] is None or abs(row["value"]) < 1000]
    found = run_twin(build, {"in": rows}, schedule, schema={"in": schema_for("int32")})
    totals: dict[int, int] = defaultdict(int)
    rolling, sessions = [], []
    current: dict[int, Row] = {}
    for row in sorted(rows, key=lambda row: row["time"]):
        totals[row["key"]] += (row["value"] or 0) ** 2
        rolling.append(row | {"fold": totals[row["key"]]})
        session = current.get(row["key"])
        if session is None or row["time"] >= session["time"]:
            session = {"key": row["key"], "start": row["time"], "fold": 0, "reduce": None}
            current[row["key"]] = session
            sessions.append(session)
        session["time"] = row["time"] + 5
        if row["value"] is not None:
            session["fold"] += row["value"] ** 2
            most = session["reduce"]
            session["reduce"] = row["value"] if most is None else max(most, row["value"])
    assert_same(found["rolling"], rolling)
    for output, name in (("most", "reduce"), ("compiled", "fold"), ("plain", "fold")):
        columns = ("time", "key", "start", name)
        assert_same(found[output], [{c: s[c] for c in columns} for s in sessions])


@pytest.mark.parametrize("times", [[0, 8, 4], [8, 0, 4], [0, 4, 8], [4, 0, 8]])
def test_states_of_sessions_that_turn_out_to_be_one_are_joined(times: list[int]) -> None:
    flow = jt.Flow("bridges")
    sessions = flow.input("in").key_by().session_window(5)
    flow.output("reduce", sessions.reduce("n", ADDED))
    flow.output("fold", sessions.fold("n", 0, SQUARES, merge=ADDED))
    flow.output("python", sessions.fold("n", 0, SQUARES, merge=added))
    with flow.open() as run:
        for time, n in zip(times, (1, 2, 3), strict=True):
            run.input("in").send({"time": [time], "n": [n]})
            run.run_to_rest()
        result = run.finish()
    assert result["reduce"].to_pylist() == [{"time": 13, "start": 0, "reduce": 6}]
    assert result["fold"]["fold"].to_pylist() == [14]
    assert result["python"]["fold"].to_pylist() == [14]


def test_a_kernel_that_cannot_be_compiled_runs_as_it_is_and_says_so() -> None:
    flow = jt.Flow("text")
    longer = jt.kernel(lambda a, b: a if len(a) > len(b) else b)
    flow.output("out", flow.input("in").key_by().tumbling(10).reduce("word", longer))
    with pytest.warns(SlowKernel, match="string"):
        table = flow.run({"in": {"time": [0, 1], "word": ["a", "bcd"]}})["out"]
    assert table["reduce"].to_pylist() == ["bcd"]


def test_integers_become_floating_point_numbers_where_the_function_makes_them() -> None:
    flow = jt.Flow("halves")
    halved = jt.kernel(lambda state, x: state / 2 + x)
    flow.output("out", flow.input("in").key_by().running().fold("n", 0, halved))
    assert flow.run({"in": {"time": [0, 1], "n": [1, 2]}})["out"]["fold"].to_pylist() == [1.0, 2.5]


def test_values_may_change_from_integers_to_floating_point_numbers() -> None:
    flow = jt.Flow("mixed")
    flow.output("out", flow.input("in").key_by().tumbling(100).reduce("n", ADDED))
    with flow.open() as run:
        run.input("in").send({"time": [0, 1], "n": np.array([1, 2], dtype=np.int8)})
        run.run_to_rest()
        run.input("in").send({"time": [2], "n": [0.5]})
        run.input("in").send(
            {
                "time": [3],
                "n": pa.array(
                    [
                        None,
                    ],
                    pa.null(),
                ),
            }
        )
        assert run.finish()["out"]["reduce"].to_pylist() == [3.5]


KNOWN = {
    "number": pa.array([7]),
    "text": pa.array(["seven"]),
    "time": pa.array([7], pa.timestamp("ms")),
    "decimal": pa.array([Decimal("7.25")]),
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("first", [True, False])
def test_a_column_whose_type_is_not_known_at_first_or_for_a_while(name: str, first: bool) -> None:
    flow = jt.Flow("nulls")
    windows = flow.input("in").key_by("k").tumbling(100)
    flow.output("out", windows.aggregate(least=jt.agg.min("v"), n=jt.agg.count("v")))
    unknown = pa.table({"time": [0, 1], "k": [1, 2], "v": pa.nulls(2)})
    known = pa.table({"time": [2], "k": [1], "v": KNOWN[name]})
    with flow.open(workers=2) as run:
        run.input("in").send(unknown if first else known)
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=3, restore=snapshot) as run:
        run.input("in").send(known if first else unknown)
        found = {row["k"]: row for row in run.finish()["out"].to_pylist()}
    assert found[1]["least"] == known["v"][0].as_py()
    assert found[1]["n"] == 1
    assert found[2]["least"] is None
    assert found[2]["n"] == 0


@pytest.mark.parametrize(
    ("kind", "made"),
    [(pa.int8(), pa.int64()), (pa.float32(), pa.float64()), (pa.bool_(), pa.bool_())],
    ids=str,
)
@pytest.mark.parametrize("when", ["tumbling", "running"])
def test_a_reduction_of_nulls_has_the_type_of_one_of_values(
    kind: pa.DataType, made: pa.DataType, when: str
) -> None:
    flow = jt.Flow("nulls")
    keyed = flow.input("in").key_by("k")
    groups = keyed.running() if when == "running" else keyed.tumbling(10)
    flow.output("out", groups.reduce("x", lambda a, b: a or b))
    rows = {"time": [0, 1], "k": [1, 2], "x": pa.array([None, None], kind)}
    assert flow.run({"in": rows})["out"]["reduce"].type == made
    with flow.open(workers=2) as run:
        run.input("in").send(rows)
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(restore=snapshot) as run:
        run.input("in").send({"time": [2], "k": [1], "x": pa.array([None], pa.null())})
        assert run.finish()["out"]["reduce"].type == made
