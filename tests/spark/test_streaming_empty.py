"""Micro-batches without rows: the flow goes on behind them, also if Spark did not run it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import jeton as jt
from jeton.spark.streaming import roll_back
from jeton.storage.checkpoints import Checkpoints
from tests.spark.micro_batches import LIMIT, Sink, Source, readings

SECOND = 1_000_000
FORMAT = "spark.sql.streaming.offsetLog.formatVersion"


def sums() -> jt.Flow:
    flow = jt.Flow("sums")
    flow.output("sums", readings(flow, 5).key_by("k").tumbling(10).sum("v"))
    return flow


def take_all(source: Source, sink: Sink, checkpoint: Path, **options: Any) -> Any:
    rows = source.frame().where("v > 0")
    writer = sums().on_spark({"r": rows}, **options)["sums"].writeStream
    writer = writer.foreachBatch(sink.writer("sums")).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    assert query.awaitTermination(LIMIT), "it hangs"
    return query


def one(source: Source, ts: int, v: int) -> None:
    source.add({"ts": [ts], "k": [1], "who": ["x"], "v": [v]})


def test_a_filter_leaves_nothing_of_a_micro_batch(source: Source, tmp_path: Path) -> None:
    """Spark finds that out when it has shuffled the rows, and would go no further."""
    sink, checkpoint = Sink(), tmp_path / "checkpoint"
    for ts, v in ((1, -1), (1, 1), (2, -1), (3, 5), (4, -1)):
        one(source, ts, v)
    query = take_all(source, sink, checkpoint, workers=2)
    # The row that keeps Spark going is nobody's.
    assert sum(progress.numInputRows for progress in query.recentProgress) == 2
    one(source, 30, 5)
    take_all(source, sink, checkpoint, workers=2)
    assert sink.rows("sums") == [(("k", 1), ("sum", 6), ("ts", 10))]
    assert Checkpoints(checkpoint / "jeton/sums").versions() == list(range(6))


def test_micro_batches_without_data_for_what_is_behind(spark: SparkSession, tmp_path: Path) -> None:
    """An aggregation of Spark's behind the flow wants one more when its watermark has moved."""
    source = Source(spark, tmp_path / "in", "ts timestamp, k long")
    found: dict[int, list[Any]] = {}
    versions = Checkpoints(tmp_path / "checkpoint/jeton/seconds").versions

    def take_all(*seconds: int, **options: Any) -> None:
        for second in seconds:
            times = pa.array([second * SECOND], pa.timestamp("us", "UTC"))
            source.add({"ts": times, "k": [1]})
        flow = jt.Flow("seconds")
        r = flow.input("r", time="ts", schema={"k": int})
        flow.output("counts", r.key_by("k").running().count())
        counts = flow.on_spark({"r": source.frame()}, **options)["counts"]
        windows = counts.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "10 seconds"))
        writer = windows.agg(F.max("count").alias("n")).writeStream.foreachBatch(
            lambda rows, batch: found.update({batch: [row.n for row in rows.collect()]})
        )
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(LIMIT)

    take_all(1, 2, 50, workers=2)
    # The last one had no data, and emitted the windows that the one before had completed.
    assert found == {0: [], 1: [], 2: [], 3: [2]}
    assert versions() == [0, 1, 2, 3]
    take_all(80, repartition=False)
    assert (found[4], found[5]) == ([], [3])
    # No partitions, no workers: the next micro-batch starts from the state before.
    assert versions() == [0, 1, 2, 3, 4]
    take_all(110, repartition=False)
    assert (found[6], found[7]) == ([], [4])
    assert versions() == [0, 1, 2, 3, 4, 6]


@pytest.fixture(params=["1", "2"])
def offset_log(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Spark writes its log of offsets in one format, or in the other."""
    spark.conf.set(FORMAT, request.param)
    yield f"v{request.param}"
    spark.conf.unset(FORMAT)


@pytest.mark.parametrize("options", [{"workers": 2}, {"repartition": False}], ids=str)
def test_a_source_that_begins_with_nothing(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], offset_log: str
) -> None:
    rate = spark.readStream.format("rate").option("rowsPerSecond", 50).option("numPartitions", 2)
    flow = jt.Flow("rate")
    r = flow.input("r", time="ts", schema={"k": int})
    flow.output("counts", r.key_by("k").running().count())
    frames = flow.on_spark(
        {"r": rate.load().selectExpr("value as ts", "value % 3 as k")}, **options
    )
    writer = frames["counts"].writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    while frames.metrics()["rows_in"] == 0:
        assert query.exception() is None
    query.stop()
    format, *_, offset = (tmp_path / "checkpoint/offsets/0").read_text().splitlines()
    assert (format, offset) == (offset_log, "0" if offset_log == "v1" else "0:0")


def test_state_that_was_lost_is_no_micro_batch_without_rows(
    source: Source, tmp_path: Path, offset_log: str
) -> None:
    sink, checkpoint = Sink(), tmp_path / "checkpoint"
    for ts, v in ((1, 1), (2, 2)):
        one(source, ts, v)
    take_all(source, sink, checkpoint, repartition=False)
    [lost] = (checkpoint / "jeton/sums/manifests").glob("000000000001-*")
    lost.unlink()
    one(source, 30, 4)
    with pytest.raises(StreamingQueryException, match=r"(?s)micro-batch 1 is damaged.*roll_back"):
        take_all(source, sink, checkpoint, repartition=False)
    assert roll_back(checkpoint) == 1
    take_all(source, sink, checkpoint, workers=1)
    assert sink.rows("sums") == [(("k", 1), ("sum", 3), ("ts", 10))]
