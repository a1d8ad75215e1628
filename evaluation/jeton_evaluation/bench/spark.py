"""The cost of the Spark host: a stage, a row, a message between workers, a long-lived query.

Each figure has a baseline in the same run: a plain ``mapInArrow`` that passes rows through, and a
raw socket that sends the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.harness import Line, Rounds, Say, Workers, command, in_turn
from jeton_evaluation.bench.mesh import mesh

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = 65_536
QUANTUM = 256
BATCH = 32_768


def run(
    say: Say,
    rows: Annotated[int, "rows in and out"] = 20_000_000,
    records: Annotated[int, "records of the word count, in whole batches"] = 200_000_000,
    rounds: Rounds = 3,
    workers: Workers = 2,
) -> Line:
    """Measure everything in one session."""
    result = mesh(say)
    with experiment.open_host("spark", workers) as where:
        assert where.spark is not None
        result |= stages(where.spark, workers, rounds, say)
        result |= move_rows(where.spark, workers, rows, rounds, say)
        result |= word_count(where.spark, workers, records, say)
    return result


main = command(run)


def identity(spark_columns: Sequence[str]) -> jt.Flow:
    """A flow that hands rows through."""
    flow = jt.Flow("identity")
    schema = dict.fromkeys(spark_columns, int)
    flow.output("out", flow.input("in", schema=schema))
    return flow


def stages(spark: SparkSession, workers: int, rounds: int, say: Say) -> Line:
    """Seconds for a stage of a few rows on a warm session, plain and with a flow in it."""
    few = _frame(spark, 100, workers)
    flow = identity(few.columns[1:]).on_spark(
        {"in": few}, workers=workers, shuffle=False, progress=False
    )
    through, out = _pass_through(few), flow["out"]
    plain, ours = in_turn(rounds + 2, lambda: _run(through), lambda: _run(out))
    say(f"a stage on a warm session: plain {plain * 1e3:.0f} ms, with a flow {ours * 1e3:.0f} ms")
    return {"stage_plain_s": plain, "stage_s": ours}


def move_rows(spark: SparkSession, workers: int, count: int, rounds: int, say: Say) -> Line:
    """Seconds to hand rows of four columns through, plainly and through a flow."""
    frame = _frame(spark, count, workers)
    flow = identity(frame.columns[1:])
    out = flow.on_spark({"in": frame}, workers=workers, shuffle=False, progress=False)["out"]
    through = _pass_through(frame)
    plain, ours = in_turn(rounds, lambda: _run(through), lambda: _run(out))
    say(
        f"{count:,} rows of 4 columns in and out: plain {count / plain / 1e6:.2f}M rows/s, "
        f"through a flow {count / ours / 1e6:.2f}M rows/s: {ours / plain:.2f}× the time"
    )
    return {
        "rows_plain_per_s": count / plain,
        "rows_per_s": count / ours,
        "ratio_to_plain": ours / plain,
    }


def word_count(spark: SparkSession, workers: int, records: int, say: Say) -> Line:
    """Records a second of a rolling word count whose records are made in the workers."""
    from jeton.connectors import sources

    batches = max(records // workers // BATCH, 1)
    records = batches * BATCH * workers
    flow = jt.Flow("word count")
    flow.input("words").key_by("key").running().count()
    make = _words(batches)
    query = flow.start(spark, sources={"words": sources.Batches(make)}, workers=workers)
    query.await_termination()
    reported = query.metrics()["workers"].values()
    # From the first record to the last, as the slowest worker saw it; Spark's start is not in it.
    seconds = max(each["seconds"] for each in reported)
    peak = max(each["peak_rss_mb"] for each in reported)
    say(
        f"rolling word count, {records:,} records made in {workers} workers: "
        f"{records / seconds / 1e6:.1f}M records/s, at most {peak:,} MB in a worker"
    )
    return {"word_count_per_s": records / seconds, "word_count_peak_rss_mb": peak}


def _words(batches: int) -> Callable[[int, int], Iterator[jt.Batch]]:
    def make(partition: int, partitions: int) -> Iterator[jt.Batch]:
        random = np.random.default_rng(partition)
        keys = [random.integers(0, KEYS, BATCH) for _ in range(16)]
        times = np.arange(BATCH) * QUANTUM
        for number in range(batches):
            first = number * BATCH * QUANTUM
            yield jt.Batch.trusted({"key": keys[number % 16]}, times + first, "time", first)

    return make


def _frame(spark: SparkSession, count: int, workers: int) -> DataFrame:
    from pyspark.sql import functions as F

    number = F.col("id")
    return spark.range(0, count, 1, workers).select(
        number.alias("time"), (number % 1000).alias("a"), (number * 3).alias("b"), number.alias("c")
    )


def _pass_through(frame: DataFrame) -> DataFrame:
    """The same rows through Python, without Jeton."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    return frame.mapInArrow(same, frame.schema)


def _run(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
