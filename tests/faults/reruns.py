"""Parts of two attempts at a stage side by side: whether rows are lost or doubled between them.

A flow with outputs of all kinds is read partition by partition. When half of them have been read,
what Spark has kept is taken away: the files of its shuffles, cached blocks, or a whole executor.
Spark then runs the stage again and reads the other half from the new attempt. Each row must be
there once.

As a program it does this in a session of its own and prints what it saw as a line of JSON:
``python -m tests.faults.reruns local[4] stream files blocks``.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import jeton as jt

ROWS: Final = 600
"""Rows of a micro-batch."""
BATCH: Final = 12_000
"""Rows of a batch run."""
KEYS: Final = 61
OUTPUTS: Final = ("keyed", "passed", "mixed")
"""Those that batch runs have, too."""
LIMIT: Final = 600.0

Row = tuple[Any, ...]


class HeldRows:
    """The rows that a worker keeps from one micro-batch to the next, whatever their keys are."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.rows: list[int] = []

    def snapshot(self) -> pa.Table:
        bins = pa.array([self.worker] * len(self.rows), pa.uint16())
        return pa.table({"bin": bins, "row": pa.array(self.rows, pa.int64())})

    def restore(self, state: pa.Table, tokens: Any) -> None:
        self.rows = state.column("row").to_pylist()


def hold(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
    """Give the rows of the batch before, and keep those of this one."""
    token.drop()
    held = HeldRows(info.worker)
    info.keep(held)

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            if held.rows:
                output.session(ref).give(old=np.array(held.rows))
            held.rows = batch.times.tolist()

    return step


def flow_of() -> jt.Flow:
    """Outputs whose rows follow keys, partitions of the input, both, or what a worker keeps."""
    flow = jt.Flow("rerun")
    rows = flow.input("r", time="ts", schema={"k": "int64"})
    flow.output("keyed", rows.key_by("k").running().count())
    flow.output("passed", rows.filter(lambda batch: batch.times % 3 != 0))
    flow.output("mixed", rows.concat(rows.exchange("k")))
    flow.output("held", rows.unary(hold, schema={"old": "int64"}))
    return flow


def expected(output: str, first: int, last: int) -> Counter[Row]:
    """The rows that an output has for those from ``first`` to ``last``, without running counts."""
    rows = [(ts, ts % KEYS) for ts in range(first, last)]
    if output == "passed":
        rows = [row for row in rows if row[0] % 3]
    elif output == "mixed":
        rows *= 2
    elif output == "held":
        return Counter((ts,) for ts in range(max(0, first - ROWS), first))
    return Counter(rows)


@dataclass
class Seen:
    """The outcome."""

    lost: dict[str, int] = field(default_factory=dict)
    doubled: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """Running counts that are not 1, 2, 3 … for each key."""
    damage: int = 0
    """How often something was taken away while there were partitions left to be read."""
    runs: int = 0
    """How often the flow was run: more than once for each micro-batch if the damage had effect."""
    batches: int = 0

    def note(self, output: str, rows: Sequence[Any], first: int, last: int) -> None:
        if output == "held":
            found: Counter[Row] = Counter((row["old"],) for row in rows)
        else:
            found = Counter((row["ts"], row["k"]) for row in rows)
        wanted = expected(output, first, last)
        self.rows[output] = self.rows.get(output, 0) + len(rows)
        self.lost[output] = self.lost.get(output, 0) + (wanted - found).total()
        self.doubled[output] = self.doubled.get(output, 0) + (found - wanted).total()
        if output == "keyed":
            counts = Counter((row["k"], row["count"]) for row in rows)
            before = Counter(ts % KEYS for ts in range(first))
            for ts in range(first, last):
                before[ts % KEYS] += 1
                counts[ts % KEYS, before[ts % KEYS]] -= 1
            self.wrong += [f"{key}: {n}" for key, n in counts.items() if n]


@dataclass
class Damage:
    """Takes away what a session's executors keep."""

    spark: SparkSession
    kinds: Sequence[str]
    """Any of files, blocks and executor."""

    def do(self) -> int:
        """All kinds at once; returns how many things are gone."""
        ways: dict[str, Callable[[], int]] = {
            "files": self.delete_shuffles,
            "blocks": self.drop_blocks,
            "executor": self.kill_executor,
        }
        return sum(ways[kind]() for kind in self.kinds)

    def delete_shuffles(self) -> int:
        """The files of all shuffles."""
        folder = self.spark.conf.get("spark.local.dir")
        found = glob.glob(f"{folder}/**/shuffle_*_*_*.*", recursive=True)
        for path in found:
            with suppress(FileNotFoundError):
                os.unlink(path)
        return len(found)

    def drop_blocks(self) -> int:
        """All cached blocks."""
        cached = dict(self.spark.sparkContext._jsc.getPersistentRDDs())
        for rdd in cached.values():
            rdd.unpersist(True)
        return len(cached)

    def kill_executor(self) -> int:
        """One executor of a cluster, with all that it has."""
        application = self.spark.sparkContext.applicationId.encode()
        for path in sorted(Path("/proc").glob("[0-9]*")):
            with suppress(OSError):
                line = (path / "cmdline").read_bytes()
                if b"CoarseGrainedExecutorBackend" in line and application in line:
                    os.kill(int(path.name), signal.SIGKILL)
                    wait_for(lambda path=path: not (path / "exe").exists())  # type: ignore[misc]
                    return 1
        return 0


def wait_for(done: Callable[[], bool], limit: float = LIMIT) -> None:
    """Wait until something is the case."""
    deadline = time.monotonic() + limit
    while not done():
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.05)


