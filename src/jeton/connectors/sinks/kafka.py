"""Kafka: records of a topic, exactly once by transactions, or at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jeton.connectors.formats import JSON, Format
from jeton.connectors.kafka import (
    TIMEOUT,
    KafkaFailed,
    client,
    consumer,
    described,
    log,
    settings_of,
)
from jeton.connectors.sinks.driver_sink import Delivery, DriverSink, Retry
from jeton.connectors.sinks.sink import DirectSink, SinkContext, Writer
from jeton.core.errors import BatchError

VERSIONS: Final = "jeton-versions"
"""The topic that has the last version of each query and output, in the same transactions."""
_OPEN: Final = 120.0
"""Seconds after which Kafka aborts a transaction that was begun and left."""
_AT_ONCE: Final = 1_000
"""Records after which the producer is polled for news."""


class Kafka(DriverSink):
    """Records of a topic, exactly once (``pip install 'jeton[kafka]'``).

    Workers encode rows, and stage them beside the checkpoint. When a version is committed, the
    driver writes all its rows in one transaction, which also writes the version's number to the
    topic ``versions``. A driver that does not know whether its predecessor came so far reads the
    number there. So a reader with ``isolation.level=read_committed``, which is librdkafka's
    default, sees each version whole, and once. The transactional id is that of the query and the
    output: Kafka refuses a driver that was superseded.

    All records pass through the driver, and appear when a checkpoint is committed. `DirectKafka`
    writes from all workers at once instead, and may repeat records after a failure.

    Records that were committed cannot be withdrawn: if the checkpoint of a version that has been
    written is lost, the query refuses to go on from an earlier one. Without checkpoints, each
    transaction has the rows that a worker sent together.

    Args:
        servers: The addresses of some brokers, ``host:port``, with commas between them.
        topic: The topic.
        key: The column of the records' keys, text or bytes or integers; by default there are none.
        format: How values are written: `JSON`, `Avro`, `Protobuf`, `Raw` or your own `Format`.
        timestamp: The column of the records' timestamps; by default Kafka's own.
        versions: The topic of the versions. Create it with ``cleanup.policy=compact``, unless
            brokers create topics by themselves.
        config: More settings of librdkafka's, such as those of security.

    >>> sink = Kafka("broker:9092", "counts", key="word")
    >>> sink.guarantee
    'exactly once'
    >>> sink.preparation()(pa.table({"word": ["a"], "count": [2]})).to_pylist()
    [{'value': b'{"word":"a","count":2}', 'key': b'a'}]
    """

    guarantee = "exactly once"
    whole_versions = True
    retry = Retry(times=3, first_wait=0.5)

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        key: str | None = None,
        format: Format | None = None,
        timestamp: str | None = None,
        versions: str = VERSIONS,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.servers = servers
        self.topic = topic
        self.versions = versions
        self.config = settings_of(servers, config, "a sink of Kafka")
        self._records = Records(JSON() if format is None else format, key, timestamp)
        self._producers: dict[str, tuple[int, Any]] = {}
        """For each query and output the last attempt, and its producer."""
        self._lock = threading.Lock()

    def preparation(self) -> Records:
        """Workers make keys and values."""
        return self._records

    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        """Write a version in one transaction, unless it is there."""
        context, version = delivery.context, delivery.version
        producer = self._producer(context)
        # After the transactions of predecessors have been ended, which the producer has seen to.
        if version is not None and delivery.again and self.last(context).version >= version:
            return
        self._write(producer, context, table, version)

    def roll_back(self, context: SinkContext, version: int) -> None:
        """Delete staged rows, and refuse if a later version was written: it cannot be withdrawn."""
        producer = self._producer(context)
        last = self.last(context)
        if last.version > version:
            raise KafkaFailed(
                f"topic {self.topic!r} has the rows of version {last.version} of output "
                f"{context.output!r}, but its checkpoint cannot be read any more, and the one of "
                f"version {version} is older: its successors would write the same rows again. "
                "Restore the checkpoint's files; or, to accept repeated rows, start with another "
                "topic of versions, sinks.Kafka(…, versions=…)"
            )
        if last.attempt < context.attempt:
            # From now on, earlier attempts know that they are superseded.
            self._write(producer, context, None, last.version)
        super().roll_back(context, version)

    def last(self, context: SinkContext, *, settled: bool = True) -> Last:
        """The last version of an output that was committed to Kafka.

        What was committed behind an open transaction of another query cannot be read before that
        one ends. If it was left open, Kafka ends it after two minutes: if ``settled`` is set, this
        waits for that.
        """
        from confluent_kafka import KafkaError, KafkaException

        name, last = _name(context).encode(), Last(0, 0)
        began = monotonic()
        with closing(self._reader("read_committed")) as asked:
            try:
                left = self._marks(asked, settled=settled)
                while left:
                    for message in asked.consume(_AT_ONCE, 0.1):
                        error, number = message.error(), message.partition()
                        if error is None:
                            if message.key() == name:
                                last = last.later(json.loads(message.value()))
                        elif error.code() == KafkaError._PARTITION_EOF:
                            if message.offset() >= left.get(number, 0):
                                left.pop(number, None)
                        elif not error.retriable():
                            raise KafkaException(error)
                    if left and monotonic() - began > _OPEN + TIMEOUT:
                        raise KafkaFailed(
                            f"topic {self.versions!r} has transactions that do not end, in "
                            f"partitions {sorted(left)}: the versions behind them cannot be read. "
                            "Give each query a topic of its own, sinks.Kafka(…, versions=…)"
                        )
            except KafkaException as error:
                raise KafkaFailed(
                    f"the versions of {_name(context)!r} cannot be read from topic "
                    f"{self.versions!r} at {self.servers}: {described(error)}"
                ) from error
        return last

    def _marks(self, asked: Any, *, settled: bool) -> dict[int, int]:
        """Assign the topic of versions; returns how far each partition with records goes."""
        from confluent_kafka import TopicPartition

        topic = asked.list_topics(self.versions, timeout=TIMEOUT).topics[self.versions]
        found, ends = [], {}
        with closing(self._reader("read_uncommitted" if settled else "read_committed")) as all_of:
            for number in topic.partitions:
                at = TopicPartition(self.versions, number)
                first, end = all_of.get_watermark_offsets(at, timeout=TIMEOUT)
                if first < end:
                    found.append(TopicPartition(self.versions, number, first))
                    ends[number] = end
        asked.assign(found)
        return ends

    def _reader(self, level: str) -> Any:
        return consumer(self.servers, {**self.config, "isolation.level": level})

    def _write(
        self, producer: Any, context: SinkContext, table: pa.Table | None, version: int | None
    ) -> None:
        """Write records and their version in one transaction."""
        from confluent_kafka import KafkaException

        rows = 0 if table is None else table.num_rows
        try:
            producer.begin_transaction()
            if table is not None:
                failed: list[Any] = []
                _produce(producer, self.topic, table, failed)
                _flushed(producer, failed)
            if version is not None:
                mark = json.dumps({"version": version, "attempt": context.attempt})
                producer.produce(self.versions, mark.encode(), _name(context).encode())
            producer.commit_transaction(TIMEOUT)
        except KafkaException as error:
            _abort(producer, error)
            raise KafkaFailed(
                f"{rows} records for topic {self.topic!r} could not be committed: "
                f"{described(error)}"
            ) from error

    def _producer(self, context: SinkContext) -> Any:
        """The producer of an attempt at an output; Kafka refuses those of others from then on."""
        from confluent_kafka import KafkaException

        name, attempt = _name(context), context.attempt
        with self._lock:
            if name in self._producers and self._producers[name][0] == attempt:
                return self._producers[name][1]
            newest = self._producers[name][0] if name in self._producers else 0
            # Without this, a driver that was suspended would stop its successor when it wakes up.
            if context.files is not None:
                newest = max(newest, self.last(context, settled=False).attempt)
            if newest > attempt:
                raise KafkaFailed(
                    f"attempt {newest} at output {context.output!r} writes to topic "
                    f"{self.topic!r}: attempt {attempt} was superseded"
                )
            made = client(
                "Producer",
                self.servers,
                self.config,
                **{
                    "transactional.id": f"jeton-{name}",
                    "transaction.timeout.ms": int(_OPEN * 1e3),
                    "linger.ms": 20,
                    "compression.type": "lz4",
                    "queue.buffering.max.messages": 1_000_000,
                },
            )
            try:
                made.init_transactions(TIMEOUT)
            except KafkaException as error:
                raise KafkaFailed(
                    f"no transaction for topic {self.topic!r} can be begun at {self.servers}: "
                    f"{described(error)}"
                ) from error
            self._producers[name] = (attempt, made)
            return made


class Last(NamedTuple):
    """The last version of an output that Kafka has, and the last attempt that wrote to it."""

    version: int
    attempt: int

    def later(self, mark: Mapping[str, int]) -> Last:
        """The later of both of this and a mark."""
        return Last(max(self.version, mark["version"]), max(self.attempt, mark["attempt"]))


class DirectKafka(DirectSink):
    """Records of a topic, written by all workers as they come: at least once.

    They appear in milliseconds, with or without checkpoints. After a failure, those since the last
    checkpoint are written again: under the same ``key``, so that readers who keep the latest value
    of each key, and compacted topics, are left with one. Producers are idempotent: no record is
    repeated or out of order because of the network. The arguments are those of `Kafka`.

    >>> DirectKafka("broker:9092", "counts", key="word").guarantee
    'at least once'
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        key: str | None = None,
        format: Format | None = None,
        timestamp: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.servers = servers
        self.topic = topic
        self.config = settings_of(servers, config, "a sink of Kafka")
        self._records = Records(JSON() if format is None else format, key, timestamp)

    def open(self, context: SinkContext) -> Writer:
        """A producer on this worker."""
        settings = {"enable.idempotence": True, "linger.ms": 2, "compression.type": "lz4"}
        producer = client("Producer", self.servers, self.config, **settings)
        return _DirectWriter(producer, self.topic, self._records)


