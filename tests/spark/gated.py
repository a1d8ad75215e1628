"""A long-lived query that reads on when its test lets it, and what it should have written."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Parquet
from jeton.connectors.sources import Batches
from jeton.spark.query import Query

LIMIT = 300.0
PARTITIONS = 2
TABLES = 12
ROWS = 50


def counting(*, windows: bool = True) -> jt.Flow:
    flow = jt.Flow("counting")
    # One worker may read several partitions in turn, each of which has its own times.
    numbers = flow.input("numbers", schema={"k": int, "n": int}, lateness=8 * ROWS)
    flow.output("rolling", numbers.key_by("k").running().count())
    if windows:
        flow.output("windows", numbers.key_by("k").tumbling(100).sum("n"))
    return flow


def table_of(partition: int, at: int) -> pa.Table:
    """The records of a partition come in tables; each partition has keys of its own."""
    times = (at * ROWS + np.arange(ROWS)) * PARTITIONS + partition
    return pa.table({"time": times, "k": times % 14, "n": times * 3 % 11})


class Gate:
    """Lets a partition go on up to a table: the test opens it further, whoever reads then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def open_to(self, at: int) -> None:
        (self.folder / f"{at:04}").touch()

    def source(self) -> Batches:
        folder = self.folder

        def make(partition: int, partitions: int) -> Iterator[Any]:
            (folder / f"pid-{partition}").write_text(str(os.getpid()))
            for at in range(TABLES):
                while not any(int(path.name) >= at for path in folder.glob("[0-9]*")):
                    yield None
                yield table_of(partition, at)

        return Batches(make, PARTITIONS)


def expected(output: str, upto: int = TABLES) -> list[tuple[Any, ...]]:
    """The result when nothing goes wrong."""
    tables = [table_of(p, at) for p in range(PARTITIONS) for at in range(upto)]
    whole = pa.concat_tables(tables).sort_by("time")
    return in_order(counting().run({"numbers": whole})[output])


def in_order(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def written(folder: Path) -> list[tuple[Any, ...]]:
    return in_order(pa.concat_tables(map(pq.read_table, sorted(folder.glob("part-*")))))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


class Place:
    """Where a query's gate, checkpoint and output are."""

    def __init__(self, path: Path) -> None:
        self.gate = Gate(path / "gate")
        self.checkpoint = path / "checkpoint"
        self.rolling, self.windows = path / "rolling", path / "windows"

    def start(self, spark: SparkSession, flow: jt.Flow | None = None, **options: Any) -> Query:
        known: dict[str, Any] = {
            "sources": {"numbers": self.gate.source()},
            "sinks": {"rolling": Parquet(self.rolling), "windows": Parquet(self.windows)},
            "workers": 2,
            "checkpoint": self.checkpoint,
            "every": None,
        }
        return (flow or counting()).start(spark, **{**known, **options})

    def read_to(self, query: Query, tables: int, before: int = 0) -> None:
        """Let sources go on, and wait until that is read, since the attempt began there."""
        self.gate.open_to(tables - 1)
        wanted = (tables - before) * ROWS * PARTITIONS
        until(lambda: query.metrics().get("rows_in", 0) >= wanted, f"{wanted} rows")

    def kill(self, partition: int) -> Path:
        """Kill the worker that reads a partition; returns the file that the next one will make."""
        path = self.gate.folder / f"pid-{partition}"
        pid = int(path.read_text())
        path.unlink()
        os.kill(pid, signal.SIGKILL)
        return path

    def check(self) -> None:
        assert written(self.rolling) == expected("rolling")
        assert written(self.windows) == expected("windows")
