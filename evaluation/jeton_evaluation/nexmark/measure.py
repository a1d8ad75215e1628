"""How fast queries are: as flows and as Spark's own, over the same events; and their latency.

- *Batch*: a flow on Spark and Spark SQL both read the same DataFrames, which Spark holds in its
  memory (and on disk, if they are large) before the clock starts, and hand rows to a sink that
  forgets them. Reading alone is measured too. Spark SQL reads inside the JVM; a flow's rows cross
  over to Python and back, and that is counted.
- *Stream*: a long-lived flow and Structured Streaming both make the events themselves, while they
  run, in Python, as fast as they can take them. A long-lived flow is timed in its workers, from its
  first step on; Structured Streaming from its start, in micro-batches of up to a million events.
- *Latency*: a long-lived flow under a load that does not wait, as in `jeton bench nexmark`.

Everything but latency is run several times in one session, and the best run counts: the first one
compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

import jeton as jt
from jeton.connectors.sinks import Memory
from jeton_evaluation.bench.experiment import Host, trial
from jeton_evaluation.bench.nexmark import program
from jeton_evaluation.bench.open_loop import Load
from jeton_evaluation.nexmark import truth
from jeton_evaluation.nexmark.config import Config
from jeton_evaluation.nexmark.frames import frames, stream_frames
from jeton_evaluation.nexmark.queries.query import AT, LIBRARY, RESULT, Query
from jeton_evaluation.nexmark.sources import sources
from jeton_evaluation.programs.mechanisms import Mechanism

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = "rows"
"""The output of a flow that only counts."""


@dataclass(frozen=True)
class Figures:
    """Measurements of one query. Speeds are events a second, of all kinds that it reads."""

    query: str
    events: int
    workers: int
    rows: int
    """How many rows the answer has."""
    reading: float
    """Reading alone, in batch."""
    jeton: float
    spark_sql: float
    long_lived: float
    structured: float | None
    """Nothing if Structured Streaming has no such question."""
    equal: bool
    """Whether the flow's rows are those of Spark SQL, and the long-lived flow has as many."""


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


def measure(
    spark: SparkSession,
    query: Query,
    config: Config,
    events: int,
    *,
    workers: int = 2,
    mechanism: Mechanism | None = None,
    runs: int = 2,
) -> Figures:
    """Run a query in all ways, and compare the answers.

    >>> from jeton_evaluation.nexmark import queries
    >>> figures = measure(spark, queries.get("q7"), Config(), 1000, runs=1)
    >>> figures.rows, figures.equal, figures.structured > 0
    (1, True, True)
    """

    def speed(run: Callable[[], float]) -> float:
        return events / min(run() for _ in range(runs))

    made = frames(spark, config, events, columns=query.columns, partitions=workers)
    cached = {name: frame.persist() for name, frame in made.items()}
    counted: set[int] = set()

    def live() -> float:
        seconds, rows = run_long_lived(spark, query, config, events, workers, mechanism)
        counted.add(rows)
        return seconds

    try:
        read_all(cached)
        reading = speed(lambda: read_all(cached))
        got = batch_answer(query, cached, config, workers, mechanism)
        wanted = truth.answer(spark, query, cached)
        jeton, spark_sql = speed(lambda: run_batch(got)), speed(lambda: run_batch(wanted))
        # A comparison goes on with the rows, for which Spark wants an exchange in between.
        checked = batch_answer(query, cached, config, workers, mechanism, shuffle=True)
        verdict = truth.compare(checked, wanted)
    finally:
        for frame in cached.values():
            frame.unpersist(blocking=True)
    streamed = None
    if query.stream_sql is not None:
        streamed = speed(lambda: run_stream(spark, query, config, events))
    long_lived = speed(live)
    equal = verdict.equal and counted == {verdict.rows}
    return Figures(
        *(query.name, events, workers, verdict.rows, reading, jeton, spark_sql),
        *(long_lived, streamed, equal),
    )


def measure_latency(
    spark: SparkSession, query: Query, offered: float, *, workers: int = 2, seconds: float = 3.0
) -> Latency:
    """Offer events when they are due, and record how long after that each is complete.

    >>> from jeton_evaluation.nexmark import queries
    >>> def show(spark):
    ...     seen = measure_latency(spark, queries.get("q2"), 10_000)
    ...     print(f"half of the events within {seen.p50_ms} ms, at worst {seen.max_ms}")
    """
    load = Load(rate=offered / workers, seconds=seconds, warm_up=min(2.0, seconds))
    host = Host(workers, spark)
    line = trial(lambda load: program(load, query.name), load, host, {})
    return Latency(
        query.name,
        workers,
        offered,
        achieved=line["achieved_per_worker"] * workers,
        kept_up=not line["dnf"],
        **{name: line[name] for name in ("p50_ms", "p999_ms", "max_ms", "noise_p999_ms")},
    )


