"""`jeton bench streaming`: all variants emit the same rows."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from jeton_evaluation.bench import streaming
from jeton_evaluation.bench.streaming_queries import NEED_PROTOBUF, PLAIN, QUERIES

PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.mark.long
@pytest.mark.parametrize("query", QUERIES)
def test_all_variants_emit_the_same_rows(spark: SparkSession, tmp_path: Path, query: str) -> None:
    """All but Spark's own running count, which emits less; an open window is not emitted."""
    for batch in range(4):
        rows = np.arange(batch * 300, batch * 300 + 300)
        # Not from 0 on: Spark takes rows at its first watermark, which is 0, for late.
        times = pa.array(1_000_000 + rows * 10_000, pa.timestamp("us", "UTC"))
        table = pa.table({"ts": times, "k": rows * 7 % 5, "v": rows * 0.5})
        path = tmp_path / "rows" / f"{batch}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path)
        os.utime(path, (0, 1000 + batch))
    reported = {}
    for number, (name, peer) in enumerate(QUERIES[query].items()):
        needs_protobuf = name in NEED_PROTOBUF and not streaming.is_there("google.protobuf")
        emits_less = (query, name) == ("rolling count", "Spark's own")
        if needs_protobuf or emits_less or name == PLAIN:
            continue
        files = spark.readStream.schema("ts timestamp, k long, v double")
        frame = files.option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "rows"))
        writer = peer(frame).format("memory").queryName(f"reported_{number}")
        writer = writer.option("checkpointLocation", str(tmp_path / f"{number}"))
        if name in NEED_PROTOBUF:
            spark.conf.set(PROVIDER, streaming.ROCKS)
        running = writer.trigger(availableNow=True).start()
        spark.conf.unset(PROVIDER)
        assert running.awaitTermination(300), "it hangs"
        answers = spark.table(f"reported_{number}").collect()
        reported[name] = sorted((row["k"], round(float(row[-1]), 9)) for row in answers)
    assert len(reported) >= 3
    first = reported["flow"]
    assert len(first) == {"tumbling mean by key": 55, "rolling count": 1200}[query]
    assert {name: set(rows) ^ set(first) for name, rows in reported.items() if rows != first} == {}
