"""One flow on pandas' nanoseconds, Spark's microseconds, Arrow's milliseconds and seconds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Memory, Parquet
from jeton.connectors.sources import Batches
from jeton.errors import GraphError, JetonError
from tests.spark.micro_batches import LIMIT, Sink, Source

UNITS = ["ns", "us", "ms", "s"]
START = dt.datetime(2024, 3, 30, 20, tzinfo=dt.UTC)
OUTPUTS = ["windows", "sessions", "best", "days"]


def program(schema: Any = None, **options: Any) -> jt.Flow:
    """Windows, sessions, the best of windows, and days in a zone on which clocks change."""
    flow = jt.Flow("one program", **options)
    clicks = flow.input("clicks", time="ts", lateness="1 hour", schema=schema)
    by_user = clicks.key_by("user")
    flow.output("windows", by_user.tumbling("10 minutes", bounds=True).count())
    flow.output("sessions", by_user.session_window(dt.timedelta(minutes=3)).sum("n"))
    flow.output("best", by_user.tumbling(np.timedelta64(1, "h")).top_k(1, by="n"))
    flow.output("days", clicks.key_by().tumbling("1 day", zone="Europe/Berlin").count())
    return flow


def table(unit: str, zone: str | None = "UTC") -> pa.Table:
    random = np.random.default_rng(1)
    at = [START + dt.timedelta(seconds=int(s)) for s in np.sort(random.integers(0, 200_000, 400))]
    return pa.table(
        {
            "ts": pa.array(at, pa.timestamp("s", "UTC")).cast(pa.timestamp(unit, zone)),
            "user": [f"user {n}" for n in random.integers(0, 5, 400)],
            "n": random.permutation(400),
        }
    )


def instants(rows: Any) -> list[tuple[Any, ...]]:
    """Rows to be compared: times as instants, in any order. Spark's are those of the session."""

    def plain(value: Any) -> Any:
        if isinstance(value, pd.Timestamp):
            value = value.to_pydatetime()
        return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value

    found = (row.asDict() if hasattr(row, "asDict") else row for row in rows)
    return sorted((tuple((n, plain(v)) for n, v in sorted(r.items())) for r in found), key=repr)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[tuple[Any, ...]]]:
    """The results of the microseconds, in this process."""
    result = program().run({"clicks": table("us")})
    return {name: instants(result[name].to_pylist()) for name in OUTPUTS}


def test_the_results_are_what_pandas_has(expected: dict[str, list[tuple[Any, ...]]]) -> None:
    frame = table("ns").to_pandas()
    days = frame.groupby(frame["ts"].dt.tz_convert("Europe/Berlin").dt.date).size()
    assert sorted(dict(row)["count"] for row in expected["days"]) == sorted(days.tolist())
    by = [frame["user"], frame["ts"].dt.floor("10min")]
    sizes = {(user, at.to_pydatetime()): n for (user, at), n in frame.groupby(by).size().items()}
    found = {
        (row["user"], row["window_start"]): row["count"] for row in map(dict, expected["windows"])
    }
    assert found == sizes


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("own", ["us", "s", "ns"])
def test_in_this_process(
    unit: str, zone: str, own: str, expected: dict[str, list[tuple[Any, ...]]]
) -> None:
    rows = table(unit, zone)
    for data in (rows, rows.to_pandas()):
        result = program(unit=own).run({"clicks": data}, workers=2)
        for name in OUTPUTS:
            assert instants(result[name].to_pylist()) == expected[name]
            assert result[name].schema.field("ts").type == pa.timestamp(own, zone)
    assert result["sessions"].schema.field("start").type == pa.timestamp(own, zone)
    assert result["best"].schema.field("event_time").type == pa.timestamp(own, zone)
    assert result["windows"].schema.field("window_start").type == pa.timestamp(own, zone)


@pytest.mark.parametrize("unit", UNITS)
def test_batch(unit: str, spark: SparkSession, expected: dict[str, list[tuple[Any, ...]]]) -> None:
    frame = spark.createDataFrame(table(unit).to_pandas())
    flow = program(frame.schema)
    found = flow.on_spark({"clicks": frame}, workers=2)
    for name in OUTPUTS:
        assert found[name].schema["ts"].dataType.simpleString() == "timestamp"
        assert instants(_in_utc(found[name].collect())) == expected[name]


