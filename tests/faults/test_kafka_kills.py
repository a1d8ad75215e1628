"""From Kafka to Kafka, with kills: each result is there once for a reader of committed records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jeton.spark.query import Query
from jeton_evaluation.bench.mock_kafka import MockKafka
from tests.faults import kafka_campaign as campaign
from tests.faults.test_kill_campaign import counts_of, forget_workers, until, workers
from tests.kafka_topics import Cluster, consumed, produce

LIMIT = 300.0
AT_ONCE = 400


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka({"in": campaign.PARTITIONS, "out": 2, "jeton-versions": 1}) as cluster:
        yield cluster


def write(kafka: Cluster, numbers: Sequence[int]) -> None:
    for partition in range(campaign.PARTITIONS):
        mine = [campaign.record(n) for n in numbers if n % campaign.PARTITIONS == partition]
        produce(kafka.servers, "in", mine, partition=partition)


@contextmanager
def written_steadily(kafka: Cluster) -> Iterator[list[int]]:
    """Records that come while the query is killed; the numbers of all that were written."""
    numbers: list[int] = []
    enough = threading.Event()

    def work() -> None:
        while not enough.is_set() and len(numbers) < 200_000:
            new = range(len(numbers), len(numbers) + AT_ONCE)
            write(kafka, new)
            numbers.extend(new)
            # A cluster keeps 100,000 of a partition: there must be some left for the last kill.
            enough.wait(0.02 if len(numbers) < 50_000 else 1.0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield numbers
    finally:
        enough.set()
        thread.join()


def check(kafka: Cluster, numbers: Sequence[int], aborted: Sequence[Any] = ()) -> None:
    """The windows in the topic are those of all records, each of them once."""
    records = [campaign.record(n) for n in numbers]
    expected = campaign.flow().run({"records": records})["windows"].to_pylist()
    found = [
        json.loads(message.value())
        for message in consumed(kafka.servers, "out")
        if not any(
            first[partition] <= message.offset() < end[partition]
            for first, end in aborted
            if (partition := f"out-{message.partition()}") in first
        )
    ]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def kill_workers(query: Query, folder: Path, kills: int, random: Random) -> None:
    """Kill a worker a number of times, each after a new version."""
    for _ in range(kills):
        until(lambda: len(workers(folder)) >= 2, "both workers")
        until(lambda: query.metrics()["checkpoints"]["taken"] > 0, "a version")
        time.sleep(random.uniform(0.0, 0.5))
        committed, restarts = counts_of(query)
        with suppress(ProcessLookupError):
            os.kill(random.choice(workers(folder)), signal.SIGKILL)
        until(lambda r=restarts: counts_of(query)[1] > r, "a restart")  # type: ignore[misc]
        forget_workers(folder)
        until(lambda c=committed: counts_of(query)[0] > c, "a version")  # type: ignore[misc]


@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.long)])
def test_workers(spark: SparkSession, tmp_path: Path, kafka: MockKafka, kills: int) -> None:
    with written_steadily(kafka) as numbers:
        query = campaign.start(spark, tmp_path, kafka.servers, end=False)
        kill_workers(query, tmp_path, kills, Random(kills))
    query.stop()
    query = campaign.start(spark, tmp_path, kafka.servers, end=True)
    assert query.await_termination(LIMIT)
    check(kafka, numbers)
    print(f"{kills} workers killed, {len(numbers)} records")


@pytest.mark.spark
@pytest.mark.long
def test_drivers(tmp_path: Path, kafka: MockKafka) -> None:
    aborted = []
    with written_steadily(kafka) as numbers:
        for point in (*campaign.POINTS, "middle", "after"):
            assert run_driver(tmp_path, kafka, point) == 9, log_of(tmp_path)
            if point == "middle":
                aborted.append(json.loads((tmp_path / "aborted").read_text()))
    assert run_driver(tmp_path, kafka, "end") == 0, log_of(tmp_path)
    check(kafka, numbers, aborted)
    print(f"5 drivers ended, {len(numbers)} records, {len(aborted)} transactions aborted")


def run_driver(folder: Path, kafka: Cluster, point: str) -> int:
    """Run a driver to its end, of which nothing is left then; returns how it ended."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, campaign.__file__, str(folder), kafka.servers, point],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        return process.wait(LIMIT)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def log_of(folder: Path) -> str:
    return (folder / "log").read_text()[-5000:]