class _DirectWriter(Writer):
    def __init__(self, producer: Any, topic: str, records: Records) -> None:
        self._producer = producer
        self._topic = topic
        self._records = records
        self._failed: list[Any] = []

    def write(self, table: pa.Table) -> None:
        from confluent_kafka import KafkaException

        try:
            _produce(self._producer, self._topic, self._records(table), self._failed)
            _served(self._producer.poll, 0)
        except KafkaException as error:
            raise self._failure(error) from error
        if self._failed:
            raise self._failure(self._failed[0])

    def stage(self, version: int) -> list[Any]:
        from confluent_kafka import KafkaException

        try:
            _flushed(self._producer, self._failed)
        except KafkaException as error:
            raise self._failure(error) from error
        return []

    def _failure(self, error: Any) -> KafkaFailed:
        return KafkaFailed(f"topic {self._topic!r} has not taken all records: {described(error)}")


@dataclass(frozen=True)
class Records:
    """Rows as records of Kafka: a table of values, and of keys and timestamps if there are any."""

    format: Format
    key: str | None = None
    timestamp: str | None = None

    def __call__(self, table: pa.Table) -> pa.Table:
        """The records of a table's rows."""
        made = {"value": self.format.encode(table)}
        if self.key is not None:
            made["key"] = _keys(self._column(table, self.key), self.key)
        if self.timestamp is not None:
            stamps = self._column(table, self.timestamp)
            if not pa.types.is_integer(stamps.type):
                stamps = pc.floor_temporal(stamps, unit="millisecond")
                stamps = stamps.cast(pa.timestamp("ms", getattr(stamps.type, "tz", None)))
            made["timestamp"] = stamps.cast(pa.int64())
        return pa.table(made)

    def _column(self, table: pa.Table, name: str) -> Any:
        if name not in table.column_names:
            raise BatchError(
                f"the rows have no column {name!r} for Kafka, only {table.column_names}"
            )
        return table.column(name).combine_chunks()


