"""A streaming query whose shuffle files and cached blocks are deleted while its rows are read."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import DataFrame, Row

from tests.faults.reruns import Damage
from tests.soak.fatal import Plans
from tests.soak.killed_micro_batches import expected, flow_of, stream_of
from tests.soak.sessions import local

OUTPUTS = ("counts", "passed", "mixed")


class Deleter:
    """Reads an output partition by partition, and deletes what Spark has stored in between.

    A deletion counts only if Spark had to run the flow's stage again because of it.
    """

    def __init__(self, frames: Any, output: str, random: Random) -> None:
        self._frames = frames
        spark = frames[output].sparkSession
        self._context = spark.sparkContext
        self._damage = Damage(spark, ["files"]), Damage(spark, ["files", "blocks"])
        self._output = output
        self._random = random
        self.hits: Counter[str] = Counter()
        self.batches = self.rows = self.lost = self.doubled = 0

    def write(self, rows: DataFrame, batch: int) -> None:
        """Look at one micro-batch."""
        cached = self._random.random() < 0.5
        if cached:
            rows.persist()
        have = Counter(self._read(rows, batch, cached))
        if cached:
            rows.unpersist()
        want = expected(self._output, batch + 1) - expected(self._output, batch)
        self.lost += (want - have).total()
        self.doubled += (have - want).total()
        self.rows += have.total()
        self.batches += 1

    def _read(self, rows: DataFrame, batch: int, cached: bool) -> Iterator[tuple[int, ...]]:
        names = ["k", "count"] if self._output == "counts" else ["ts", "k"]
        rdd = rows.rdd
        partitions = list(range(rdd.getNumPartitions()))
        self._random.shuffle(partitions)

        def values(part: Iterable[Row]) -> list[tuple[int, ...]]:
            return [tuple(row[name] for name in names) for row in part]

        at = self._random.randrange(1, len(partitions))
        for number, partition in enumerate(partitions):
            before = self._stages_run()
            if number == at:
                self._damage[cached].do()
            yield from self._context.runJob(rdd, values, [partition])
            if number >= at and self._stages_run() > before:
                self.hits["cached blocks" if cached else "shuffle files"] += 1
                at = len(partitions)

    def _stages_run(self) -> int:
        """How many times a barrier stage of this query has been run."""
        return int(self._frames.metrics()["runs"])


def main(folder: str, slots: str, seed: str, seconds: str) -> None:
    """Run a query for a while, delete, check, and print what was seen as JSON."""
    root, random = Path(folder), Random(int(seed))
    spark = local(root, int(slots))
    output = random.choice(OUTPUTS)
    frames: Any = flow_of(Plans(root / "plans")).on_spark(
        {"r": stream_of(spark, int(slots))}, workers=int(slots)
    )
    deleter = Deleter(frames, output, random)
    query = (
        frames[output]
        .writeStream.foreachBatch(deleter.write)
        .option("checkpointLocation", str(root / "checkpoint"))
        .start()
    )
    deadline = time.monotonic() + float(seconds)
    while time.monotonic() < deadline and query.isActive:
        time.sleep(0.1)
    failures = [] if query.isActive else [str(query.exception())[:2000]]
    query.stop()
    spark.stop()
    print(
        json.dumps(
            {
                "hits": deleter.hits,
                "failures": failures,
                "batches": deleter.batches,
                "rows": deleter.rows,
                "lost": deleter.lost,
                "doubled": deleter.doubled,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
