"""Megaphone's experiment: latency while half of the state moves between workers.

A query on Spark counts keys under an open-loop load. Once it has seen every key, half of the bins
change places between the workers: all at once, in batches, or bin by bin. A measuring operator
behind the counts notes how far the frontier lags behind the clock, every millisecond at most. The
least lag of the whole run is the zero of its latencies, since workers know no common start.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Annotated

import numpy as np

import jeton as jt
from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.harness import Line, Say, Workers, command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BINS = 256
MILLISECOND = 1_000_000
SETTLE = 2.0
"""Seconds before and after the migration."""


def run(
    say: Say,
    workers: Workers = 2,
    keys: Annotated[int, "keys"] = 1_000_000,
    rate: Annotated[int, "records a second, of all workers together"] = 1_000_000,
) -> Line:
    """Measure latency while state moves, by each plan."""
    plans: dict[str, str | int] = {"all at once": "all_at_once", "batched": 16, "fluid": "fluid"}
    lines: Line = {"keys": keys, "rate": rate, "workers": workers}
    with experiment.open_host("spark", workers) as where:
        assert where.spark is not None
        for name, plan in plans.items():
            line = lines[name] = measure(where.spark, workers, keys, rate, plan)
            say(
                f"{name:12} {keys:,} keys: at most {line['most']:8.1f} ms while {line['rows']:,} "
                f"rows moved in {line['steps']} steps and {line['seconds']:.2f} s; "
                f"{line['before']:.1f} ms before"
            )
    return lines


main = command(run)


def counts(keys: int, folder: str) -> jt.Flow:
    """The flow: counts by key, and a file of each worker with the lags of its frontier."""
    flow = jt.Flow("moving counts", bins=BINS)

    def lags(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Output], None]:
        token.drop()
        seen: list[tuple[int, int]] = []

        def write() -> None:
            (Path(folder) / f"{info.worker}.json").write_text(json.dumps(seen))

        info.at_end(write)

        def step(input: jt.Input, output: jt.Output) -> None:
            for _ in input:
                pass
            now, frontier = monotonic_ns(), input.frontier.only
            if frontier is not None and frontier > 0:
                lag = now - frontier
                if seen and now - seen[-1][0] < MILLISECOND:
                    seen[-1] = seen[-1][0], max(seen[-1][1], lag)
                else:
                    seen.append((now, lag))

        return step

    numbers = flow.input("numbers", schema={"key": int})
    counted = numbers.key_by("key").running().count()
    flow.output("lags", counted.unary_frontier(lags, name="lags", notify="always"))
    return flow


def measure(spark: SparkSession, workers: int, keys: int, rate: int, plan: str | int) -> Line:
    """One run: the greatest latency before and during the migration, in milliseconds."""
    from jeton.connectors.sources import Rate

    # All keys in turn, in an order that is not that of their bins.
    source = Rate(rate, lambda positions: {"key": positions * 7919 % keys})
    with tempfile.TemporaryDirectory() as folder:
        query = counts(keys, folder).start(spark, sources={"numbers": source}, workers=workers)
        with query:
            query.await_running()
            while query.metrics().get("rows_in", 0) < keys:
                time.sleep(0.1)
            time.sleep(SETTLE)
            moves = {
                bin: (worker + 1) % workers
                for worker, bins in query.placement.items()
                for bin in bins[::2]
            }
            began = monotonic_ns()
            moved = query.migrate(moves, plan=plan)
            ended = monotonic_ns()
            time.sleep(SETTLE)
        files = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    latencies = [np.array(found, dtype=np.int64) for found in files]
    parts = []
    for found in latencies:
        found[:, 1] -= found[:, 1].min()
        parts.append(found)
    whole = np.concatenate(parts)
    at, lag = whole[:, 0], whole[:, 1] / MILLISECOND
    calm = (at < began) & (at > began - SETTLE * 1e9)
    # The lag is seen when the frontier moves on, which may be after the end.
    moving = (at >= began) & (at <= ended + 1e9)
    tenths = [
        [number, round(float(lag[moving][where].max()), 2)]
        for number in range(int((ended - began) / 1e8) + 1)
        if (where := (at[moving] - began) // 1e8 == number).any()
    ]
    return {
        "before": float(np.median(lag[calm])),
        "most": float(lag[moving].max()),
        "rows": moved.rows,
        "steps": moved.steps,
        "seconds": moved.seconds,
        "over_time": tenths,
    }
