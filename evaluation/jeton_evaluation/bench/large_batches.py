"""Batches several times as large as the memory of the workers, with the peak of each worker.

``jeton bench large_batches`` runs an interval join and a session window over DataFrames that Spark
makes as they are read, in no order of time, in a session of their own each. Every worker has a hard
limit of memory: an allocation beyond it fails. With ``--all``, the same runs follow without order,
at the sizes that are given and with no limit, which shows what the order saves. A run takes some
minutes.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Literal

import jeton as jt
from jeton_evaluation.bench.harness import (
    Line,
    OptionError,
    Say,
    Table,
    Workers,
    child_line,
    command,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Shape = Literal["interval_join", "session_window"]

KEYS = 1_000
TEXT = 1_000
"""Bytes of text in a row, which the state of a join or of a session holds too."""
ROW = TEXT + 3 * 8
BURST = 2 * KEYS
"""Times with a record, two of each key; then there is none until all sessions are over."""
SCHEMA = {"key": int, "n": int, "text": str}

TABLE = Table(
    {
        "flow": "shape:<16",
        "order": "order:>10",
        "rows": "rows:>13,",
        "MB in": "input_mb:>9,",
        "limit, MB": "limit:>11",
        "peak of each, MB": "peaks:>20",
        "seconds": "seconds:>10.1f",
        "rows out": "rows_out:>13,",
    }
)


def run(
    say: Say,
    limit_mb: Annotated[int, "memory of a worker, in megabytes"] = 512,
    times: Annotated[float, "how many times all workers' memory the input has"] = 5.0,
    workers: Workers = 2,
    shapes: Annotated[list[Shape], "the flows"] = ["interval_join", "session_window"],  # noqa: B006
    *,
    all: Annotated[bool, "the same without order and limit too"] = False,
    one: Annotated[Literal["ordered", "unordered"] | None, argparse.SUPPRESS] = None,
) -> list[Line]:
    """Measure each flow in a process of its own; ``one`` is such a process."""
    if one:
        [shape] = shapes
        print(json.dumps(measure(shape, limit_mb, times, workers, one == "ordered")))
        return []
    if not bursts_of(times, limit_mb, workers):
        raise OptionError(f"--times {times:g} of {limit_mb} MB is less than one burst of records")
    say(TABLE.head)
    lines = []
    for shape in shapes:
        for order in ("ordered", "unordered") if all else ("ordered",):
            line = in_a_child(shape, limit_mb, times, workers, order)
            peaks = " ".join(map(str, line["peak_mb"]))
            limit = limit_mb if order == "ordered" else "none"
            say(TABLE.row(line | {"order": order, "peaks": peaks, "limit": limit}))
            lines.append(line)
    return lines


main = command(run)


def in_a_child(shape: str, limit_mb: int, times: float, workers: int, order: str) -> Line:
    """One run in a process of its own, with a session of its own and new workers."""
    options = ("--one", order, "--limit-mb", limit_mb, "--times", times, "--workers", workers)
    # Arrow's own allocator reserves a gigabyte at once, which would count as used.
    pool = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
    return child_line(__spec__.name, *options, "--shapes", shape, **pool)


def bursts_of(times: float, limit_mb: int, workers: int) -> int:
    """The bursts of records that have ``times`` the memory of all workers."""
    return int(times * limit_mb * workers * 2**20 / ROW / BURST)


def measure(shape: Shape, limit_mb: int, times: float, workers: int, in_order: bool) -> Line:
    """Run a flow over rows of ``times`` the workers' memory, and check what came out."""
    from jeton.spark import local_session

    bursts = bursts_of(times, limit_mb, workers)
    spark = local_session(workers)
    try:
        flow, inputs, expected = MAKERS[shape](spark, bursts, limit_mb if in_order else None)
        frames = flow.on_spark(inputs, workers=workers, ordered=in_order, progress=False)
        start = perf_counter()
        [found] = frames["out"].selectExpr("count(*) AS rows", "sum(n) AS total").collect()
        seconds = perf_counter() - start
        metrics = frames.metrics()
    finally:
        spark.stop()
    if (found["rows"], found["total"]) != expected or metrics["late"]:
        raise AssertionError(f"{shape} gave {found}, late {metrics['late']}, not {expected}")
    return {
        "shape": shape,
        "ordered": in_order,
        "workers": workers,
        "limit_mb": limit_mb if in_order else None,
        "rows": metrics["rows_in"],
        "input_mb": metrics["rows_in"] * ROW >> 20,
        "rows_out": metrics["rows_out"],
        "peak_mb": [each["peak_rss_mb"] for each in metrics["workers"].values()],
        "seconds": round(seconds, 2),
    }


def interval_join(
    spark: SparkSession, bursts: int, limit_mb: int | None
) -> tuple[jt.Flow, dict[str, DataFrame], tuple[int, int]]:
    """Each record with the one of its key before it: each burst has two of each key."""
    flow = jt.Flow("interval join")
    sides = [limited(flow.input(name, schema=SCHEMA), limit_mb) for name in ("left", "right")]
    left, right = (side.key_by("key") for side in sides)
    flow.output("out", left.interval_join(right, -KEYS, -1).select("key", "n"))
    # Half of the rows for each side, so that both together have as many as are asked for.
    bursts = max(1, bursts // 2)
    inputs = {name: rows(spark, bursts) for name in ("left", "right")}
    pairs = bursts * KEYS
    # The second record of a key is in the second half of a burst.
    firsts = sum(range(KEYS, BURST)) * bursts + BURST * KEYS * sum(range(bursts))
    return flow, inputs, (pairs, firsts)


def session_window(
    spark: SparkSession, bursts: int, limit_mb: int | None
) -> tuple[jt.Flow, dict[str, DataFrame], tuple[int, int]]:
    """The sessions of each key, one in each burst: how many records, and the first one's text."""
    flow = jt.Flow("session window")
    readings = limited(flow.input("readings", schema=SCHEMA), limit_mb).key_by("key")
    sessions = readings.session_window(BURST).aggregate(n=jt.agg.count(), text=jt.agg.first("text"))
    flow.output("out", sessions.select("key", "n"))
    return flow, {"readings": rows(spark, bursts)}, (bursts * KEYS, bursts * BURST)


MAKERS: dict[str, Callable[..., tuple[jt.Flow, dict[str, DataFrame], tuple[int, int]]]] = {
    "interval_join": interval_join,
    "session_window": session_window,
}


def rows(spark: SparkSession, bursts: int) -> DataFrame:
    """Rows in no order of time, made by Spark where they are read."""
    from pyspark.sql import functions as F

    count = bursts * BURST
    # A prime that is no factor of the count goes through all numbers once.
    step = next(p for p in (1_000_003, 1_000_033, 1_000_037) if count % p)
    number = (F.col("id") * step) % count
    between = F.floor(number / BURST) * (2 * BURST)
    return spark.range(count).select(
        (number + between).alias("time"),
        (number % KEYS).alias("key"),
        number.alias("n"),
        F.rpad(F.sha2(number.cast("string"), 512), TEXT, "x").alias("text"),
    )


def limited(stream: jt.Stream, limit_mb: int | None) -> jt.Stream:
    """The same records, on workers that can allocate so many megabytes at most."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        token.drop()
        if limit_mb is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit_mb << 20, limit_mb << 20))

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                output.session(ref).give(batch)

        return step

    return stream if limit_mb is None else stream.unary(build, schema=stream.schema)


if __name__ == "__main__":
    raise SystemExit(main())
