"""Calendar windows: days, weeks and months in a zone, compared with DuckDB and pandas."""

from __future__ import annotations

import datetime
from typing import Any

import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.columns.calendars import CalendarGrid
from jeton.columns.durations import Calendar
from jeton.errors import GraphError, JetonError, TimeError

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "Asia/Kathmandu",
         "America/Sao_Paulo", "Australia/Lord_Howe", "America/Havana"]  # fmt: skip
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

seconds = st.integers(
    int(datetime.datetime(1975, 1, 1).timestamp()), int(datetime.datetime(2037, 1, 1).timestamp())
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(seconds, min_size=1, max_size=20),
    st.sampled_from(ZONES),
    st.sampled_from(["day", "week", "month"]),
    st.sampled_from(list(PER_SECOND)),
)
def test_bounds_are_duckdbs(at: list[int], zone: str, part: Any, unit: str) -> None:
    times = np.array(at) * PER_SECOND[unit]
    starts, ends = CalendarGrid(Calendar(1, part), unit, zone).around(times)
    assert (starts <= times).all()
    assert (times < ends).all()
    found = _duckdb_starts(at, zone, part)
    for time, start, other in zip(at, starts.tolist(), found, strict=True):
        assert start == other * PER_SECOND[unit], (time, zone, part)


def _duckdb_starts(at: list[int], zone: str, part: str) -> list[int]:
    connection = duckdb.connect()
    connection.execute("load icu") if _has_icu(connection) else pytest.skip("DuckDB has no zones")
    connection.execute(f"set timezone = '{zone}'")
    rows = connection.execute(
        f"select epoch(date_trunc('{part}', to_timestamp(s)))::bigint from "
        "(select unnest($1) as s, generate_subscripts($1, 1) as n) order by n",
        [at],
    ).fetchall()
    return [row[0] for row in rows]


def _has_icu(connection: duckdb.DuckDBPyConnection) -> bool:
    found = connection.execute(
        "select installed from duckdb_extensions() where extension_name = 'icu'"
    ).fetchone()
    return bool(found and found[0])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(seconds, min_size=1, max_size=20),
    st.sampled_from(ZONES),
    st.sampled_from(["day", "week", "month"]),
    st.integers(1, 5),
)
def test_windows_tile_time(at: list[int], zone: str, part: Any, count: int) -> None:
    """Each time is in its window, and the next window starts where it ends."""
    grid = CalendarGrid(Calendar(count, part), "s", zone)
    times = np.array(at)
    starts, ends = grid.around(times)
    assert (starts <= times).all()
    assert (times < ends).all()
    assert (grid.around(ends - 1)[0] == starts).all()
    assert (grid.around(ends)[0] == ends).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(seconds, min_size=1, max_size=20), st.sampled_from(["D", "W-SUN", "M"]))
def test_without_a_zone_they_are_pandas(at: list[int], frequency: str) -> None:
    part: Any = {"D": "day", "W-SUN": "week", "M": "month"}[frequency]
    starts, _ = CalendarGrid(Calendar(1, part), "s", None).around(np.array(at))
    expected = pd.to_datetime(pd.Series(at), unit="s").dt.to_period(frequency).dt.start_time
    assert starts.tolist() == (expected.astype("datetime64[s]").astype("int64")).tolist()


def windows(size: Any, **options: Any) -> jt.Flow:
    flow = jt.Flow("windows")
    stream = flow.input("in", time="at").key_by()
    flow.output("out", stream.tumbling(size, bounds=True, **options).count())
    return flow


def test_days_of_23_and_25_hours() -> None:
    zone = "Europe/Berlin"
    hours = pd.date_range("2024-03-30", "2024-04-02", freq="h", tz=zone, inclusive="left")
    more = pd.date_range("2024-10-26", "2024-10-29", freq="h", tz=zone, inclusive="left")
    table = pa.table({"at": pa.array(hours.append(more))})
    found = windows("1 day", zone=zone).run({"in": table}, workers=2)["out"]
    assert found["count"].to_pylist() == [24, 23, 24, 24, 25, 24]
    assert found.schema.field("window_start").type == pa.timestamp("us", zone)
    assert found["window_end"] == found["at"]
    lengths = [
        row["window_end"].astimezone(datetime.UTC) - row["window_start"].astimezone(datetime.UTC)
        for row in found.to_pylist()
    ]
    assert [length // datetime.timedelta(hours=1) for length in lengths] == [24, 23, 24, 24, 25, 24]


def test_weeks_begin_on_mondays() -> None:
    days = [datetime.datetime(2024, 4, 28), datetime.datetime(2024, 4, 29)]
    found = windows("1 week").run({"in": {"at": days}})["out"]
    assert found["window_start"].to_pylist() == [
        datetime.datetime(2024, 4, 22),
        datetime.datetime(2024, 4, 29),
    ]


def test_months_survive_a_restart_on_more_workers() -> None:
    flow = windows("1 month")
    with flow.open() as run:
        run.input("in").send({"at": [datetime.datetime(2024, 2, 10)]})
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=3, restore=snapshot) as run:
        run.input("in", 2).send({"at": [datetime.datetime(2024, 2, 20)]})
        found = run.finish()["out"]
    assert found["count"].to_pylist() == [2]
    assert found["at"].to_pylist() == [datetime.datetime(2024, 3, 1)]


