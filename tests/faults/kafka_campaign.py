"""A query from Kafka to Kafka, to be killed: as a program, or inside a test's own session.

As a program, it may end itself around a transaction: before it, in the middle, after its records
have been sent, or after it was committed and before the checkpoint knows.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jeton as jt
from jeton.connectors import sinks, sources
from jeton.connectors.sinks import SinkContext
from jeton.connectors.sinks.kafka import _flushed, _produce
from jeton.spark.query import Query
from jeton.spark.session import local_session

KEYS = 17
SIZE = 100
PARTITIONS = 4
EVERY = 0.2
POINTS = ("before", "middle", "after")


def flow(folder: Path | None = None) -> jt.Flow:
    """Windows of each key; who reads leaves word in the folder, so that it can be killed."""

    def seen(batch: jt.Batch) -> dict[str, Any]:
        # An empty batch is the flow's builder's, which learns the schema in the test's own process.
        if folder is not None and len(batch):
            (folder / "pids" / str(os.getpid())).touch()
        return {"k": batch["k"], "v": batch["v"]}

    made = jt.Flow("kafka")
    records = made.input("records", schema={"time": int, "k": int, "v": int}, lateness=0)
    made.output("windows", records.map(seen).key_by("k").tumbling(SIZE).sum("v"))
    return made


def record(number: int) -> dict[str, int]:
    """The record of a number, of which each partition has every fourth."""
    return {"time": number // 4, "k": number * 7919 % KEYS, "v": number % 1009}


def start(
    spark: Any, folder: Path, servers: str, *, end: bool, sink: sinks.Sink | None = None
) -> Query:
    """Go on from the last checkpoint; with ``end``, to the last record that there is."""
    (folder / "pids").mkdir(parents=True, exist_ok=True)
    return flow(folder).start(
        spark,
        sources={"records": sources.Kafka(servers, "in", end=end, most=200)},
        sinks={"windows": sink or sinks.Kafka(servers, "out", key="k")},
        workers=2,
        checkpoint=folder / "checkpoint",
        every=EVERY,
        restarts=50,
    )


class FatalKafka(sinks.Kafka):
    """A sink that ends the driver at a point of the next transaction with rows."""

    def __init__(self, servers: str, folder: Path, point: str) -> None:
        super().__init__(servers, "out", key="k")
        self._folder = folder
        self._point = point

    def _write(self, producer: Any, context: SinkContext, table: Any, version: Any) -> None:
        if table is None or context.again:
            super()._write(producer, context, table, version)
            return
        if self._point == "middle":
            first = json.dumps(self._ends())
            producer.begin_transaction()
            failed: list[Any] = []
            _produce(producer, self.topic, table, failed)
            _flushed(producer, failed)
            # What the mock cluster shows, and a real one hides: it aborts the transaction.
            (self._folder / "aborted").write_text(f"[{first}, {json.dumps(self._ends())}]")
        elif self._point == "after":
            super()._write(producer, context, table, version)
        os._exit(9)

    def _ends(self) -> dict[str, int]:
        """Where each partition of the topic ends now."""
        asked = sources.Kafka(self.servers, "^out$", start="latest")
        return {name: at["offset"] for name, at in asked.partitions(1).items()}


def main(folder: Path, servers: str, point: str) -> None:
    """The driver: goes on from wherever the one before it ended."""
    spark = local_session(workers=2)
    sink = FatalKafka(servers, folder, point) if point in POINTS else None
    query = start(spark, folder, servers, end=sink is None, sink=sink)
    query.await_termination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
