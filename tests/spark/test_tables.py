"""Queries from tables to tables: they follow new versions, and go on where they stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors import sinks, sources
from jeton.errors import BatchError
from jeton.spark.query import Query
from tests.spark.test_long_lived import LIMIT, until


def flow(**schema: Any) -> jt.Flow:
    made = jt.Flow("copied")
    records = made.input("records", schema={"time": int, "k": str, **schema}, lateness=0)
    made.output("records", records.exchange("k"))
    return made


def start(spark: SparkSession, folder: Path, *, end: bool) -> Query:
    return flow().start(
        spark,
        sources={"records": sources.Delta(folder / "in", end=end, every=0.05)},
        sinks={"records": sinks.Delta(folder / "out", partition_by=["k"])},
        checkpoint=folder / "checkpoint",
        every=0.2,
    )


def append(folder: Path, first: int) -> None:
    times = range(first, first + 100)
    rows = pa.table({"time": times, "k": [str(n % 3) for n in times], "unused": list(times)})
    write_deltalake(folder / "in", rows, mode="append")


def copied(folder: Path) -> list[int]:
    table = DeltaTable(folder / "out").to_pyarrow_table()
    assert table.column_names == ["time", "k"]
    return sorted(table["time"].to_pylist())


def test_a_query_follows_a_table(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path, 0)
    query = start(spark, tmp_path, end=False)
    append(tmp_path, 100)
    until(lambda: len(copied(tmp_path)) == 200, "the first versions")
    append(tmp_path, 200)
    query.stop()
    append(tmp_path, 300)
    assert start(spark, tmp_path, end=True).await_termination(LIMIT)
    assert copied(tmp_path) == list(range(400))


def test_a_batch_from_a_table_to_a_table(spark: SparkSession, tmp_path: Path) -> None:
    for first in (0, 100):
        append(tmp_path, first)
    made = jt.Flow("counted")
    made.output("counts", made.input("records", time="time").key_by("k").tumbling(100).count())
    source, sink = sources.Delta(tmp_path / "in", end=True), sinks.Delta(tmp_path / "counts")
    made.on_spark({"records": source}, sinks={"counts": sink}, workers=2)
    table = DeltaTable(tmp_path / "counts")
    assert sum(table.to_pyarrow_table()["count"].to_pylist()) == 200


def test_an_output_that_does_not_fit_a_table_is_an_error_at_the_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    append(tmp_path, 0)
    write_deltalake(tmp_path / "out", pa.table({"k": [1], "n": [1]}), partition_by=["k"])
    with pytest.raises(BatchError, match=r"column 'time' is not in the table.*'k' is string"):
        start(spark, tmp_path, end=True)
    with pytest.raises(BatchError, match=r"column 'wait' of output 'records' is of type duration"):
        flow(wait=pa.duration("s")).start(
            spark,
            sources={"records": sources.Delta(tmp_path / "in")},
            sinks={"records": sinks.Delta(tmp_path / "new")},
        )
