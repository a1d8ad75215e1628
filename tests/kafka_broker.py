"""A Kafka broker that isolates transactions, which librdkafka's mock cluster does not.

There is none among the packages that tests install. Tests that need one run the command that the
variable JETON_KAFKA_BROKER names, and are skipped without it. The command prints the address of an
empty broker as its first line, and runs until it is terminated: a script around Apache Kafka's or
Redpanda's own, or a few lines of Go around ``kfake.NewCluster()`` of franz-go.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

COMMAND = "JETON_KAFKA_BROKER"


@dataclass(frozen=True)
class Broker:
    """A cluster of one broker."""

    servers: str


@contextmanager
def kafka_broker(topics: Mapping[str, int]) -> Iterator[Broker]:
    """A broker with some empty topics, by their numbers of partitions."""
    command = os.environ.get(COMMAND)
    if not command:
        pytest.skip(f"{COMMAND} names no command that runs a broker with transactions")
    with subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            servers = process.stdout.readline().strip()
            assert servers, f"{command} printed no address"
            admin = AdminClient({"bootstrap.servers": servers})
            made = admin.create_topics([NewTopic(*each, 1) for each in topics.items()])
            for each in made.values():
                each.result(30)
            yield Broker(servers)
        finally:
            process.terminate()
