"""First steps of a new user: answers follow from the data, and errors say what to pass instead."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import BatchError, GraphError, OperatorFailed, TimeError


def run_one(make: Any, *batches: Any, **options: Any) -> pa.Table:
    """The result of a flow with one input and one output."""
    flow = jt.Flow("one")
    flow.output("o", make(flow.input("i", **options)))
    with flow.open() as run:
        for batch in batches:
            run.input("i").send(batch)
        return run.finish()["o"]


def run_table(make: Any, data: Any, **options: Any) -> pa.Table:
    """The same from a whole table."""
    flow = jt.Flow("one")
    flow.output("o", make(flow.input("i", **options)))
    return flow.run({"i": data})["o"]


def test_rows_keep_columns_that_the_first_row_lacks() -> None:
    rows = [{"time": 1, "k": "a"}, {"time": 2, "k": "b", "z": 5}]
    expected = [{"time": 1, "k": "a", "z": None}, {"time": 2, "k": "b", "z": 5}]
    assert run_table(lambda s: s, rows).to_pylist() == expected
    assert run_one(lambda s: s, rows).to_pylist() == expected


def test_rows_that_are_no_dictionaries_are_refused() -> None:
    with pytest.raises(BatchError, match=r"a dictionary for each, not 5"):
        run_table(lambda s: s, [5, 6])


@pytest.mark.parametrize(
    "make",
    [
        lambda s: s.key_by("k").tumbling(10).sum("n", name="time"),
        lambda s: s.key_by("k").running().count(name="time"),
        lambda s: s.key_by("k").session_window(10).count(name="time"),
    ],
)
def test_an_aggregate_cannot_take_the_time_columns_place(make: Any) -> None:
    with pytest.raises(GraphError, match=r"'time' is the time column.*another name"):
        make(jt.Flow("f").input("i"))


def test_a_session_cannot_tell_its_start_in_the_time_column() -> None:
    with pytest.raises(GraphError, match=r"give the time column of the input another name"):
        jt.Flow("f").input("i", time="start").key_by().session_window(10)


@pytest.mark.parametrize(("zone", "declared"), [(None, "Europe/Berlin"), ("Europe/Berlin", None)])
def test_a_schema_does_not_take_clocks_for_instants(zone: str | None, declared: str | None) -> None:
    stamps = pa.array([datetime.datetime(2020, 1, 1)], pa.timestamp("us", zone))
    with pytest.raises(BatchError, match=r"column 'e' is of type .* cast it first"):
        run_one(
            lambda s: s,
            {"time": [0], "e": stamps},
            schema={"e": pa.timestamp("us", declared)},
        )


def test_a_schema_converts_between_zones_and_units() -> None:
    stamps = pa.array([datetime.datetime(2020, 1, 1)], pa.timestamp("ms", "UTC"))
    kind = pa.timestamp("us", "Europe/Berlin")
    found = run_one(lambda s: s, {"time": [0], "e": stamps}, schema={"e": kind})["e"]
    assert found.type == kind
    assert found.cast(pa.int64()).to_pylist() == [1577836800000000]


@pytest.mark.parametrize("kind", [pa.time64("ns"), pa.timestamp("ns", "UTC")], ids=str)
def test_extremes_of_times_keep_their_nanoseconds(kind: pa.DataType) -> None:
    rows = {"time": [0, 0, 0], "v": pa.array([7, 5, None], kind)}
    found = run_table(
        lambda s: s.key_by().tumbling(10).aggregate(low=jt.agg.min("v"), high=jt.agg.max("v")),
        rows,
    )
    assert found["low"].type == kind
    assert found["low"].cast(pa.int64()).to_pylist() == [5]
    assert found["high"].cast(pa.int64()).to_pylist() == [7]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([3, 1, 2], pa.date32()),
        pa.array([3, 1, 2], pa.timestamp("us")),
        pa.array([3, 1, 2], pa.time64("ns")),
        pa.array([3, 1, 2], pa.duration("ms")),
        pa.array([3, 1, 2]).cast(pa.decimal128(25, 2)),
        pa.array(["c", "a", "b"]),
    ],
    ids=lambda values: str(values.type),
)
def test_extremes_of_categories_of_any_type(values: pa.Array) -> None:
    rows = {"time": [0, 0, 0], "v": values.dictionary_encode()}
    found = run_table(lambda s: s.key_by().tumbling(10).min("v"), rows)["min"].combine_chunks()
    if pa.types.is_dictionary(found.type):
        found = found.dictionary_decode()
    assert found.equals(values[1:2])


def test_structures_have_no_least() -> None:
    rows = {"time": [0, 0], "v": [{"a": 1}, {"a": 2}]}
    with pytest.raises(BatchError, match=r"have no order.*fields"):
        run_table(lambda s: s.key_by().tumbling(10).min("v"), rows)


ZEROS = [
    np.array([0.0, -0.0]),
    np.array([0.0, -0.0], np.float32),
    pa.array([0.0, -0.0, None]),
    pa.array([0.0, -0.0, None], pa.float16()),
]


@pytest.mark.parametrize("zeros", ZEROS, ids=lambda zeros: str(getattr(zeros, "type", "numpy")))
@pytest.mark.parametrize(
    "make",
    [
        lambda s: s.key_by("k").tumbling(10).count(),
        lambda s: s.key_by("k").distinct(),
        lambda s: s.key_by("k").tumbling(10).distinct(),
    ],
    ids=["count", "distinct", "window"],
)
def test_a_key_of_zero_has_one_sign(zeros: Any, make: Any) -> None:
    keys = pa.array(zeros)
    for order in (keys, keys.take(pa.array(range(len(keys))[::-1]))):
        found = run_table(make, {"time": [0] * len(order), "k": order})["k"].to_pylist()
        known = [value for value in found if value is not None]
        assert len(found) == (2 if keys.null_count else 1)
        assert not np.signbit(known).any()


def test_equal_records_are_told_apart_by_the_sign_of_zero() -> None:
    def best(values: list[float]) -> list[Any]:
        rows = {"time": [0, 0], "x": values}
        found = run_table(lambda s: s.key_by().tumbling(10).top_k(1, by="x"), rows)
        return list(found["x"].to_pylist())

    assert str(best([-0.0, 0.0])) == str(best([0.0, -0.0]))


def test_half_floats_with_nulls_are_keys() -> None:
    rows = {"time": [1, 2, 3, 4], "k": pa.array([1.0, None, 1.0, None], pa.float16())}
    found = run_table(lambda s: s.key_by("k").tumbling(10).count(), rows).to_pylist()
    assert sorted((row["k"] is None, row["count"]) for row in found) == [(False, 2), (True, 2)]


def test_intervals_of_months_cannot_be_keys() -> None:
    rows = {"time": [1], "k": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}
    with pytest.raises(BatchError, match=r"month_day_nano_interval cannot be keys"):
        run_table(lambda s: s.key_by("k").tumbling(10).count(), rows)


@pytest.mark.parametrize(
    "sends",
    [
        [[100, 1, 300, 200, 294, 295]],
        [[100], [1], [300], [200], [294], [295]],
        [[100, 1, 300], [200, 294, 295]],
    ],
)
def test_late_records_bear_the_time_they_missed_however_they_are_batched(
    sends: list[list[int]],
) -> None:
    found = run_one(lambda s: s.late, *({"time": times} for times in sends), lateness=5)
    assert found.to_pylist() == [
        {"late_at": 95, "time": 1},
        {"late_at": 295, "time": 200},
        {"late_at": 295, "time": 294},
    ]


@pytest.mark.parametrize("length", [2.5, True, None])
@pytest.mark.parametrize(
    "make",
    [
        lambda s, length: s.key_by().tumbling(length),
        lambda s, length: s.key_by().tumbling(10, offset=length),
        lambda s, length: s.key_by().sliding(length, every=1),
        lambda s, length: s.key_by().sliding(10, every=length),
        lambda s, length: s.key_by().session_window(length),
        lambda s, length: s.key_by("k").interval_join(s.key_by("k"), length, 5),
        lambda s, length: s.key_by("k").interval_join(s.key_by("k"), -5, length),
        lambda s, length: s.key_by("k").asof_join(s.key_by("k"), tolerance=length or 0.0),
        lambda s, length: s.flow.input("late", lateness=length or 0.0),
    ],
)
def test_lengths_of_time_are_integers_or_durations(make: Any, length: Any) -> None:
    stream = jt.Flow("f").input("i", schema={"k": int})
    with pytest.raises(GraphError, match=r"pass an integer where times|takes a gap"):
        make(stream, length)


def test_lengths_of_time_may_be_numpys_integers() -> None:
    rows = {"time": [3, 12]}
    found = run_table(lambda s: s.key_by().tumbling(np.int32(10)).count(), rows)
    assert found["time"].to_pylist() == [10, 20]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.delay(2.5), r"function from a batch to times, not 2.5"),
        (lambda s: s.filter(5), r"function from a batch to booleans, not 5"),
        (lambda s: s.map({"n": 5}), r"function from a batch to columns, not"),
    ],
)
def test_what_is_no_function_is_refused_at_the_call(make: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make(jt.Flow("f").input("i"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.map(lambda b: None), r"returned a NoneType"),
        (lambda s: s.with_columns(z=lambda b: 5), r"5 is not a column: .*one value for each"),
        (lambda s: s.filter(lambda b: True), r"True is not a column"),
    ],
)
def test_errors_of_functions_name_the_users_line(make: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message) as caught:
        run_table(make, {"time": [0], "n": [1]})
    assert "test_first_steps.py" in str(caught.value)


def test_errors_from_arrow_name_the_users_line() -> None:
    with pytest.raises(OperatorFailed) as caught:
        run_table(lambda s: s.filter(lambda b: pa.array([1]).cast("ever")), {"time": [0]})
    assert "test_first_steps.py" in str(caught.value)
    assert ".pxi" not in str(caught.value.line)


@pytest.mark.parametrize("unit", ["m", "h", "10s"])
def test_times_in_units_that_arrow_lacks_are_refused_by_name(unit: str) -> None:
    with pytest.raises(BatchError, match=r"column 'time' .*astype\('datetime64\[s\]'\)"):
        run_table(lambda s: s, {"time": np.array([0], f"datetime64[{unit}]")})


def test_result_times_beyond_the_type_of_the_time_column() -> None:
    rows = {"time": pa.array([2**31 - 1], pa.int32())}
    with pytest.raises(TimeError, match=r"output 'o' has times that are not int32"):
        run_table(lambda s: s.key_by().tumbling(7).count(), rows)


def test_containers_that_are_no_tables_are_refused() -> None:
    with pytest.raises(BatchError, match=r"cannot read records from a Series"):
        run_table(lambda s: s, pd.Series([1, 2]))
    sparse = pd.DataFrame({"time": pd.arrays.SparseArray([0, 1])})
    with pytest.raises(BatchError, match=r"Sparse"):
        run_table(lambda s: s, sparse)


@pytest.mark.parametrize(
    "time", [np.int64(5), datetime.datetime(1970, 1, 1, 0, 0, 5), np.datetime64(5, "us")]
)
def test_a_single_record_may_have_any_time(time: Any) -> None:
    found = run_one(lambda s: s, {"time": time, "n": 1})
    assert found["n"].to_pylist() == [1]
    assert found["time"].cast(pa.int64()).to_pylist() in ([5], [5000000])


@pytest.mark.parametrize(
    ("kind", "last"), [(pa.date32(), 2**31 - 1), (pa.timestamp("us", "UTC"), 2**62)], ids=str
)
def test_extremes_beyond_the_year_9999(kind: pa.DataType, last: int) -> None:
    values = pa.array([0, last], pa.int64()).cast(pa.int32() if last < 2**31 else pa.int64())
    rows = {"time": [0, 0], "v": values.cast(kind)}
    found = run_table(lambda s: s.key_by().tumbling(10).max("v"), rows)["max"]
    assert found.type == kind
    assert found.cast(values.type).to_pylist() == [last]


def test_frames_that_are_not_sparks_are_refused_by_name() -> None:
    flow = jt.Flow("f")
    flow.output("o", flow.input("i"))
    with pytest.raises(
        GraphError, match=r"input 'i' got a pandas.DataFrame, not a DataFrame of Spark"
    ):
        flow.on_spark({"i": pd.DataFrame({"time": [0]})})


@pytest.mark.parametrize(
    "options", [{"checkpoint": "x"}, {"keep": 3}, {"repartition": False}, {"allow_removed": ["o"]}]
)
def test_options_of_streams_are_refused_for_batches(options: dict[str, Any]) -> None:
    flow = jt.Flow("f")
    flow.output("o", flow.input("i"))
    frame: Any = SimpleNamespace(isStreaming=False)
    with pytest.raises(GraphError, match="allow_removed= are for streaming ones"):
        flow.on_spark({"i": frame}, **options)


@pytest.mark.parametrize("bins", ["256", 512.0])
def test_bins_are_integers(bins: Any) -> None:
    with pytest.raises(GraphError, match=r"is not a power of two"):
        jt.Flow("f", bins=bins)


def test_python_objects_of_polars_are_refused() -> None:
    frame = pl.DataFrame({"time": [0], "v": pl.Series([object()], dtype=pl.Object)})
    with pytest.raises(BatchError, match=r"column 'v' of this frame has Python objects"):
        run_table(lambda s: s, frame)
    assert run_table(lambda s: s, pl.DataFrame({"time": [0], "v": ["a"]}))["v"].to_pylist() == ["a"]


def test_a_function_that_exits_does_not_end_the_program_that_builds_the_flow() -> None:
    def leave(batch: jt.Batch) -> dict[str, Any]:
        raise SystemExit(3)

    with pytest.raises(OperatorFailed, match=r"SystemExit\(3\).*\n.*test_first_steps"):
        run_table(lambda s: s.map(leave), {"time": [0], "n": [1]}, schema={"n": int})
