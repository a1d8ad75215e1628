"""How late the answers of long-lived queries are, under loads that do not wait for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jeton_evaluation.bench.experiment import Host, trial
from jeton_evaluation.bench.nexmark import program
from jeton_evaluation.bench.open_loop import Load
from jeton_evaluation.nexmark.queries import Query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Latency:
    """Latencies of a query under one load. Rates are of all workers together."""

    query: str
    workers: int
    offered: float
    """Events a second that were due."""
    achieved: float
    """Events a second whose answers were complete."""
    p50_ms: float
    p999_ms: float
    max_ms: float
    noise_p999_ms: float
    """How long the machine kept a loop that does nothing from running, in the same run."""
    kept_up: bool
    """Whether no event took longer than a second; if one does, the run ends there."""


def measure_latency(
    spark: SparkSession, query: Query, offered: float, *, workers: int = 2, seconds: float = 3.0
) -> Latency:
    """Offer events when they are due, and note how long after that each is complete.

    See `jeton_evaluation.bench.nexmark` for what is offered, and what a latency is.

    >>> from jeton_evaluation.nexmark import queries
    >>> def show(spark):
    ...     seen = measure_latency(spark, queries.get("q2"), 10_000)
    ...     print(f"half of the events within {seen.p50_ms} ms, at worst {seen.max_ms}")
    """
    load = Load(rate=offered / workers, seconds=seconds, warm_up=min(2.0, seconds))
    line = trial(
        lambda load: program(load, query.name, "tokens"),
        load,
        Host(workers, spark),
        {"experiment": "nexmark", "query": query.name, "mechanism": "tokens"},
    )
    return Latency(
        query=query.name,
        workers=workers,
        offered=offered,
        achieved=line["achieved_per_worker"] * workers,
        p50_ms=line["p50_ms"],
        p999_ms=line["p999_ms"],
        max_ms=line["max_ms"],
        noise_p999_ms=line["noise_p999_ms"],
        kept_up=not line["dnf"],
    )
