"""Kafka's transactions where a broker isolates them: readers see committed records, each once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from jeton.connectors import sinks, sources
from jeton.connectors.sinks import Delivery, SinkContext
from jeton.errors import KafkaFailed
from jeton.storage.files import Files
from jeton.testing import check_sink, check_source
from tests.kafka_broker import Broker, kafka_broker
from tests.kafka_topics import consumed, produce, values

pytestmark = pytest.mark.long


@pytest.fixture
def kafka() -> Iterator[Broker]:
    with kafka_broker({"in": 1, "out": 2, "jeton-versions": 1}) as broker:
        yield broker


def transaction(kafka: Broker, name: str) -> Any:
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def numbers(*found: int) -> list[dict[str, int]]:
    return [{"n": n} for n in found]


class Driver:
    """A driver of query ``q``, with one worker, up to the point where it ends."""

    def __init__(self, kafka: Broker, folder: Path, attempt: int) -> None:
        self.sink = sinks.Kafka(kafka.servers, "out")
        self.context = SinkContext("q", attempt, files=Files(folder))
        self.folder = folder

    def staged(self, version: int, *found: int) -> Any:
        here = SinkContext("q", self.context.attempt, worker=0, files=Files(self.folder))
        writer = self.sink.at_workers().open(here)
        writer.write(pa.table({"n": list(found)}))
        return writer.stage(version)

    def commit(self, version: int, staged: Any) -> None:
        self.sink.commit(self.context, version, staged)


class Died(BaseException):
    """The driver ends here."""


class Mortal(sinks.Kafka):
    """Its driver dies when Kafka has the records of a transaction that is not committed."""

    def _write(self, producer: Any, context: SinkContext, table: Any, version: Any) -> None:
        producer.begin_transaction()
        for value in table["value"].to_pylist():
            producer.produce(self.topic, value)
        producer.produce(self.versions, b'{"version": 1, "attempt": 1}', b"q-rows")
        assert producer.flush(30) == 0
        raise Died


def test_connectors_keep_their_promises(kafka: Broker) -> None:
    check_sink(
        sinks.Kafka(kafka.servers, "out", key="text"),
        lambda: values(consumed(kafka.servers, "out")),
    )
    produce(kafka.servers, "in", [{"time": n, "n": n} for n in range(40)])
    schema = pa.schema({"time": pa.int64(), "n": pa.int64()})
    assert check_source(sources.Kafka(kafka.servers, "in", end=True).typed(schema, "time")) == 40


def test_records_of_a_driver_that_died_in_a_transaction_are_never_seen(
    kafka: Broker, tmp_path: Path
) -> None:
    first = Driver(kafka, tmp_path, 1)
    first.sink.roll_back(first.context, 0)
    staged = first.staged(1, 1, 2, 3)
    first.sink = Mortal(kafka.servers, "out")
    with pytest.raises(Died):
        first.commit(1, staged)
    assert consumed(kafka.servers, "out") == []
    second = Driver(kafka, tmp_path, 2)
    second.commit(1, staged)
    second.sink.roll_back(second.context, 1)
    assert values(consumed(kafka.servers, "out")) == numbers(1, 2, 3)


def test_a_driver_that_was_superseded_cannot_commit(kafka: Broker, tmp_path: Path) -> None:
    first = Driver(kafka, tmp_path, 1)
    first.sink.roll_back(first.context, 0)
    second = Driver(kafka, tmp_path, 2)
    second.sink.roll_back(second.context, 0)
    # It has the rows in memory, and a producer from before: Kafka refuses that.
    rows = pa.table({"value": [b'{"n":1}', b'{"n":2}']})
    with pytest.raises(KafkaFailed, match="could not be committed"):
        first.sink.receive(rows, Delivery(1, context=first.context))
    second.commit(1, second.staged(1, 1, 2))
    assert values(consumed(kafka.servers, "out")) == numbers(1, 2)


def test_a_version_behind_the_open_transaction_of_another_query_is_not_written_again(
    kafka: Broker, tmp_path: Path
) -> None:
    other = transaction(kafka, "jeton-other-rows")
    other.produce("jeton-versions", b'{"version": 7, "attempt": 1}', b"other-rows")
    assert other.flush(30) == 0
    first = Driver(kafka, tmp_path, 1)
    staged = first.staged(1, 1, 2, 3)
    first.context.again = False
    first.commit(1, staged)
    # It dies before the checkpoint knows; what it committed cannot be read yet.
    ends = threading.Timer(3.0, other.abort_transaction, [30])
    ends.start()
    second = Driver(kafka, tmp_path, 2)
    second.commit(1, staged)
    ends.join()
    assert values(consumed(kafka.servers, "out")) == numbers(1, 2, 3)


def test_a_source_reads_committed_records_only(kafka: Broker) -> None:
    for name, first, commits in (("a", 0, True), ("b", 10, False), ("c", 20, True)):
        producer = transaction(kafka, name)
        for n in range(first, first + 5):
            producer.produce("in", f'{{"time": {n}, "n": {n}}}'.encode())
        assert producer.flush(30) == 0
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
    hanging = transaction(kafka, "d")
    hanging.produce("in", b'{"time": 30, "n": 30}')
    assert hanging.flush(30) == 0
    schema = pa.schema({"time": pa.int64(), "n": pa.int64()})
    source = sources.Kafka(kafka.servers, "in", end=True).typed(schema, "time")
    assert check_source(source) == 10
    [partition] = source.partitions(1).items()
    reader = source.open(*partition)
    seen: list[int] = []
    while not reader.ended:
        table = reader.read()
        seen += [] if table is None else table["n"].to_pylist()
    reader.close()
    assert seen == [*range(5), *range(20, 25)]
    hanging.abort_transaction(30)
