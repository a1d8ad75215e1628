"""A key with half of all records: the rate of windows before and after `rebalance` and `spread`.

Records are made in the workers of a long-lived query on Spark, which take them as fast as they can.
The same windows are computed of keys that all occur equally often, which is the best that can be
reached; of the skewed keys; of these after `query.rebalance()`, which moves the other keys away
from the hot one; and of the skewed keys with ``spread``. They take turns; compare the ratios. The
second table has the records for each second of CPU time of the busiest worker: the rate at which
that worker could go with a core of its own, which a busy machine changes little. All of it takes
some eight minutes; ``--only sum --rounds 1`` half a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np

import jeton as jt
from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.harness import (
    Line,
    OptionError,
    Rounds,
    Say,
    Seconds,
    Workers,
    command,
    grid,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jeton.spark import Query

KEYS: Final = 10_000
BATCH: Final = 32_768
WINDOW: Final = 1_000_000
"""The size of windows, in which a worker makes as many records."""

WARM_UP: Final = 2.0
"""Seconds before anything is measured."""

AGGREGATES: Final[dict[str, dict[str, Any]]] = {
    "count": {"n": jt.agg.count()},
    "sum, max, mean": {
        "sum": jt.agg.sum("value"),
        "most": jt.agg.max("value"),
        "mean": jt.agg.mean("value"),
    },
    "count_distinct": {"n": jt.agg.count_distinct("value")},
    "median": {"median": jt.agg.median("value")},
    "reduce, in Python": {"most": jt.agg.reduce("value", max)},
}
CASES: Final = ("even", "skewed", "rebalanced", "spread")


def run(
    say: Say,
    seconds: Seconds = 3.0,
    share: Annotated[float, "part of the records that the hot key has"] = 0.5,
    spread: Annotated[int, "workers for each hot key, at most"] = 8,
    rounds: Rounds = 3,
    workers: Workers = 2,
    only: Annotated[str, "aggregates that begin like this"] = "",
) -> list[Line]:
    """Measure all aggregates in one session."""
    chosen = {name: each for name, each in AGGREGATES.items() if name.startswith(only)}
    if not chosen:
        raise OptionError(f"no aggregate begins with {only!r}: there are {'; '.join(AGGREGATES)}")
    if share > 1:
        raise OptionError(f"a key cannot have {share:g} of the records: --share is at most 1")
    lines: list[Line] = []
    with experiment.open_host("spark", workers) as where:
        assert where.spark is not None
        for name, aggregates in chosen.items():
            found: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
            for number in range(1, rounds + 1):
                say(f"measuring {name}: round {number} of {rounds}")
                options = (aggregates, share, spread, seconds)
                for case, rates in measured(where.spark, workers, *options):
                    found[case].append(rates)
            line: Line = {"aggregates": name}
            for case, each in found.items():
                line[f"{case}_per_s"] = median(rate for rate, _ in each)
                line[f"{case}_per_cpu_s"] = median(rate for _, rate in each)
            lines.append(line)
    say(f"windows on {workers} workers, one key with {share:.0%} of the records")
    for unit, what in (("per_s", "records/s"), ("per_cpu_s", "by CPU time of the busiest")):
        rows = [[what, "even keys", "one hot key", "rebalanced", f"spread={spread}"]]
        for line in lines:
            cells = [line["aggregates"]]
            for case in CASES:
                rate, skewed = line[f"{case}_{unit}"], line[f"skewed_{unit}"]
                times = f" ×{rate / skewed:.2f}" if case not in CASES[:2] else ""
                cells.append(f"{rate / 1e6:.1f}M/s{times}")
            rows.append(cells)
        say("\n".join(["", *grid(rows)]))
    return lines


main = command(run)


def skewed_windows(aggregates: dict[str, Any], spread: int | None) -> jt.Flow:
    """Tumbling windows of records with a key and a value."""
    flow = jt.Flow("skew")
    keyed = flow.input("records").key_by("key", spread=spread)
    flow.output("out", keyed.tumbling(WINDOW).aggregate(**aggregates))
    return flow


def measured(
    spark: SparkSession,
    workers: int,
    aggregates: dict[str, Any],
    share: float,
    spread: int,
    seconds: float,
) -> Iterator[tuple[str, tuple[float, float]]]:
    """The rates of each case, in three queries one after the other: see `rates_of`."""
    from jeton.connectors import sinks, sources

    for case, part, over in (
        ("even", 0.0, None),
        ("skewed", share, None),
        ("spread", share, spread),
    ):
        query = skewed_windows(aggregates, over).start(
            spark,
            sources={"records": sources.Batches(skewed_batches(part))},
            sinks={"out": sinks.Callback(lambda table: None)},
            workers=workers,
        )
        with query:
            query.await_running()
            time.sleep(WARM_UP)
            yield case, rates_of(query, seconds)
            if case == "skewed":
                query.rebalance(plan="all_at_once")
                yield "rebalanced", rates_of(query, seconds)


def rates_of(query: Query, seconds: float) -> tuple[float, float]:
    """Records of all workers for each second, and for each second of CPU time of the busiest."""

    def seen() -> dict[int, tuple[float, ...]]:
        found = query.metrics()["workers"]
        names = ("seconds", "cpu_seconds", "rows_in")
        return {at: tuple(float(each[n]) for n in names) for at, each in found.items()}

    before = seen()
    time.sleep(seconds)
    after = seen()
    changes = [np.subtract(after[at], earlier) for at, earlier in before.items()]
    rows = sum(rows for _, _, rows in changes)
    clocks, busy = (max(max(change[at], 1e-9) for change in changes) for at in (0, 1))
    return rows / clocks, rows / busy


def skewed_batches(share: float) -> Callable[[int, int], Iterator[jt.Batch]]:
    """Batches of records, of which the key 0 has a share, and all others equal parts."""

    def make(partition: int, partitions: int) -> Iterator[jt.Batch]:
        random = np.random.default_rng(partition)
        made = []
        for _ in range(16):
            keys = random.integers(0, KEYS, BATCH)
            keys[random.random(BATCH) < share] = 0
            made.append({"key": keys, "value": random.integers(0, 1_000_000, BATCH)})
        times = np.arange(BATCH)
        for number in count():
            first = number * BATCH
            yield jt.Batch.trusted(made[number % 16], times + first, "time", first)

    return make
