"""Spark Connect: no context at the client, so workers meet by Spark's own means."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sources import Batches
from jeton.errors import GraphError
from jeton.spark import application, batch

HERE = Path(__file__).parent


def counting() -> jt.Flow:
    flow = jt.Flow("counting")
    numbers = flow.input("n", time="id", schema={"k": int})
    flow.output("counts", numbers.key_by("k").tumbling(1000).count())
    return flow


@pytest.fixture
def no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that has no context, as a client of Spark Connect has none."""
    for module in (application, batch):
        monkeypatch.setattr(module, "context_of", lambda spark: None)


@pytest.mark.usefixtures("no_context")
@pytest.mark.parametrize("workers", [None, 3])
def test_workers_meet_without_a_server_at_the_driver(
    spark: SparkSession, workers: int | None
) -> None:
    frame = spark.range(0, 4000, 1, 2).selectExpr("id", "id % 10 as k")
    counts = counting().on_spark({"n": frame}, workers=workers)["counts"]
    assert sorted((row.id, row.k, row["count"]) for row in counts.collect()) == [
        (end, k, 100) for end in range(1000, 4001, 1000) for k in range(10)
    ]


@pytest.mark.usefixtures("no_context")
def test_a_long_lived_query_says_what_it_needs(spark: SparkSession) -> None:
    with pytest.raises(GraphError, match="Spark Connect has none"):
        counting().start(spark, sources={"n": Batches(lambda partition, _: iter(()))})


PROGRAM = """
import sys
from jeton.spark.java import ensure_java
ensure_java()
from pyspark.sql import SparkSession
from tests.spark.test_connect import counting
spark = SparkSession.builder.remote("local[2]").getOrCreate()
frame = spark.range(0, 4000, 1, 2).selectExpr("id", "id % 10 as k")
counts = counting().on_spark({"n": frame}, workers=2)["counts"]
print("rows:", counts.count(), counts.agg({"count": "sum"}).collect()[0][0])
spark.stop()
"""


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("grpc", "grpc_status", "zstandard")),
    reason="Spark Connect needs grpcio, grpcio-status, googleapis-common-protos and zstandard",
)
def test_a_real_connect_session() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=HERE.parent.parent,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "rows: 40 4000" in done.stdout, done.stderr[-3000:]
