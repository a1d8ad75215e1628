"""The coordinator alone: attempts that overtake each other, and workers that stay or leave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jeton as jt
from jeton.cluster.control import Control
from jeton.runtime.commands import Checkpoint, Command
from jeton.spark.internals import RunningQuery
from jeton.spark.micro_batch_coordinator import MicroBatchCoordinator, Rules
from jeton.spark.query_location import QueryLocation
from jeton.storage.checkpoints import Checkpoints


class Tasks:
    """The messages of the tasks of one attempt, without Spark."""

    def __init__(
        self, coordinator: MicroBatchCoordinator, number: int, held: Sequence[Any]
    ) -> None:
        self.ends = []
        for rank in range(len(held)):
            here, there = socket.socketpair()
            coordinator.take_over(rank, number, there)
            self.ends.append(Control(here))
        self.held = held

    def say(self, kind: str, **what: Any) -> list[Any]:
        for rank, end in enumerate(self.ends):
            end.send(kind, **{name: value[rank] for name, value in what.items()})
        return [end.receive() for end in self.ends]

    def begin(self, batch: int, stage: int) -> dict[str, Any]:
        count = len(self.ends)
        report: dict[str, Any] = {
            "workers": count,
            "stage": stage,
            "query": "q",
            "run": "r",
            "batch": batch,
        }
        same = {name: [value] * count for name, value in report.items()}
        [(answer, _), *_] = self.say("begin", held=self.held, **same)
        return dict(answer)

    def commit(self) -> str:
        parts = [{"worker": rank, "states": []} for rank in range(len(self.ends))]
        [(answer, _), *_] = self.say("part", part=parts)
        return str(answer["kind"])

    def close(self) -> None:
        for end in self.ends:
            end.close()


def make(
    tmp_path: Path, *, mode: str = "Append", name: str = "alone", **rules: Any
) -> MicroBatchCoordinator:
    flow = jt.Flow(name)
    flow.output("out", flow.input("r"))
    query = RunningQuery(QueryLocation(str(tmp_path)), "MemorySink", mode, lambda: ["0"])
    given = Rules(**{"allow_removed": (), "keep": 2, "follow_furthest": False, **rules})
    return MicroBatchCoordinator(
        flow, f"plan {tmp_path}", given, lambda _: query, lambda *_: None, {}
    )


@pytest.fixture
def coordinator(tmp_path: Path) -> MicroBatchCoordinator:
    return make(tmp_path)


def test_an_attempt_that_was_overtaken_cannot_commit(
    coordinator: MicroBatchCoordinator, tmp_path: Path
) -> None:
    slow, quick, next_one = (Tasks(coordinator, number, [None, None]) for number in (1, 2, 3))
    assert slow.begin(batch=0, stage=5)["epoch"] == 1
    assert quick.begin(batch=0, stage=5)["epoch"] == 2
    assert slow.commit() == "failed"
    assert quick.commit() == "stop"
    assert next_one.begin(batch=1, stage=6)["restore"] == 0
    # Spark has gone on, so that what it had before does not count any more.
    assert quick.commit() == "failed"
    assert Checkpoints(tmp_path / "jeton/alone").committed() == [(0, 2)]
    for tasks in (slow, quick, next_one):
        tasks.close()


def test_of_two_drivers_only_the_later_one_commits(tmp_path: Path) -> None:
    """Whether they begin one after the other, or one is suspended while it commits."""
    first, second = (Tasks(make(tmp_path), 1, [None]) for _ in range(2))
    assert first.begin(batch=0, stage=1)["restore"] is None
    assert second.begin(batch=0, stage=1)["restore"] is None
    [(answer, _)] = first.say("part", part=[{"worker": 0, "states": []}])
    assert "another run has taken over the checkpoint" in answer["text"]
    assert Checkpoints(tmp_path / "jeton/alone").versions() == []
    assert second.commit() == "stop"
    assert Checkpoints(tmp_path / "jeton/alone").versions() == [0]
    first.close()
    second.close()


def test_a_driver_that_is_suspended_while_it_commits(tmp_path: Path) -> None:
    slow, quick = make(tmp_path), make(tmp_path)
    first, second = Tasks(slow, 1, [None]), Tasks(quick, 1, [None])
    first.begin(batch=0, stage=1)
    [place] = slow._places.values()
    put = place.store.files.put

    def suspended(path: Any, data: bytes) -> None:
        second.begin(batch=0, stage=1)
        assert second.commit() == "stop"
        put(path, data)

    place.store.files.put = suspended  # type: ignore[method-assign]
    assert first.commit() == "failed"
    third = Tasks(make(tmp_path), 1, [None])
    assert third.begin(batch=1, stage=2)["restore"] == 0
    assert third.commit() == "stop"
    assert Checkpoints(tmp_path / "jeton/alone").versions() == [0, 1]
    for tasks in (first, second, third):
        tasks.close()


@pytest.mark.parametrize(
    ("held", "live"),
    [
        ([[0, 1, 2, 1], [0, 1, 2, 0]], True),
        ([[0, 1, 2, 1], None], False),
        ([[0, 1, 2, 1], [0, 1, 2, 1]], False),
        ([[0, 1, 2, 1], [0, 2, 2, 0]], False),
        ([[1, 1, 2, 1], [1, 1, 2, 0]], False),
        ([[0, 1, 3, 1], [0, 1, 3, 0]], False),
    ],
    ids=["all", "one is new", "one twice", "of two epochs", "of another batch", "of three"],
)
def test_workers_go_on_only_if_all_are_there(
    coordinator: MicroBatchCoordinator, held: list[Any], live: bool
) -> None:
    first = Tasks(coordinator, 1, [None, None])
    first.begin(batch=0, stage=1)
    assert first.commit() == "stop"
    second = Tasks(coordinator, 2, held)
    orders = second.begin(batch=1, stage=2)
    assert orders["live"] == live
    assert orders["numbers"] == ([1, 0] if live else [0, 1])
    first.close()
    second.close()


def test_workers_of_a_version_that_was_lost_do_not_go_on(tmp_path: Path) -> None:
    """It is made again after another start, and kept workers may be of either."""
    held: list[Any] = [None]
    for at, (batch, lost) in enumerate([(0, False), (1, True), (1, False)]):
        # A damaged entry of the log costs the version, so that the query goes back.
        tasks = Tasks(make(tmp_path), 1, [None])
        epoch = tasks.begin(batch=batch, stage=at)["epoch"]
        assert tasks.commit() == "stop"
        tasks.close()
        if lost:
            held = [[batch, epoch, 1, 0]]
            max((tmp_path / "jeton/alone/log").iterdir()).write_bytes(b"")
    after = Tasks(make(tmp_path), 1, held)
    orders = after.begin(batch=2, stage=9)
    assert (orders["restore"], orders["live"]) == (1, False)
    after.close()


def test_a_micro_batch_that_is_run_again_has_the_numbers_of_its_first_attempt(
    coordinator: MicroBatchCoordinator,
) -> None:
    """Spark may keep partitions of the first: the tasks that read them were workers 1 and 0."""
    before = Tasks(coordinator, 1, [None, None])
    before.begin(batch=0, stage=1)
    assert before.commit() == "stop"
    live = Tasks(coordinator, 2, [[0, 1, 2, 1], [0, 1, 2, 0]])
    assert live.begin(batch=1, stage=2)["numbers"] == [1, 0]
    assert live.commit() == "stop"
    # Once the processes have gone on, once they are new.
    later: list[list[Any]] = [[[1, 2, 2, 1], [1, 2, 2, 0]], [None, None]]
    for number, held in enumerate(later, start=3):
        again = Tasks(coordinator, number, held)
        orders = again.begin(batch=1, stage=number)
        assert (orders["numbers"], orders["live"], orders["restore"]) == ([1, 0], False, 0)
        again.close()
    # Workers of the version before, but in other places than those of the first attempt.
    moved = Tasks(coordinator, 5, [[0, 1, 2, 0], [0, 1, 2, 1]])
    orders = moved.begin(batch=1, stage=5)
    assert (orders["numbers"], orders["live"]) == ([1, 0], False)
    assert moved.commit() == "stop"
    # An old attempt that comes late changes nothing for the newer one.
    late = Tasks(coordinator, 6, [None, None])
    assert late.begin(batch=0, stage=1)["numbers"] == [0, 1]
    once_more = Tasks(coordinator, 7, [None, None])
    assert once_more.begin(batch=1, stage=7)["numbers"] == [1, 0]
    for tasks in (before, live, moved, late, once_more):
        tasks.close()


def framed(text: bytes) -> bytes:
    return len(text).to_bytes(4, "little") + text


BAD_FRAMES = {
    "no JSON": framed(b"\xff\x00 garbage"),
    "no object": framed(b"[1, 2]"),
    "no size": framed(b'{"kind": "fed"}'),
    "an odd size": framed(b'{"kind": "fed", "size": "many"}'),
    "too large": b"\xff\xff\xff\xff",
    "no kind": framed(b'{"size": 0}'),
    "unknown kind": framed(b'{"kind": "fedd", "size": 0}'),
    "missing key": framed(b'{"kind": "begin", "size": 0}'),
    "a list as kind": framed(b'{"kind": [], "size": 0}'),
}


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_bad_frame_fails_the_attempt_and_no_thread(
    tmp_path: Path, frame: bytes, caplog: pytest.LogCaptureFixture, no_thread_is_left: None
) -> None:
    coordinator = make(tmp_path)
    tasks = Tasks(coordinator, 1, [None, None])
    tasks.begin(batch=0, stage=1)
    tasks.ends[1]._sock.sendall(frame)
    for end in tasks.ends:
        answer = end.receive()
        assert answer is not None
        assert answer[0]["kind"] == "failed"
        assert "of what task 1 said" in answer[0]["text"]
    tasks.close()
    assert "gives an attempt at flow 'alone' up" in caplog.text
    # The next attempt is not concerned.
    again = Tasks(coordinator, 2, [None, None])
    again.begin(batch=0, stage=1)
    assert again.commit() == "stop"
    for thread in [t for t in threading.enumerate() if t.name.startswith("jeton-task")]:
        again.close()
        thread.join(10)


def test_fed_tasks_come_to_rest_and_stay_so_until_the_commit(
    coordinator: MicroBatchCoordinator,
) -> None:
    tasks = Tasks(coordinator, 1, [None, None])
    tasks.begin(batch=0, stage=1)
    tasks.say("fed", floors=[{}, {}])
    for end in tasks.ends:
        frame = end.receive()
        assert frame is not None
        command = Command.from_json(frame[0])
        assert command == Checkpoint(version=0, hold=True, settle=True, number=3)
    assert tasks.commit() == "stop"
    tasks.close()


def test_all_tasks_are_let_go_if_one_leaves(coordinator: MicroBatchCoordinator) -> None:
    tasks = Tasks(coordinator, 1, [None, None])
    tasks.begin(batch=0, stage=1)
    tasks.ends[0].close()
    assert tasks.ends[1].receive() is None
    tasks.ends[1].close()


def test_inputs_advance_to_what_the_furthest_worker_has_seen(
    coordinator: MicroBatchCoordinator,
) -> None:
    tasks = Tasks(coordinator, 1, [None, None, None])
    tasks.begin(batch=0, stage=1)
    answers = tasks.say("fed", floors=[{"r": 9}, {}, {"r": 5}])
    assert [answer["inputs"] for answer, _ in answers] == [{"r": 9}] * 3
    tasks.close()


# Micro-batches that Spark ran without the flow


def plan(tmp_path: Path, *offsets: str, format: str = "v1") -> None:
    """Let Spark have planned micro-batches, after each of which its source is that far."""
    (tmp_path / "offsets").mkdir()
    named = "0:" if format == "v2" else ""
    for batch, offset in enumerate(offsets):
        (tmp_path / "offsets" / str(batch)).write_text(f"{format}\n{{}}\n{named}{offset}")


@pytest.mark.parametrize("format", ["v1", "v2"])
@pytest.mark.parametrize(
    ("offsets", "left_out", "restore"),
    [("3333", True, 0), ("3334", True, 0), ("3345", True, None), ("3333", False, None)],
    ids=["nothing came", "nothing until now", "rows came", "it cannot be left out"],
)
def test_a_micro_batch_starts_before_those_that_had_no_rows(
    tmp_path: Path, offsets: str, left_out: bool, restore: int | None, format: str
) -> None:
    plan(tmp_path, *offsets, format=format)
    coordinator = make(tmp_path, left_out=left_out)
    first = Tasks(coordinator, 1, [None])
    first.begin(batch=0, stage=1)
    assert first.commit() == "stop"
    later = Tasks(coordinator, 2, [[0, 1, 1, 0]])
    orders = later.begin(batch=3, stage=2)
    if restore is None:
        assert "needs the state after the one before" in orders["text"]
    else:
        assert (orders["version"], orders["restore"], orders["live"]) == (3, restore, True)
    first.close()
    later.close()


@pytest.mark.parametrize("format", ["v1", "v2"])
@pytest.mark.parametrize(("offset", "starts"), [("0", True), ("5", False)])
def test_the_first_micro_batch_had_no_rows(
    tmp_path: Path, offset: str, starts: bool, format: str
) -> None:
    plan(tmp_path, offset, "7", format=format)
    tasks = Tasks(make(tmp_path, left_out=True), 1, [None])
    orders = tasks.begin(batch=1, stage=1)
    assert ("restore" in orders) == starts
    assert orders.get("restore") is None
    tasks.close()


def test_an_offset_log_of_an_unknown_format_is_told_so(tmp_path: Path) -> None:
    plan(tmp_path, "0", "0", format="v3")
    tasks = Tasks(make(tmp_path, left_out=True), 1, [None])
    assert "are of format 'v3'" in tasks.begin(batch=1, stage=1)["text"]
    tasks.close()


def test_a_flow_that_was_renamed_is_told_so(tmp_path: Path) -> None:
    first = Tasks(make(tmp_path, name="old name"), 1, [None])
    first.begin(batch=0, stage=1)
    assert first.commit() == "stop"
    second = Tasks(make(tmp_path, name="new name"), 2, [None])
    assert "others with state there: ['old_name']" in second.begin(batch=1, stage=2)["text"]
    first.close()
    second.close()


@pytest.mark.parametrize("mode", ["Append", "Update", "Complete"])
def test_an_aggregation_before_the_flow(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = Tasks(make(tmp_path, mode=mode, aggregated=True), 1, [None])
    orders = tasks.begin(batch=0, stage=1)
    assert ("the whole table again" in orders.get("text", "")) == (mode == "Complete")
    assert ("not final" in caplog.text) == (mode == "Update")
    tasks.close()


def test_names_to_be_dropped_that_are_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.table({"bin": pa.array([0], pa.uint16())})
    store = Checkpoints(tmp_path / "jeton/alone")
    store.commit(0, [store.write_part(0, 0, {"gone": {"state": table}})], flow="alone")
    removed = ("gone/state", "gone", "nonsense")
    tasks = Tasks(make(tmp_path, allow_removed=removed), 1, [None])
    assert tasks.begin(batch=1, stage=1)["restore"] == 0
    assert "names ['nonsense'], of which version 0" in caplog.text
    tasks.close()
