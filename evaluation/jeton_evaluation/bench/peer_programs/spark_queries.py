"""Spark Structured Streaming: SQL, which runs in Java, and ``transformWithState`` in Python.

Run by `bench.peers` in an environment with PySpark. Records are in Parquet files, read a few
in each micro-batch. A query runs twice in one session: first its rows are written to files and
checked, which also warms Java up; then they are thrown away, and the micro-batches after the first
are timed. SQL emits a key's count once for each micro-batch, the Python state for each record.
"""

import json
import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

BATCHES = 10
SCHEMA = "key int, at timestamp, value int"
LAST = 86_400_000_000
"""Microseconds after all records: a record there closes all windows before it."""


class Count(StatefulProcessor):
    """A running count for each record of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timers: Any) -> Iterator[Row]:
        found = self.count.get()
        n = found[0] if found else 0
        for _ in rows:
            n += 1
            yield Row(key=key[0], answer=n)
        self.count.update((n,))


def answers(records: DataFrame, variant: str, program: str) -> DataFrame:
    if variant == "python":
        schema = "key int, answer long"
        return records.groupBy("key").transformWithState(Count(), schema, "Update", "None")
    if program == "word count":
        return records.groupBy("key").agg(F.count("*").alias("answer"))
    windows = records.withWatermark("at", "1 second").groupBy(F.window("at", "10 seconds"), "key")
    return windows.agg(F.avg("value").alias("answer")).select("key", "answer")


def write_records(folder: Path, workers: int, records: int, data: Path) -> None:
    """A file for each worker and micro-batch, and one record that is later than all."""
    keys, times, values = (
        np.load(data / f"{name}.npy")[:records] for name in ("keys", "times", "values")
    )

    def write(number: int, k: Any, t: Any, v: Any) -> None:
        at = pa.array(t).cast(pa.timestamp("us", "UTC"))
        columns = {"key": k.astype(np.int32), "at": at, "value": v.astype(np.int32)}
        pq.write_table(pa.table(columns), folder / f"{number:05}.parquet")
        # Spark reads files by age.
        os.utime(folder / f"{number:05}.parquet", (number, number))

    times = times * 1000
    bounds = np.linspace(0, records, BATCHES + 1).astype(int)
    for batch, (first, end) in enumerate(pairwise(bounds.tolist())):
        for worker in range(workers):
            share = slice(first + worker, end, workers)
            write(batch * workers + worker, keys[share], times[share], values[share])
    write(BATCHES * workers, keys[:1], times.max() + LAST + np.zeros(1, np.int64), values[:1])


def main(variant: str, program: str, workers: int, records: int, data: Path, out: Path) -> None:
    source = out / "records"
    source.mkdir()
    write_records(source, workers, records, data)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, Any] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(workers),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if variant == "python":
        store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        settings["spark.sql.streaming.stateStore.providerClass"] = store
    builder = SparkSession.builder.master(f"local[{workers}]").config(map=settings)
    spark = builder.getOrCreate()
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", workers).parquet
    mode = "append" if program == "window mean" else "update"

    def start(name: str, writer: Any) -> Any:
        query = writer.outputMode(mode).option("checkpointLocation", str(out / name))
        query = query.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def to_file(frame: DataFrame, number: int) -> None:
        frame.write.parquet(str(out / "rows" / str(number)))

    checked = answers(stream(str(source)), variant, program).writeStream.foreachBatch(to_file)
    start("checked", checked)
    measured = answers(stream(str(source)), variant, program).writeStream.format("noop")
    batches = start("measured", measured).recentProgress[1:BATCHES]
    rows = spark.read.parquet(*(str(each) for each in (out / "rows").iterdir()))
    reported: dict[str, Any] = {
        "seconds": sum(each.durationMs["triggerExecution"] for each in batches) / 1e3,
        "records": sum(each.numInputRows for each in batches),
        "rows": rows.count(),
        "sum": rows.agg(F.sum("answer")).collect()[0][0],
        "counts": {},
    }
    if program == "word count":
        reported["counts"] = dict(rows.groupBy("key").agg(F.max("answer")).collect())
        # The record that closes windows is one of the first key's.
        first = int(np.load(data / "keys.npy")[0])
        reported["counts"][first] -= 1
        reported["rows"] -= 1
    (out / "reported.json").write_text(json.dumps(reported))
    spark.stop()


if __name__ == "__main__":
    variant, program, workers, records, data, out = sys.argv[1:]
    main(variant, program, int(workers), int(records), Path(data), Path(out))