def test_streaming(
    spark: SparkSession, tmp_path: Path, expected: dict[str, list[tuple[Any, ...]]]
) -> None:
    source = Source(spark, tmp_path / "in", "ts timestamp, user string, n long")
    rows = table("us")
    for at in range(0, 400, 100):
        source.add(dict(zip(rows.column_names, rows.slice(at, 100).columns, strict=True)))
    # A record after all others, so that every window before it is complete.
    last = [START + dt.timedelta(days=30)]
    source.add({"ts": pa.array(last, pa.timestamp("us", "UTC")), "user": ["last"], "n": [0]})
    frame = source.frame()
    frames: Any = program(frame.schema).on_spark({"clicks": frame}, workers=2)
    sink = Sink()
    query = frames.write_stream(
        {name: sink.writer(name) for name in OUTPUTS},
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(LIMIT)
    for name in OUTPUTS:
        found = [row for rows in sink.batches[name].values() for row in rows]
        assert instants(_in_utc(found)) == expected[name]


@pytest.mark.parametrize("declared", [False, True])
def test_long_lived_with_another_unit_in_each_partition(
    declared: bool, spark: SparkSession, tmp_path: Path, expected: dict[str, list[tuple[Any, ...]]]
) -> None:
    def pieces(partition: int, partitions: int) -> Iterator[Any]:
        rows = table(UNITS[partition])
        yield from (rows.slice(at, 1) for at in range(partition, 400, partitions))

    flow = program(table("us").schema if declared else None)
    memory = {name: Memory() for name in OUTPUTS[1:]}
    query = flow.start(
        spark,
        sources={"clicks": Batches(pieces, 4)},
        sinks={"windows": Parquet(tmp_path / "out"), **memory},
        workers=2,
        every=None,
    )
    assert query.await_termination(LIMIT)
    found = pq.read_table(tmp_path / "out")
    for name in ("ts", "window_start", "window_end"):
        assert found.schema.field(name).type == pa.timestamp("us", "UTC")
    assert instants(found.to_pylist()) == expected["windows"]
    for name, sink in memory.items():
        rows = sink.table()
        assert rows is not None
        assert instants(rows.to_pylist()) == expected[name]
    read = spark.read.parquet(str(tmp_path / "out"))
    assert read.schema["ts"].dataType.simpleString() == "timestamp"


def test_inputs_of_different_units_and_dates_meet(spark: SparkSession) -> None:
    flow = jt.Flow("two")
    left = flow.input("left", schema={"k": int})
    right = flow.input("right", schema={"k": int, "v": int})
    flow.output("both", left.key_by("k").asof_join(right.key_by("k"), tolerance="1 day"))
    noon = dt.datetime(2024, 1, 1, 12)
    frames = {
        "left": spark.createDataFrame([(noon, 1)], "time timestamp_ntz, k long"),
        "right": spark.createDataFrame([(noon.date(), 1, 7)], "time date, k long, v long"),
    }
    rows = flow.on_spark(frames, workers=2)["both"].collect()
    assert [(row.time, row.v) for row in rows] == [(noon, 7)]


def test_domains_that_do_not_mix_are_refused_at_the_call(spark: SparkSession) -> None:
    flow = jt.Flow("two")
    flow.output("both", flow.input("left", schema={}).concat(flow.input("right", schema={})))
    frames = {
        kind: spark.sql(f"select cast(null as {kind}) as time")
        for kind in ("timestamp", "timestamp_ntz", "bigint")
    }
    with pytest.raises(GraphError, match=r"times of input 'right' are timestamps, but other times"):
        flow.on_spark({"left": frames["timestamp"], "right": frames["timestamp_ntz"]})
    with pytest.raises(GraphError, match=r"times of input 'right' are integers, but other times"):
        flow.on_spark({"left": frames["timestamp"], "right": frames["bigint"]})
    windows = jt.Flow("windows")
    windows.output("n", windows.input("clicks", schema={}).key_by().tumbling(30).count())
    with pytest.raises(GraphError, match=r"tumbling\(30\) .*write tumbling\('30s'\)"):
        windows.on_spark({"clicks": frames["timestamp"]})


def test_a_time_that_does_not_fit_names_input_column_and_value() -> None:
    flow = jt.Flow("coarse", unit="s")
    flow.output("out", flow.input("clicks", time="ts"))
    with pytest.raises(
        JetonError, match=r"column 'ts' of input 'clicks': 2024-01-01T00:00:00.5.*unit='ms'"
    ):
        flow.run({"clicks": {"ts": np.array(["2024-01-01T00:00:00.500"], "datetime64[ms]")}})
    fine = jt.Flow("fine", unit="ns")
    fine.output("out", fine.input("clicks", time="ts"))
    with pytest.raises(JetonError, match=r"input 'clicks': 3000-01-01T00:00:00 .*unit='s'"):
        fine.run({"clicks": {"ts": np.array(["3000-01-01"], "datetime64[s]")}})
    frame = pd.DataFrame({"ts": pd.to_datetime([1], unit="ns")})
    with pytest.raises(JetonError, match=r"not a whole number of us.*unit='ns'"):
        program().run({"clicks": frame.assign(user="a", n=1)})


def _in_utc(rows: list[Any]) -> list[dict[str, Any]]:
    """Spark's rows, whose timestamps are in this machine's zone, without saying so."""
    return [
        {
            n: v.astimezone(dt.UTC) if isinstance(v, dt.datetime) else v
            for n, v in r.asDict().items()
        }
        for r in rows
    ]