def _keys(column: Any, name: str) -> Any:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column.cast(pa.binary())
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string()).cast(pa.binary())
    raise BatchError(
        f"column {name!r} of type {kind} cannot be the key of records: it must be text, bytes or "
        "integers"
    )


def _name(context: SinkContext) -> str:
    return f"{context.query}-{context.output}"


def _abort(producer: Any, error: Any) -> None:
    """End a transaction that failed, so that another can begin; not if it was superseded."""
    from confluent_kafka import KafkaException

    if not error.args[0].fatal():
        try:
            producer.abort_transaction(TIMEOUT)
        except KafkaException as another:
            log.warning("a transaction could not be aborted: %s", described(another))


def _flushed(producer: Any, failed: list[Any]) -> None:
    """Wait until all records have been taken; an error if one was not."""
    from confluent_kafka import KafkaError, KafkaException

    left = len(producer)
    while left and not failed:
        before, left = left, _served(producer.flush, TIMEOUT)
        if left >= before:
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, f"{left} records were not taken in {TIMEOUT} s")
            )
    if failed:
        raise KafkaException(failed[0])


def _produce(producer: Any, topic: str, records: pa.Table, failed: list[Any]) -> None:
    """Hand records to a producer, which adds errors of their delivery to ``failed``."""

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    columns: dict[str, Sequence[Any]] = {
        name: records.column(name).to_pylist() for name in records.column_names
    }
    nothing: list[Any] = [None] * records.num_rows
    rows = zip(columns["value"], columns.get("key", nothing), strict=True)
    stamps = columns.get("timestamp")
    produce = producer.produce
    for at, (value, key) in enumerate(rows):
        # 0 is the broker's own time.
        stamp = 0 if stamps is None else stamps[at] or 0
        while True:
            try:
                produce(topic, value, key, timestamp=stamp, on_delivery=delivered)
                break
            except BufferError:
                _served(producer.poll, 0.1)
        if at % _AT_ONCE == 0:
            _served(producer.poll, 0)


def _served(serve: Callable[[float], int], seconds: float) -> int:
    """Poll or flush. A fatal error comes as `KafkaException`, also if records failed with it.

    Those fail while that exception is on its way, which Python takes for an error of its own.
    """
    from confluent_kafka import KafkaException

    try:
        return serve(seconds)
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise
