"""Kafka: the records of topics."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from jeton.columns.durations import Duration, seconds
from jeton.connectors.formats import JSON, Format, Rejected, sift, with_times
from jeton.connectors.kafka import (
    TIMEOUT,
    KafkaFailed,
    client,
    consumer,
    described,
    log,
    settings_of,
)
from jeton.connectors.sources.source import Reader, Source
from jeton.core import checks
from jeton.core.errors import GraphError

Metadata: TypeAlias = Literal["topic", "partition", "offset", "timestamp", "key"]

_TYPES: Final = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "key": pa.binary(),
}


class Kafka(Source):
    """The records of topics, partition by partition (``pip install 'jeton[kafka]'``).

    Each partition of a topic is one of the source, with its own times and its own position: the
    offset of its next record. Offsets are part of checkpoints; Kafka's consumer groups are not
    used. Topics and partitions that appear while the query runs are read from their beginning.

    A record that the format cannot read, or that has no time although the input declares its
    columns, fails the query, unless ``rejected`` names a topic: then it is written there as it is,
    with its origin and the reason in headers, before anything that follows it is counted as read,
    so that none is lost; after a failure some may come twice.
    ``query.metrics()["rejected"]`` counts them.

    Args:
        servers: The addresses of some brokers, ``host:port``, with commas between them.
        topics: A topic, several, or a regular expression that begins with ``^``.
        format: How values are written: `JSON`, `Avro`, `Protobuf`, `Raw` or your own `Format`.
        metadata: What else of a record is a column, and under which name: its ``topic``,
            ``partition``, ``offset``, ``timestamp`` and ``key``.
        start: Where a new query begins in the partitions that there are: ``"earliest"``,
            ``"latest"``, or at the first record from a time on.
        end: Whether to end at the records that there are when the query begins.
        rejected: The topic for records that cannot be read.
        lost: What to do if records were deleted before they were read, as by Kafka's retention:
            ``"fail"``, or ``"skip"`` them, which is logged.
        discover_every: Seconds between looks for new topics and partitions, or ``None``.
        most: The most records that are read at once.
        config: More settings of librdkafka's, such as those of security.

    >>> source = Kafka("broker:9092", "orders", metadata={"timestamp": "time"})
    >>> source.discover_every
    10.0
    """

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str],
        *,
        format: Format | None = None,
        metadata: Mapping[Metadata, str] | None = None,
        start: Literal["earliest", "latest"] | datetime = "earliest",
        end: bool = False,
        rejected: str | None = None,
        lost: Literal["fail", "skip"] = "fail",
        discover_every: float | Duration | None = 10.0,
        most: int = 10_000,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(start, datetime):
            checks.require_one_of(
                start, "start= of Kafka, unless it is a datetime,", ("earliest", "latest")
            )
        checks.require_one_of(lost, "lost= of Kafka", ("fail", "skip"))
        if format is not None and not isinstance(format, Format):
            raise GraphError(
                "format= of Kafka is one of jeton.connectors.formats, such as formats.JSON(), not "
                f"{checks.described(format)}"
            )
        if metadata is not None and not isinstance(metadata, Mapping):
            raise GraphError(
                "metadata= of Kafka is a dictionary such as {'timestamp': 'ts'}, the name of the "
                f"column for each, not {checks.described(metadata)}"
            )
        self.servers = servers
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self.format = JSON() if format is None else format
        self.metadata = dict(metadata or {})
        self.start = start
        self.end = end
        self.endless = not end
        self.rejected = rejected
        self.lost = lost
        self.most = most
        self.config = settings_of(servers, config, "a source of Kafka")
        self.types = dict(_TYPES)
        self.time: str | None = None
        """The time column of the input, if it declares its columns."""
        if not end and discover_every is not None:
            self.discover_every = seconds(discover_every, "discover_every=")
        unknown = [name for name in self.metadata if name not in _TYPES]
        if unknown:
            raise GraphError(f"records of Kafka have no {unknown}, only {list(_TYPES)}")
        if not self.topics:
            raise GraphError("a source of Kafka needs at least one topic")
        for topic in filter(_is_pattern, self.topics):
            try:
                re.compile(topic)
            except re.error as error:
                raise GraphError(
                    f"topic {topic!r} begins with ^, and is not a regular expression: {error}"
                ) from error

    def partitions(self, workers: int) -> Mapping[str, Any]:
        """Those of all topics, where a new query begins."""
        with closing(self._consumer()) as asked:
            found = list(self._found(asked))
            missing = [topic for topic in self.topics if not _is_pattern(topic)]
            missing = [topic for topic in missing if topic not in {each[0] for each in found}]
            if missing:
                raise GraphError(
                    f"there are no topics {missing} at {self.servers}: create them first, or give "
                    "a pattern, such as '^orders$', for topics that may appear later"
                )
            return {_name(*each): self._start(asked, *each) for each in found}

    def discover(self, known: Collection[str]) -> Mapping[str, Any]:
        """Partitions that have appeared, from their beginning."""
        if self.end:
            return {}
        with closing(self._consumer()) as asked:
            return {
                _name(*each): {"offset": self._ends(asked, *each)[0], "end": None}
                for each in self._found(asked)
                if _name(*each) not in known
            }

    def open(self, partition: str, position: Any | None) -> Reader:
        """Fetch from an offset on."""
        topic, _, number = partition.rpartition("-")
        assert position is not None
        return _KafkaReader(self, topic, int(number), position["offset"], position["end"])

    def typed(self, schema: pa.Schema, time: str) -> Kafka:
        """The source with the types that an input declares."""
        made = copy.copy(self)
        columns = {column: name for name, column in self.metadata.items()}
        made.types = self.types | {
            columns[field.name]: field.type for field in schema if field.name in columns
        }
        values = pa.schema([field for field in schema if field.name not in columns])
        known = time in columns or time in values.names
        made.format = self.format.typed(values, only=known)
        made.time = time
        return made

    # Inside

    def _consumer(self) -> Any:
        return consumer(self.servers, self.config)

    def _found(self, asked: Any) -> Iterator[tuple[str, int]]:
        """The topics and numbers of all partitions that there are."""
        from confluent_kafka import KafkaException

        try:
            topics = asked.list_topics(timeout=TIMEOUT).topics
        except KafkaException as error:
            raise KafkaFailed(
                f"the brokers {self.servers} do not answer: {described(error)}"
            ) from error
        for name, topic in sorted(topics.items()):
            if any(_matches(each, name) for each in self.topics) and topic.error is None:
                for number in sorted(topic.partitions):
                    yield name, number

    def _ends(self, asked: Any, topic: str, number: int) -> tuple[int, int]:
        """The offset of the first record of a partition, and the one after its last."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            found = asked.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT)
        except KafkaException as error:
            raise KafkaFailed(
                f"the offsets of partition {number} of topic {topic!r} cannot be had from "
                f"{self.servers}: {described(error)}"
            ) from error
        first, end = found
        return first, end

    def _start(self, asked: Any, topic: str, number: int) -> dict[str, int | None]:
        first, end = self._ends(asked, topic, number)
        offset = first
        if self.start == "latest":
            offset = end
        elif isinstance(self.start, datetime):
            from confluent_kafka import TopicPartition

            at = TopicPartition(topic, number, int(self.start.timestamp() * 1000))
            offset = self._since(asked, at)
            offset = end if offset < 0 else offset
        return {"offset": offset, "end": end if self.end else None}

    def _since(self, asked: Any, at: Any) -> int:
        """The offset of the first record from a time on; below zero if there is none."""
        from confluent_kafka import KafkaException

        try:
            [found] = asked.offsets_for_times([at], timeout=TIMEOUT)
            if found.error is not None:
                raise KafkaException(found.error)
        except KafkaException as error:
            raise KafkaFailed(
                f"the offset of {self.start} in partition {at.partition} of topic {at.topic!r} "
                f"cannot be had from {self.servers}: {described(error)}"
            ) from error
        return int(found.offset)


