"""Structured Streaming: a flow beside Spark's own operators and Python state, on the same rows.

Each query runs for some micro-batches of a size; the first ones warm it up. Rows a second come
from the median time of a whole micro-batch, Spark's own bookkeeping included. A flow's rolling
count tells the count after each row; the others tell one count a key and micro-batch, which is
less work. What a checkpoint costs is measured in this process: no Spark in it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

import jeton as jt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WARM = 3
"""Micro-batches that are not counted."""
WINDOW = 1_000_000
"""The length of a window, in microseconds; that many rows fall into it."""
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

Peer = Callable[["DataFrame", int], "DataStreamWriter"]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; ``--json`` prints one object."""
    parser = argparse.ArgumentParser(
        prog="jeton bench streaming", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument(
        "--rows", default="1e3,1e6", help="rows of a micro-batch (default: 1e3,1e6)"
    )
    parser.add_argument("--keys", type=float, default=1000, help="default: 1000")
    parser.add_argument("--batches", type=int, default=8, metavar="N", help="default: 8")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--peers", default="", help="only these: names, divided by commas")
    parser.add_argument(
        "--state", default="1e4,1e5,1e6,1e7", help="keys for the cost of a checkpoint; or nothing"
    )
    options = parser.parse_args(argv)
    say: Callable[..., None] = (lambda *_: None) if options.json else print
    chosen = [name for name in options.peers.split(",") if name]
    result: dict[str, Any] = {"state": [], "queries": []}
    for keys in _numbers(options.state):
        result["state"].append(checkpoint_cost(keys, say))
    if _numbers(options.rows):
        sizes = _numbers(options.rows)
        result["queries"] = queries(
            sizes, int(options.keys), options.batches, options.workers, chosen, say
        )
    if options.json:
        print(json.dumps(result))
    return 0


def queries(
    sizes: Sequence[int],
    keys: int,
    batches: int,
    workers: int,
    chosen: Sequence[str],
    say: Callable[..., None],
) -> list[dict[str, Any]]:
    """Every query as every peer has it, at every size."""
    from jeton.spark.session import local_session

    settings: dict[str, str | float | bool | None] = {
        "spark.sql.streaming.stateStore.providerClass": ROCKS,
        # Else every micro-batch may find other Python processes than the one before.
        "spark.python.factory.idleWorkerMaxPoolSize": workers,
    }
    spark = local_session(workers, **settings)
    found = []
    try:
        for query, peers in QUERIES.items():
            for size in sizes:
                base = 0.0
                for peer, make in peers.items():
                    if chosen and peer not in chosen:
                        continue
                    if peer == "transformWithState" and find_spec("google.protobuf") is None:
                        say(f"{query}, {peer}: not measured, it needs the package protobuf")
                        continue
                    seconds = _median_batch(make(_rows(spark, size, keys), workers), batches)
                    base = seconds if peer == "flow" else base
                    found.append({"query": query, "peer": peer, "rows": size, "batch_s": seconds})
                    against = (
                        f", {seconds / base:.1f}× the flow's" if base and base != seconds else ""
                    )
                    say(
                        f"{query}, {size:,} rows, {peer}: {seconds * 1e3:,.0f} ms a micro-batch, "
                        f"{size / seconds:,.0f} rows/s{against}"
                    )
    finally:
        spark.stop()
    return found


def checkpoint_cost(keys: int, say: Callable[..., None]) -> dict[str, Any]:
    """What it takes to write a rolling count of so many keys, whole and after 1,000 rows more."""
    from jeton.spark.checkpoints import Checkpoints

    flow = jt.Flow("state")
    flow.output("counts", flow.input("rows").key_by("k").rolling().count())
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, flow.open() as run:
        store = Checkpoints(folder)
        output = run.workers[0].handles[flow.handle("output", "counts")]

        def feed(values: Any) -> None:
            for start in range(0, len(values), 1 << 16):
                run.input("rows").send({"k": values[start : start + (1 << 16)]}, times=None)
                run.run_to_rest()
                output.clear()

        feed(random.permutation(keys) * 7)
        took, whole = _timed(lambda: store.write_part(0, 0, run.workers[0].snapshot()))
        store.commit(0, [whole], flow=flow.name)
        feed(random.integers(0, keys, 1000) * 7)
        took_more, more = _timed(
            lambda: store.write_part(1, 0, run.workers[0].snapshot(), base=whole)
        )
        # Keys of one region, as where records of a time have neighbouring keys.
        few = np.flatnonzero(jt.bins_of([np.arange(min(keys, 10_000)) * 7]) < 8)[:1000] * 7
        feed(few)
        took_few, some = _timed(
            lambda: store.write_part(2, 0, run.workers[0].snapshot(), base=more)
        )
        store.commit(2, [some], flow=flow.name)
        newest = store.load(2)
        took_back, again = _timed(lambda: flow.open(restore=newest.share(0, 1)))
        again.close()
    told = {
        "keys": keys,
        "bytes_per_key": whole.written / keys,
        "whole_s": took,
        "after_1000_rows_s": took_more,
        "after_1000_rows_bytes": more.written,
        "in_8_bins_s": took_few,
        "in_8_bins_bytes": some.written,
        "restore_s": took_back,
    }
    say(
        f"state of {keys:,} keys: {whole.written / keys:.1f} bytes a key; whole "
        f"{took * 1e3:,.0f} ms; after 1,000 rows more {took_more * 1e3:,.0f} ms and "
        f"{more.written / 1e6:.1f} MB; if they touch 8 of 256 bins {took_few * 1e3:,.0f} ms and "
        f"{some.written / 1e6:.1f} MB; restored in {took_back * 1e3:,.0f} ms"
    )
    return told


# The queries, as a flow and as Spark's own


def _flow_mean(frame: DataFrame, workers: int) -> DataStreamWriter:
    flow = jt.Flow("mean")
    rows = flow.input("rows", time="ts", schema={"k": int, "v": float}, lateness=0)
    flow.output("means", rows.key_by("k").tumbling(WINDOW).mean("v"))
    return flow.on_spark({"rows": frame}, workers=workers)["means"].writeStream


def _flow_count(frame: DataFrame, workers: int) -> DataStreamWriter:
    flow = jt.Flow("count")
    rows = flow.input("rows", time="ts", schema={"k": int, "v": float}, lateness=0)
    flow.output("counts", rows.select("k").key_by("k").rolling().count())
    return flow.on_spark({"rows": frame}, workers=workers)["counts"].writeStream


def _spark_mean(frame: DataFrame, workers: int) -> DataStreamWriter:
    from pyspark.sql import functions as F

    marked = frame.withWatermark("ts", "0 seconds")
    means = marked.groupBy(F.window("ts", "1 second"), "k").agg(F.avg("v"))
    return means.writeStream.outputMode("append")


def _spark_count(frame: DataFrame, workers: int) -> DataStreamWriter:
    return frame.groupBy("k").count().writeStream.outputMode("update")


def _pandas_count(frame: DataFrame, workers: int) -> DataStreamWriter:
    def count(key: Any, parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        total = (state.get[0] if state.exists else 0) + sum(len(part) for part in parts)
        state.update((total,))
        yield pd.DataFrame({"k": [key[0]], "count": [total]})

    counts = frame.groupBy("k").applyInPandasWithState(
        count, "k long, count long", "count long", "update", "NoTimeout"
    )
    return counts.writeStream.outputMode("update")


def _pandas_mean(frame: DataFrame, workers: int) -> DataStreamWriter:
    from pyspark.sql import functions as F

    def mean(key: Any, parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            total, rows = state.get
            state.remove()
            yield pd.DataFrame({"end": [key[0]], "k": [key[1]], "mean": [total / rows]})
            return
        total, rows = state.get if state.exists else (0.0, 0)
        for part in parts:
            total, rows = total + float(part["v"].sum()), rows + len(part)
        state.update((total, rows))
        state.setTimeoutTimestamp(int(pd.Timestamp(key[0]).timestamp() * 1000))

    marked = frame.withWatermark("ts", "0 seconds").withColumn("w", F.window("ts", "1 second").end)
    means = marked.groupBy("w", "k").applyInPandasWithState(
        mean,
        "end timestamp, k long, mean double",
        "total double, n long",
        "append",
        "EventTimeTimeout",
    )
    return means.writeStream.outputMode("append")


def _state_count(frame: DataFrame, workers: int) -> DataStreamWriter:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("count", "count long")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[pd.DataFrame]:
            total = (self.total.get()[0] if self.total.exists() else 0) + sum(map(len, rows))
            self.total.update((total,))
            yield pd.DataFrame({"k": [key[0]], "count": [total]})

        def close(self) -> None:
            pass

    counts = frame.groupBy("k").transformWithStateInPandas(
        Count(), "k long, count long", "update", "None"
    )
    return counts.writeStream.outputMode("update")


QUERIES: dict[str, dict[str, Peer]] = {
    "tumbling mean by key": {
        "flow": _flow_mean,
        "Spark's own": _spark_mean,
        "applyInPandasWithState": _pandas_mean,
    },
    "rolling count": {
        "flow": _flow_count,
        "Spark's own": _spark_count,
        "applyInPandasWithState": _pandas_count,
        "transformWithState": _state_count,
    },
}
"""Each query as each peer has it."""


def _rows(spark: SparkSession, size: int, keys: int) -> DataFrame:
    """A stream with so many rows in each micro-batch."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", size)
    return (
        source.option("numPartitions", 2)
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
            told = [p for p in query.recentProgress if p.batchId >= WARM and p.numInputRows]
        finally:
            query.stop()
    return median(p.durationMs["triggerExecution"] for p in told[:batches]) / 1e3


def _done(query: Any) -> int:
    progress = query.lastProgress
    return 0 if progress is None else int(progress.batchId) + 1


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = act()
    return time.perf_counter() - start, made


def _numbers(text: str) -> list[int]:
    return [int(float(part)) for part in text.split(",") if part]


if __name__ == "__main__":
    raise SystemExit(main())
