"""Long-lived queries and where their rows go: shared folders, late types, places that change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Memory, Parquet
from jeton.connectors.sources import Batches
from jeton.errors import GraphError, JetonError
from jeton.spark.query import Query
from tests.spark.gated import LIMIT, Place, counting


def forgetful(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
    token.drop()
    return lambda input, output: [output.session(ref).give(v=[None]) for ref, _ in input]


def divided() -> jt.Flow:
    """Two outputs with the same columns, and one of which the flow knows the types."""
    flow = jt.Flow("divided")
    records = flow.input("records")
    flow.output("even", records.filter(lambda batch: batch["n"] % 2 == 0))
    flow.output("odd", records.filter(lambda batch: batch["n"] % 2 == 1))
    flow.output("known", flow.input("known").unary(forgetful, schema={"v": str}))
    return flow


def records(partition: int, partitions: int) -> Iterator[Any]:
    """The type of ``v`` shows late."""
    for at in range(20):
        n = 100 * partition + at
        yield {"time": [at], "n": [n], "v": [None if at < 10 else n]}


EXPECTED = [(100 * p + at, None if at < 10 else 100 * p + at) for p in range(2) for at in range(20)]


def start(spark: SparkSession, partitions: int = 2, **options: Any) -> Query:
    known = Batches(lambda partition, _: iter([{"time": [partition], "v": ["a"]}]), 2)
    sources = {"records": Batches(records, partitions), "known": known}
    return divided().start(spark, sources=sources, workers=2, **options)


def rows(spark: SparkSession, folder: Path) -> list[tuple[Any, ...]]:
    frame = spark.read.option("mergeSchema", True).parquet(str(folder))
    return sorted((row.n, row.v) for row in frame.collect())


def test_two_outputs_in_one_folder_named_by_a_relative_path_and_a_url(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Executors were started elsewhere.
    monkeypatch.chdir(tmp_path)
    memory = Memory()
    sinks: dict[str, Any] = {
        "even": Parquet("out", rows=3),
        "odd": Parquet(f"file://{tmp_path}/out"),
        "known": memory,
    }
    query = start(spark, sinks=sinks, checkpoint="checkpoint", every=None)
    assert query.await_termination(LIMIT)
    assert rows(spark, tmp_path / "out") == EXPECTED
    assert query.metrics()["checkpoints"]["restarts"] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"out", "checkpoint"}
    table = memory.table()
    assert table is not None
    assert table.schema.field("v").type == pa.string()

    with pytest.raises(JetonError, match=r"has ended, .* its last one is version 1"):
        query.checkpoint(LIMIT)

    # Files have been read and are gone, the folder is another one, and there are new partitions.
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    sinks = {"even": Parquet("out"), "odd": Parquet("elsewhere"), "known": Memory()}
    assert "not read" not in caplog.text
    query = start(spark, 4, sinks=sinks, checkpoint="checkpoint", every=None)
    assert "input 'records' of query 'divided' goes on with the 2 partitions" in caplog.text
    assert "although its source has 4 now: others are not read" in caplog.text
    assert "input 'known'" not in caplog.text
    assert query.await_termination(LIMIT)
    assert not list((tmp_path / "out").iterdir())


def test_two_outputs_in_one_folder_without_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    sinks = {name: Parquet(tmp_path / "out", rows=7) for name in ("even", "odd")}
    query = start(spark, sinks=sinks)
    assert query.await_termination(LIMIT)
    assert rows(spark, tmp_path / "out") == EXPECTED


def test_checkpoints_that_make_no_sense_are_refused_at_once(
    spark: SparkSession, place: Place
) -> None:
    with pytest.raises(GraphError, match="at least one checkpoint must be kept, not 0"):
        place.start(spark, keep=0)
    for every in (-1.0, float("nan")):
        with pytest.raises(GraphError, match=f"not every {every}"):
            place.start(spark, every=every)
    assert not place.checkpoint.exists()


def test_more_workers_are_no_new_partitions(
    spark: SparkSession, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a source has a partition for each worker, those that there are share all records."""
    made = Batches(lambda partition, partitions: iter([{"time": [1], "k": [1], "n": [partition]}]))
    for workers in (1, 2):
        query = place.start(spark, counting(), sources={"numbers": made}, workers=workers)
        assert query.await_termination(LIMIT)
    assert "not read" not in caplog.text
