"""``jeton nexmark``: run a query on Spark, or all of them beside Spark's own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from jeton_evaluation.bench.harness import OR_ZERO, Workers, grid, parser_of
from jeton_evaluation.nexmark import queries
from jeton_evaluation.nexmark.config import Config
from jeton_evaluation.nexmark.queries import Query
from jeton_evaluation.programs.mechanisms import Mechanism

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jeton_evaluation.nexmark.measure import Figures, Latency

OFFERED = (100_000, 1_000_000)
"""Events a second, on all workers together, at which latencies are measured."""
FIRST = 1000
"""Events of the run that warms up, unless there are fewer."""
SAMPLE = 5
"""Rows of a result that are printed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the options ask for; returns 1 if an answer is not the right one."""
    options = options_of(argv)
    from jeton.errors import JavaNotFoundError
    from jeton.spark.session import local_session

    try:
        spark = local_session(options.workers, **{"spark.driver.memory": _memory()})
    except JavaNotFoundError as error:
        print(f"jeton: {error}", file=sys.stderr)
        return 1
    try:
        return run(spark, options)
    finally:
        spark.stop()


@dataclass(frozen=True)
class Options:
    """The options of the command."""

    query: str | None = None
    all: Annotated[bool, "the table of all queries"] = False
    events: Annotated[int, "events in all"] = 1_000_000
    workers: Workers = 2
    parquet: Annotated[bool, "from Parquet to Parquet: natively, by DataFrames, as SQL"] = False
    only: Annotated[Sequence[str], "with --parquet, of these queries"] = ()
    check: Annotated[bool, "compare all rows with Spark SQL's"] = False
    mechanism: Annotated[
        Mechanism | None, "of one query, a program that compares mechanisms (default: the query)"
    ] = None
    rate: Annotated[int, "events in a second of event time"] = 10_000
    seed: Annotated[int, "seed of the events", OR_ZERO] = 0
    runs: Annotated[int, "with --all, the best of this many runs"] = 2
    offered: Annotated[Sequence[int], "with --all, latencies at these events a second"] = OFFERED
    seconds: Annotated[float, "with --all, how long each is offered"] = 3.0
    json: Annotated[bool, "one JSON object for each query"] = False
    markdown: Annotated[bool, "the table in Markdown"] = False
    write: Annotated[Path | None, "put the table between the marks of a page too"] = None


def options_of(argv: Sequence[str] | None) -> Options:
    """The options, if they make sense together; else the program ends with a message.

    >>> options_of(["q4", "--events", "1e7"]).events
    10000000
    """
    about = "Run a NEXMark query on Spark, or all of them beside Spark's own."
    parser = parser_of("jeton nexmark", about, Options)
    parser.add_argument("query", nargs="?", choices=queries.names(), metavar="QUERY", help="as q4")
    options = Options(**vars(parser.parse_args(argv)))
    if (options.query is None) != (options.all or options.parquet) or (
        options.all and options.parquet
    ):
        parser.error("name one query, or say --all or --parquet")
    if options.only and not options.parquet:
        parser.error("--only goes with --parquet")
    unknown = [name for name in options.only if name not in queries.names()]
    if unknown:
        parser.error(f"there are no queries {unknown}, only {', '.join(queries.names())}")
    if options.all and options.mechanism is not None:
        parser.error("--mechanism goes with a single query")
    if options.query is not None and (options.write is not None or options.markdown):
        parser.error("--write and --markdown go with --all and --parquet")
    if options.query is not None and options.mechanism is not None:
        known = queries.get(options.query).mechanisms
        if options.mechanism not in known:
            parser.error(f"{options.query} can be had with {', '.join(known)} only")
    return options


def run(spark: SparkSession, options: Options) -> int:
    """Run one query, or all, in a session; returns 1 if an answer is not the right one."""
    config = Config(rate=options.rate, seed=options.seed)
    if options.parquet:
        return _run_parquet(spark, config, options)
    if options.query is None:
        return _run_all(spark, config, options)
    return _run_one(spark, queries.get(options.query), config, options)


def _run_one(spark: SparkSession, query: Query, config: Config, options: Options) -> int:
    events, workers = options.events, options.workers
    if not options.json:
        lasting = events / config.rate
        print(f"{query.name}: {query.title}")
        print(f"  {events:,} events, {lasting:,.1f} seconds of theirs, on {workers} workers ...")
    found = run_query(spark, query, config, events, workers, options.mechanism, check=options.check)
    print(json.dumps(found) if options.json else in_words(found), flush=True)
    return 0 if found.get("equal", True) else 1


def run_query(
    spark: SparkSession,
    query: Query,
    config: Config,
    events: int,
    workers: int,
    mechanism: Mechanism | None = None,
    *,
    check: bool = True,
) -> dict[str, Any]:
    """Run a query once, on events that are made in the executors, and report its results.

    A few events go before, so that Spark's workers are up when the clock starts.

    >>> found = run_query(spark, queries.get("q7"), Config(), 1000, workers=2)
    >>> found["rows"], found["equal"], found["sample"][0]["ts"]
    (1, True, 10000000)
    """
    from jeton_evaluation.nexmark import frames, measure, truth

    def answer(events: int) -> tuple[dict[str, DataFrame], DataFrame]:
        made = frames(spark, config, events, columns=query.columns, partitions=workers)
        return made, measure.batch_answer(query, made, config, workers, mechanism, shuffle=True)

    measure.run_batch(answer(min(events, FIRST))[1])
    made, result = answer(events)
    # It is looked at several times, but shall be computed once.
    result.persist()
    try:
        seconds = measure.run_batch(result)
        found = {
            "query": query.name,
            "title": query.title,
            "mechanism": mechanism or queries.LIBRARY,
            "events": events,
            "workers": workers,
            "seconds": round(seconds, 3),
            "events_per_second": round(events / seconds),
            "rows": result.count(),
            "sample": _sample(result),
        }
        if check:
            began = perf_counter()
            verdict = truth.compare(result, truth.answer(spark, query, made))
            found |= {"equal": verdict.equal, "verdict": str(verdict)}
            found["check_seconds"] = round(perf_counter() - began, 3)
    finally:
        result.unpersist(blocking=True)
    return found


def _sample(result: DataFrame) -> list[dict[str, Any]]:
    """The first rows by time, the same ones each time."""
    return [row.asDict() for row in result.orderBy(*result.columns).limit(SAMPLE).collect()]


def in_words(found: dict[str, Any]) -> str:
    """The results of a query as text.

    >>> print(
    ...     in_words(
    ...         {
    ...             "sample": [{"ts": 20, "average": 8.25}],
    ...             "rows": 3,
    ...             "seconds": 2.0,
    ...             "events_per_second": 500_000,
    ...             "equal": True,
    ...             "verdict": "all 3 rows are right",
    ...             "check_seconds": 1.0,
    ...         }
    ...     )
    ... )
      ts  average
      20     8.25
      ... 2 more rows
      2.0 s, 500,000 events/s
      beside Spark SQL: all 3 rows are right (1.0 s)
    """
    sample = found["sample"]
    lines = []
    if sample:
        lines += grid([[*sample[0]], *([_cell(value) for value in row.values()] for row in sample)])
    if found["rows"] > len(sample):
        lines.append(f"... {found['rows'] - len(sample):,} more rows")
    lines.append(f"{found['seconds']:.1f} s, {found['events_per_second']:,} events/s")
    if "equal" in found:
        lines.append(f"beside Spark SQL: {found['verdict']} ({found['check_seconds']:.1f} s)")
    return "\n".join(f"  {line}" for line in lines)


def _cell(value: Any) -> str:
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _run_all(spark: SparkSession, config: Config, options: Options) -> int:
    from jeton_evaluation.nexmark.measure import measure, measure_latency
    from jeton_evaluation.nexmark.table import write_between

    events, workers, names = options.events, options.workers, queries.names()
    figures: list[Figures] = []
    latencies: list[Latency] = []

    def note(number: int, what: str) -> None:
        print(f"{names[number]}, {number + 1} of {len(names)}: {what} ...", file=sys.stderr)

    def report(one: Figures | Latency) -> None:
        if options.json:
            print(json.dumps(asdict(one)), flush=True)

    for number, query in enumerate(map(queries.get, names)):
        note(number, "speed")
        figures.append(measure(spark, query, config, events, workers=workers, runs=options.runs))
        report(figures[-1])
    # By themselves, when Spark no longer holds what the speeds were measured on.
    for number, query in enumerate(map(queries.get, names)):
        for offered in options.offered:
            note(number, f"latency at {offered:,} events/s")
            one = measure_latency(spark, query, offered, workers=workers, seconds=options.seconds)
            latencies.append(one)
            report(one)
    if not options.json:
        print(_page(figures, latencies, config, options, markdown=options.markdown))
    if options.write is not None:
        write_between(options.write, _page(figures, latencies, config, options, markdown=True))
    return 0 if all(one.equal for one in figures) else 1


def _run_parquet(spark: SparkSession, config: Config, options: Options) -> int:
    from tempfile import TemporaryDirectory

    from jeton_evaluation.nexmark.parquet import (
        ParquetFigures,
        lay_out_parquet,
        measure_parquet,
        write_events,
    )
    from jeton_evaluation.nexmark.table import PARQUET, write_between

    figures: list[ParquetFigures] = []
    with TemporaryDirectory(prefix="jeton-nexmark-") as place:
        folder = Path(place)
        print(f"{options.events:,} events are written ...", file=sys.stderr)
        write_events(spark, config, options.events, folder)
        for name in options.only or queries.names():
            print(f"{name} ...", file=sys.stderr)
            query, events, workers = queries.get(name), options.events, options.workers
            one = measure_parquet(
                spark, query, config, events, folder, workers=workers, runs=options.runs
            )
            figures.append(one)
            if options.json:
                print(json.dumps(asdict(one)), flush=True)
    about = _about(config, options)
    if not options.json:
        print(lay_out_parquet(figures, about, markdown=options.markdown))
    if options.write is not None:
        write_between(options.write, lay_out_parquet(figures, about, markdown=True), PARQUET)
    return 0 if all(one.equal for one in figures) else 1


def _about(config: Config, options: Options) -> str:
    """The circumstances of the measurements."""
    from jeton_evaluation.bench.runs import machine

    here = machine()
    return (
        f"{options.events:,} events at {config.rate:,} a second of event time, seed {config.seed}; "
        f"{options.workers} workers on {here['cores']} cores ({here['cpu']}), "
        f"Spark {here['pyspark']}, Java {here['java']}, Python {here['python']}; "
        f"best of {options.runs}; {here['date']}."
    )


def _page(
    figures: Sequence[Figures],
    latencies: Sequence[Latency],
    config: Config,
    options: Options,
    *,
    markdown: bool,
) -> str:
    """Both tables, or one if no latencies were measured."""
    from jeton_evaluation.nexmark.table import lay_out, lay_out_latencies

    parts = [lay_out(figures, _about(config, options), markdown=markdown)]
    if latencies:
        how = f"Latency of long-lived queries on {options.workers} workers, {options.seconds:g} s "
        parts.append(lay_out_latencies(latencies, f"{how}each.", markdown=markdown))
    return "\n\n".join(parts)


def _memory() -> str:
    """A third of the machine's memory for Spark, which holds the events; its default is little."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{max(whole // 3 >> 20, 1024)}m"