class Halves:
    """The rows of an output, which are read in two halves."""

    def __init__(self, frame: DataFrame) -> None:
        self._context, self._rdd = frame.sparkSession.sparkContext, frame.rdd
        partitions = range(self._rdd.getNumPartitions())
        self.rows = self._read(partitions[::2])
        self._rest = partitions[1::2]

    def read_on(self) -> list[Any]:
        """All rows, when the second half has been read as well."""
        self.rows += self._read(self._rest)
        return self.rows

    def _read(self, partitions: Sequence[int]) -> list[Any]:
        # One job for each: Spark fails one of which it has a part, if the rest comes out otherwise.
        found = (self._context.runJob(self._rdd, list, [partition]) for partition in partitions)
        return [row for rows in found for row in rows]


def stream(spark: SparkSession, folder: Path, damage: Damage, *, slots: int, batches: int) -> Seen:
    """Micro-batches; from the second on, each is damaged while its outputs are read."""
    seen, flow = Seen(), flow_of()
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    rows = source.option("numPartitions", slots).load()
    inputs = {"r": rows.selectExpr("value as ts", f"value % {KEYS} as k")}
    frames: Any = flow.on_spark(inputs, workers=slots)
    halves: dict[str, Halves] = {}

    def writer(output: str) -> Any:
        def write(rows: DataFrame, batch: int) -> None:
            halves[output] = Halves(rows)
            if output != flow.outputs[-1]:
                return
            if batch:
                seen.damage += damage.do()
            for name, half in halves.items():
                seen.note(name, half.read_on(), batch * ROWS, (batch + 1) * ROWS)
            seen.batches = batch + 1

        return write

    writers = {output: writer(output) for output in flow.outputs}
    query = frames.write_stream(writers, checkpoint=str(folder / "checkpoint"))
    wait_for(lambda: seen.batches >= batches or query.exception() is not None)
    error = query.exception()
    query.stop()
    if error is not None:
        raise error
    seen.runs = frames.metrics()["runs"]
    return seen


def batch(
    spark: SparkSession, damage: Damage, *, slots: int, outputs: Sequence[str] = OUTPUTS
) -> Seen:
    """Batch runs over rows that come in another order each time that they are computed."""

    def in_any_order(tables: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        random = np.random.default_rng()
        for table in tables:
            yield table.take(pa.array(random.permutation(len(table))))

    seen = Seen()
    for number, output in enumerate(outputs):
        rows = spark.range(0, BATCH, 1, 3).selectExpr("id as ts", f"id % {KEYS} as k")
        rows = rows.repartition(3, "k").mapInArrow(in_any_order, "ts long, k long")
        frames = flow_of().on_spark({"r": rows}, workers=slots)
        half = Halves(frames[output])
        seen.damage += damage.do()
        seen.note(output, half.read_on(), 0, BATCH)
        seen.runs += frames.metrics()["runs"]
        seen.batches = number + 1
    return seen


def run(master: str, way: str, kinds: Sequence[str], batches: int = 4) -> Seen:
    """A session with as many workers as it has slots, and damage of these kinds."""
    from jeton.spark.session import local_session

    folder = Path(tempfile.mkdtemp())
    numbers = [int(number) for number in re.findall(r"\d+", master)]
    slots = numbers[0] if master.startswith("local[") else numbers[0] * numbers[1]
    settings = {"spark.master": master, "spark.local.dir": str(folder / "local")}
    spark = local_session(slots, **settings)
    try:
        damage = Damage(spark, kinds)
        if way == "batch":
            return batch(spark, damage, slots=slots)
        return stream(spark, folder, damage, slots=slots, batches=batches)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    print(json.dumps(asdict(run(sys.argv[1], sys.argv[2], sys.argv[3:]))), flush=True)
