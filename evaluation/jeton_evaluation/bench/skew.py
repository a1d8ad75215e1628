"""A key with half of all records: the rate of windows with and without a spread key, on Spark.

Records are made in the workers of a long-lived query, which take them as fast as they can. The
same windows are computed of keys that all occur equally often, which is the best that can be
reached, of the skewed keys, and of the skewed keys with ``spread``. The three take turns; compare
the ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np

import jeton as jt
from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.harness import Line, Rounds, Say, Workers, command, grid, in_turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS: Final = 10_000
BATCH: Final = 32_768
WINDOW: Final = 1_000_000
"""The size of windows, in which a worker makes as many records."""

AGGREGATES: Final[dict[str, tuple[dict[str, Any], int]]] = {
    "count": ({"n": jt.agg.count()}, 1),
    "sum, max, mean": (
        {
            "sum": jt.agg.sum("value"),
            "most": jt.agg.max("value"),
            "mean": jt.agg.mean("value"),
        },
        1,
    ),
    "count_distinct": ({"n": jt.agg.count_distinct("value")}, 5),
    "median": ({"median": jt.agg.median("value")}, 5),
    "reduce, in Python": ({"most": jt.agg.reduce("value", max)}, 5),
}
"""Aggregates, and how much more expensive they are than the first: fewer records are enough."""


def run(
    say: Say,
    records: Annotated[int, "records of the cheapest aggregate"] = 40_000_000,
    share: Annotated[float, "part of the records that the hot key has"] = 0.5,
    spread: Annotated[int, "workers for each key"] = 8,
    rounds: Rounds = 3,
    workers: Workers = 2,
) -> list[Line]:
    """Measure all aggregates in one session."""
    lines: list[Line] = []
    with experiment.open_host("spark", workers) as where:
        assert where.spark is not None
        for name, (aggregates, cost) in AGGREGATES.items():
            count = records // cost
            query = partial(seconds, where.spark, workers, count, aggregates)
            even, skewed, spreading = in_turn(
                rounds,
                partial(query, 0.0, None),
                partial(query, share, None),
                partial(query, share, spread),
            )
            line: Line = {
                "aggregates": name,
                "even_per_s": count / even,
                "skewed_per_s": count / skewed,
                "spread_per_s": count / spreading,
                "ratio": skewed / spreading,
            }
            lines.append(line)
    rows = [["aggregates", "even keys", "one hot key", f"spread={spread}", "ratio"]]
    for line in lines:
        rates = [f"{line[f'{case}_per_s'] / 1e6:.1f}M/s" for case in ("even", "skewed", "spread")]
        rows.append([line["aggregates"], *rates, f"{line['ratio']:.2f}"])
    say(f"windows on {workers} workers, one key with {share:.0%} of the records")
    say("\n".join(grid(rows)))
    return lines


main = command(run)


def skewed_windows(aggregates: dict[str, Any], spread: int | None) -> jt.Flow:
    """Tumbling windows of records with a key and a value."""
    flow = jt.Flow("skew")
    keyed = flow.input("records").key_by("key", spread=spread)
    flow.output("out", keyed.tumbling(WINDOW).aggregate(**aggregates))
    return flow


def seconds(
    spark: SparkSession,
    workers: int,
    records: int,
    aggregates: dict[str, Any],
    share: float,
    spread: int | None,
) -> float:
    """Seconds from the first record to the last, as the slowest worker saw it."""
    from jeton.connectors import sinks, sources

    query = skewed_windows(aggregates, spread).start(
        spark,
        sources={"records": sources.Batches(skewed_batches(records // workers, share))},
        sinks={"out": sinks.Callback(lambda table: None)},
        workers=workers,
    )
    query.await_termination()
    return max(float(each["seconds"]) for each in query.metrics()["workers"].values())


def skewed_batches(records: int, share: float) -> Callable[[int, int], Iterator[jt.Batch]]:
    """Batches of records, of which the key 0 has a share, and all others equal parts."""

    def make(partition: int, partitions: int) -> Iterator[jt.Batch]:
        random = np.random.default_rng(partition)
        made = []
        for _ in range(16):
            keys = random.integers(0, KEYS, BATCH)
            keys[random.random(BATCH) < share] = 0
            made.append({"key": keys, "value": random.integers(0, 1_000_000, BATCH)})
        times = np.arange(BATCH)
        for number in range(-(-records // BATCH)):
            first = number * BATCH
            size = min(BATCH, records - first)
            columns = {name: column[:size] for name, column in made[number % 16].items()}
            yield jt.Batch.trusted(columns, times[:size] + first, "time", first)

    return make
