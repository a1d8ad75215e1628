"""Spark Connect: the client has no context, so workers meet by Spark's means, or at the client."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jeton.cluster.rendezvous import Meeting
from jeton.spark import application, batch
from jeton.spark.tasks import join_peers
from tests.spark.on_connect import counting

ROOT = Path(__file__).parents[2]
COUNTS = [(end, k, 100) for end in range(1000, 4001, 1000) for k in range(10)]


@pytest.fixture
def no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that has no context, as a client of Spark Connect has none."""
    for module in (application, batch):
        monkeypatch.setattr(module, "context_of", lambda spark: None)


@pytest.mark.usefixtures("no_context")
@pytest.mark.parametrize(("workers", "tls"), [(None, None), (3, True)])
def test_workers_meet_without_a_server_at_the_driver(
    spark: SparkSession, workers: int | None, tls: bool | None
) -> None:
    frame = spark.range(0, 4000, 1, 2).selectExpr("id", "id % 10 as k")
    counts = counting().on_spark({"n": frame}, workers=workers, tls=tls)["counts"]
    assert sorted((row.id, row.k, row["count"]) for row in counts.collect()) == COUNTS


def test_a_driver_that_cannot_be_reached(spark: SparkSession) -> None:
    """As a client of Spark Connect behind a firewall."""
    nowhere = Meeting("127.0.0.1", 9, b"", "plan")

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        with join_peers(BarrierTaskContext.get(), nowhere, False):
            yield from batches

    frame = spark.range(0, 2, 1, 2).mapInArrow(task, "id long", barrier=True)
    with pytest.raises(Exception, match=r"cannot reach the driver at 127.0.0.1:9 .*client.host"):
        frame.collect()


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What a program found out under Spark Connect."""
    names = ("grpc", "grpc_status", "google.rpc", "zstandard")
    try:
        missing = [name for name in names if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError:
        missing = ["google.rpc"]
    if missing:
        pytest.skip("Spark Connect needs pip install 'pyspark[connect]': make setup")
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.on_connect"],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: value for line in lines for name, value in json.loads(line).items()}


def test_a_batch(found: dict[str, Any]) -> None:
    assert [tuple(row) for row in found["batch"]] == COUNTS


def test_a_long_lived_query(found: dict[str, Any]) -> None:
    assert found["long_lived"] == [1000, [[n, 200] for n in range(5)]]


def test_a_query_goes_on_from_its_checkpoint(found: dict[str, Any]) -> None:
    assert found["stopped"] == [["ended", "ended"], 4000, 4000]


def test_a_query_is_cancelled_and_says_why_it_waits(found: dict[str, Any]) -> None:
    assert found["cancelled"] == ["ended", True]


def test_an_error_of_the_users(found: dict[str, Any]) -> None:
    assert "ZeroDivisionError: division by zero [operator 'map'" in found["failing"]


def test_streams_say_what_they_need(found: dict[str, Any]) -> None:
    assert "a stream needs a classic Spark session" in found["streaming"]
