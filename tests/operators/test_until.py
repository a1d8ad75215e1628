"""Windows that end where a column says: whatever the unit, and with or without a time zone."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import GraphError, TimeError

NOON = datetime(2024, 5, 1, 12)
UNITS = ("s", "ms", "us", "ns")


def auctions(time: str = "ts") -> jt.Flow:
    flow = jt.Flow("auctions")
    bids = flow.input("bids", time=time)
    flow.output("best", bids.key_by("item").until("ends").max("price"))
    return flow


def bids(times: Any, ends: Any) -> pa.Table:
    return pa.table({"ts": times, "ends": ends, "item": [7, 8, 7], "price": [3, 2, 4]})


def moments(kind: pa.DataType, *minutes: int) -> pa.Array:
    zone = UTC if getattr(kind, "tz", None) else None
    return pa.array([NOON.replace(tzinfo=zone) + timedelta(minutes=m) for m in minutes], kind)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("ends", UNITS)
@pytest.mark.parametrize("times", UNITS)
def test_ends_of_any_unit_with_times_of_any_unit(
    times: str, ends: str, zone: str | None, workers: int
) -> None:
    # An end's zone may be another than the times': both are instants.
    other = "UTC" if zone else None
    kind = pa.timestamp(times, zone)
    table = bids(moments(kind, 1, 2, 3), moments(pa.timestamp(ends, other), 5, 9, 5))
    result = auctions().run({"bids": table}, workers=workers)["best"]
    assert result.column("ts").combine_chunks() == moments(pa.timestamp("us", zone), 5, 9)
    assert result.column("max").to_pylist() == [4, 2]


def test_dates_datetimes_and_stamps_of_pandas_and_numpy() -> None:
    days = [date(2024, 5, 2), date(2024, 5, 3), date(2024, 5, 2)]
    times = moments(pa.timestamp("us"), 1, 2, 3)
    each: dict[str, Any] = {
        "dates": pa.array(days),
        "date64": pa.array(days, pa.date64()),
        "datetimes": [datetime(day.year, day.month, day.day) for day in days],
        "pandas": pd.Series(pd.to_datetime(days)),
        "numpy": np.array(days, "datetime64[s]"),
    }
    for name, ends in each.items():
        result = auctions().run({"bids": bids(times, ends)})["best"]
        assert result.column("ts").to_pylist() == [datetime(2024, 5, 2), datetime(2024, 5, 3)], name
    with auctions("time").open() as run:
        run.input("bids").send(
            time=np.array(["2024-05-01T12"], "datetime64[h]"),
            ends=np.array(["2024-05-02"], "datetime64[D]"),
            item=[7],
            price=[3],
        )
        table = run.finish()["best"]
    assert table.column("time").to_pylist() == [datetime(2024, 5, 2)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("times", "ends", "why"),
    [
        (moments(pa.timestamp("us"), 1, 2, 3), [5, 9, 5], "integers .* with timestamps"),
        ([1, 2, 3], moments(pa.timestamp("us"), 5, 9, 5), "timestamps .* with integers"),
        (
            moments(pa.timestamp("us", "UTC"), 1, 2, 3),
            moments(pa.timestamp("us"), 5, 9, 5),
            "timestamps cannot be .* with timestamps with a time zone",
        ),
        (
            moments(pa.timestamp("us", "UTC"), 1, 2, 3),
            pa.array([date(2025, 1, 1)] * 3),
            "timestamps cannot be .* with a time zone",
        ),
        (
            moments(pa.timestamp("us"), 1, 2, 3),
            pa.array([2**62 + 1] * 3, pa.timestamp("ns")),
            "2116-02-20T23:53:38.427387905 is not a whole number of us",
        ),
        (
            moments(pa.timestamp("us"), 1, 2, 3),
            pa.array([2**60] * 3, pa.timestamp("s")),
            "does not fit into 64 bits of us.*unit='s'",
        ),
        ([1, 2, 3], pa.array([2**63] * 3, pa.uint64()), "9223372036854775808 does not fit"),
        ([1, 2, 3], [5.0, 9.0, 5.0], "float64"),
        ([1, 2, 3], pa.array([5, None, 5]), "1 nulls"),
    ],
)
def test_ends_that_are_no_such_times_are_refused(
    times: Any, ends: Any, why: str, workers: int
) -> None:
    with pytest.raises(TimeError, match=rf"column 'ends'.*{why}"):
        auctions().run({"bids": bids(times, ends)}, workers=workers)


def test_a_column_that_cannot_end_windows_is_refused_at_the_call() -> None:
    flow = jt.Flow("declared")
    stream = flow.input("bids", schema={"item": int, "ends": str, "price": int})
    with pytest.raises(GraphError, match="column 'ends' is of type string"):
        stream.key_by("item").until("ends")


@settings(max_examples=60)
@given(
    stamps=st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=20),
    times=st.sampled_from(UNITS),
    ends=st.sampled_from(UNITS),
    workers=st.integers(1, 3),
)
def test_units_make_no_difference(stamps: list[int], times: str, ends: str, workers: int) -> None:
    def answer(times: str, ends: str) -> list[datetime]:
        table = pa.table(
            {
                "ts": pa.array(stamps, pa.timestamp("s")).cast(pa.timestamp(times)),
                "ends": pa.array([s + 7 for s in stamps], pa.timestamp("s")).cast(
                    pa.timestamp(ends)
                ),
                "item": [s % 3 for s in stamps],
                "price": stamps,
            }
        )
        result = auctions().run({"bids": table}, workers=workers)["best"]
        return sorted(result.column("ts").cast(pa.timestamp("us")).to_pylist())

    assert answer(times, ends) == answer("us", "us")


def test_units_are_known_behind_other_operators_and_after_a_restart() -> None:
    flow = jt.Flow("twice")
    firsts = flow.input("bids", time="ts").key_by("item").tumbling("1 minute").max("price")
    late = firsts.with_columns(ends=lambda batch: np.full(len(batch), NOON_IN_NS))
    flow.output("best", late.key_by().until("ends").max("max"))
    table = bids(moments(pa.timestamp("us"), 1, 2, 3), [0, 0, 0])
    with flow.open(workers=2) as run:
        run.input("bids").send(table.drop_columns(["ends"]))
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=3, restore=snapshot) as run:
        rows = run.finish()["best"].to_pylist()
    assert rows == [{"ts": NOON + timedelta(hours=1), "max": 4}]


NOON_IN_NS = np.datetime64(NOON + timedelta(hours=1), "ns")


def test_inputs_in_different_units_meet_and_integers_are_refused() -> None:
    flow = jt.Flow("mixed")
    flow.output("out", flow.input("a").concat(flow.input("b")))
    with flow.open() as run:
        run.input("a").send({"time": moments(pa.timestamp("us"), 1)})
        run.input("b").send({"time": moments(pa.timestamp("ms"), 2)})
        with pytest.raises(TimeError, match=r"'b' are integers, but other times .* timestamps"):
            run.input("b").send({"time": [3]})
        found = run.finish()["out"]
    assert found.column("time").combine_chunks() == moments(pa.timestamp("us"), 1, 2)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("rests", [False, True])
def test_batches_of_one_input_with_and_without_a_zone_are_refused(
    workers: int, seed: int | None, rests: bool
) -> None:
    flow = jt.Flow("mixed")
    # No record goes to another worker: only the workers' progress does.
    flow.output("out", flow.input("in"))
    with flow.open(workers=workers, seed=seed) as run:
        run.input("in", 0).send({"time": moments(pa.timestamp("us"), 1)})
        if rests:
            run.input("in", 0).advance_to(1)
            run.run_to_rest()

        def go_on() -> None:
            # Refused at once on one worker, or if it knows its peer's times, otherwise later.
            run.input("in", workers - 1).send({"time": moments(pa.timestamp("ms", "UTC"), 1)})
            run.finish()

        with pytest.raises(TimeError, match=r"are timestamps.*, but .* timestamps"):
            go_on()
