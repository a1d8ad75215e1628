"""Topics of a Kafka cluster, as others write and read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition


class Cluster(Protocol):
    """A Kafka cluster, whoever runs it."""

    @property
    def servers(self) -> str:
        """The address of its broker."""
        ...


def produce(servers: str, topic: str, values: Sequence[Any], **settings: Any) -> None:
    """Write records to a topic: values in JSON, or bytes as they are."""
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, data, **settings)
    assert producer.flush(30) == 0


def consumed(servers: str, topic: str) -> list[Any]:
    """All records of a topic, as a reader of committed ones sees them."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    left = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in left])
    found = []
    while left:
        for message in consumer.consume(1000, 0.05):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
    consumer.close()
    return found


def values(messages: Sequence[Any]) -> list[Any]:
    return sorted((json.loads(each.value()) for each in messages), key=repr)
