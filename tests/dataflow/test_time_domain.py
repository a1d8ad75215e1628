"""Integers and durations: one where the other belongs is an error that says what to write."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.columns.time_units import convert
from jeton.errors import GraphError, SnapshotError, TimeError

DAY = dt.datetime(2024, 5, 1)
STAMPS: dict[str, Any] = {"time": [DAY, DAY + dt.timedelta(seconds=40)], "k": [1, 1]}
NUMBERS = {"time": [0, 40], "k": [1, 1]}

CALLS: dict[str, Any] = {
    "tumbling({})": lambda s, n: s.key_by("k").tumbling(n),
    "tumbling(…, offset={})": lambda s, n: s.key_by("k").tumbling(n, offset=n),
    "sliding({}, …)": lambda s, n: s.key_by("k").sliding(n, every=n),
    "session_window({})": lambda s, n: s.key_by("k").session_window(n),
    "asof_join(…, tolerance={})": lambda s, n: s.key_by("k").asof_join(
        s.key_by("k"), tolerance=n, how="inner"
    ),
    "interval_join(…, {})": lambda s, n: s.key_by("k").interval_join(s.key_by("k"), 0, n),
    "stateful_map(…, ttl={})": lambda s, n: s.key_by("k").stateful_map(
        lambda state, row: (state, []), 0, ttl=n
    ),
    "delay({})": lambda s, n: s.delay(n),
    "input('more', lateness={})": lambda s, n: s.flow.input(
        "more" if n == 30 else f"other {n}", lateness=n
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_declared_time_column_decides_at_the_call(call: str) -> None:
    make = CALLS[call]
    shown = call if call != "tumbling(…, offset={})" else "tumbling({})"
    stream = jt.Flow("f").input("clicks", schema={"time": dt.datetime, "k": int})
    make(stream, "30s")
    with pytest.raises(GraphError) as error:
        make(stream, 30)
    assert error.value.message.startswith(f"{shown.format(30)} has an integer ")
    assert error.value.message.endswith(
        f"the times of input 'clicks' are timestamps: write {shown.format(repr('30s'))}"
    )
    stream = jt.Flow("f").input("clicks", schema={"time": int, "k": int})
    make(stream, 60)
    with pytest.raises(GraphError, match=r"duration as its .*'clicks' are integers: give"):
        make(stream, "30s")


def test_two_operators_that_disagree() -> None:
    keyed = jt.Flow("f").input("clicks").key_by()
    keyed.tumbling("10s")
    with pytest.raises(
        GraphError, match=r"session_window\(5\) .*tumbling\('10s'\) .*\(.*keyed.tumbling\(\"10s\"\)"
    ):
        keyed.session_window(5)


def test_a_time_column_that_is_declared_after_an_operator() -> None:
    flow = jt.Flow("f")
    flow.input("clicks").key_by().tumbling(10)
    with pytest.raises(GraphError, match=r"tumbling\(10\) .*'more' are timestamps: write"):
        flow.input("more", schema={"time": dt.datetime})
    with pytest.raises(GraphError, match=r"declared as string: times are integers, timestamps"):
        jt.Flow("f").input("texts", schema={"time": str})


@pytest.mark.parametrize(
    ("size", "rows", "message"),
    [
        (30, STAMPS, r"tumbling\(30\) has an integer size \(.*tumbling.*\), but the times of input "
                     r"'clicks' are timestamps: write tumbling\('30s'\)"),
        ("30s", NUMBERS, r"tumbling\('30s'\) has a duration .*, but the times of input 'clicks' "
                         r"are integers: give it an integer"),
    ],
)  # fmt: skip
def test_otherwise_the_first_data_decide(size: Any, rows: Any, message: str) -> None:
    flow = jt.Flow("f")
    flow.output("n", flow.input("clicks").key_by("k").tumbling(size).count())
    with pytest.raises(TimeError, match=message):
        flow.run({"clicks": rows})
    with flow.open() as run, pytest.raises(TimeError, match=message):
        run.input("clicks").send(rows)


def test_zero_is_both() -> None:
    for rows, upper in ((STAMPS, "1 minute"), (NUMBERS, 60)):
        flow = jt.Flow("f")
        left, right = flow.input("a").key_by("k"), flow.input("b").key_by("k")
        flow.output("n", left.interval_join(right, 0, upper))
        assert flow.run({"a": rows, "b": rows})["n"].num_rows == 3


def test_functions_get_timestamps_and_may_give_them() -> None:
    flow = jt.Flow("f")
    rows = flow.input("in", schema={"time": "datetime64[ms]", "k": int})
    later = rows.delay(lambda batch: np.asarray(batch["time"]) + np.timedelta64(1, "h"))
    flow.output("out", later.with_columns(at=lambda batch: batch["time"]))
    assert flow.output_schema("out") == pa.schema({"k": pa.int64(), "at": pa.timestamp("us")})
    found = flow.run({"in": STAMPS})["out"]
    assert found["at"].to_pylist() == found["time"].to_pylist()
    assert found["time"].to_pylist()[0] == DAY + dt.timedelta(hours=1)


def test_rows_have_timestamps_and_may_name_others() -> None:
    flow = jt.Flow("f")
    rows = flow.input("in")
    hour = dt.timedelta(hours=1)
    flow.output("rows", rows.map_rows(lambda row: {"time": row["time"] + hour, "was": row["time"]}))
    states = rows.key_by("k").stateful_map(
        lambda n, row: (n + 1, [{"n": n, "time": row["time"] + hour}, {"n": -n}]), 0
    )
    flow.output("states", states)
    found = flow.run({"in": STAMPS})
    assert found["rows"]["was"].to_pylist() == STAMPS["time"]
    assert found["rows"]["time"].to_pylist() == [time + hour for time in STAMPS["time"]]
    times = sorted([*STAMPS["time"], *(time + hour for time in STAMPS["time"])])
    assert found["states"]["time"].to_pylist() == times


def test_handles_advance_to_timestamps() -> None:
    flow = jt.Flow("f", unit="s")
    flow.output("out", flow.input("in"))
    with flow.open() as run:
        run.input("in").advance_to(DAY)
        assert run.input("in").time == int(DAY.replace(tzinfo=dt.UTC).timestamp())
        run.input("in").send({"time": [DAY - dt.timedelta(seconds=1), DAY]})
        with pytest.raises(TimeError, match="cannot go back"):
            run.input("in").advance_to(np.datetime64("2024-04-30"))
        assert run.finish().late == {"in": 1}


def test_a_snapshot_of_another_unit_is_refused() -> None:
    def flow(unit: str) -> jt.Flow:
        made = jt.Flow("f", unit=unit)
        made.output("n", made.input("in").key_by("k").tumbling("30s").count())
        return made

    with flow("ms").open() as run:
        run.input("in").send(STAMPS)
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow("ms").open(restore=snapshot, workers=2) as run:
        assert run.finish()["n"]["count"].to_pylist() == [1, 1]
    with pytest.raises(SnapshotError, match=r"size|times in ms.*unit='ms'"):
        flow("us").open(restore=snapshot)


def test_units_that_there_are() -> None:
    with pytest.raises(GraphError, match="unit is one of"):
        jt.Flow("f", unit="days")


@settings(max_examples=200)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.sampled_from(["s", "ms", "us", "ns"]),
)
def test_conversions_are_arrows_or_refused(values: list[int], unit: str, to: str) -> None:
    array = pa.array(values, pa.timestamp(unit))
    try:
        expected = array.cast(pa.timestamp(to)).cast(pa.int64()).to_pylist()
    except pa.ArrowInvalid:
        expected = None
    try:
        found = convert(np.array(values), unit, to, "it").tolist()
    except TimeError:
        found = None
    assert found == expected
