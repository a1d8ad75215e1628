"""A streaming query whose workers and executors are killed at named points: a driver's program.

Its source is a function of the micro-batch's number, so all rows that it must write are known. It
has an output of each kind: rows that follow their keys, rows that stay in their input's partition,
a union of both, and windows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import jeton as jt
from jeton.errors import GraphError
from jeton.spark.streaming import parquet_writer
from tests.soak.fatal import Plans, Planter, emitting, guarded
from tests.soak.sessions import cluster, executors, has_stopped

ROWS = 600
KEYS = 97
SIZE = 100
LATENESS = 50
PATIENCE = 60.0
"""Seconds within which a query must have recovered from a kill."""
IN_VAIN = 4
"""Restarts in a row without a micro-batch committed, each of which may have been killed too."""

POINTS = {
    "foreach": ("step", "snapshot", "emit", "read", "between", "build"),
    "files": ("step", "snapshot", "emit", "read", "build"),
}
OUTPUTS = ("counts", "passed", "mixed", "sums")


def flow_of(plans: Plans) -> jt.Flow:
    """The program that is killed."""
    flow = jt.Flow("killed")
    rows = flow.input("r", time="ts", schema={"k": int, "v": int}, lateness=LATENESS)
    safe = guarded(plans, rows, "k")
    counts = safe.key_by("k").running().count()
    passed = rows.select("k")
    flow.output("counts", emitting(plans, counts.select("k", "count")))
    flow.output("passed", passed)
    flow.output("mixed", passed.concat(counts.select("k")))
    flow.output("sums", safe.key_by("k").tumbling(SIZE).sum("v"))
    return flow


def value(ts: int) -> int:
    """The value of the record at a time."""
    return ts * 31 % 1009


def stream_of(spark: SparkSession, slots: int) -> DataFrame:
    """Records 0, 1, 2 and so on, ``ROWS`` of them in each micro-batch."""
    source = spark.readStream.format("rate-micro-batch")
    source = source.option("rowsPerBatch", ROWS).option("numPartitions", slots)
    expressions = ["value as ts", f"value * 7919 % {KEYS} as k", "value * 31 % 1009 as v"]
    return source.load().selectExpr(*expressions)


@dataclass
class Program:
    """The query, its folders, and what it must have written."""

    folder: Path
    slots: int
    sink: str
    random: Random

    def __post_init__(self) -> None:
        self.plans = Plans(self.folder / "plans")
        self.chosen = self.random.choice(OUTPUTS)
        """The one output that a query with Spark's own file sink writes."""

    def start(self, spark: SparkSession) -> Any:
        """Start the query."""
        frames: Any = flow_of(self.plans).on_spark(
            {"r": stream_of(spark, self.slots)}, workers=self.slots
        )
        checkpoint = str(self.folder / "checkpoint")
        if self.sink == "foreach":
            writers = {name: self._writer(name, spark) for name in OUTPUTS}
            return frames.write_stream(writers, checkpoint=checkpoint)
        rows = self._read_by_the_fatal(frames[self.chosen])
        writer = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        return writer.option("path", str(self.folder / self.chosen)).start()

    def progress(self) -> int:
        """How many micro-batches are committed."""
        return len(list((self.folder / "checkpoint" / "commits").glob("[0-9]*")))

    def check(self) -> dict[str, int]:
        """Compare what is written for the committed micro-batches with what must be there."""
        batches = self.progress()
        names = OUTPUTS if self.sink == "foreach" else (self.chosen,)
        lost = doubled = rows = 0
        for name in names:
            want, have = expected(name, batches), Counter(self._written(name, batches))
            lost += (want - have).total()
            doubled += (have - want).total()
            rows += have.total()
        return {"batches": batches, "rows": rows, "lost": lost, "doubled": doubled}

    def _writer(self, name: str, spark: SparkSession) -> Any:
        write = parquet_writer(str(self.folder / name))

        def one_of_several(rows: DataFrame, batch: int) -> None:
            write(self._read_by_the_fatal(rows), batch)
            victim = self.plans.take("between", self.slots)
            if victim is not None:
                os.kill(self.random.choice(executors(spark)), signal.SIGKILL)

        return one_of_several

    def _read_by_the_fatal(self, rows: DataFrame) -> DataFrame:
        plans = self.plans

        def reading(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                context = TaskContext.get()
                assert context is not None
                plans.reach("read", context.partitionId())
                yield batch

        return rows.mapInArrow(reading, rows.schema)

    def _written(self, name: str, batches: int) -> Iterator[tuple[int, ...]]:
        if self.sink == "foreach":
            paths = [self.folder / name / f"batch={batch}" for batch in range(batches)]
            tables = [pq.read_table(path, partitioning=None) for path in paths]
        else:
            tables = [pq.read_table(path) for path in self._committed_files(name, batches)]
        for table in tables:
            yield from zip(*(column.to_pylist() for column in shown(table).columns), strict=True)

    def _committed_files(self, name: str, batches: int) -> set[Path]:
        """The files that Spark's file sink counts as written."""
        log = self.folder / name / "_spark_metadata"
        found = set()
        for path in log.glob("[0-9]*"):
            if path.name.isdecimal() and int(path.name) >= batches:
                continue
            for line in path.read_text().splitlines()[1:]:
                found.add(Path(json.loads(line)["path"].removeprefix("file://")))
        return found


def shown(table: pa.Table) -> pa.Table:
    """The columns whose values do not depend on the order of arrival."""
    if "count" in table.column_names:
        return table.select(["k", "count"])
    return table.select(["ts", "k", "sum"] if "sum" in table.column_names else ["ts", "k"])


def expected(name: str, batches: int) -> Counter[tuple[int, ...]]:
    """The rows of an output after some micro-batches, by plain counting."""
    last = batches * ROWS
    if name in ("passed", "mixed"):
        times = 2 if name == "mixed" else 1
        return Counter({(ts, ts * 7919 % KEYS): times for ts in range(last)})
    found: Counter[tuple[int, ...]] = Counter()
    if name == "counts":
        seen: Counter[int] = Counter()
        for ts in range(last):
            k = ts * 7919 % KEYS
            seen[k] += 1
            found[k, seen[k]] += 1
        return found
    sums: Counter[tuple[int, int]] = Counter()
    for ts in range(last):
        sums[(ts // SIZE + 1) * SIZE, ts * 7919 % KEYS] += value(ts)
    for (end, k), total in sums.items():
        if end <= last - 1 - LATENESS:
            found[end, k, total] += 1
    return found


def has_ended(query: StreamingQuery) -> bool:
    """Whether a query is over."""
    return not query.isActive


def await_two_more(program: Program, query: StreamingQuery) -> bool:
    """Whether two more micro-batches are committed before the query is over."""
    before = program.progress()
    while program.progress() < before + 2 and query.isActive:
        time.sleep(0.1)
    return program.progress() >= before + 2


def restarted(program: Program, spark: SparkSession) -> tuple[SparkSession, Any]:
    """Start the query again, once the executors that were killed are back.

    In another session, if this one is gone.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        if has_stopped(spark):
            spark.stop()
            spark = cluster(program.folder, program.slots)
        try:
            return spark, program.start(spark)
        except GraphError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def main(folder: str, slots: str, sink: str, seed: str, seconds: str) -> None:
    """Run a query for a while, kill, check, and print what was seen as JSON."""
    program = Program(Path(folder), int(slots), sink, Random(int(seed)))
    spark = cluster(Path(folder), program.slots)
    deadline = time.monotonic() + float(seconds)
    query = program.start(spark)
    planter = Planter(
        program.plans,
        POINTS[sink],
        program.slots,
        program.random,
        progress=program.progress,
        patience=PATIENCE,
    )
    failures: list[str] = []
    seen, in_vain = -1, 0
    while True:
        planter.run(deadline, partial(has_ended, query))
        if query.isActive and await_two_more(program, query):
            break
        # Spark gives a stage up after four attempts; a query goes on when it is started again.
        failures.append(str(query.exception())[:2000])
        in_vain = in_vain + 1 if program.progress() <= seen else 0
        if in_vain == IN_VAIN:
            raise AssertionError(f"the query cannot go on: {failures[-1]}")
        seen = program.progress()
        spark, query = restarted(program, spark)
    query.stop()
    spark.stop()
    print(json.dumps({"hits": program.plans.hits(), "failures": failures, **program.check()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
