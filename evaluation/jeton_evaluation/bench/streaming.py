"""Structured Streaming: a flow, Spark's own operators and Python state, on the same rows.

Each query runs for some micro-batches of a size, one after the other; the first micro-batches warm
it up. Rows a second follow from the median time of a whole micro-batch, including Spark's own
bookkeeping. Spark's own operators have their default state store; RocksDB, which is slower for
small micro-batches, only those that need it. All of it takes some ten minutes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from jeton_evaluation.bench.harness import Line, OptionError, Say, Workers, command, numbers
from jeton_evaluation.bench.streaming_queries import NEED_PROTOBUF, NEED_ROCKS, QUERIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WARM = 3
"""Micro-batches that are not counted."""
STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def run(
    say: Say,
    rows: Annotated[str, "N,N,… rows of a micro-batch"] = "1e3,1e6",
    keys: Annotated[int, "keys"] = 1000,
    batches: Annotated[int, "micro-batches that are measured"] = 8,
    workers: Workers = 2,
    peers: Annotated[str, "only these: names, separated by commas"] = "",
) -> Line:
    """Measure all queries at all sizes."""
    chosen = [name for name in peers.split(",") if name]
    known = [*dict.fromkeys(name for peers in QUERIES.values() for name in peers)]
    if unknown := [name for name in chosen if name not in known]:
        raise OptionError(f"there is no {unknown[0]!r}: choose from {', '.join(known)}")
    sizes = numbers(rows)
    if not sizes:
        raise OptionError("--rows needs a number at least")
    return {"queries": queries(sizes, keys, batches, workers, chosen, say)}


main = command(run)


def queries(
    sizes: Sequence[int], keys: int, batches: int, workers: int, chosen: Sequence[str], say: Say
) -> list[Line]:
    """Every query as every peer has it, at every size."""
    from jeton.spark.session import local_session

    settings: dict[str, str | float | bool | None] = {
        # Else every micro-batch may find other Python processes than the one before.
        "spark.python.factory.idleWorkerMaxPoolSize": workers,
    }
    missing = NEED_PROTOBUF if not is_there("google.protobuf") else ()
    if missing:
        say(f"not measured, for want of `pip install protobuf`: {', '.join(missing)}")
    say("starting Spark and warming it up")
    spark = local_session(workers, **settings)
    found = []
    try:
        for query, peers in QUERIES.items():
            # Not counted: else the first one would pay for the JVM's warming up.
            _median_batch(peers["flow"](_rows(spark, max(sizes), keys, workers)), batches)
            for size in sizes:
                base = 0.0
                for peer, make in peers.items():
                    if peer in missing or (chosen and peer not in chosen):
                        continue
                    if peer in NEED_ROCKS:
                        spark.conf.set(STORE, ROCKS)
                    else:
                        spark.conf.unset(STORE)
                    seconds = _median_batch(make(_rows(spark, size, keys, workers)), batches)
                    base = base or seconds
                    found.append({"query": query, "peer": peer, "rows": size, "batch_s": seconds})
                    say(
                        f"{query}, {size:,} rows, {peer}: {seconds * 1e3:,.0f} ms a micro-batch, "
                        f"{size / seconds:,.0f} rows/s, {seconds / base:.1f}× the first one's time"
                    )
    finally:
        spark.stop()
    return found


def _rows(spark: SparkSession, size: int, keys: int, partitions: int) -> DataFrame:
    """A stream with `size` rows in each micro-batch."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", size)
    return (
        source.option("numPartitions", partitions)
        .load()
        .selectExpr(
            "timestamp_micros(value) as ts",
            f"pmod(hash(value), {keys}) + 0L as k",
            "value * 0.5D as v",
        )
    )


def _median_batch(writer: DataStreamWriter, batches: int) -> float:
    """Run a query for some micro-batches; the median seconds of one, when it is warm."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        writer = writer.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            while _done(query) < WARM + batches and query.isActive:
                time.sleep(0.05)
            error = query.exception()
            if error is not None:
                raise error
            reported = [p for p in query.recentProgress if p.batchId >= WARM and p.numInputRows]
        finally:
            query.stop()
    return median(p.durationMs["triggerExecution"] for p in reported[:batches]) / 1e3


def _done(query: Any) -> int:
    progress = query.lastProgress
    return 0 if progress is None else int(progress.batchId) + 1


def is_there(module: str) -> bool:
    """Whether a module could be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # Not even the package that it would be in.
        return False
