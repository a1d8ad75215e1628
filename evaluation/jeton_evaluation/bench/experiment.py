"""Experiments: run a flow under an open-loop load on a host, and report the result in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import pyarrow as pa

import jeton as jt
from jeton.errors import FlowStalled, JetonError
from jeton_evaluation.bench.harness import OR_ZERO, Line, Say, Seconds, Workers
from jeton_evaluation.bench.histogram import Histogram
from jeton_evaluation.bench.open_loop import Load
from jeton_evaluation.programs.mechanisms import Mechanism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jeton.spark.query import Query

Program = Callable[[Load], jt.Flow]
"""Makes the flow for a load: see `jeton_evaluation.bench.open_loop`."""
HostName: TypeAlias = Literal["spark", "in-process"]
MechanismOption = Annotated[Mechanism, "coordination mechanism"]
PATIENCE: Final = 2.0
"""Seconds in which a flow may end by itself once all workers have reported."""


@dataclass(frozen=True)
class Host:
    """Where flows run: in this process, or on a Spark session."""

    workers: int
    spark: SparkSession | None = None
    watched: Callable[[Query], AbstractContextManager[object]] = nullcontext
    """Entered with each query on Spark, for as long as that runs."""

    @property
    def name(self) -> str:
        """The name of the host in a line."""
        return "in-process" if self.spark is None else "spark"

    def run(self, flow: jt.Flow) -> tuple[list[Line], Line]:
        """Each worker's report, and the host's own counts.

        Once all have reported, a flow that could not keep up need not finish its backlog.
        """
        if self.spark is None:
            result = self._run_here(flow)
            reports = result["report"]["report"].to_pylist()
            counts = {"progress_messages": result.progress_batches, "progress_bytes": 0}
        else:
            reports, metrics = self._run_on_spark(self.spark, flow)
            counts = {
                "progress_messages": metrics["progress_batches"],
                "progress_bytes": metrics["progress_bytes"],
            }
        return [json.loads(report) for report in reports], counts

    def _run_here(self, flow: jt.Flow) -> jt.Result:
        calls = count()
        with flow.open(workers=self.workers) as run:

            def all_reported() -> bool:
                # Collecting results is expensive: do it now and then.
                rows = 0 if next(calls) % 1000 else run.results()["report"].num_rows
                return rows == self.workers

            try:
                run.run_until(all_reported)
            except FlowStalled:
                # A flow that kept up ends before the next check.
                if run.results()["report"].num_rows < self.workers:
                    raise
            return run.results()

    def _run_on_spark(self, spark: SparkSession, flow: jt.Flow) -> tuple[list[str], Line]:
        from jeton.connectors import sinks

        reports: list[str] = []
        all_reported = Event()

        def take(table: pa.Table) -> None:
            reports.extend(table["report"].to_pylist())
            if len(reports) == self.workers:
                all_reported.set()

        sink = sinks.Callback(take)
        query = flow.start(spark, sinks={"report": sink}, workers=self.workers)
        with self.watched(query):
            while query.is_active and not all_reported.wait(0.5):
                pass
        if not query.await_termination(PATIENCE):
            query.stop(timeout=PATIENCE)
        return reports, query.metrics()


@contextmanager
def open_host(name: str, workers: int) -> Iterator[Host]:
    """A host of this name, closed at the end."""
    if name == "in-process":
        yield Host(workers)
        return
    from jeton.spark.session import local_session

    spark = local_session(workers)
    try:
        yield Host(workers, spark)
    finally:
        spark.stop()


def trial(program: Program, load: Load, host: Host, about: Line) -> Line:
    """Run once; the line has the fields of ``about`` and the measurements."""
    reports, counts = host.run(program(load))
    # If a run did not finish, records that still waited count with their time until then.
    seen = [report[what] for report in reports for what in ("latencies", "waits")]
    latencies = Histogram.from_json(*seen)
    noise = Histogram.from_json(*(report["noise"] for report in reports))
    answers = Histogram.from_json(*(report["answers"] for report in reports))
    p50, p99, p999 = latencies.quantiles_ms((0.5, 0.99, 0.999))
    [answers_p50] = answers.quantiles_ms((0.5,))
    late = latencies.max > load.give_up * 1e9
    [noise_p999] = noise.quantiles_ms((0.999,))
    return {
        **about,
        "host": host.name,
        "workers": host.workers,
        "rate_per_worker": load.rate,
        "achieved_per_worker": round(sum(r["achieved"] for r in reports) / host.workers),
        "seconds": load.seconds,
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "max_ms": round(latencies.max / 1e6, 4),
        "answers_p50_ms": answers_p50,
        "dnf": late or any(report["dnf"] for report in reports),
        "rss_mb": max(report["rss_mb"] for report in reports),
        "cpu_per_worker": round(sum(report["cpu"] for report in reports) / host.workers, 3),
        "gc_pauses": sum(report["gc_pauses"] for report in reports),
        "gc_longest_ms": round(max(report["gc_longest_ms"] for report in reports), 3),
        "records_out": sum(report["rows_out"] for report in reports),
        **counts,
        "noise_p999_ms": noise_p999,
        "noise_max_ms": round(noise.max / 1e6, 4),
    }


def search(
    program: Program,
    load: Load,
    host: Host,
    about: Line,
    say: Callable[[Line], None],
    *,
    p50_below_ms: float = 20.0,
) -> Line:
    """The highest rate that is sustained: nothing above a second, half of all below 20 ms.

    Rates grow by a half until one is not sustained, then the last step is cut in three. A rate
    gets a second try, since noise of the machine may disturb the first.
    """
    best: Line | None = None

    def holds(rate: float) -> bool:
        nonlocal best
        for _ in range(2):
            line = trial(program, replace(load, rate=rate), host, about)
            say(line)
            if not line["dnf"] and line["p50_ms"] < p50_below_ms:
                best = line
                return True
        return False

    rate = load.rate
    while not holds(rate) and rate > 1000:
        rate /= 2
    steps: tuple[float, ...]
    if rate < load.rate:
        steps = (1.26, 1.26, 1.26)
    else:
        while holds(rate * 1.5):
            rate *= 1.5
        steps = (1.14, 1.14)
    for step in steps:
        if not holds(rate * step):
            break
        rate *= step
    if best is None:
        raise JetonError(f"not even {rate:,.0f} records a second are sustained here")
    return {**best, "sustained": True}


def run(
    say: Say,
    program: Callable[[Load], jt.Flow],
    about: Line,
    unit: str,
    *,
    rate: Annotated[float, "records a second in each worker"] = 1e6,
    workers: Workers = 2,
    seconds: Seconds = 5.0,
    warm_up: Annotated[float, "seconds before, which do not count", OR_ZERO] = 2.0,
    host: Annotated[HostName, "where it runs"] = "spark",
    find_max: Annotated[bool, "search the highest sustained rate"] = False,
    **load: Any,
) -> Iterator[Line]:
    """Run an experiment, or search its highest rate, and yield the line."""
    offered = Load(rate=rate, seconds=seconds, warm_up=warm_up, **load)
    once = f"{warm_up + seconds + offered.cool_down:g} s under load"
    say(f"{once} for each rate that is tried" if find_max else once)
    with open_host(host, workers) as where:
        if find_max:
            line = search(program, offered, where, about, lambda line: say_aside(line, unit))
        else:
            line = trial(program, offered, where, about)
    say(in_words(line, unit))
    yield line


def say_aside(line: Line, unit: str) -> None:
    """Print a step of a search to standard error, apart from its result."""
    print(in_words(line, unit), file=sys.stderr, flush=True)


def in_words(line: Line, unit: str) -> str:
    """A line as readable text."""
    verdict = "did not finish" if line["dnf"] else "kept up"
    return (
        f"{line['mechanism']}, {line['rate_per_worker']:,.0f} {unit}/s × {line['workers']}: "
        f"{verdict}; p50 {line['p50_ms']:.3f} ms, p99 {line['p99_ms']:.3f}, "
        f"p999 {line['p999_ms']:.3f}, max {line['max_ms']:.1f}, "
        f"answers of a worker p50 {line['answers_p50_ms']:.3f} "
        f"(noise: p999 {line['noise_p999_ms']:.3f}, max {line['noise_max_ms']:.1f}); "
        f"{line['cpu_per_worker']:.0%} of a core a worker, {line['rss_mb']} MB"
    )
