"""The CPU time of an idle long-lived query on Spark.

The query is a word count whose source never has records and does not know when it will. So its
workers have to poll it: the most expensive way to be idle.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import repeat
from time import sleep
from typing import TYPE_CHECKING, Any

import jeton as jt
from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.experiment import Line
from jeton_evaluation.programs.word_count import word_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTLE = 2.0
"""Seconds after the start that are not counted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="jeton bench idle", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parsed = parser.parse_args(argv)
    with experiment.host("spark", parsed.workers) as where:
        assert where.spark is not None
        line = measure(where.spark, parsed.workers, parsed.seconds)
    if parsed.json:
        print(json.dumps(line))
    else:
        print(
            f"{line['workers']} idle workers, {line['seconds']:g} s: "
            f"{line['cpu_per_worker']:.2%} of a core each, {line['cpu_most']:.2%} at most"
        )
    return 0


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
    """A source's records: none now, whenever it is asked."""
    return repeat(None)


def _share(before: dict[str, float], after: dict[str, float]) -> float:
    """Both come with the worker's own clock, so that a late report does no harm."""
    return (after["cpu_seconds"] - before["cpu_seconds"]) / (after["seconds"] - before["seconds"])


if __name__ == "__main__":
    raise SystemExit(main())
