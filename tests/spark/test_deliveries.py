"""Sinks at the driver: what happens to rows that they do not take at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jeton as jt
from jeton.cluster.checkpoint_committer import CheckpointCommitter
from jeton.cluster.control import Control
from jeton.cluster.coordinator import CheckpointSchedule, Coordinator
from jeton.cluster.worker_io import CREDIT, ToDriver
from jeton.connectors.sinks import Callback, Delivery, Memory, Retry
from jeton.connectors.sinks.driver_sink import SinkFailed
from jeton.errors import JetonError, SnapshotError
from jeton.spark.jobs import Jobs
from jeton.spark.query import Query
from jeton.storage.checkpoints import Checkpoints
from tests.cluster.test_checkpoint_committer import PART, Driver, committer
from tests.helpers import rows_writer
from tests.spark.gated import LIMIT, until

QUICK = Retry(times=2, first_wait=0.0)


def tables(*rows: Sequence[int]) -> dict[str, list[pa.Table]]:
    return {"rows": [pa.table({"n": list(numbers)}) for numbers in rows]}


class Database:
    """Takes tables, but fails whenever the next of its moods says so."""

    def __init__(self, *moods: bool) -> None:
        self.moods = list(moods)
        self.asked: list[Delivery] = []
        self.took: list[tuple[Delivery, list[int]]] = []

    def __call__(self, table: pa.Table, delivery: Delivery) -> None:
        self.asked.append(delivery)
        if self.moods and not self.moods.pop(0):
            raise ConnectionError("the database is down")
        self.took.append((delivery, table["n"].to_pylist()))


def start(path: Path, database: Callable[..., Any]) -> Driver:
    return committer(path, {"rows": Callback(database, delivery=True, retry=QUICK)})


# With checkpoints


def test_an_error_that_passes_is_not_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(False, False, True)
    run = start(tmp_path, database)
    run.recover()
    run.commit(1, {0: PART}, tables([1, 2], [3]), {}, 0.0)
    assert database.took == [(Delivery(1, 0, again=True), [1, 2]), (Delivery(1, 1), [3])]
    assert "the sink of output 'rows' failed, and gets the same 2 rows again" in caplog.text
    assert not list((tmp_path / "rows").iterdir()), "nobody needs them any more"


def test_one_that_stays_fails_the_query_and_rows_come_after_a_restart(tmp_path: Path) -> None:
    database = Database(True, False, False, False)
    run = start(tmp_path, database)
    run.recover()
    text = r"the sink of output 'rows' failed 3 times .* \(table 1 of version 1\): ConnectionError"
    with pytest.raises(SinkFailed, match=text) as caught:
        run.commit(1, {0: PART}, tables([1], [2]), {}, 0.0)
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert run.version == 1, "the version is there all the same"
    # The same driver knows what was taken.
    assert run.recover().version == 1
    assert [rows for _, rows in database.took] == [[1], [2]]
    run.recover()
    assert len(database.took) == 2


def test_a_table_that_the_same_driver_hands_over_again_is_marked(tmp_path: Path) -> None:
    """The sink may have stored it before it failed, for all the driver knows."""
    database = Database(False, False, False)
    run = start(tmp_path, database)
    run.recover()
    with pytest.raises(SinkFailed):
        run.commit(1, {0: PART}, tables([1]), {}, 0.0)
    run.recover()
    run.commit(2, {0: PART}, tables([2]), {}, 0.0)
    assert database.took == [(Delivery(1, 0, again=True), [1]), (Delivery(2, 0), [2])]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), CancelledError("gone")])
def test_whatever_a_sink_raises_ends_the_attempt(tmp_path: Path, error: BaseException) -> None:
    """Also an error that is not an `Exception`, which would end the driver's thread unseen."""

    def raising(table: pa.Table, delivery: Delivery) -> None:
        raise error

    sinks = {"rows": Callback(raising, delivery=True, retry=QUICK)}
    run = CheckpointCommitter(
        jt.Flow("f"), Checkpoints(tmp_path), sinks, lambda wait: False,
        every=None, keep=2, allow_removed=(),
    )  # fmt: skip
    restore_point = run.recover()
    failed = threading.Event()
    coordinator = Coordinator(workers=1)
    schedule = CheckpointSchedule(coordinator, run, restore_point, failed=failed.set)
    here, there = map(Control, socket.socketpair())
    coordinator.join(0, there)
    writer = rows_writer(restore_point)
    writer.write(pa.table({"n": [1]}))
    schedule.hear(0, {"kind": "complete"})
    news = here.receive()
    assert news is not None
    staged = {"rows": writer.stage(news[0]["version"])}
    schedule.hear(0, {**PART, "kind": "part", "number": news[0]["number"], "staged": staged})
    assert failed.wait(LIMIT)
    for end in (here, there):
        end.close()
    schedule.end()
    assert isinstance(schedule.error, SinkFailed)
    assert schedule.error.__cause__ is error
    # In the main thread it is meant for the program.
    with pytest.raises(type(error)):
        start(tmp_path, raising).recover()


