"""The CPU time of an idle long-lived query on Spark.

The query is a word count whose source never has records and does not know when it will. So its
workers have to poll it: the most expensive way to be idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from time import sleep
from typing import TYPE_CHECKING, Any

import jeton as jt
from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.harness import Line, Say, Seconds, Workers, command
from jeton_evaluation.programs.word_count import word_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTLE = 2.0
"""Seconds after the start that are not counted."""


def run(say: Say, workers: Workers = 2, seconds: Seconds = 10.0) -> Line:
    """Measure an idle query on Spark."""
    with experiment.open_host("spark", workers) as where:
        assert where.spark is not None
        line = measure(where.spark, workers, seconds)
    say(
        f"{workers} idle workers, {seconds:g} s: "
        f"{line['cpu_per_worker']:.2%} of a core each, {line['cpu_most']:.2%} at most"
    )
    return line


main = command(run)


def measure(spark: SparkSession, workers: int, seconds: float) -> Line:
    """One line: the share of a core that each worker took, on average and at most."""
    from jeton.connectors import sinks, sources

    flow = jt.Flow("idle word count")
    flow.output("counts", word_count(flow.input("words", schema={"word": int})))
    query = flow.start(
        spark,
        sources={"words": sources.Batches(nothing)},
        sinks={"counts": sinks.Memory()},
        workers=workers,
    )
    with query:
        query.await_running()
        sleep(SETTLE)
        before = query.metrics()["workers"]
        sleep(seconds)
        after = query.metrics()["workers"]
    shares = [_share(before[rank], after[rank]) for rank in after]
    return {
        "experiment": "idle",
        "host": "spark",
        "workers": workers,
        "seconds": seconds,
        "cpu_per_worker": round(sum(shares) / len(shares), 5),
        "cpu_most": round(max(shares), 5),
        "rss_mb": max(reported["peak_rss_mb"] for reported in after.values()),
    }


def nothing(partition: int, partitions: int) -> Iterator[Any]:
    """The records of a source that never has any, and does not end."""
    return repeat(None)


def _share(before: dict[str, float], after: dict[str, float]) -> float:
    """Both come with the worker's own clock, so that a late report does no harm."""
    return (after["cpu_seconds"] - before["cpu_seconds"]) / (after["seconds"] - before["seconds"])
