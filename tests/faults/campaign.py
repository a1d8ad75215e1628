"""A query to be killed: as a program, which is its driver, or inside a test's own session.

Its sources are a function of their positions, and it has state of all kinds: windows that are open,
counts that go on for ever, records that wait for their time to be complete, on their way between
workers. So whatever is lost or done twice shows in its output.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
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
from jeton.storage.files import Files

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


@dataclass(frozen=True)
class Place:
    """Where the query keeps its files, and the settings by which Spark reaches them."""

    root: str
    settings: dict[str, str]

    @staticmethod
    def of(folder: Path) -> Place:
        """That of a folder: the folder itself, unless a file in it names another one."""
        try:
            named = json.loads((folder / "place.json").read_text())
        except FileNotFoundError:
            return Place(str(folder), {})
        return Place(named["root"], named["settings"])

    def write(self, folder: Path) -> None:
        """Have queries of a folder keep their files here."""
        (folder / "place.json").write_text(json.dumps(vars(self)))

    def files(self, name: str) -> Files:
        """The files of a part of the query."""
        return Files(f"{self.root}/{name}")

    @property
    def spark_settings(self) -> dict[str, Any]:
        """The settings of a session."""
        return {f"spark.hadoop.{key}": value for key, value in self.settings.items()}


def start(spark: SparkSession, folder: Path, limit: int) -> Query:
    (folder / "pids").mkdir(parents=True, exist_ok=True)
    root = Place.of(folder).root
    return flow().start(
        spark,
        sources={"records": records(folder, limit)},
        sinks={name: Parquet(f"{root}/{name}") for name in ("windows", "counts")},
        workers=2,
        checkpoint=f"{root}/checkpoint",
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
    found = {}
    for output in ("windows", "counts"):
        files, tables = Place.of(folder).files(output), []
        for name in files.names(files.root):
            if name.startswith("part-"):
                with files.local_copy(files.root / name) as copy:
                    tables.append(pq.read_table(copy))
        found[output] = in_bytes(pa.concat_tables(tables))
    return found


def in_bytes(table: pa.Table) -> bytes:
    table = table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return bytes(stream.getvalue().to_pybytes())


def cluster_session(master: str, **more: Any) -> SparkSession:
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
        **more,
    }
    builder: SparkSession.Builder = SparkSession.builder
    return builder.master(master).appName("campaign").config(map=settings).getOrCreate()


def main(folder: Path, limit: int, cluster: str) -> None:
    """The driver: goes on from wherever the one before it was killed."""
    more = Place.of(folder).spark_settings
    spark = cluster_session(cluster, **more) if cluster else local_session(2, **more)
    query = start(spark, folder, limit)
    query.await_running(LIMIT)
    (folder / "running").touch()
    query.await_termination()
    print("restarts:", query.metrics()["checkpoints"]["restarts"])
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
