"""Batches whose workers read sources and write to sinks by themselves."""

from __future__ import annotations

import datetime as dt
import os
import signal
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors import sinks, sources
from jeton.errors import GraphError, JetonError

ROWS = 3000
LIMIT = 120.0
SCHEMA = pa.schema(
    {
        "at": pa.timestamp("us", "UTC"),
        "k": pa.string(),
        "n": pa.int64(),
        "price": pa.decimal128(10, 2),
        "ratio": pa.float64(),
        "seen": pa.timestamp("us", "UTC"),
    }
)


def rows(count: int = ROWS) -> pa.Table:
    start = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    numbers = range(count)
    return pa.table(
        {
            "at": [start + dt.timedelta(seconds=(n * 37) % 600) for n in numbers],
            "k": [None if n % 11 == 0 else f"kä{n % 13}" for n in numbers],
            "n": pa.array([None if n % 7 == 0 else n for n in numbers], pa.int64()),
            "price": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(10, 2)),
            "ratio": [float("nan") if n % 17 == 0 else n / 3 for n in numbers],
            "seen": pa.array(
                [None if n % 5 == 0 else start + dt.timedelta(hours=n % 9) for n in numbers],
                pa.timestamp("us", "UTC"),
            ),
        },
        schema=SCHEMA,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four files of several row groups each."""
    there = tmp_path / "in"
    there.mkdir()
    whole = rows()
    for number in range(4):
        part = whole.slice(number * ROWS // 4, ROWS // 4)
        pq.write_table(part, there / f"{number}.parquet", row_group_size=200)
    return there


def summed() -> jt.Flow:
    flow = jt.Flow("summed")
    # Times are in any order, but nothing in a batch is late.
    readings = flow.input("in", time="at", schema=SCHEMA, lateness="1s")
    kept = readings.filter((jt.col("n") > 700) & jt.col("seen").is_not_null())
    totals = {"price": jt.agg.sum("price"), "last": jt.agg.max("seen"), "ns": jt.agg.count("n")}
    flow.output("totals", kept.key_by("k").tumbling("2 minutes").aggregate(**totals))
    flow.output("rows", kept.select("k", "n", "ratio"))
    return flow


def sorted_rows(found: Any) -> list[str]:
    return sorted(map(repr, found.to_pylist() if isinstance(found, pa.Table) else found))


def test_answers_are_those_of_dataframes_and_of_a_run_here(
    spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = summed()
    natively = flow.on_spark({"in": sources.Parquet(folder)}, workers=3).cache()
    frame = spark.read.parquet(str(folder))
    by_frames = flow.on_spark({"in": frame}, workers=2).cache()
    here = flow.run({"in": rows()})
    for name in flow.outputs:
        found = natively[name].toArrow()
        assert found.schema == by_frames[name].toArrow().schema
        assert found.num_rows > 50
        assert sorted_rows(found) == sorted_rows(by_frames[name].toArrow())
        assert sorted_rows(found) == sorted_rows(here[name].cast(found.schema))
    metrics = natively.metrics()
    natively.explain()
    assert "Workers read 'in': 13 of 16 row groups in 4 files" in capsys.readouterr().out
    # Some row groups have no n above 700.
    assert metrics["late"] == 0
    assert metrics["rows_in"] < metrics["runs"] * ROWS


def test_workers_write_files(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    flow, out = summed(), tmp_path / "out"
    written = flow.on_spark(
        {"in": sources.Parquet(folder)}, sinks={"totals": sinks.Parquet(out)}, workers=2
    )
    here = flow.run({"in": rows()})["totals"]
    assert list(written) == ["totals"]
    assert written["totals"].rows == here.num_rows
    assert sorted(written["totals"].committed) == sorted(os.listdir(out))
    assert sorted_rows(pq.read_table(out)) == sorted_rows(here)
    assert written.metrics()["rows_out"] == here.num_rows
    with pytest.raises(jt.errors.UnknownOutput, match="no sink has got rows of 'rows'"):
        written["rows"]
    # A second run adds its own files.
    frame = spark.read.parquet(str(folder))
    flow.on_spark({"in": frame}, sinks={"totals": sinks.Parquet(out)}, workers=2)
    assert sorted_rows(pq.read_table(out)) == sorted(sorted_rows(here) * 2)


def test_dataframes_and_sources_go_together(spark: SparkSession, folder: Path) -> None:
    flow = jt.Flow("both")
    left = flow.input("left", time="at", schema=SCHEMA)
    right = flow.input("right", time="at", schema={"k": str, "weight": int})
    joined = left.select("k", "n").key_by("k").interval_join(right.key_by("k"), "-1h", "1h")
    flow.output("joined", joined)
    weights = pa.table(
        {
            "at": pa.array([dt.datetime(2024, 5, 1, tzinfo=dt.UTC)] * 2, SCHEMA.field(0).type),
            "k": ["kä1", "kä2"],
            "weight": [1, 2],
        }
    )
    inputs: dict[str, Any] = {
        "left": sources.Parquet(folder),
        "right": spark.createDataFrame(weights),
    }
    found = flow.on_spark(inputs, workers=2)["joined"].toArrow()
    here = flow.run({"left": rows(), "right": weights})["joined"]
    assert found.num_rows > 100
    assert sorted_rows(found) == sorted_rows(here.cast(found.schema))


def test_other_sources_that_end(spark: SparkSession) -> None:
    flow = jt.Flow("made")
    numbers = flow.input("n", schema={"time": int, "n": int})
    flow.output("n", numbers.filter(jt.col("n") % 2 == 0))

    def make(partition: int, partitions: int) -> Any:
        for start in range(0, 100, 10):
            yield {"time": [start], "n": [start * partitions + partition]}

    found = flow.on_spark({"n": sources.Batches(make, 3)}, workers=2)["n"].collect()
    made = [batch["n"][0] for part in range(3) for batch in make(part, 3)]
    assert sorted(row["n"] for row in found) == sorted(n for n in made if n % 2 == 0)


def test_files_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    there, out = tmp_path / "in", tmp_path / "out"
    there.mkdir()
    pq.write_table(rows(0), there / "0.parquet")
    flow = summed()
    to = {"totals": sinks.Parquet(out / "totals"), "rows": sinks.Parquet(out / "rows")}
    written = flow.on_spark({"in": sources.Parquet(there)}, sinks=to, workers=2)
    assert [each.rows for each in written.values()] == [0, 0]
    empty = pq.read_table(out / "totals")
    assert (empty.num_rows, empty.column_names) == (0, ["at", "k", "price", "last", "ns"])
    assert spark.read.parquet(str(out / "rows")).count() == 0


def watched(folder: Path) -> Callable[[jt.TimestampToken, jt.OperatorInfo], Any]:
    """Passes records on; the first time that worker 1 has written a file, it waits to be killed."""

    def build(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Output], None]:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                output.session(ref).give(batch)
            hidden = list((folder / "out").glob(".part-*-0001-*"))
            if info.worker == 1 and hidden and not (folder / "midway").exists():
                (folder / "pid").write_text(str(os.getpid()))
                (folder / "midway").touch()
                time.sleep(LIMIT)  # until it is killed

        return step

    return build


def test_a_worker_killed_while_it_writes_leaves_nothing_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    there, out = tmp_path / "in", tmp_path / "out"
    there.mkdir()
    many = 800_000
    pq.write_table(
        pa.table({"time": range(many), "n": range(many)}),
        there / "0.parquet",
        row_group_size=50_000,
    )
    flow = jt.Flow("killed")
    numbers = flow.input("in", schema={"n": int})
    flow.output("out", numbers.unary(watched(tmp_path), schema={"n": int}))
    found: list[Any] = []

    def run() -> None:
        to = {"out": sinks.Parquet(out, rows=100_000)}
        found.append(flow.on_spark({"in": sources.Parquet(there)}, sinks=to, workers=2))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + LIMIT
    while not (tmp_path / "midway").exists():
        assert time.monotonic() < deadline, "no worker came midway"
        assert thread.is_alive(), "the run ended before a worker was killed"
        time.sleep(0.01)
    assert not [name for name in os.listdir(out) if not name.startswith(".")]
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    thread.join(LIMIT)
    [written] = found
    assert written["out"].rows == many
    assert sorted(os.listdir(out)) == sorted(written["out"].committed)
    assert pq.read_table(out)["n"].sort().to_pylist() == list(range(many))


def test_a_run_that_fails_leaves_nothing(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def fail(batch: jt.Batch) -> Any:
        if (batch["n"].fill_null(0) > 2900).values.any():
            raise ValueError("too many")
        return batch["n"]

    flow = jt.Flow("fails")
    flow.output("out", flow.input("in", time="at", schema=SCHEMA).with_columns(m=fail))
    with pytest.raises(Exception, match="too many"):
        flow.on_spark(
            {"in": sources.Parquet(folder)}, sinks={"out": sinks.Parquet(out, rows=1)}, workers=2
        )
    assert not out.exists() or os.listdir(out) == []


def test_errors_come_before_anything_runs(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    flow = summed()
    natively = {"in": sources.Parquet(folder)}
    with pytest.raises(GraphError, match="the source of input 'in' has no end"):
        flow.on_spark({"in": sources.Files(folder)})
    with pytest.raises(GraphError, match="gets rows at the driver"):
        flow.on_spark(natively, sinks={"rows": sinks.Memory()})
    with pytest.raises(GraphError, match="no output 'row': did you mean 'rows'"):
        flow.on_spark(natively, sinks={"row": sinks.Parquet(tmp_path / "out")})
    with pytest.raises(GraphError, match="not a DataFrame of Spark or a source"):
        flow.on_spark({"in": folder})  # type: ignore[dict-item]
    pq.write_table(pa.table({"k": ["x"]}), tmp_path / "other.parquet")
    with pytest.raises(GraphError, match="no column 'at'"):
        flow.on_spark({"in": sources.Parquet(tmp_path / "other.parquet")})
    wrong = rows(3).set_column(2, "n", pa.array(["1", "2", "3"]))
    pq.write_table(wrong, tmp_path / "wrong.parquet")
    with pytest.raises(JetonError, match="column 'n' is of type string, its schema says int64"):
        flow.on_spark({"in": sources.Parquet(tmp_path / "wrong.parquet")})
