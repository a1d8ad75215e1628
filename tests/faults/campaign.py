"""A query to be killed: as a program, which is its driver, or inside a test's own session.

Its sources are a function of their positions, and it has state of all kinds: windows that are open,
counts that go on for ever, records that wait for their time to be complete, on their way between
workers. So whatever is lost or done twice shows in its output.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Parquet
from jeton.connectors.sources import Rate
from jeton.spark.java import ensure_java
from jeton.spark.query import Query
from jeton.spark.session import local_session

RATE = 20_000
EVERY = 0.2
LIMIT = 300.0


def flow() -> jt.Flow:
    made = jt.Flow("campaign")
    records = made.input("records", schema={"k": int, "v": float})
    made.output("windows", records.key_by("k").tumbling(100_000_000).mean("v"))
    made.output("counts", records.key_by("k").running(ordered=True).count())
    return made


def columns(numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
    return {"k": numbers * 7919 % 101, "v": (numbers * 31 % 1009) / 8}


def records(folder: Path, limit: int) -> Rate:
    """Whoever makes them leaves word who it is, so that it can be killed."""

    def make(numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
        (folder / "pids" / str(os.getpid())).touch()
        return columns(numbers)

    return Rate(RATE, make, limit=limit)


def start(spark: SparkSession, folder: Path, limit: int) -> Query:
    (folder / "pids").mkdir(parents=True, exist_ok=True)
    return flow().start(
        spark,
        sources={"records": records(folder, limit)},
        sinks={name: Parquet(folder / name) for name in ("windows", "counts")},
        workers=2,
        checkpoint=folder / "checkpoint",
        every=EVERY,
        restarts=50,
    )


def undisturbed(limit: int) -> dict[str, bytes]:
    """The expected output, byte for byte after sorting."""
    numbers = np.arange(limit)
    times = (numbers * (1e9 / RATE)).astype(np.int64)
    result = flow().run({"records": {"time": times, **columns(numbers)}}, workers=2)
    return {name: in_bytes(result[name]) for name in ("windows", "counts")}


def committed(folder: Path) -> dict[str, bytes]:
    """The output."""
    return {
        name: in_bytes(pa.concat_tables(map(pq.read_table, (folder / name).glob("part-*"))))
        for name in ("windows", "counts")
    }


def in_bytes(table: pa.Table) -> bytes:
    table = table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return bytes(stream.getvalue().to_pybytes())


def cluster_session(master: str) -> SparkSession:
    ensure_java()
    settings: dict[str, Any] = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "512m",
        # If an executor is missing, Spark looks again after so long: 15 seconds by default.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    builder: SparkSession.Builder = SparkSession.builder
    return builder.master(master).appName("campaign").config(map=settings).getOrCreate()


def main(folder: Path, limit: int, cluster: str) -> None:
    """The driver: goes on from wherever the one before it was killed."""
    spark = cluster_session(cluster) if cluster else local_session(workers=2)
    query = start(spark, folder, limit)
    query.await_running(LIMIT)
    (folder / "running").touch()
    query.await_termination()
    print("restarts:", query.metrics()["checkpoints"]["restarts"])
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
