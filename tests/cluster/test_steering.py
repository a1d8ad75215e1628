"""Steering at the driver: requests in order, commands that cannot be sent, and restarts."""

from __future__ import annotations

from collections import deque
from typing import Any

import pyarrow as pa
import pytest

import jeton as jt
from jeton.cluster.coordinator import Coordinator
from jeton.cluster.steering import Steering, WorkersLeft
from jeton.core.errors import ProtocolError
from jeton.runtime import steering
from jeton.runtime.agent import Agent
from jeton.runtime.breakpoints import to_bytes
from jeton.runtime.commands import Command

ROWS = pa.table({"time": [1]})


class Loop:
    """A worker's agent at the other end of a connection: commands are obeyed when it is let."""

    def __init__(self) -> None:
        flow = jt.Flow("echo")
        flow.output("out", flow.input("in"))
        self.agent = Agent(flow)
        self.commands: deque[Command] = deque()
        self.coordinator = Coordinator(workers=1)
        self.coordinator.join(0, self)  # type: ignore[arg-type]
        self.steering = Steering(self.coordinator)

    def send(self, kind: str, **header: Any) -> None:
        if kind == "pause_when" and len(header.get("predicate") or "") > 100:
            raise ProtocolError("too large")
        self.commands.append(Command.from_json({"kind": kind, **header}))

    def obey(self) -> None:
        """Obey all that was sent, and answer."""
        while self.commands:
            command = self.commands.popleft()
            assert isinstance(command, steering.Steer)
            said = command.answer(self.agent)
            payload = said.pop("payload", b"")
            header = {"kind": "steered", "number": command.number, **said}
            self.steering.hear(0, header, payload)

    def match(self) -> None:
        self.steering.hear(0, {"kind": "matched", "output": "out", "reason": ""}, to_bytes(ROWS))


def test_a_command_that_cannot_be_sent_does_not_block_others() -> None:
    worker = Loop()
    large = worker.steering.ask(steering.watching("out", "x" * 1000))
    with pytest.raises(ProtocolError, match="too large"):
        large.result()
    pause = worker.steering.ask(steering.pausing(5))
    worker.obey()
    assert pause.result().time == 5


def test_requests_are_carried_out_in_order_and_end_with_the_attempt() -> None:
    worker = Loop()
    first, second = (worker.steering.ask(steering.pausing(at)) for at in (5, 6))
    assert [command.kind for command in worker.commands] == ["pause"]
    worker.obey()
    assert first.result().time == 5
    with pytest.raises(jt.errors.GraphError, match="paused already"):
        second.result()
    third = worker.steering.ask(steering.resuming())
    worker.steering.end("gone")
    for request in (third, worker.steering.ask(steering.resuming())):
        with pytest.raises(WorkersLeft, match="gone"):
            request.result()
    assert worker.steering.at == steering.At(5, "integer")


def test_a_request_that_has_not_begun_can_be_withdrawn() -> None:
    worker = Loop()
    first, second = (worker.steering.ask(steering.pausing(at)) for at in (5, 6))
    assert worker.steering.withdraw(second)
    assert not worker.steering.withdraw(first)
    worker.obey()
    assert first.result().time == 5
    assert not second.done.is_set()
    assert not worker.steering.withdraw(first)


@pytest.mark.parametrize("paused", [False, True])
def test_a_restart_in_the_middle_of_a_match(paused: bool) -> None:
    """Until all workers have paused at the rows, those of the next attempt look for them again."""
    worker = Loop()
    worker.steering.ask(steering.watching("out", None))
    worker.obey()
    worker.match()
    assert worker.steering.matched == ROWS
    if paused:
        worker.obey()
        assert worker.steering.watch is None
    worker.steering.end("killed")
    following = Steering(Coordinator(workers=1))
    following.follow(worker.steering)
    assert (following.at is not None) is paused
    assert (following.matched is not None) is paused
    assert (following.watch is None) is paused


def test_a_restart_between_the_pause_and_the_end_of_the_watch() -> None:
    worker = Loop()
    worker.steering.ask(steering.watching("out", None))
    worker.obey()
    worker.match()
    pause = worker.commands.popleft()
    assert isinstance(pause, steering.Pause)
    answer = pause.answer(worker.agent)
    worker.steering.hear(0, {"kind": "steered", "number": pause.number, **answer}, b"")
    worker.steering.end("killed")
    following = Steering(Coordinator(workers=1))
    following.follow(worker.steering)
    assert following.at is not None
    assert following.matched == ROWS
    assert following.watch is None


def test_rows_that_matched_are_kept_after_a_resume_and_a_restart() -> None:
    worker = Loop()
    worker.steering.ask(steering.watching("out", None))
    worker.obey()
    worker.match()
    worker.obey()
    worker.steering.ask(steering.resuming())
    worker.obey()
    following = Steering(Coordinator(workers=1))
    following.follow(worker.steering)
    assert (following.at, following.watch, following.matched) == (None, None, ROWS)
