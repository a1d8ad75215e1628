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
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt

import jeton as jt
from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.harness import Line, OptionError, Say, Workers, command
from jeton_evaluation.bench.runs import machine, short

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MILLISECOND = 1_000_000
SETTLE = 3.0
"""Seconds before and after the migration."""
POINTS = 400
"""Points of a curve, at most: each is the greatest latency of its part of the time."""
BATCHED = 16
"""Bins that move at a time in a batched migration."""
PLANS: dict[str, str | int] = {"all at once": "all_at_once", "batched": BATCHED, "fluid": "fluid"}


def run(
    say: Say,
    workers: Workers = 2,
    keys: Annotated[int, "keys"] = 10_000_000,
    rate: Annotated[int, "records a second of each worker"] = 4_000_000,
    bins: Annotated[int, "bins, half of which move"] = 256,
    rounds: Annotated[int, "rounds, of which the one with the median maximum counts"] = 1,
    out: Annotated[Path | None, "also append the lines to this file"] = None,
) -> list[Line]:
    """Measure latency while state moves, by each plan, in one session."""
    if workers < 2:
        raise OptionError("state moves between workers: --workers is at least 2")
    if out is not None and not out.parent.is_dir():
        raise OptionError(f"there is no folder {out.parent}")
    lines: list[Line] = []
    say(f"{keys:,} keys under {rate:,} records/s in each of {workers} workers")
    with experiment.open_host("spark", workers) as where:
        assert where.spark is not None
        found: dict[str, list[Line]] = {name: [] for name in PLANS}
        for _ in range(rounds):
            for name, plan in PLANS.items():
                line = measure(where.spark, workers, keys, rate, bins, plan)
                found[name].append(line)
                say(
                    f"{name:12} at most {line['max_ms']:8.1f} ms while {line['rows']:,} rows moved "
                    f"in {line['steps']} steps and {line['took_s']:.2f} s; median "
                    f"{line['before_ms']:.1f} ms before, {line['p50_ms']:.1f} ms during it"
                )
    for name, measured in found.items():
        middle = sorted(measured, key=lambda line: float(line["max_ms"]))[(rounds - 1) // 2]
        about = {"plan": name, "keys": keys, "workers": workers, "bins": bins}
        run = f"migration/{name}/{short(keys)} keys/{short(rate)}/w{workers}"
        about |= {"run": run, "experiment": "migration", "rate_per_worker": rate}
        lines.append({**about, **middle})
    sudden, fluid = (line["max_ms"] for line in (lines[0], lines[-1]))
    say(f"{short(keys)} keys: fluid is at most {sudden / fluid:.1f} times lower than all at once")
    if out:
        with out.open("a") as file:
            for line in ({**machine(), "run": "machine/migration"}, *lines):
                file.write(json.dumps(line) + "\n")
    return lines


main = command(run)


def counts(folder: str, bins: int) -> jt.Flow:
    """The flow: counts by key, and a file of each worker with the lags of its frontier."""
    flow = jt.Flow("moving counts", bins=bins)

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


def measure(
    spark: SparkSession, workers: int, keys: int, rate: int, bins: int, plan: str | int
) -> Line:
    """One run: the latencies before and during the migration, in milliseconds."""
    from jeton.connectors.sources import Rate

    # All keys in turn, in an order that is not that of their bins.
    source = Rate(rate * workers, lambda positions: {"key": positions * 7919 % keys})
    with tempfile.TemporaryDirectory() as folder:
        query = counts(folder, bins).start(spark, sources={"numbers": source}, workers=workers)
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
    parts = [np.array(found, dtype=np.int64) for found in files]
    for part in parts:
        part[:, 1] -= part[:, 1].min()
    whole = np.concatenate(parts)
    whole = whole[np.argsort(whole[:, 0])]
    at, lag = (whole[:, 0] - began) / 1e9, whole[:, 1] / MILLISECOND
    calm = (at < 0) & (at > -SETTLE)
    # The lag is seen when the frontier moves on, which may be after the end.
    moving = (at >= 0) & (at <= (ended - began) / 1e9 + 1)
    return {
        "before_ms": float(np.median(lag[calm])),
        "before_max_ms": float(lag[calm].max()),
        "p50_ms": float(np.median(lag[moving])),
        "max_ms": float(lag[moving].max()),
        "rows": moved.rows,
        "steps": moved.steps,
        "took_s": moved.seconds,
        "over_time": curve(at, lag, -1.0, (ended - began) / 1e9 + 1),
    }


def curve(
    at: npt.NDArray[Any], lag: npt.NDArray[Any], first: float, last: float
) -> list[list[float]]:
    """The greatest lag of each of some equal parts of the time.

    >>> at = np.array([0.0, 0.5, 1.0, 1.5])
    >>> curve(at, np.array([1.0, 9.0, 2.0, 3.0]), 0.0, POINTS / 1.0)
    [[0.0, 9.0], [1.0, 3.0]]
    """
    width = (last - first) / POINTS
    part = np.floor((at - first) / width).astype(np.int64)
    return [
        [round(first + number * width, 4), round(float(lag[part == number].max()), 3)]
        for number in range(POINTS)
        if (part == number).any()
    ]
