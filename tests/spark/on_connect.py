"""A program under Spark Connect: started by the tests in a process of its own, prints findings."""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Memory, Parquet
from jeton.connectors.sources import Batches, Rate
from jeton.errors import GraphError, JetonError
from jeton.spark.java import ensure_java


def counting() -> jt.Flow:
    flow = jt.Flow("counting")
    numbers = flow.input("n", time="id", schema={"k": int})
    flow.output("counts", numbers.key_by("k").tumbling(1000).count())
    return flow


def batch(spark: SparkSession) -> Any:
    frame = spark.range(0, 4000, 1, 2).selectExpr("id", "id % 10 as k")
    counts = counting().on_spark({"n": frame}, workers=2)["counts"]
    return sorted([row.id, row.k, row["count"]] for row in counts.collect())


def live() -> jt.Flow:
    flow = jt.Flow("live")
    numbers = flow.input("n", time="time", schema={"n": int}, lateness=0)
    flow.output("counts", numbers.key_by("n").running().count())
    return flow


def long_lived(spark: SparkSession) -> Any:
    rate = Rate(10_000, lambda positions: {"n": positions % 5}, limit=1000)
    query = live().start(spark, sources={"n": rate}, sinks={"counts": Memory()}, workers=2)
    assert query.await_termination(120.0)
    rows = query.table("counts").groupBy("n").agg({"count": "max"}).collect()
    return [query.metrics()["rows_in"], sorted(list(row) for row in rows)]


def endless(partition: int, partitions: int) -> Iterator[dict[str, list[int]]]:
    for at in itertools.count():
        yield {"time": [at], "n": [partition]}


def stopped(spark: SparkSession) -> Any:
    """A query that is steered, stopped, and gone on with from its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        rate = Rate(2_000, lambda positions: {"n": positions % 5}, limit=4000)
        sink = Parquet(Path(folder, "out"))
        checkpoint = Path(folder, "checkpoint")
        seen = []
        for drain in (True, False):
            query = live().start(
                spark,
                sources={"n": rate},
                sinks={"counts": sink},
                workers=2,
                checkpoint=checkpoint,
                every=0.5,
            )
            query.await_running(60.0)
            if drain:
                query.checkpoint()
                query.stop()
            else:
                assert query.await_termination(120.0)
            seen.append(query.status)
        rows = spark.read.parquet(str(Path(folder, "out")))
        return [seen, rows.count(), rows.distinct().count()]


def cancelled(spark: SparkSession) -> Any:
    query = live().start(spark, sources={"n": Batches(endless)}, workers=2)
    query.await_running(60.0)
    holders = query.why("counts").holders
    query.cancel()
    query.stop()
    return [query.status, len(holders) > 0]


def failing(spark: SparkSession) -> Any:
    flow = jt.Flow("failing")
    numbers = flow.input("n", time="time", schema={"n": int})

    def ratio(batch: jt.Batch) -> dict[str, Any]:
        raise ZeroDivisionError("division by zero")

    flow.output("n", numbers.map(ratio))
    query = flow.start(
        spark, sources={"n": Batches(lambda *_: iter([{"time": [0], "n": [0]}]))}, workers=2
    )
    try:
        query.await_termination(120.0)
    except JetonError as error:
        return str(error)
    return "no error"


def streaming(spark: SparkSession) -> Any:
    stream = spark.readStream.format("rate").load().selectExpr("value as id", "value as k")
    try:
        counting().on_spark({"n": stream}, workers=2)
    except GraphError as error:
        return str(error)
    return "no error"


def main() -> None:
    ensure_java()
    builder: SparkSession.Builder = SparkSession.builder
    spark = builder.remote("local[3]").config("spark.ui.enabled", "false").getOrCreate()
    for scenario in (batch, long_lived, stopped, cancelled, failing, streaming):
        print(json.dumps({scenario.__name__: scenario(spark)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