def test_what_cannot_be() -> None:
    stream = jt.Flow("f").input("in").key_by()
    with pytest.raises(GraphError, match=r"no time zone 'Mars/Olympus'"):
        stream.tumbling("1 day", zone="Mars/Olympus")
    with pytest.raises(GraphError, match=r"zone= is for days, weeks and months"):
        stream.tumbling("1 hour", zone="UTC")
    with pytest.raises(GraphError, match=r"offset= is for others"):
        stream.tumbling("1 month", offset="1h")
    with pytest.raises(GraphError, match=r"needs a size that is a whole number of steps"):
        stream.sliding("1 month", every="1 day")
    with pytest.raises(GraphError, match=r"needs a size that is a whole number of steps"):
        stream.sliding("3 months", every="2 months")
    with pytest.raises(GraphError, match=r"needs a size that is a whole number of steps"):
        stream.sliding("90 minutes", every="1 day", zone="UTC")
    with pytest.raises(GraphError, match=r"windows of the calendar: offset= is for others"):
        stream.sliding("2 months", every="1 month", offset="1h")
    with pytest.raises(JetonError, match=r"need times with a time zone"):
        windows("1 day", zone="UTC").run({"in": {"at": [datetime.datetime(2024, 1, 1)]}})
    with pytest.raises(TimeError, match="the last time there is"):
        CalendarGrid(Calendar(1, "month"), "ns", None).around(np.array([2**63 - 1]))


def test_seven_days_count_from_the_epoch_and_weeks_from_mondays() -> None:
    at = [datetime.datetime(2024, 4, 30)]
    monday, thursday = datetime.datetime(2024, 4, 29), datetime.datetime(2024, 4, 25)
    for size, start in (("1 week", monday), ("7 days", thursday)):
        found = windows(size).run({"in": {"at": at}})["out"]
        assert found["window_start"].to_pylist() == [start]
        flow = jt.Flow("sliding")
        stream = flow.input("in", time="at").key_by()
        flow.output("out", stream.sliding(size, every=size, bounds=True).count())
        assert flow.run({"in": {"at": at}})["out"].equals(found)
    flow = jt.Flow("two weeks")
    stream = flow.input("in", time="at").key_by()
    flow.output("out", stream.sliding("2 weeks", every="2 weeks").count())
    other = windows("2 weeks").run({"in": {"at": at}})["out"]
    assert flow.run({"in": {"at": at}})["out"]["at"] == other["at"]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(seconds, min_size=1, max_size=12),
    st.sampled_from(ZONES),
    st.sampled_from(
        [("3 months", "month", 1, 3), ("1 week", "day", 1, 7), ("1 year", "month", 3, 4)]
    ),
    st.integers(1, 3),
)
def test_sliding_windows_of_the_calendar_are_runs_of_tumbling_ones(
    at: list[int], zone: str, choice: tuple[str, Any, int, int], workers: int
) -> None:
    size, part, count, steps = choice
    times = pa.array(at, pa.timestamp("s", zone))
    flow = jt.Flow("sliding")
    stream = flow.input("in", time="at").key_by()
    every = f"{count} {part}"
    flow.output("out", stream.sliding(size, every=every, zone=zone, bounds=True).count())
    found = flow.run({"in": pa.table({"at": times})}, workers=workers)["out"]
    grid = CalendarGrid(Calendar(count, part), "s", zone)
    expected: dict[int, list[int]] = {}
    for time in at:
        start, end = (int(bound[0]) for bound in grid.around(np.array([time])))
        for _ in range(steps):
            expected.setdefault(end, []).append(time)
            end = int(grid.around(np.array([end]))[1][0])
    ends = found["window_end"].cast(pa.timestamp("s", zone)).cast(pa.int64()).to_pylist()
    assert dict(zip(ends, found["count"].to_pylist(), strict=True)) == {
        end: len(rows) for end, rows in expected.items()
    }
    for end, start in zip(ends, found["window_start"].to_pylist(), strict=True):
        first = end
        for _ in range(steps):
            first = int(grid.around(np.array([first - 1]))[0][0])
        assert start.timestamp() == first


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_a_start_before_the_first_time_is_an_error(unit: str) -> None:
    day = 86_400 * PER_SECOND[unit]
    least = -(2**63) // day * day + day
    for at, fits in ((least, True), (least - 1, False)):
        for length in ("1 day", "24 hours"):
            flow = jt.Flow("early", unit=unit)
            stream = flow.input("in", time="at").key_by()
            flow.output("out", stream.tumbling(length, bounds=True).count())
            rows = pa.table({"at": pa.array([at], pa.timestamp(unit))})
            if fits:
                starts = flow.run({"in": rows})["out"]["window_start"].cast(pa.int64())
                assert starts.to_pylist() == [least]
            else:
                with pytest.raises(TimeError, match="before -9223372036854775808"):
                    flow.run({"in": rows})
    flow = jt.Flow("integers")
    flow.output("out", flow.input("in").key_by().tumbling(2, bounds=True).count())
    found = flow.run({"in": {"time": [-(2**63)]}})["out"]
    assert found["window_start"].to_pylist() == [-(2**63)]
    flow = jt.Flow("integers")
    flow.output("out", flow.input("in").key_by().sliding(4, every=2, bounds=True).count())
    with pytest.raises(TimeError, match="before -9223372036854775808"):
        flow.run({"in": {"time": [-(2**63)]}})


def test_a_start_that_is_the_null_of_timestamps_is_an_error() -> None:
    flow = jt.Flow("powers", unit="ns")
    stream = flow.input("in", time="at").key_by()
    flow.output("out", stream.tumbling("1024ns", bounds=True).count())
    rows = pa.table({"at": pa.array([5 - 2**63], pa.timestamp("ns"))})
    with pytest.raises(TimeError, match="before -9223372036854775808"):
        flow.run({"in": rows})
