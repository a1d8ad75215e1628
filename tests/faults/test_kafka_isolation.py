"""From Kafka to Kafka, with kills, where a broker isolates transactions: each result once.

A reader of committed records is there all the time: what it has seen once must stay.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from tests.faults import kafka_campaign as campaign
from tests.faults.test_kafka_kills import LIMIT, kill_workers, log_of, run_driver, written_steadily
from tests.kafka_broker import Broker, kafka_broker
from tests.kafka_topics import consumed

pytestmark = [pytest.mark.long, pytest.mark.spark]
OUT = 2


@pytest.fixture
def kafka() -> Iterator[Broker]:
    with kafka_broker({"in": campaign.PARTITIONS, "out": OUT, "jeton-versions": 1}) as broker:
        yield broker


@contextmanager
def read_steadily(kafka: Broker) -> Iterator[set[tuple[Any, Any]]]:
    """The partitions and offsets of all records that a reader sees meanwhile."""
    seen: set[tuple[Any, Any]] = set()
    enough = threading.Event()

    def work() -> None:
        reader = Consumer({"bootstrap.servers": kafka.servers, "group.id": "reader"})
        reader.assign([TopicPartition("out", number, 0) for number in range(OUT)])
        while not enough.is_set():
            found = reader.consume(1000, 0.05)
            seen.update((m.partition(), m.offset()) for m in found if m.error() is None)
        reader.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield seen
    finally:
        enough.set()
        thread.join()


def check(kafka: Broker, numbers: Sequence[int], seen: set[tuple[Any, Any]]) -> None:
    """The windows in the topic are those of all records, each once, and none was withdrawn."""
    records = [campaign.record(n) for n in numbers]
    expected = campaign.flow().run({"records": records})["windows"].to_pylist()
    found = consumed(kafka.servers, "out")
    assert sorted((json.loads(m.value()) for m in found), key=repr) == sorted(expected, key=repr)
    assert seen <= {(m.partition(), m.offset()) for m in found}
    assert seen


def test_workers(spark: SparkSession, tmp_path: Path, kafka: Broker) -> None:
    kills = 12
    with written_steadily(kafka) as numbers, read_steadily(kafka) as seen:
        query = campaign.start(spark, tmp_path, kafka.servers, end=False)
        kill_workers(query, tmp_path, kills, Random(5))
    query.stop()
    query = campaign.start(spark, tmp_path, kafka.servers, end=True)
    assert query.await_termination(LIMIT)
    check(kafka, numbers, seen)
    print(f"{kills} workers killed, {len(numbers)} records, {len(seen)} results seen meanwhile")


def test_drivers(tmp_path: Path, kafka: Broker) -> None:
    points = (*campaign.POINTS, "middle", "after")
    with written_steadily(kafka) as numbers, read_steadily(kafka) as seen:
        for point in points:
            assert run_driver(tmp_path, kafka, point) == 9, log_of(tmp_path)
    assert run_driver(tmp_path, kafka, "end") == 0, log_of(tmp_path)
    check(kafka, numbers, seen)
    print(f"{len(points)} drivers ended, {len(numbers)} records, {len(seen)} seen meanwhile")
