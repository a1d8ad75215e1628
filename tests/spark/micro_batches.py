"""A stream of files, micro-batch by micro-batch, and where its rows end up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import jeton as jt

SCHEMA = "ts long, k long, who string, v long"
ARROW = {"k": int, "who": str, "v": int}
LATENESS = 60
LIMIT = 600


def rows(batch: int, count: int = 300) -> dict[str, Any]:
    """The rows of a micro-batch: their times overlap with those of its neighbours."""
    random = np.random.default_rng(batch)
    return {
        "ts": random.integers(batch * 50, batch * 50 + 100, count),
        "k": random.integers(0, 12, count),
        "who": [None if n % 11 == 0 else f"who {n}" for n in random.integers(0, 40, count)],
        "v": random.permutation(count) + batch * 1000,
    }


class Source:
    """A folder of files, one of which is read in each micro-batch."""

    def __init__(self, spark: SparkSession, path: Path, schema: str = SCHEMA) -> None:
        self.spark = spark
        self.path = path
        self.schema = schema
        self.tables: list[pa.Table] = []
        path.mkdir(parents=True)

    def add(self, data: dict[str, Any]) -> None:
        table = pa.table(data)
        hidden = self.path.parent / "hidden"
        pq.write_table(table, hidden)
        hidden.rename(self.path / f"{len(self.tables):04d}.parquet")
        # Spark reads the oldest file first, and looks at whole seconds.
        os.utime(self.path / f"{len(self.tables):04d}.parquet", (0, 1000 + 10 * len(self.tables)))
        self.tables.append(table)

    def frame(self, files: int = 1) -> DataFrame:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", files)
        return reader.parquet(str(self.path))


def readings(flow: jt.Flow, lateness: int | None = LATENESS) -> Any:
    return flow.input("r", time="ts", schema=ARROW, lateness=lateness)


def in_one_process(flow: jt.Flow, tables: Sequence[pa.Table]) -> dict[str, list[tuple[Any, ...]]]:
    """The output if batches are fed one after the other, advancing after each."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    late = flow.lateness["r"]
    with flow.open() as run:
        handle = run.input("r")
        handle.lateness = None
        for table in tables:
            handle.send(table)
            floor = max(table["ts"].to_pylist()) - late if late is not None else handle.time
            handle.advance_to(max(handle.time, floor))
            run.run_to_rest()
        for name, table in run.results().items():
            found[name] = as_rows(name, table.to_pylist())
    return found


def as_rows(name: str, found: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows to be compared, in any order."""
    # Which of a key's records counts as the first, the second … depends on their order.
    hidden = {"ts"} if name in ("counts", "distinct") else set()
    rows = (row.asDict() if hasattr(row, "asDict") else row for row in found)
    kept = ((pair for pair in row.items() if pair[0] not in hidden) for row in rows)
    return sorted((tuple(sorted(pairs)) for pairs in kept), key=repr)


class Sink:
    """Keeps the rows of each micro-batch; one that is run again takes the place of the first."""

    def __init__(self) -> None:
        self.batches: dict[str, dict[int, list[Any]]] = {}
        self.again = 0

    def writer(self, name: str) -> Any:
        def write(frame: DataFrame, batch: int) -> None:
            mine = self.batches.setdefault(name, {})
            found = frame.collect()
            if batch in mine:
                self.again += 1
                assert as_rows(name, found) == as_rows(name, mine[batch]), f"batch {batch} differs"
            mine[batch] = found

        return write

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return as_rows(name, [row for rows in self.batches.get(name, {}).values() for row in rows])


def run(
    flow: jt.Flow, source: Source, sink: Sink, checkpoint: Path, *, files: int = 1, **options: Any
) -> None:
    """Let a query take all that is there, and end."""
    frames: Any = flow.on_spark({"r": source.frame(files)}, **options)
    query = frames.write_stream(
        {name: sink.writer(name) for name in flow.outputs},
        checkpoint=str(checkpoint),
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(LIMIT), "it hangs"


def summing() -> jt.Flow:
    flow = jt.Flow("summing")
    r = readings(flow)
    flow.output("sums", r.key_by("k").tumbling(40).sum("v"))
    flow.output("counts", r.key_by("who").running().count().select("who", "count"))
    return flow
