"""A streaming query over a folder of files that writes two outputs: what the kill tests run.

As a program it runs to the end of what is there, in a process of its own that can be killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import jeton as jt
from jeton.spark.streaming import parquet_writer

LATENESS = 40
SCHEMA = "ts long, k long, v long"


def table_of(batch: int, rows: int = 400) -> pa.Table:
    random = np.random.default_rng(batch)
    return pa.table(
        {
            "ts": random.integers(batch * 50, batch * 50 + 80, rows),
            "k": random.integers(0, 30, rows),
            "v": random.integers(0, 1000, rows),
        }
    )


def write_files(folder: Path, batches: int) -> None:
    """The rows of each micro-batch in a file of their own, to be read in this order."""
    folder.mkdir(parents=True)
    for batch in range(batches):
        path = folder / f"{batch:04d}.parquet"
        pq.write_table(table_of(batch), path)
        os.utime(path, (0, 1000 + 10 * batch))


class Fatal:
    """Does nothing, but may end its process in the midst of things: once for each plan.

    A plan is a file in a folder: ``step-<batch>-<worker>`` or ``snapshot-<batch>-<worker>``.
    """

    def __init__(self, folder: Path, worker: int) -> None:
        self._folder = folder
        self._worker = worker
        self.least = 0

    def fall_due(self, when: str) -> None:
        plan = self._folder / f"{when}-{self.least // 50}-{self._worker}"
        if plan.exists():
            plan.rename(plan.with_name(f"done-{plan.name}"))
            os.kill(os.getpid(), signal.SIGKILL)

    def snapshot(self) -> pa.Table:
        self.fall_due("snapshot")
        return pa.table({"bin": pa.array([], pa.uint16())})

    def restore(self, state: pa.Table, tokens: Any) -> None:
        pass


def flow_of(plans: Path) -> jt.Flow:
    def passing(token: Any, info: Any) -> Any:
        token.drop()
        fatal = Fatal(plans, info.worker)
        info.keep(fatal)
        (plans / f"pid-{os.getpid()}").touch()

        def step(input: Any, output: Any) -> None:
            for ref, batch in input:
                output.session(ref).give(batch)
                fatal.least = int(batch.times.min())
                fatal.fall_due("step")

        return step

    flow = jt.Flow("killed")
    rows = flow.input("r", time="ts", schema={"k": int, "v": int}, lateness=LATENESS)
    safe = rows.unary(passing, pact=jt.Exchange("k"), name="passing", schema=rows.schema)
    flow.output("sums", safe.key_by("k").tumbling(40).sum("v"))
    flow.output("counts", safe.key_by("k").running().count().select("k", "count"))
    return flow


class Job:
    """The query, its folders, and what it should write."""

    def __init__(self, root: Path, batches: int) -> None:
        self.root = root
        self.batches = batches
        self.plans = root / "plans"
        self.plans.mkdir(parents=True, exist_ok=True)
        if not (root / "in").exists():
            write_files(root / "in", batches)

    def start(self, spark: SparkSession, **options: Any) -> Any:
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        frame = reader.parquet(str(self.root / "in"))
        frames: Any = flow_of(self.plans).on_spark({"r": frame}, **options)
        return frames.write_stream(
            {name: self.writer(name) for name in ("sums", "counts")},
            checkpoint=str(self.root / "checkpoint"),
            trigger={"availableNow": True},
        )

    def writer(self, name: str) -> Any:
        write = parquet_writer(str(self.root / name))

        def fatal(rows: DataFrame, batch: int) -> None:
            write(rows, batch)
            plan = self.plans / f"driver-{batch}-{name}"
            if plan.exists():
                plan.rename(plan.with_name(f"done-{plan.name}"))
                os.killpg(os.getpgid(0), signal.SIGKILL)

        return fatal

    def written(self) -> dict[str, list[tuple[Any, ...]]]:
        columns = {"sums": ["ts", "k", "sum"], "counts": ["k", "count"]}
        return {
            name: sorted(zip(*(self._read(name)[c].to_pylist() for c in chosen), strict=True))
            for name, chosen in columns.items()
        }

    def _read(self, name: str) -> pa.Table:
        return pa.concat_tables(
            pq.read_table(path) for path in sorted((self.root / name).glob("batch=*"))
        )

    def expected(self) -> dict[str, list[tuple[Any, ...]]]:
        """The same by plain counting."""
        seen: Counter[int] = Counter()
        counts = []
        sums: Counter[tuple[int, int]] = Counter()
        closed: list[tuple[Any, ...]] = []
        floor = -1
        for batch in range(self.batches):
            table = table_of(batch)
            for row in table.to_pylist():
                if row["ts"] >= floor:
                    seen[row["k"]] += 1
                    counts.append((row["k"], seen[row["k"]]))
                    sums[(row["ts"] // 40 + 1) * 40, row["k"]] += row["v"]
            floor = max(floor, max(table["ts"].to_pylist()) - LATENESS)
            for end, k in [key for key in sums if key[0] <= floor]:
                closed.append((end, k, sums.pop((end, k))))
        return {"sums": sorted(closed), "counts": sorted(counts)}


def main(root: str, batches: str, master: str, workers: str) -> None:
    from jeton.spark.session import local_session

    # Not to be left behind if the test that started this is gone.
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    spark = local_session(int(workers), **({"spark.master": master} if master else {}))
    query = Job(Path(root), int(batches)).start(spark, workers=int(workers))
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
