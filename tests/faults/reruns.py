"""Parts of two attempts at a stage side by side: whether rows are lost or doubled between them.

A flow with outputs of all kinds is read partition by partition. In between, what Spark has kept is
taken away: what it knows of its shuffles, their files, cached blocks, or a whole executor. Spark
then runs the stage again and reads the other partitions from the new attempt. Each row must be
there once.

As a program it does this in a session of its own and prints what it saw as a line of JSON:
``python -m tests.faults.reruns local[4] stream outputs blocks``.
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
    flow.output("keyed", rows.key_by("k").rolling().count())
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
    """What came of it."""

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
    """Any of outputs, files, blocks and executor."""

    def do(self) -> int:
        """All kinds at once; returns how many things are gone."""
        ways: dict[str, Callable[[], int]] = {
            "outputs": self.forget_outputs,
            "files": self.delete_shuffles,
            "blocks": self.drop_blocks,
            "executor": self.kill_executor,
        }
        return sum(ways[kind]() for kind in self.kinds)

    @property
    def _environment(self) -> Any:
        jvm: Any = self.spark.sparkContext._jvm
        return jvm.org.apache.spark.SparkEnv.get()

    def forget_outputs(self) -> int:
        """Where the outputs of all stages are, as if their executors were gone."""
        tracker = self._environment.mapOutputTracker()
        shuffles = tracker.shuffleStatuses().keys().toSeq()
        found = [shuffles.apply(at) for at in range(shuffles.size())]
        for shuffle in found:
            tracker.unregisterAllMapAndMergeOutput(shuffle)
        return len(found)

    def delete_shuffles(self) -> int:
        """The files of all shuffles; with one machine, Spark notices it after some seconds."""
        folders = self._environment.blockManager().diskBlockManager().localDirsString()
        found = [
            path
            for folder in folders
            for path in glob.glob(f"{folder}/**/shuffle_*_*_*.*", recursive=True)
        ]
        for path in found:
            with suppress(FileNotFoundError):
                os.unlink(path)
        return len(found)

    def drop_blocks(self) -> int:
        """Every other cached block."""
        context = self.spark.sparkContext
        jvm: Any = context._jvm
        master = self._environment.blockManager().master()
        gone = 0
        for rdd, cached in dict(context._jsc.getPersistentRDDs()).items():
            for at in range(0, int(cached.getNumPartitions()), 2):
                master.removeBlock(jvm.org.apache.spark.storage.RDDBlockId(rdd, at))
                gone += 1
        return gone

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


def read_with_damage(frame: DataFrame, damage: Damage | None, seen: Seen) -> list[Any]:
    """All rows, partition by partition; what Spark keeps is damaged after the first with rows."""
    context, rdd = frame.sparkSession.sparkContext, frame.rdd
    found: list[Any] = []
    for at in range(rdd.getNumPartitions()):
        part = context.runJob(rdd, list, [at])
        found += part
        if part and damage is not None and len(found) == len(part):
            seen.damage += damage.do()
    return found


def stream(spark: SparkSession, folder: Path, damage: Damage, *, slots: int, batches: int) -> Seen:
    """Micro-batches: from the second on, one output of each is damaged while it is read."""
    seen, flow = Seen(), flow_of()
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    rows = source.option("numPartitions", slots).load()
    inputs = {"r": rows.selectExpr("value as ts", f"value % {KEYS} as k")}
    frames: Any = flow.on_spark(inputs, workers=slots)

    def writer(number: int, output: str) -> Any:
        def write(rows: DataFrame, batch: int) -> None:
            now = batch >= 1 and batch % len(flow.outputs) == number
            found = read_with_damage(rows, damage if now else None, seen)
            seen.note(output, found, batch * ROWS, (batch + 1) * ROWS)
            if number == len(flow.outputs) - 1:
                seen.batches = batch + 1

        return write

    writers = {output: writer(number, output) for number, output in enumerate(flow.outputs)}
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
        rows = spark.range(0, 5 * ROWS, 1, 3).selectExpr("id as ts", f"id % {KEYS} as k")
        rows = rows.repartition(3, "k").mapInArrow(in_any_order, "ts long, k long")
        frames = flow_of().on_spark({"r": rows}, workers=slots)
        found = read_with_damage(frames[output], damage, seen)
        seen.note(output, found, 0, 5 * ROWS)
        seen.runs += frames.metrics()["runs"]
        seen.batches = number + 1
    return seen


def run(master: str, way: str, kinds: Sequence[str], batches: int = 5) -> Seen:
    """A session with as many workers as it has slots, and damage of these kinds."""
    from jeton.spark.session import local_session

    folder = Path(tempfile.mkdtemp())
    numbers = [int(number) for number in re.findall(r"\d+", master)]
    slots = numbers[0] if master.startswith("local[") else numbers[0] * numbers[1]
    spark = local_session(slots, **{"spark.master": master})
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
