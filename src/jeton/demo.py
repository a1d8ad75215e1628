"""What ``make demo`` shows: a flow in this process, and a NEXMark query on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jeton as jt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = 300_000
QUERY = "q4"


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
    """A query of an online auction, its workers being the tasks of a barrier stage.

    Tells whether the answer is that of Spark SQL.
    """
    from jeton.nexmark import Config, queries
    from jeton.nexmark.command import in_words, run_query

    query = queries.get(QUERY)
    print(f"On Spark: NEXMark {query.name}, {query.title}, when auctions close")
    print(f"  {EVENTS:,} events of an online auction through {workers} workers ...", flush=True)
    told = run_query(spark, query, Config(), EVENTS, workers)
    print(in_words(told))
    same: bool = told["equal"]
    return same
