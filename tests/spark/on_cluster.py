"""A program for a cluster: started by the tests in a process of its own, prints what it found."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Memory
from jeton.connectors.sources import Batches
from jeton.errors import GraphError
from jeton.spark.java import ensure_java


def session(master: str) -> SparkSession:
    ensure_java()
    builder: SparkSession.Builder = SparkSession.builder
    settings: dict[str, Any] = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.sql.shuffle.partitions": 2,
    }
    return builder.master(master).appName("cluster").config(map=settings).getOrCreate()


def processes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    # A Python worker is a child of its executor's daemon, and that of the executor.
    with open(f"/proc/{os.getppid()}/stat") as stat:
        executor = int(stat.read().rsplit(")", 1)[1].split()[1])
    yield pa.RecordBatch.from_pydict({"executor": [executor], "jeton": [jt.__file__]})


def main(master: str) -> None:
    spark = session(master)
    flow = jt.Flow("cluster")
    numbers = flow.input("n", time="id", schema={"k": int})
    flow.output("counts", numbers.key_by("k").tumbling(1000).count())
    # At once, before executors may have registered.
    frame = spark.range(0, 10_000, 1, 2).selectExpr("id", "id % 10 as k")
    counts = flow.on_spark({"n": frame}, workers=2)["counts"]
    rows = sorted((row.id, row.k, row["count"]) for row in counts.collect())
    assert rows == [(end, k, 100) for end in range(1000, 10_001, 1000) for k in range(10)]

    schema = "executor long, jeton string"
    where = spark.range(2).repartition(2).mapInArrow(processes, schema, barrier=True).collect()
    executors = {row.executor for row in where}
    assert len(executors) == 2, executors
    print("executors import", *sorted({row.jeton for row in where}))

    with pytest.raises(GraphError, match="slots for 2 tasks"):
        flow.on_spark({"n": frame}, workers=3)

    memory = Memory()
    live = jt.Flow("live")
    live.output("n", live.input("n").exchange("n"))
    source = Batches(lambda partition, _: iter([{"time": [0, 1], "n": [partition, partition + 2]}]))
    query = live.start(spark, sources={"n": source}, sinks={"n": memory}, workers=2)
    assert query.await_termination(300.0)
    table = memory.table()
    assert table is not None
    assert sorted(table["n"].to_pylist()) == [0, 1, 2, 3]
    spark.stop()
    print("all is well on", master)


if __name__ == "__main__":
    main(sys.argv[1])