def test_another_driver_delivers_the_same_again(tmp_path: Path) -> None:
    database = Database(True, False, False, False)
    run = start(tmp_path, database)
    run.recover()
    with pytest.raises(SinkFailed):
        run.commit(1, {0: PART}, tables([1], [2]), {}, 0.0)
    # As long as it fails, the query does not start, and nothing is lost.
    with pytest.raises(SinkFailed):
        start(tmp_path, Database(False, False, False)).recover()
    again = Database()
    start(tmp_path, again).recover()
    assert again.took == [(Delivery(1, 0, again=True), [1]), (Delivery(1, 1, again=True), [2])]
    nothing = Database()
    start(tmp_path, nothing).recover()
    assert not nothing.asked


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("folder", ["manifests", "log"])
def test_a_version_that_was_given_up_leaves_no_number_to_others(
    tmp_path: Path, folder: str, lost: bool
) -> None:
    """So that no two tables have the same version and number."""
    run = start(tmp_path, Database())
    restore_point = run.recover()
    for version in (1, 2, 3):
        run.commit(version, {0: PART}, tables([version]), {}, 0.0)
    newest = max((tmp_path / folder).iterdir())
    if lost:
        newest.unlink()
    else:
        newest.write_bytes(b"")
    restore_point = start(tmp_path, Database()).recover()
    assert (restore_point.version, restore_point.next_version) == (2, 4)


def test_rows_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    run = start(tmp_path, Database(False, False, False))
    run.recover()
    with pytest.raises(SinkFailed):
        run.commit(1, {0: PART}, tables([1]), {}, 0.0)
    [path] = (tmp_path / "rows").iterdir()
    path.write_bytes(path.read_bytes()[:99])
    with pytest.raises(SnapshotError, match=f"put an empty file in the place of {path}"):
        start(tmp_path, Database()).recover()
    path.write_bytes(b"")
    database = Database()
    start(tmp_path, database).recover()
    assert not database.asked


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.spark.test_deliveries import PART, start, tables
from tests.helpers import rows_writer

def take(table, delivery):
    with open(sys.argv[2], "a") as file:
        print(delivery.version, delivery.number, *table["n"].to_pylist(), file=file)
    if delivery.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)

run = start(Path(sys.argv[1]), take)
run.recover()
run.commit(1, {0: PART}, tables([1], [2], [3]), {}, 0.0)
"""


def test_a_driver_that_is_killed_while_it_delivers(tmp_path: Path) -> None:
    """With a table that was taken, but the driver did not live to know it."""
    taken = tmp_path / "taken"
    arguments = [sys.executable, "-c", KILLED, str(tmp_path / "c"), str(taken)]
    ended = subprocess.run(arguments, check=False, env={**os.environ}, timeout=LIMIT)
    assert ended.returncode == -signal.SIGKILL
    assert taken.read_text().splitlines() == ["1 0 1", "1 1 2"]
    database = Database()
    assert start(tmp_path / "c", database).recover().version == 1
    assert [(d.version, d.number, rows) for d, rows in database.took] == [
        (1, 0, [1]),
        (1, 1, [2]),
        (1, 2, [3]),
    ]
    assert all(delivery.again for delivery, _ in database.took)


# Without checkpoints


class Cancelled:
    """As much of a Spark session as a query needs to give up: its tag is cancelled."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.tags: list[str] = []
        self.was = threading.Event()

    def cancelJobsWithTag(self, tag: str) -> None:
        self.tags.append(tag)
        self.was.set()


def joined(
    sinks: dict[str, Any], workers: int = 1
) -> tuple[Query, Coordinator, list[Control], Any]:
    """A query whose workers have joined: their ends of the connections."""
    spark: Any = Cancelled()
    query, present = (
        Query("q", spark, workers, sinks, Jobs(spark, "tag"), jt.Flow("q")),
        Coordinator(workers),
    )
    query.begin(present)
    ends = []
    for rank in range(workers):
        here, there = socket.socketpair()
        query.take_over(present, rank, there)
        ends.append(Control(here))
    return query, present, ends, spark


def report(control: Control, rows: int) -> None:
    control.send("report", frontiers={"o": []}, metrics={"rows_in": rows})


def test_a_slow_sink_holds_up_its_rows_and_nothing_else() -> None:
    release = threading.Event()
    took: list[int] = []

    def slow(table: pa.Table) -> None:
        assert release.wait(LIMIT)
        took.append(table["n"][0].as_py())

    other = Memory()
    query, present, (first, second), _ = joined({"o": Callback(slow), "quick": other}, 2)
    writer = ToDriver(first, "o")
    large = 1 << 17
    for at in range(20):
        writer.write(pa.table({"n": [at] * large}))
    assert len(writer._waiting) > 5, "no more is sent than the driver can hold"
    assert writer._on_their_way <= CREDIT + large * 8 + 4096
    # Both workers are heard, and the other sink goes on.
    report(first, 7)
    report(second, 8)
    ToDriver(second, "quick").write(pa.table({"n": [1]}))
    until(lambda: query.metrics().get("rows_in") == 15, "reports")
    until(lambda: other.table() is not None, "rows of another sink")
    assert not took
    release.set()
    while writer.is_full:
        news = first.receive()
        assert news is not None
        assert news[0]["kind"] == "taken"
        writer.taken(news[0]["bytes"])
    for control in (first, second):
        control.close()
    query.end(present, None)
    assert took == list(range(20))


