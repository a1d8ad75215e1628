"""The cost of the Spark host: a stage, a row, a message between workers, a long-lived query.

Each figure has a baseline in the same run: a plain ``mapInArrow`` that passes rows through, and a
raw socket that sends the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton_evaluation.bench.mesh import mesh
from jeton_evaluation.bench.timing import in_turn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = 65_536
QUANTUM = 256


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; ``--json`` prints one object."""
    parser = argparse.ArgumentParser(
        prog="jeton bench spark", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rows", type=float, default=20e6, help="rows in and out (default: 2e7)")
    parser.add_argument(
        "--records", type=float, default=200e6, help="records of the word count (default: 2e8)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds (default: 3)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="default: 2")
    options = parser.parse_args(argv)
    from jeton.spark.session import local_session

    say = (lambda *_: None) if options.json else print
    result: dict[str, Any] = {}
    result |= mesh(say)
    spark = local_session(options.workers)
    try:
        result |= stages(spark, options.workers, options.rounds, say)
        result |= rows(spark, options.workers, int(options.rows), options.rounds, say)
        result |= word_count(spark, options.workers, int(options.records), say)
    finally:
        spark.stop()
    if options.json:
        print(json.dumps(result))
    return 0


def identity(spark_columns: Sequence[str]) -> jt.Flow:
    """A flow that hands rows through."""
    flow = jt.Flow("identity")
    schema = dict.fromkeys(spark_columns, int)
    flow.output("out", flow.input("in", schema=schema))
    return flow


def stages(
    spark: SparkSession, workers: int, rounds: int, say: Callable[..., None]
) -> dict[str, float]:
    """Seconds for a stage of a few rows on a warm session, plain and with a flow in it."""
    few = _frame(spark, 100, workers)
    flow = identity(few.columns[1:]).on_spark(
        {"in": few}, workers=workers, shuffle=False, progress=False
    )
    plain, ours = in_turn(rounds + 2, lambda: _pass_through(few), lambda: _run(flow["out"]))
    say(f"a stage on a warm session: plain {plain * 1e3:.0f} ms, with a flow {ours * 1e3:.0f} ms")
    return {"stage_plain_s": plain, "stage_s": ours}


def rows(
    spark: SparkSession, workers: int, count: int, rounds: int, say: Callable[..., None]
) -> dict[str, float]:
    """Seconds to hand rows of four columns through, plainly and through a flow."""
    frame = _frame(spark, count, workers)
    flow = identity(frame.columns[1:])
    through = flow.on_spark({"in": frame}, workers=workers, shuffle=False, progress=False)["out"]
    plain, ours = in_turn(rounds, lambda: _pass_through(frame), lambda: _run(through))
    say(
        f"{count:,} rows of 4 columns in and out: plain {count / plain / 1e6:.2f}M rows/s, "
        f"through a flow {count / ours / 1e6:.2f}M rows/s: {ours / plain:.2f}× the time"
    )
    return {
        "rows_plain_per_s": count / plain,
        "rows_per_s": count / ours,
        "ratio_to_plain": ours / plain,
    }


def word_count(
    spark: SparkSession, workers: int, records: int, say: Callable[..., None]
) -> dict[str, float]:
    """Records a second of a rolling word count whose records are made in the workers."""
    from jeton.connectors import sources

    batch = 32_768
    flow = jt.Flow("word count")
    flow.input("words").key_by("key").running().count()
    make = _words(records // workers, batch)
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


def _words(records: int, batch: int) -> Callable[[int, int], Iterator[jt.Batch]]:
    def make(partition: int, partitions: int) -> Iterator[jt.Batch]:
        random = np.random.default_rng(partition)
        keys = [random.integers(0, KEYS, batch) for _ in range(16)]
        times = np.arange(batch) * QUANTUM
        for number in range(records // batch):
            first = number * batch * QUANTUM
            yield jt.Batch.trusted({"key": keys[number % 16]}, times + first, "time", first)

    return make


def _frame(spark: SparkSession, count: int, workers: int) -> DataFrame:
    from pyspark.sql import functions as F

    number = F.col("id")
    return spark.range(0, count, 1, workers).select(
        number.alias("time"), (number % 1000).alias("a"), (number * 3).alias("b"), number.alias("c")
    )


def _pass_through(frame: DataFrame) -> None:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    _run(frame.mapInArrow(same, frame.schema))


def _run(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    raise SystemExit(main())
