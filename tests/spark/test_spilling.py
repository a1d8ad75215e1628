"""State on local disk in queries and batches on Spark: no row changes when workers die."""

from __future__ import annotations

from pyspark.sql import SparkSession

import jeton as jt
from tests.spark.gated import LIMIT, TABLES, Place, until


def test_a_query_with_little_memory_survives(spark: SparkSession, place: Place) -> None:
    with place.start(spark, memory_budget="6kB") as query:
        place.read_to(query, 4)
        until(lambda: _sum(query.metrics(), "spilled_bins") > 0, "state on disk")
        query.checkpoint(LIMIT)
        query.migrate(dict.fromkeys(query.placement[0][:1000], 1), timeout=LIMIT)
        place.gate.open_to(6)
        place.kill(0)
        until(lambda: query.metrics()["checkpoints"]["restarts"] == 1, "a restart")
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    place.check()


def _sum(metrics: dict, name: str) -> int:  # type: ignore[type-arg]
    return sum(each.get(name, 0) for each in metrics.get("operators", ()))


def test_a_batch_with_little_memory(spark: SparkSession) -> None:
    flow = jt.Flow("counts", bins=256)
    numbers = flow.input("numbers", time="id", schema={"k": int})
    flow.output("counts", numbers.key_by("k").tumbling(50_000).count())
    frame = spark.range(50_000).selectExpr("id", "id * 7 % 10000 as k")
    frames = flow.on_spark({"numbers": frame}, workers=2, memory_budget="200kB")
    found = frames["counts"].collect()
    assert sorted(row.k for row in found) == list(range(10_000))
    assert {row["count"] for row in found} == {5}
    assert _sum(frames.metrics(), "brought_back") > 0