def test_a_table_that_is_too_large_at_once_goes_in_pieces() -> None:
    memory = Memory()
    query, present, [worker], _ = joined({"o": memory})
    writer = ToDriver(worker, "o")
    writer.write(pa.table({"n": range(5 * CREDIT // 16)}))
    while writer.is_full:
        news = worker.receive()
        assert news is not None
        writer.taken(news[0]["bytes"])
    worker.close()
    query.end(present, None)
    table = memory.table()
    assert table is not None
    assert table["n"].to_pylist() == list(range(5 * CREDIT // 16))
    assert len(memory._tables) > 2


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, CancelledError])
def test_a_sink_that_keeps_failing_fails_the_query(kind: type[BaseException]) -> None:
    def refuse(table: pa.Table) -> None:
        raise kind("no, thank you")

    query, present, [worker], spark = joined({"o": Callback(refuse, retry=QUICK)})
    ToDriver(worker, "o").write(pa.table({"n": [1]}))
    assert spark.was.wait(LIMIT)
    assert isinstance(present.error, SinkFailed)
    assert "sink of output 'o' failed 3 times in a row to take 1 rows" in str(present.error)
    assert isinstance(present.error.__cause__, kind)
    worker.close()
    query.end(present, present.error)


def test_a_sink_that_cannot_even_be_called_fails_the_query() -> None:
    sink: Any = Callback(lambda table: None)
    sink.retry = "often"
    query, present, [worker], spark = joined({"o": sink})
    ToDriver(worker, "o").write(pa.table({"n": [1]}))
    assert spark.was.wait(LIMIT)
    assert "rows could not be handed to the sink of output 'o': Attr" in str(present.error)
    worker.close()
    query.end(present, None)


def test_a_query_in_a_hurry_does_not_wait_for_a_sink() -> None:
    called = threading.Event()

    def refuse(table: pa.Table) -> None:
        called.set()
        raise ValueError("later")

    sink = Callback(refuse, retry=Retry(times=9, first_wait=1e6, longest_wait=1e6))
    query, present, [worker], _ = joined({"o": sink})
    ToDriver(worker, "o").write(pa.table({"n": [1]}))
    assert called.wait(LIMIT)
    worker.close()
    query._cancel()
    query.end(present, None)
    assert isinstance(present.error, SinkFailed)


# Frames that cannot be understood


def frame(header: bytes, payload: bytes = b"") -> bytes:
    return len(header).to_bytes(4, "little") + header + payload


BAD = {
    "garbage": (b"\x07\x00\x00\x00garbage", "is not JSON"),
    "not a header": (frame(b"[1, 2]"), "names no kind"),
    "no kind": (frame(b'{"size": 0}'), "names no kind"),
    "unknown": (frame(b'{"kind": "gossip", "size": 0}'), "no frames of kind 'gossip'"),
    "no size": (frame(b'{"kind": "report"}'), "announces None bytes"),
    "less than nothing": (frame(b'{"kind": "rows", "size": -1}'), "announces -1 bytes"),
    "too much": (frame(b'{"kind": "rows", "size": 99999999999}'), "announces 99999999999 bytes"),
    "a header too long": (b"\xff\xff\xff\xff", "a header of 4294967295 bytes"),
    "a key is missing": (frame(b'{"kind": "failed", "size": 0}'), "needs 'failure'"),
    "an empty report": (
        frame(b'{"kind": "report", "size": 0, "frontiers": 1, "metrics": 1}'),
        "no frontiers",
    ),
    "not Arrow": (
        frame(b'{"kind": "rows", "output": "o", "size": 4}', b"rows"),
        "4 bytes that came as rows are not an Arrow stream",
    ),
    "no such output": (
        frame(
            b'{"kind": "rows", "output": "p", "size": 0}',
        ),
        "not an Arrow stream",
    ),
    "of checkpoints": (frame(b'{"kind": "complete", "size": 0}'), "no frames of kind 'complete'"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_frame_ends_the_attempt_with_its_cause(what: str) -> None:
    data, text = BAD[what]
    query, present, [worker], spark = joined({"o": Memory()})
    report(worker, 1)
    worker._sock.sendall(data)
    assert spark.was.wait(LIMIT), "the job is cancelled"
    assert spark.tags == ["tag"]
    assert isinstance(present.error, JetonError)
    assert "the driver of query 'q' cannot understand worker 0: " in str(present.error)
    assert text in str(present.error)
    worker.close()
    query.end(present, present.error)