class _KafkaReader(Reader):
    def __init__(
        self, source: Kafka, topic: str, number: int, offset: int, end: int | None
    ) -> None:
        from confluent_kafka import TopicPartition

        self._source = source
        self._topic = topic
        self._number = number
        self._offset = offset
        self._end = end
        self._rejects: Any = None
        # A tenth of librdkafka's default, for each of what may be many partitions.
        memory = {"queued.max.messages.kbytes": 8 << 10, "fetch.queue.backoff.ms": 5}
        self._consumer = consumer(source.servers, source.config, **memory)
        if source.end and end is None:
            # The query began without an end, and is to come to one now.
            self._end = source._ends(self._consumer, topic, number)[1]
        self.ended = self._end is not None and offset >= self._end
        self._consumer.assign([TopicPartition(topic, number, offset)])

    def read(self) -> Any | None:
        if self.ended:
            return None
        messages = []
        for message in self._consumer.consume(self._source.most, 0):
            error = message.error()
            if error is None:
                messages.append(message)
            else:
                self._hear(error, message)
        if self._end is not None:
            messages = [each for each in messages if each.offset() < self._end]
            if messages and messages[-1].offset() + 1 >= self._end:
                self.ended = True
        if not messages:
            return None
        table = self._decoded(messages)
        self._offset = messages[-1].offset() + 1
        return table

    @property
    def position(self) -> dict[str, int | None]:
        return {"offset": self._offset, "end": self._end}

    def close(self) -> None:
        self._consumer.close()

    def _decoded(self, messages: list[Any]) -> pa.Table | None:
        source = self._source
        bad = self._unreadable_keys(messages)
        read = _others(range(len(messages)), bad)
        values = pa.array([messages[at].value() for at in read], pa.binary())
        table, more = sift(source.format, values) if read else (None, [])
        bad += [Rejected(read[each.at], each.reason) for each in more]
        read = _others(read, bad)
        if table is not None:
            table = self._with_metadata(table, [messages[at] for at in read])
            table, timeless = with_times(table, source.time)
            bad += [Rejected(read[each.at], each.reason) for each in timeless]
        if bad:
            self._reject(messages, sorted(bad))
        return table if table is not None and table.num_rows else None

    def _with_metadata(self, table: pa.Table, messages: list[Any]) -> pa.Table:
        for name, column in self._source.metadata.items():
            if column in table.column_names:
                raise GraphError(
                    f"records of topic {self._topic!r} have a column {column!r} already, so that "
                    f"their {name} needs another name: metadata={{{name!r}: …}}"
                )
            table = table.append_column(column, self._metadata(name, messages))
        return table

    def _unreadable_keys(self, messages: list[Any]) -> list[Rejected]:
        """The records whose keys are not of the type that the input declares for them."""
        if "key" not in self._source.metadata:
            return []
        try:
            self._metadata("key", messages)
        except pa.ArrowInvalid as error:
            if len(messages) == 1:
                return [Rejected(0, f"its key {messages[0].key()!r} cannot be read: {error}")]
        else:
            return []
        half = len(messages) // 2
        later = self._unreadable_keys(messages[half:])
        return [
            *self._unreadable_keys(messages[:half]),
            *(Rejected(half + each.at, each.reason) for each in later),
        ]

    def _metadata(self, name: str, messages: list[Any]) -> pa.Array:
        kind = self._source.types[name]
        if name == "topic":
            return pa.array([self._topic] * len(messages), kind)
        if name == "partition":
            return pa.array([self._number] * len(messages), kind)
        if name == "offset":
            return pa.array([each.offset() for each in messages], kind)
        if name == "key":
            return pa.array([each.key() for each in messages], pa.binary()).cast(kind)
        # Kafka has milliseconds, and -1 where it has none.
        stamps = [stamp if known else None for known, stamp in map(_timestamp, messages)]
        return pa.array(stamps, pa.int64()).cast(_TYPES["timestamp"]).cast(kind)

    def _hear(self, error: Any, message: Any) -> None:
        """Take note of what is not a record."""
        from confluent_kafka import KafkaError, TopicPartition

        if error.code() == KafkaError._PARTITION_EOF:
            # Offsets at the end may belong to marks of transactions, which are never read.
            self.ended = self._end is not None and message.offset() >= self._end
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            first, _ = self._source._ends(self._consumer, self._topic, self._number)
            if first <= self._offset:
                raise KafkaFailed(
                    f"partition {self._number} of topic {self._topic!r} has no offset "
                    f"{self._offset} yet, up to which it was read: has the topic been deleted and "
                    "created again? Start with a new checkpoint"
                )
            what = (
                f"records of partition {self._number} of topic {self._topic!r} from offset "
                f"{self._offset} on were deleted before they were read: it begins at {first} now"
            )
            if self._source.lost == "fail":
                raise KafkaFailed(
                    f"{what}. To go on without them, give the source lost='skip'; to keep records "
                    "for longer, set the topic's retention.ms"
                )
            log.warning("%s", what)
            self._offset = first
            self._consumer.assign([TopicPartition(self._topic, self._number, first)])
        elif error.fatal() or not error.retriable():
            raise KafkaFailed(
                f"partition {self._number} of topic {self._topic!r} cannot be read at offset "
                f"{self._offset}: {described(error)}"
            )
        else:
            log.warning("topic %r, partition %d: %s", self._topic, self._number, described(error))

    def _reject(self, messages: list[Any], bad: list[Rejected]) -> None:
        """Write records that cannot be read elsewhere, or fail."""
        to = self._source.rejected
        if to is None:
            message, reason = messages[bad[0].at], bad[0].reason
            raise KafkaFailed(
                f"the record at offset {message.offset()} of partition {self._number} of topic "
                f"{self._topic!r} cannot be read as {type(self._source.format).__name__}: {reason}"
                ". To put such records aside, give the source a topic for them, rejected=…"
            )
        if self._rejects is None:
            self._rejects = client("Producer", self._source.servers, self._source.config)
        failures: list[Any] = []
        for at, reason in bad:
            message = messages[at]
            origin = f"{self._topic}-{self._number}@{message.offset()}"
            headers = [("jeton-origin", origin.encode()), ("jeton-reason", reason.encode())]
            while True:
                try:
                    self._rejects.produce(
                        to,
                        message.value(),
                        message.key(),
                        headers=[*(message.headers() or []), *headers],
                        on_delivery=lambda error, _: failures.append(error) if error else None,
                    )
                    break
                except BufferError:
                    self._rejects.poll(0.1)
        left = self._rejects.flush(TIMEOUT)
        if left or failures:
            why = described(failures[0]) if failures else f"{left} of them were not taken in time"
            raise KafkaFailed(f"records that cannot be read could not be written to {to!r}: {why}")
        self.rejected += len(bad)


def _others(numbers: Iterable[int], bad: Iterable[Rejected]) -> list[int]:
    """The numbers of records that are not among the bad ones."""
    left_out = {each.at for each in bad}
    return [at for at in numbers if at not in left_out]


def _timestamp(message: Any) -> tuple[int, int]:
    kind, stamp = message.timestamp()
    return kind, stamp


def _name(topic: str, number: int) -> str:
    return f"{topic}-{number}"


def _is_pattern(topic: str) -> bool:
    return topic.startswith("^")


def _matches(wanted: str, topic: str) -> bool:
    if _is_pattern(wanted):
        # Kafka's own topics are not meant.
        return not topic.startswith("__") and re.search(wanted, topic) is not None
    return topic == wanted
