"""Kafka: records in and out, compared with confluent-kafka alone, on librdkafka's mock cluster.

Brokers and clients share this machine's cores, so that the ratios say more than the rates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import pyarrow as pa
from tqdm import tqdm

import jeton as jt
from jeton.connectors import sinks, sources
from jeton.connectors.sinks import Delivery, SinkContext
from jeton_evaluation.bench.harness import Line, OptionError, Rounds, Say, command
from jeton_evaluation.bench.mock_kafka import MockKafka

PARTITIONS = 4
MOST = 200_000
"""Records that the mock cluster keeps in four partitions, with some room."""
SCHEMA = pa.schema({"time": pa.int64(), "k": pa.int64(), "v": pa.float64()})

Records = Annotated[int, "records in a topic"]


def run(say: Say, rounds: Rounds = 5, records: Records = 200_000) -> Iterator[Line]:
    """Measure each variant in each round, one after the other."""
    if not 0 < records <= MOST:
        raise OptionError(f"the mock cluster keeps at most {MOST} records, not {records}")
    with MockKafka({"in": PARTITIONS, "jeton-versions": 1}) as kafka:
        table = pa.table(
            {
                "time": [at // 10 for at in range(records)],
                "k": [at * 7919 % 1000 for at in range(records)],
                "v": [at / 8 for at in range(records)],
            },
            schema=SCHEMA,
        )
        bench = _Bench(kafka, table)
        bench.fill()
        rates: dict[str, list[float]] = {name: [] for name in bench.variants()}
        for _ in tqdm(range(rounds), "rounds", disable=None):
            for name, variant in bench.variants().items():
                began = perf_counter()
                variant()
                rates[name].append(records / (perf_counter() - began))
    for name, found in rates.items():
        base = rates["consume" if bench.reads(name) else "produce"]
        ratio = median(one / other for one, other in zip(found, base, strict=True))
        say(f"{name:24} {median(found):>10,.0f} records/s  {ratio:.2f} of confluent-kafka alone")
        yield {
            "experiment": "kafka",
            "variant": name,
            "records": records,
            "rounds": rounds,
            "rate": round(median(found)),
            "ratio": round(ratio, 3),
        }


main = command(run)


class _Bench:
    def __init__(self, kafka: MockKafka, table: pa.Table) -> None:
        self._kafka = kafka
        self._servers = kafka.servers
        self._table = table
        self._values = [json.dumps(row).encode() for row in table.to_pylist()]
        self._topics = 0

    def variants(self) -> dict[str, Callable[[], None]]:
        """All variants: those that read, then those that write."""
        return {
            "consume": self._consume,
            "consume, json.loads": self._consume_and_parse,
            "source": self._read,
            "source, windows": self._windows,
            "produce": self._produce,
            "sink, direct": self._direct,
            "sink, transactions": self._transactions,
        }

    @staticmethod
    def reads(name: str) -> bool:
        """Whether a variant reads the topic."""
        return name.startswith(("consume", "source"))

    def fill(self) -> None:
        """Write the topic that is read."""
        producer = self._producer()
        for at, value in enumerate(self._values):
            producer.produce("in", value, partition=at % PARTITIONS)
        producer.flush()

    # Reading

    def _messages(self) -> Iterator[list[Any]]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "bench",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.assign([TopicPartition("in", number, 0) for number in range(PARTITIONS)])
        left = len(self._values)
        while left:
            found = consumer.consume(10_000, 0.1)
            left -= len(found)
            yield found
        consumer.close()

    def _consume(self) -> None:
        for messages in self._messages():
            for message in messages:
                message.value()

    def _consume_and_parse(self) -> None:
        for messages in self._messages():
            for message in messages:
                json.loads(message.value())

    def _source(self) -> sources.Source:
        return sources.Kafka(self._servers, "in", end=True).typed(SCHEMA, "time")

    def _read(self) -> None:
        assert sum(table.num_rows for _, table in _tables(self._source())) == len(self._values)

    def _windows(self) -> None:
        flow = jt.Flow("windows")
        numbers = flow.input("in", schema=SCHEMA, lateness=100)
        flow.output("sums", numbers.key_by("k").tumbling(1000).sum("v"))
        with flow.open() as run:
            source = self._source()
            handle = run.input("in")
            partitions = {name: handle.partition(name) for name in source.partitions(1)}
            for name, table in _tables(source):
                partitions[name].send(table)
                run.run_to_rest()
            run.finish()

    # Writing

    def _producer(self) -> Any:
        from confluent_kafka import Producer

        return Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 1_000_000,
            }
        )

    def _topic(self) -> str:
        self._topics += 1
        self._kafka.create(f"out-{self._topics}", PARTITIONS)
        return f"out-{self._topics}"

    def _produce(self) -> None:
        producer, topic = self._producer(), self._topic()
        for value in self._values:
            producer.produce(topic, value)
        assert producer.flush(60) == 0

    def _direct(self) -> None:
        writer = sinks.DirectKafka(self._servers, self._topic()).open(SinkContext("q", worker=0))
        writer.write(self._table)
        writer.stage(1)
        writer.close()

    def _transactions(self) -> None:
        # Without the files beside a checkpoint, in which rows wait otherwise.
        sink = sinks.Kafka(self._servers, topic := self._topic())
        delivery = Delivery(version=1, context=SinkContext(topic))
        sink.receive(sink.preparation()(self._table), delivery)


def _tables(source: sources.Source) -> Iterator[tuple[str, pa.Table]]:
    """The tables of all partitions, which are read in turn."""
    readers = {name: source.open(name, at) for name, at in source.partitions(1).items()}
    while readers:
        for name, reader in list(readers.items()):
            if (table := reader.read()) is not None:
                yield name, table
            if reader.ended:
                readers.pop(name).close()
