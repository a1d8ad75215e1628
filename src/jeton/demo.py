"""The demonstration of `make demo`: a flow in this process, a batch and a query on Spark."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import jeton as jt
from jeton.connectors.sinks import Memory
from jeton.connectors.sources import Rate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BIDS = 1_000_000
AUCTIONS = 500
MINUTE = 60
LIVE_RATE = 20_000
SECOND = 1_000_000_000


def run_in_process() -> None:
    """Tumbling averages of a small table, on two workers of this process: the paper's example."""
    flow = jt.Flow("paper")
    readings = flow.input("readings", time="ts")
    flow.output("averages", readings.key_by().tumbling(10).mean("value"))
    data = {"ts": [3, 12, 7, 35, 38], "value": [1.0, 4.0, 2.0, 8.0, 9.0]}
    print("In this process: tumbling averages over windows of 10, on two workers")
    for row in flow.run({"readings": data}, workers=2)["averages"].to_pylist():
        print(f"  window ending at {row['ts']:>2}: {row['mean']}")


def run_on_spark(spark: SparkSession, workers: int) -> bool:
    """The bids of an online auction, for each minute, with the tasks of a stage as workers.

    Returns whether the answer is that of Spark SQL.
    """
    print(f"On Spark: the bids of each auction and minute, of {BIDS:,} bids")
    bids = _bids(spark)
    flow = jt.Flow("bids by minute")
    minutes = flow.input("bids", time="ts", schema=bids.schema).key_by("auction").tumbling(MINUTE)
    flow.output("minutes", minutes.aggregate(bids=jt.agg.count(), highest=jt.agg.max("price")))
    start = time.perf_counter()
    result = flow.on_spark({"bids": bids}, workers=workers)["minutes"]
    answer = set(map(tuple, result.select("ts", "auction", "bids", "highest").collect()))
    print(f"  {time.perf_counter() - start:.1f} s on {workers} workers, their start included")
    bids.createOrReplaceTempView("jeton_demo_bids")
    expected = set(map(tuple, spark.sql(_SQL).collect()))
    spark.catalog.dropTempView("jeton_demo_bids")
    if answer == expected:
        print(f"  all {len(answer):,} rows are those of Spark SQL")
    else:
        print(f"  {len(answer ^ expected):,} rows differ from those of Spark SQL")
    return answer == expected


def run_live(spark: SparkSession, workers: int) -> None:
    """A query that stays up: bids as they come, for each second; at a terminal, until Enter."""
    print(f"Long-lived on Spark: the bids of each auction and second, {LIVE_RATE:,} bids a second")
    flow = jt.Flow("bids by second")
    seconds = flow.input("bids", time="ts", lateness=0).key_by("auction").tumbling(SECOND)
    flow.output("seconds", seconds.aggregate(bids=jt.agg.count(), highest=jt.agg.max("price")))
    sink = Memory()
    source = Rate(LIVE_RATE, _live_bids, time="ts")
    with flow.start(
        spark, sources={"bids": source}, sinks={"seconds": sink}, workers=workers
    ) as query:
        while (rows := sink.table()) is None and not query.await_termination(0.1):
            pass
        # The workers have all slots of the session: no other job could count them.
        print(f"  {0 if rows is None else rows.num_rows:,} rows of the first seconds are out")
        if sys.stdin.isatty():
            with suppress(EOFError, KeyboardInterrupt):
                input("  Press Enter to end the query. ")


def _live_bids(positions: npt.NDArray[np.int64]) -> dict[str, Any]:
    return {"auction": positions * 7919 % AUCTIONS, "price": positions * 104_729 % 10_000}


def _bids(spark: SparkSession) -> DataFrame:
    """Bids at 1,000 a second, in order of time."""
    return spark.range(BIDS).selectExpr(
        "id div 1000 AS ts",
        f"pmod(xxhash64(id), {AUCTIONS}) AS auction",
        "pmod(xxhash64(id, 1), 10000) AS price",
    )


_SQL = f"""
    SELECT ts div {MINUTE} * {MINUTE} + {MINUTE} AS ts, auction, count(*) AS bids,
           max(price) AS highest
    FROM jeton_demo_bids GROUP BY 1, 2
"""
