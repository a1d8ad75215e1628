"""Operators at the ends of time, against twins in Python's integers, which cannot wrap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import GraphError, TimeError
from tests.operators.twins import ALL_TIMES, Row, Schedule, assert_same, run_twin, schedules

LEAST, MOST = ALL_TIMES.minimum, jt.END_OF_TIME
STEPS = [0, 1, 2, 3, 9, 10, 11, 100, 2**62, 2**63 - 2, 2**63 - 1]
SCHEMA = pa.schema([("time", pa.int64()), ("key", pa.int64()), ("n", pa.int64())])

times = st.one_of(
    st.integers(-30, 30),
    st.integers(LEAST, LEAST + 30),
    st.integers(MOST - 30, MOST),
    st.integers(MOST - 200, MOST - 30),
    st.integers(LEAST, MOST),
)


def rows(times: st.SearchStrategy[int] = times) -> st.SearchStrategy[list[Row]]:
    row = {"time": times, "key": st.integers(0, 1), "n": st.integers(0, 2)}
    return st.lists(st.fixed_dictionaries(row), max_size=15)


def run(
    attach: Callable[[jt.Stream], jt.Stream], rows: list[Row], schedule: Schedule, *, fits: bool
) -> list[Row] | None:
    """The output; none if times end before, which must be an error that says so."""

    def build(flow: jt.Flow) -> None:
        flow.output("out", attach(flow.input("in")))

    def out() -> list[Row]:
        schema = {"in": SCHEMA}
        return run_twin(build, {"in": rows}, schedule, schema=schema, kind=ALL_TIMES)["out"]

    if fits:
        return out()
    with pytest.raises(TimeError, match=r"the last time there is.*'count'"):
        out()
    return None


def counted(groups: dict[tuple[int, int], int]) -> list[Row]:
    return [{"time": end, "key": key, "count": n} for (end, key), n in groups.items()]


@settings(max_examples=30)
@given(
    rows=rows(),
    size=st.sampled_from(STEPS[1:]),
    offset=st.sampled_from([0, 1, -7, 2**62]),
    schedule=schedules(),
)
def test_tumbling_windows(rows: list[Row], size: int, offset: int, schedule: Schedule) -> None:
    groups: dict[tuple[int, int], int] = defaultdict(int)
    for row in rows:
        groups[((row["time"] - offset) // size + 1) * size + offset, row["key"]] += 1
    fits = all(end <= MOST for end, _ in groups)
    found = run(
        lambda s: s.key_by("key").tumbling(size, offset=offset).count(), rows, schedule, fits=fits
    )
    if found is not None:
        assert_same(found, counted(groups))


@settings(max_examples=30)
@given(
    rows=rows(),
    window=st.sampled_from([(1, 1), (10, 3), (20, 10), (MOST, 2**62), (MOST, MOST - 1)]),
    offset=st.sampled_from([0, 1, -7, 2**62]),
    schedule=schedules(),
)
def test_sliding_windows(
    rows: list[Row], window: tuple[int, int], offset: int, schedule: Schedule
) -> None:
    size, every = window
    groups: dict[tuple[int, int], int] = defaultdict(int)
    for row in rows:
        end = ((row["time"] - offset) // every + 1) * every + offset
        while end <= row["time"] + size:
            groups[end, row["key"]] += 1
            end += every
    fits = all(end <= MOST for end, _ in groups)
    found = run(
        lambda s: s.key_by("key").sliding(size, every=every, offset=offset).count(),
        rows,
        schedule,
        fits=fits,
    )
    if found is not None:
        assert_same(found, counted(groups))


@settings(max_examples=30)
@given(rows=rows(), gap=st.sampled_from(STEPS[1:]), schedule=schedules())
def test_sessions(rows: list[Row], gap: int, schedule: Schedule) -> None:
    expected: list[Row] = []
    for key in (0, 1):
        mine = sorted(row["time"] for row in rows if row["key"] == key)
        sessions: list[list[int]] = []
        for time in mine:
            if sessions and time - sessions[-1][-1] < gap:
                sessions[-1].append(time)
            else:
                sessions.append([time])
        expected += [
            {"time": s[-1] + gap, "key": key, "start": s[0], "count": len(s)} for s in sessions
        ]
    fits = all(row["time"] <= MOST for row in expected)
    found = run(lambda s: s.key_by("key").session_window(gap).count(), rows, schedule, fits=fits)
    if found is not None:
        assert_same(found, expected)


def join(
    attach: Callable[[Any, Any], jt.Stream], left: list[Row], right: list[Row], schedule: Schedule
) -> list[Row]:
    def build(flow: jt.Flow) -> None:
        known = {"key": int, "n": int}
        mine, others = (flow.input(name, schema=known) for name in ("left", "right"))
        flow.output("out", attach(mine.key_by("key"), others.key_by("key")))

    inputs = {"left": left, "right": right}
    schema = {"left": SCHEMA, "right": SCHEMA}
    return run_twin(build, inputs, schedule, schema=schema, kind=ALL_TIMES)["out"]


def paired(row: Row, partner: Row | None, time: int) -> Row:
    return {**row, "time": time, "n_right": None if partner is None else partner["n"]}


@settings(max_examples=40)
@given(
    left=rows(),
    right=rows(),
    bounds=st.lists(
        st.sampled_from([*STEPS, *(-step for step in STEPS)]), min_size=2, max_size=2
    ).map(sorted),
    outer=st.booleans(),
    schedule=schedules(),
)
def test_interval_joins(
    left: list[Row], right: list[Row], bounds: list[int], outer: bool, schedule: Schedule
) -> None:
    lower, upper = bounds
    expected = []
    for row in left:
        partners = [
            other
            for other in right
            if other["key"] == row["key"] and lower <= other["time"] - row["time"] <= upper
        ]
        expected += [paired(row, o, max(row["time"], o["time"])) for o in partners]
        if outer and not partners:
            expected.append(paired(row, None, row["time"] + max(upper, 0)))

    def attach(mine: Any, others: Any) -> jt.Stream:
        joined: jt.Stream = mine.interval_join(
            others, lower, upper, how="left" if outer else "inner"
        )
        return joined

    if outer and any(row["time"] + upper > MOST for row in left):
        with pytest.raises(TimeError, match=r"the last time there is.*'interval_join'"):
            join(attach, left, right, schedule)
    else:
        assert_same(join(attach, left, right, schedule), expected)


@settings(max_examples=40)
@given(
    left=rows(),
    right=rows(),
    tolerance=st.sampled_from([None, *STEPS, 2**64]),
    schedule=schedules(),
)
def test_asof_joins(
    left: list[Row], right: list[Row], tolerance: int | None, schedule: Schedule
) -> None:
    far = 2**65 if tolerance is None else tolerance
    expected = []
    for row in left:
        partners = [
            other
            for other in right
            if other["key"] == row["key"] and 0 <= row["time"] - other["time"] <= far
        ]
        best = max(partners, key=lambda other: (other["time"], other["n"]), default=None)
        expected.append(paired(row, best, row["time"]))
    found = join(lambda m, o: m.asof_join(o, tolerance=tolerance), left, right, schedule)
    assert_same(found, expected)


@pytest.mark.parametrize("size", [0, -1, 2**63])
def test_windows_longer_than_time_are_refused(size: int) -> None:
    keyed = jt.Flow("long").input("in").key_by()
    for build in (keyed.tumbling, keyed.session_window, lambda s: keyed.sliding(s, every=1)):
        with pytest.raises(GraphError, match=str(size)):
            build(size)
