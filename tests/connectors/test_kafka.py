"""Kafka: a source and sinks on librdkafka's mock cluster, which speaks the real protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import jeton as jt
from jeton.cluster.worker_io import WorkerSources
from jeton.connectors import formats, sinks, sources
from jeton.connectors.sinks import SinkContext
from jeton.connectors.source_plan import SourcePlan
from jeton.errors import GraphError, KafkaFailed
from jeton.runtime.agent import Agent
from jeton.storage.files import Files
from jeton.testing import check_sink, check_source
from jeton_evaluation.bench.mock_kafka import MockKafka
from tests.helpers import planned
from tests.kafka_topics import consumed, produce, values


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as cluster:
        yield cluster


def flow_of(**settings: Any) -> jt.Flow:
    flow = jt.Flow("numbers")
    flow.output("out", flow.input("n", schema={"time": int, "n": int}, **settings))
    return flow


def read_all(source: sources.Source, flow: jt.Flow | None = None) -> list[dict[str, Any]]:
    """The rows that a flow gets of a source, to its end."""
    flow = flow or flow_of()
    agent = Agent(flow)
    feed = WorkerSources(agent, {"n": source}, planned({"n": source}))
    while not feed.ended:
        feed.read(busy=False)
    while agent.worker.has_work:
        agent.worker.step()
    feed.release()
    tables = [batch.to_arrow() for batch in agent.worker.handles[flow.handle("output", "out")]]
    return pa.concat_tables(tables).to_pylist() if tables else []


def drained(reader: sources.Reader) -> int:
    """The number of rows to the end of a partition."""
    rows = 0
    with closing(reader):
        while not reader.ended:
            table = reader.read()
            rows += 0 if table is None else table.num_rows
    return rows


# The source


def test_a_source_is_read_again_from_every_offset(kafka: MockKafka) -> None:
    kafka.create("numbers", 3)
    for partition in range(3):
        rows = [{"time": at, "n": 100 * partition + at} for at in range(50)]
        produce(kafka.servers, "numbers", rows, partition=partition)
    source = sources.Kafka(kafka.servers, "numbers", end=True, most=20)
    assert check_source(source) == 150
    endless = sources.Kafka(kafka.servers, "numbers", most=20)
    assert check_source(endless, rows=50) == 150


def test_records_have_the_columns_that_are_declared(kafka: MockKafka) -> None:
    kafka.create("numbers", 1)
    rows = [{"time": 1, "n": 7, "other": "x"}, {"other": 5, "n": 8, "time": 2}, {"time": 3}]
    produce(kafka.servers, "numbers", rows)
    found = read_all(sources.Kafka(kafka.servers, "numbers", end=True))
    assert found == [{"time": 1, "n": 7}, {"time": 2, "n": 8}, {"time": 3, "n": None}]


def test_a_time_that_is_not_declared_is_read_too(kafka: MockKafka) -> None:
    kafka.create("numbers", 1)
    produce(kafka.servers, "numbers", [{"at": 4, "n": 7}])
    flow = jt.Flow("numbers")
    flow.output("out", flow.input("n", time="at", schema={"n": int}))
    found = read_all(sources.Kafka(kafka.servers, "numbers", end=True), flow)
    assert found == [{"at": 4, "n": 7}]


def test_metadata_can_be_columns(kafka: MockKafka) -> None:
    kafka.create("numbers", 2)
    stamp = datetime(2024, 5, 1, 9, tzinfo=UTC)
    milliseconds = int(stamp.timestamp() * 1000)
    produce(kafka.servers, "numbers", [{"n": 7}], partition=1, key=b"k", timestamp=milliseconds)
    metadata = {"timestamp": "at", "key": "id", "offset": "o", "partition": "p", "topic": "t"}
    source = sources.Kafka(kafka.servers, "numbers", end=True, metadata=metadata)  # type: ignore[arg-type]
    flow = jt.Flow("numbers")
    kinds = {"n": int, "id": str, "o": int, "p": "int32", "t": str}
    flow.output("out", flow.input("n", time="at", schema=kinds))
    [row] = read_all(source, flow)
    assert row == {"at": stamp, "n": 7, "id": "k", "o": 0, "p": 1, "t": "numbers"}
    clash = sources.Kafka(kafka.servers, "numbers", end=True, metadata={"key": "n"})
    undeclared = jt.Flow("numbers")
    undeclared.output("out", undeclared.input("n"))
    with pytest.raises(GraphError, match="have a column 'n' already"):
        read_all(clash, undeclared)


# The mock cluster does not know which offset a time has: it says that it is the end.
@pytest.mark.parametrize(
    ("start", "offset"), [("earliest", 0), ("latest", 2), (datetime(2100, 1, 1, tzinfo=UTC), 2)]
)
def test_a_query_begins_where_it_should(kafka: MockKafka, start: Any, offset: int) -> None:
    kafka.create("numbers", 1)
    produce(kafka.servers, "numbers", [{"time": 1, "n": 1}, {"time": 2, "n": 2}])
    plan = SourcePlan("q", {"n": sources.Kafka(kafka.servers, "numbers", start=start)})
    [first] = plan.begin(1, {})["n"].values()
    assert first["position"]["offset"] == offset
    # Another attempt begins there too, whatever has come since.
    produce(kafka.servers, "numbers", [{"time": 3, "n": 3}])
    assert [*plan.begin(1, {})["n"].values()] == [first]


def test_topics_that_appear_are_read_from_their_beginning(kafka: MockKafka) -> None:
    kafka.create("orders-a", 2)
    produce(kafka.servers, "orders-a", [{"time": 1, "n": 1}], partition=0)
    source = sources.Kafka(kafka.servers, "^orders-", start="latest")
    plan = SourcePlan("q", {"n": source})
    partitions = plan.begin(1, {})
    assert list(partitions["n"]) == ["orders-a-0", "orders-a-1"]
    flow = flow_of(lateness=0, idle_after=1.0)
    agent, now = Agent(flow), [0.0]
    feed = WorkerSources(agent, {"n": source}, partitions, clock=lambda: now[0])
    produce(kafka.servers, "orders-a", [{"time": 5, "n": 2}], partition=0)
    assert plan.discover("n") == {}
    kafka.create("orders-b", 1)
    produce(kafka.servers, "orders-b", [{"time": 6, "n": 3}])
    new = plan.discover("n")
    assert new == {"orders-b-0": {"position": {"offset": 0, "end": None}}}
    feed.add_partitions("n", new)
    handle = agent.worker.handles[flow.handle("input", "n")]
    while handle.sent_count < 2:
        feed.read(busy=False)
    # One partition has had no record: the input waits for it until it is idle.
    assert handle.time == handle.kind.minimum
    now[0] = 1.0
    feed.read(busy=False)
    assert (handle.time, feed.ended) == (6, False)
    positions = feed.positions()
    assert {name: at["position"]["offset"] for name, at in positions["n"].items()} == {
        "orders-a-0": 2,
        "orders-a-1": 0,
        "orders-b-0": 1,
    }
    feed.release()
    # A query that is started again knows all of them, and finds the next.
    kafka.create("orders-c", 1)
    again = SourcePlan("q", {"n": source}).begin(1, json.loads(json.dumps(positions)))["n"]
    assert list(again) == ["orders-c-0", "orders-a-0", "orders-a-1", "orders-b-0"]
    assert again["orders-a-0"]["position"] == {"offset": 2, "end": None}


def test_a_topic_that_is_not_there_is_an_error_at_the_start(kafka: MockKafka) -> None:
    with pytest.raises(GraphError, match=r"there are no topics \['nowhere'\] at"):
        sources.Kafka(kafka.servers, "nowhere").partitions(1)
    assert sources.Kafka(kafka.servers, "^nowhere$").partitions(1) == {}


BAD = [b"{", b"5", b'{"time": 1, "n": "one"}', b"", b'{"time": 1}{"time": 2}', b"\xff", b"null"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda s: sources.Kafka(s.split(","), "n"), "servers of a source of Kafka are text"),
        (lambda s: sources.Kafka(s, "^("), "is not a regular expression"),
        (lambda s: sources.Kafka(s, "n", config={"auto.offset.reset": "earliest"}), "start= and"),
        (lambda s: sinks.Kafka(s, "n", config={"transactional.id": "mine"}), "has its own"),
        (lambda s: sinks.DirectKafka(s, "n", config={"enable.idempotence": False}), "repeated"),
        (lambda s: sources.Kafka(s, "n", config={"no.such": 1}).partitions(1), "No such config"),
    ],
)
def test_settings_that_cannot_be_are_errors(kafka: MockKafka, make: Any, text: str) -> None:
    with pytest.raises(GraphError, match=text):
        make(kafka.servers)


def test_a_topic_that_was_created_again_is_an_error(kafka: MockKafka) -> None:
    kafka.create("numbers", 1)
    produce(kafka.servers, "numbers", [{"time": 1, "n": 1}])
    for lost in ("fail", "skip"):
        source = sources.Kafka(kafka.servers, "numbers", lost=lost)
        with pytest.raises(KafkaFailed, match="no offset 7 yet, up to which it was read"):
            drained(source.open("numbers-0", {"offset": 7, "end": 9}))


def test_records_that_cannot_be_read_are_an_error(kafka: MockKafka) -> None:
    kafka.create("numbers", 1)
    produce(kafka.servers, "numbers", [{"time": 1, "n": 1}, b"{oops", {"time": 2, "n": 2}])
    source = sources.Kafka(kafka.servers, "numbers", end=True)
    with pytest.raises(KafkaFailed, match=r"record at offset 1 of partition 0 of topic 'numbers'"):
        read_all(source)


def test_records_that_cannot_be_read_go_to_another_topic(kafka: MockKafka) -> None:
    kafka.create("numbers", 1)
    kafka.create("rejected", 1)
    good = [{"time": at, "n": at} for at in range(20)]
    mixed: list[Any] = [*good[:5], *BAD[:3], *good[5:6], *BAD[3:], *good[6:]]
    produce(kafka.servers, "numbers", mixed, headers=[("mine", b"1")])
    source = sources.Kafka(kafka.servers, "numbers", end=True, rejected="rejected", most=7)
    assert read_all(source) == good
    found = consumed(kafka.servers, "rejected")
    assert sorted(each.value() or b"" for each in found) == sorted(BAD)
    headers = dict(found[0].headers())
    assert headers["mine"] == b"1"
    assert headers["jeton-origin"] == b"numbers-0@5"
    assert b"Arrow" in headers["jeton-reason"]


def test_records_without_a_time_or_a_readable_key_go_to_another_topic(kafka: MockKafka) -> None:
    kafka.create("numbers", 1)
    kafka.create("rejected", 1)
    rows: list[Any] = [{"time": n, "n": n} for n in range(6)]
    rows[1], rows[4] = {"n": 1}, {"time": None, "n": 4}
    for at, row in enumerate(rows):
        produce(kafka.servers, "numbers", [row], key=b"\xff" if at == 3 else b"k")
    flow = jt.Flow("keys")
    flow.output("out", flow.input("n", schema={"time": int, "n": int, "key": str}))
    source = sources.Kafka(kafka.servers, "numbers", end=True, metadata={"key": "key"})
    with pytest.raises(KafkaFailed, match=r"offset 1 of .* it has no 'time', which is the time"):
        read_all(source, flow)
    source.rejected = "rejected"
    assert [row["n"] for row in read_all(source, flow)] == [0, 2, 5]
    found = {
        dict(each.headers())["jeton-origin"]: each for each in consumed(kafka.servers, "rejected")
    }
    assert set(found) == {b"numbers-0@1", b"numbers-0@3", b"numbers-0@4"}
    reason = dict(found[b"numbers-0@3"].headers())["jeton-reason"]
    assert reason.startswith(b"its key b'\\xff' cannot be read")


def test_rejected_records_are_counted(kafka: MockKafka) -> None:
    kafka.create("numbers", 1)
    produce(kafka.servers, "numbers", [b"{", {"time": 1, "n": 1}, b"["])
    source = sources.Kafka(kafka.servers, "numbers", end=True, rejected="rejected")
    agent = Agent(flow_of())
    feed = WorkerSources(agent, {"n": source}, planned({"n": source}))
    agent.attach(feed=feed)
    agent.run()
    assert (agent.metrics().rejected, agent.metrics().rows_in) == (2, 1)
    feed.release()


def test_records_that_were_deleted_are_not_skipped_silently(
    kafka: MockKafka, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create("numbers", 1)
    # The mock keeps 5 MB.
    large = {"time": 1, "n": 1, "text": "x" * 500_000}
    produce(kafka.servers, "numbers", [large] * 12)
    source = sources.Kafka(kafka.servers, "numbers")
    first, end = source._ends(source._consumer(), "numbers", 0)
    assert 0 < first < end == 12
    position = {"offset": 0, "end": end}
    with pytest.raises(KafkaFailed, match=r"from offset 0 on were deleted .* lost='skip'"):
        drained(source.open("numbers-0", position))
    skipping = sources.Kafka(kafka.servers, "numbers", lost="skip").open("numbers-0", position)
    assert drained(skipping) == end - first
    assert "were deleted before they were read" in caplog.text


# Sinks


def test_a_sink_with_transactions_keeps_its_promises(kafka: MockKafka) -> None:
    kafka.create("out", 2)
    sink = sinks.Kafka(kafka.servers, "out", key="text")
    check_sink(sink, lambda: values(consumed(kafka.servers, "out")))


def test_a_direct_sink_keeps_its_promises(kafka: MockKafka) -> None:
    kafka.create("out", 2)
    sink = sinks.DirectKafka(kafka.servers, "out", key="n", timestamp="time")
    check_sink(sink, lambda: values(consumed(kafka.servers, "out")))
    messages = consumed(kafka.servers, "out")
    assert {each.key() for each in messages} == {
        str(json.loads(each.value())["n"]).encode() for each in messages
    }


class Died(BaseException):
    """The driver ends here."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_dies_around_a_transaction_repeats_nothing(
    kafka: MockKafka, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    kafka.create("out", 1)

    def context(attempt: int) -> SinkContext:
        return SinkContext("q", attempt, files=Files(tmp_path))

    first = sinks.Kafka(kafka.servers, "out")
    first.roll_back(context(1), 0)
    writer = first.at_workers().open(SinkContext("q", 1, worker=0, files=Files(tmp_path)))
    writer.write(pa.table({"n": [1, 2, 3]}))
    staged = writer.stage(1)
    really: Callable[..., None] = sinks.Kafka._write

    def die(self: Any, *arguments: Any) -> None:
        if when == "after":
            really(self, *arguments)
        raise Died

    monkeypatch.setattr(sinks.Kafka, "_write", die)
    with pytest.raises(Died):
        first.commit(context(1), 1, staged)
    monkeypatch.undo()
    second = sinks.Kafka(kafka.servers, "out")
    second.commit(context(2), 1, staged)
    second.roll_back(context(2), 1)
    assert values(consumed(kafka.servers, "out")) == [{"n": 1}, {"n": 2}, {"n": 3}]
    # The first wakes up, with the rows in memory.
    with pytest.raises(KafkaFailed, match="attempt 1 was superseded"):
        sinks.Kafka(kafka.servers, "out").roll_back(context(1), 0)
    with pytest.raises(KafkaFailed, match=r"has the rows of version 1 .* older"):
        sinks.Kafka(kafka.servers, "out").roll_back(context(3), 0)


# Formats


def test_the_formats_of_kafka_can_be_read_back(kafka: MockKafka) -> None:
    fields = [{"name": "time", "type": "long"}, {"name": "n", "type": ["null", "long"]}]
    avro = formats.Avro({"type": "record", "name": "Number", "fields": fields})
    kafka.create("out", 1)
    sink = sinks.DirectKafka(kafka.servers, "out", format=avro)
    writer = sink.open(SinkContext("q", worker=0))
    writer.write(pa.table({"time": [1, 2], "n": [10, None]}))
    writer.stage(1)
    writer.close()
    source = sources.Kafka(kafka.servers, "out", format=avro, end=True)
    assert read_all(source) == [{"time": 1, "n": 10}, {"time": 2, "n": None}]
