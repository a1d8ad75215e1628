"""The rendezvous: who belongs together is told so, and tasks of an earlier attempt are not."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from jeton.core.errors import ProtocolError
from jeton.spark.rendezvous import Meeting, Rendezvous, meet
from jeton.worker.doorway import Address

LIMIT = 120.0


@pytest.fixture
def server() -> Iterator[Rendezvous]:
    made = Rendezvous("127.0.0.1")
    yield made
    made.close()


class Task(threading.Thread):
    """One task that comes to the rendezvous, and what it was told there."""

    def __init__(self, meeting: Meeting, rank: int, attempt: int, workers: int = 3) -> None:
        super().__init__(daemon=True)
        self.told: tuple[int, dict[int, Address]] | None = None
        self.error: Exception | None = None
        self._arguments: dict[str, Any] = {
            "rank": rank,
            "workers": workers,
            "stage": 7,
            "attempt": attempt,
            "address": Address("machine", f"/{attempt}", "127.0.0.1", attempt),
        }
        self._meeting = meeting
        self.start()

    def run(self) -> None:
        try:
            epoch, addresses, sock = meet(self._meeting, **self._arguments)
            sock.close()
            self.told = epoch, addresses
        except Exception as error:
            self.error = error

    def outcome(self) -> tuple[int, list[int]] | None:
        """The epoch and the attempts of everyone, or nothing if it was turned away."""
        self.join(LIMIT)
        assert not self.is_alive(), "it hangs"
        if self.told is None:
            assert isinstance(self.error, ProtocolError)
            return None
        return self.told[0], [self.told[1][rank].port for rank in sorted(self.told[1])]


def until_waiting(server: Rendezvous, tasks: int) -> None:
    deadline = time.monotonic() + LIMIT
    while server.waiting != tasks:
        assert time.monotonic() < deadline, f"{server.waiting} wait, not {tasks}"
        time.sleep(0.001)


def test_tasks_of_one_attempt_are_told_of_each_other(server: Rendezvous) -> None:
    meeting = server.meeting("plan")
    told = [task.outcome() for task in [Task(meeting, rank, 10 + rank) for rank in range(3)]]
    assert told == [(1, [10, 11, 12])] * 3


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_a_retry_meets_without_the_tasks_of_before(
    server: Rendezvous, order: tuple[int, ...]
) -> None:
    """Whoever of the second attempt comes first, no address of the first is handed out again."""
    meeting = server.meeting("plan")
    for task in [Task(meeting, rank, 10 + rank) for rank in range(3)]:
        assert task.outcome() == (1, [10, 11, 12])
    retried: list[Task] = []
    for rank in order:
        # One after the other: each but the last still waits.
        until_waiting(server, len(retried))
        retried.append(Task(meeting, rank, 13 + rank))
    assert [task.outcome() for task in retried] == [(2, [13, 14, 15])] * 3


def test_a_task_that_waits_for_the_dead_is_sent_away_by_the_retry(server: Rendezvous) -> None:
    meeting = server.meeting("plan")
    early = [Task(meeting, 0, 10), Task(meeting, 1, 11)]
    until_waiting(server, 2)
    retried = [Task(meeting, rank, 13 + rank) for rank in (2, 0, 1)]
    assert [task.outcome() for task in retried] == [(1, [13, 14, 15])] * 3
    assert [task.outcome() for task in early] == [None, None]


def test_a_late_task_of_an_earlier_attempt_is_refused(
    server: Rendezvous, caplog: pytest.LogCaptureFixture
) -> None:
    meeting = server.meeting("plan")
    with caplog.at_level(logging.WARNING):
        new = [Task(meeting, 0, 13), Task(meeting, 1, 14)]
        until_waiting(server, 2)
        assert Task(meeting, 2, 11).outcome() is None
        new.append(Task(meeting, 2, 15))
        assert [task.outcome() for task in new] == [(1, [13, 14, 15])] * 3
        assert Task(meeting, 1, 12).outcome() is None
    assert server.refused == 2
    assert "attempt 11 of worker 2 is stale" in caplog.text


def test_stages_of_one_plan_do_not_mix(server: Rendezvous) -> None:
    meeting = server.meeting("plan")
    other = server.meeting("other plan")
    one = [Task(meeting, 0, 10, 2), Task(meeting, 1, 11, 2)]
    two = [Task(other, 1, 13, 2), Task(other, 0, 12, 2)]
    (epoch, others), (epoch_two, others_two) = (
        tasks[0].outcome() or (0, []) for tasks in (one, two)
    )
    assert (others, others_two) == ([10, 11], [12, 13])
    # Epochs differ, so that their workers would refuse each other.
    assert epoch != epoch_two


def test_strangers_are_refused(server: Rendezvous, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        liar = Meeting(server.host, server.port, b"x" * 32, "plan")
        assert Task(liar, 0, 10).outcome() is None
        with socket.create_connection((server.host, server.port)) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
            sock.settimeout(LIMIT)
            with suppress(ConnectionError):
                while sock.recv(4096):
                    pass
    assert server.refused == 2
    assert caplog.text.count("refused a connection") == 2
    meeting = server.meeting("plan")
    told = [task.outcome() for task in [Task(meeting, rank, 10 + rank) for rank in range(3)]]
    assert told == [(1, [10, 11, 12])] * 3