def batch_answer(
    query: Query,
    inputs: Mapping[str, DataFrame],
    config: Config,
    workers: int,
    mechanism: Mechanism | None = None,
    *,
    shuffle: bool = False,
) -> DataFrame:
    """The result of a flow on Spark; ``shuffle`` is that of ``flow.on_spark``.

    Rows are read as they come: the state of these queries fits into memory.
    """
    flow = query.flow(config, mechanism)
    return flow.on_spark(inputs, workers=workers, shuffle=shuffle, ordered=False)[RESULT]


def run_batch(frame: DataFrame) -> float:
    """Compute all rows of a DataFrame and forget them; returns the seconds that it took."""
    began = perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return perf_counter() - began


def read_all(inputs: Mapping[str, DataFrame]) -> float:
    """The seconds that it takes to read DataFrames, one after the other."""
    return sum(map(run_batch, inputs.values()))


def stream_answer(spark: SparkSession, query: Query, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The query over streaming DataFrames; the views of its inputs are made anew.

    A window is emitted when the watermark has passed its end, so the last ones of a bounded stream
    are never emitted: its rows are the right ones, but not all of them.

    >>> from jeton_evaluation.nexmark import queries
    >>> q12 = queries.get("q12")
    >>> stream = stream_answer(spark, q12, stream_frames(spark, Config(), 100, columns=q12.columns))
    >>> stream.isStreaming, stream.columns
    (True, ['ts', 'bidder', 'count'])
    """
    assert query.stream_sql is not None, query.no_stream
    for name, frame in inputs.items():
        timed = frame.withColumn(AT, F.timestamp_micros("ts")).withWatermark(AT, "0 seconds")
        timed.createOrReplaceTempView(name)
    return spark.sql(query.stream_sql)


def run_stream(
    spark: SparkSession, query: Query, config: Config, events: int, *, sink: str = "noop"
) -> float:
    """Run the query in Structured Streaming over all events; returns the seconds that it took.

    The ``sink`` is a format of Spark's that needs no more options; a table in ``"memory"`` is
    called like the query.

    >>> from jeton_evaluation.nexmark import queries
    >>> seconds = run_stream(spark, queries.get("q2"), Config(), 20_000, sink="memory")
    >>> spark.table("q2").count()
    76
    """
    inputs = stream_frames(spark, config, events, columns=query.columns)
    stream = stream_answer(spark, query, inputs)
    with TemporaryDirectory(prefix="jeton-nexmark-") as folder:
        writer = stream.writeStream.format(sink).outputMode("append").queryName(query.name)
        writer = writer.option("checkpointLocation", folder).trigger(availableNow=True)
        began = perf_counter()
        writer.start().awaitTermination()
        return perf_counter() - began


def run_long_lived(
    spark: SparkSession,
    query: Query,
    config: Config,
    events: int,
    workers: int,
    mechanism: Mechanism | None = None,
) -> tuple[float, int]:
    """Run a query whose workers make the events; returns the seconds, and the number of rows.

    >>> from jeton_evaluation.nexmark import queries
    >>> run_long_lived(spark, queries.get("q2"), Config(), 20_000, workers=2)[1]
    76
    """
    flow = jt.Flow(f"nexmark {query.name}, {mechanism or LIBRARY}, long-lived")
    answer = query.build(flow, mechanism, config)
    flow.output(ROWS, answer.unary_frontier(_count, name="count"))
    kept = Memory()
    live = flow.start(
        spark,
        sources=sources(config, events, columns=query.columns),
        sinks={ROWS: kept},
        workers=workers,
    )
    live.await_termination()
    table = kept.table()
    assert table is not None, "every worker reports the number of rows it has seen"
    each = live.metrics()["workers"].values()
    return max(worker["seconds"] for worker in each), sum(table[ROWS].to_pylist())


def _count(
    token: jt.TimestampToken, info: jt.OperatorInfo
) -> Callable[[jt.Input, jt.Output], None]:
    """Count rows, and emit their number at the end."""
    rows = 0

    def step(input: jt.Input, output: jt.Output) -> None:
        nonlocal rows
        for _, batch in input:
            rows += len(batch)
        if input.frontier.is_empty:
            with token, output.session(token) as session:
                session.give(rows=rows)

    return step
