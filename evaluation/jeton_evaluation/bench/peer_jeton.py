"""Jeton's own part of the comparison with its peers: the same programs, from its library.

Records are arrays in memory before the clock starts, in messages of `BATCH`. On one worker a flow
runs in this process; on several it is a long-lived query on Spark, whose workers read their shares
once all have them. The last operator counts rows and stores the values by which the answer is
checked.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import jeton as jt

BATCH = 32_768
WARM_UP = 200_000
KEYS = 10_000

clock: dict[str, float] = {}
"""When this process handed out its first record."""


def main(argv: list[str]) -> int:
    """Run as the programs of the peers do: variant, program, workers, records, data, out."""
    _variant, program, workers, records, data, out = argv
    run = in_process if workers == "1" else on_spark
    for count in (min(WARM_UP, int(records)), int(records)):
        reported = run(program, int(workers), count, Path(data))
    for number, part in enumerate(reported):
        (Path(out) / f"reported-{number}.json").write_text(json.dumps(part))
    return 0


def flow_of(program: str) -> jt.Flow:
    """The program, from the input ``records`` to the output ``reported``."""
    flow = jt.Flow(program)
    if program == "word count":
        # Every record has its own time, and a count does not wait for any.
        records = flow.input("records", schema={"key": int, "value": int})
        answers = records.key_by("key").running().count()
    else:
        records = flow.input("records", schema={"key": int, "value": int}, lateness=1000)
        # About ten records of a key in a window: too few for workers to combine them first.
        answers = records.key_by("key").tumbling(10_000).mean("value")
    flow.output("reported", answers.unary_frontier(tally, schema={"reported": str}))
    return flow


def tally(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
    """Take all rows, and report at the end what they were and when the last one came."""
    rows, total, last = 0, 0.0, 0.0
    counts = np.zeros(KEYS, np.int64)

    def step(input: jt.Input, output: jt.Output) -> None:
        nonlocal rows, total, last
        for _, batch in input:
            rows += len(batch)
            if "mean" in batch.names:
                total += float(batch["mean"].sum())
            else:
                # A key's counts only grow, and of several the last one stays.
                counts[batch.column("key")] = batch.column("count")
            last = time.perf_counter()
        if input.frontier.is_empty and not token.dropped:
            reported = {
                "rows": rows,
                "sum": total,
                "first": clock["first"],
                "last": last,
                "counts": dict(enumerate(counts.tolist())),
            }
            with token, output.session(token) as session:
                session.give(reported=json.dumps(reported))

    return step


def batches(
    records: int, data: Path, partition: int, partitions: int, start: Path | None = None
) -> Iterator[jt.Batch | None]:
    """A worker's share of the records, all in memory when this returns.

    In the folder ``start`` a worker says that it is there; none reads before all are.
    """
    columns = {}
    for name in ("keys", "times", "values"):
        share = np.load(data / f"{name}.npy", mmap_mode="r")[partition:records:partitions]
        columns[name] = share.astype(np.int64)
    made = []
    for first in range(0, len(columns["keys"]), BATCH):
        keys, times, values = (column[first : first + BATCH] for column in columns.values())
        batch = jt.Batch.trusted({"key": keys, "value": values}, times, "time", int(times.min()))
        made.append(batch)

    def each() -> Iterator[jt.Batch | None]:
        if start is not None:
            (start / str(partition)).touch()
            while len(list(start.iterdir())) < partitions:
                yield None
        clock["first"] = time.perf_counter()
        yield from made

    return each()


def in_process(program: str, workers: int, records: int, data: Path) -> list[dict[str, Any]]:
    """The report of the only worker."""
    share = batches(records, data, 0, 1)
    with flow_of(program).open(workers=workers) as run:
        for batch in share:
            run.input("records").send(batch)
            run.run_to_rest()
        return [
            json.loads(reported) for reported in run.finish()["reported"]["reported"].to_pylist()
        ]


def on_spark(program: str, workers: int, records: int, data: Path) -> list[dict[str, Any]]:
    """The reports of the workers of a long-lived query."""
    from jeton.connectors import sinks, sources
    from jeton.spark.session import local_session

    with TemporaryDirectory(prefix="jeton-start-") as start:

        def make(partition: int, partitions: int) -> Iterator[jt.Batch | None]:
            return batches(records, data, partition, partitions, Path(start))

        query = flow_of(program).start(
            local_session(workers),
            sources={"records": sources.Batches(make)},
            sinks={"reported": sinks.Memory()},
            workers=workers,
        )
        query.await_termination()
    return [json.loads(row["reported"]) for row in query.table("reported").collect()]


if __name__ == "__main__":
    # Under its own name, so that Spark's workers import it and share its clock.
    from jeton_evaluation.bench import peer_jeton

    raise SystemExit(peer_jeton.main(sys.argv[1:]))
