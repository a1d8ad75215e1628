"""A campaign: many cases by seed, counted by pipeline shape, host and outcome.

python -m tests.oracle --cases 100000 --minutes 30      random seeds, a progress bar, a table
python -m tests.oracle --replay 380                     one case again, made as small as it fails
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.sql import SparkSession
from tqdm import tqdm

from tests.oracle.case import Case
from tests.oracle.duck import Oracle
from tests.oracle.pipelines import SHAPES, seeded
from tests.oracle.spark_hosts import MICRO, WHOLE, judged
from tests.oracle.verdicts import WRONG, Counts, judge

TOGETHER = 12
"""How many cases one flow on Spark runs."""


def host_of(case: Case) -> str:
    """Which of the ways to run in this process a case takes."""
    return "in process" if case.schedule.restart is None else "restarted"


def campaign(
    cases: int,
    seed: int,
    budget_seconds: float | None = None,
    *,
    progress: bool = False,
    spark: SparkSession | None = None,
    shapes: Sequence[str] = SHAPES,
) -> Counts:
    """Run cases until there are enough or the time is up.

    The case of a campaign's n-th place is that of the seed ``seed + n``. With a Spark session, a
    fifth of the time is spent there, in turn on whole tables and on micro-batches, with all shapes.
    """
    counts, oracle = Counts(), Oracle()
    start, on_spark = time.monotonic(), 0.0
    for number in tqdm(range(seed, seed + cases), disable=not progress, unit="case"):
        now = time.monotonic()
        if budget_seconds is not None and now - start >= budget_seconds:
            break
        case = seeded(number, shapes=shapes)
        counts.add(case, host_of(case), number, judge(case, oracle))
        if spark is not None and on_spark <= (now - start) / 5:
            _on_spark(counts, spark, number)
            on_spark += time.monotonic() - now
    return counts


def _on_spark(counts: Counts, spark: SparkSession, seed: int) -> None:
    done = sum(n for key, n in counts.by.items() if key[1] in (WHOLE, MICRO))
    host = MICRO if done // TOGETHER % 2 else WHOLE
    with TemporaryDirectory() as folder:
        try:
            for number, case, verdict in judged(spark, seed, TOGETHER, host, Path(folder)):
                counts.add(case, host, number, verdict)
        except Exception as error:
            counts.add_failure("a flow of several", host, seed, f"{type(error).__name__}: {error}")


def smallest(case: Case, oracle: Oracle) -> Case:
    """A case with as few rows as it takes to fail in the same way."""
    seconds = time.monotonic() + 60
    tried = True
    while tried and time.monotonic() < seconds:
        tried = False
        for other in _smaller(case):
            if judge(other, oracle).outcome == WRONG:
                case, tried = other, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    plain = replace(case.schedule, workers=1, seed=None, restart=None, form="table")
    if case.schedule != plain:
        yield replace(case, schedule=plain)
        yield replace(case, schedule=replace(case.schedule, restart=None))
    for number, table in enumerate(case.tables):
        size = table.num_rows
        for step in (max(size // 2, 1), 1):
            for start in range(0, size, step):
                rest = pa.concat_tables([table.slice(0, start), table.slice(start + step)])
                fewer = (*case.tables[:number], rest, *case.tables[number + 1 :])
                yield replace(case, tables=fewer)
    *rest, last = case.nodes
    if rest and len(last.step.shapes(*(case.shapes()[n] for n in last.inputs))) == 1:
        yield replace(case, nodes=tuple(rest))


def any_seed() -> int:
    """A seed for a campaign that has none."""
    return Random().randrange(10**12)
