"""The rendezvous: tasks of one attempt get their peers' addresses, earlier ones do not."""

from __future__ import annotations

import json
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest

from jeton.cluster.rendezvous import Meeting, Rendezvous, _receive, meet
from jeton.core.errors import ProtocolError
from jeton.mesh import acceptor
from jeton.mesh.handshake import greet
from jeton.mesh.listener import Address
from jeton.mesh.open_files import make_room_for
from jeton.mesh.receive import receive_exactly
from jeton.spark.long_lived_tasks import WorkerTask

LIMIT = 120.0


@pytest.fixture
def server() -> Iterator[Rendezvous]:
    made = Rendezvous("127.0.0.1")
    yield made
    made.close()


class Task(threading.Thread):
    """One task that comes to the rendezvous, and the answer that it got there."""

    def __init__(self, meeting: Meeting, rank: int, attempt: int, workers: int = 3) -> None:
        super().__init__(daemon=True)
        self.answer: tuple[int, dict[int, Address]] | None = None
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
            self.answer = epoch, addresses
        except Exception as error:
            self.error = error

    def outcome(self) -> tuple[int, list[int]] | None:
        """The epoch and the attempts of everyone, or nothing if it was turned away."""
        self.join(LIMIT)
        assert not self.is_alive(), "it hangs"
        if self.answer is None:
            assert isinstance(self.error, ProtocolError)
            return None
        return self.answer[0], [self.answer[1][rank].port for rank in sorted(self.answer[1])]


def until_waiting(server: Rendezvous, tasks: int) -> None:
    deadline = time.monotonic() + LIMIT
    while server.waiting != tasks:
        assert time.monotonic() < deadline, f"{server.waiting} wait, not {tasks}"
        time.sleep(0.001)


def test_tasks_of_one_attempt_are_told_of_each_other(server: Rendezvous) -> None:
    meeting = server.meeting("plan")
    outcomes = [task.outcome() for task in [Task(meeting, rank, 10 + rank) for rank in range(3)]]
    assert outcomes == [(1, [10, 11, 12])] * 3


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
        liar = replace(server.meeting("plan"), secret=b"x" * 32)
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
    outcomes = [task.outcome() for task in [Task(meeting, rank, 10 + rank) for rank in range(3)]]
    assert outcomes == [(1, [10, 11, 12])] * 3


# Floods


def test_a_flood_of_silent_strangers_keeps_nobody_out(
    server: Rendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far more than are dealt with at once, and none of them ever gives up."""
    monkeypatch.setattr(acceptor, "TIMEOUT", 3600.0)
    server._door(False).acceptor._most = 16
    threads = threading.active_count()
    meeting = server.meeting("plan")
    with ExitStack() as strangers:
        where = (server.host, server.port)
        for _ in range(100):
            strangers.enter_context(socket.create_connection(where, timeout=LIMIT))
        outcomes = [
            task.outcome() for task in [Task(meeting, rank, 10 + rank) for rank in range(3)]
        ]
        assert outcomes == [(1, [10, 11, 12])] * 3
        assert server.refused >= 100 - 16
        assert threading.active_count() <= threads + 4


def test_tasks_that_are_taken_for_a_flood_come_again(
    server: Rendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one at a time and no patience at all, they drop each other out."""
    monkeypatch.setattr(acceptor, "GRACE", 0.0)
    server._door(False).acceptor._most = 1
    meeting = server.meeting("plan")
    tasks = [Task(meeting, rank, 10 + rank, workers=12) for rank in range(12)]
    assert [task.outcome() for task in tasks] == [(1, [*range(10, 22)])] * 12


def test_a_lack_of_files_does_not_end_the_listener(
    server: Rendezvous, caplog: pytest.LogCaptureFixture
) -> None:
    meeting = server.meeting("plan")
    with socket.socket() as early:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(early.fileno())
        os.close(free)
        with caplog.at_level(logging.WARNING):
            # From now on no file can be opened in this process: accept() fails with EMFILE.
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
            try:
                early.connect((server.host, server.port))
                deadline = time.monotonic() + LIMIT
                while "cannot accept connections" not in caplog.text:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
        outcomes = [
            task.outcome() for task in [Task(meeting, rank, 10 + rank) for rank in range(3)]
        ]
        assert outcomes == [(1, [10, 11, 12])] * 3
        # The one that could not be accepted then is let in now.
        greet(early, meeting.secret, 0, meeting.number, timeout=LIMIT)


# Secrets


def test_a_secret_belongs_to_one_plan_and_is_never_shown(server: Rendezvous) -> None:
    one, other = server.meeting("one"), server.meeting("other")
    assert one.secret != other.secret
    task = WorkerTask(None, {}, {}, {}, one, "run", None, None)  # type: ignore[arg-type]
    for text in (repr(one), str(one), f"{one!r}", repr(task), repr(server), str(vars(server))):
        assert repr(one.secret) not in text
        assert one.secret.hex() not in text
    # The secret of one plan does not open another.
    assert Task(replace(other, secret=one.secret), 0, 10, workers=1).outcome() is None
    assert Task(other, 0, 10, workers=1).outcome() == (1, [10])


def test_the_secret_of_a_forgotten_plan_opens_nothing(server: Rendezvous) -> None:
    meeting = server.meeting("plan")
    waiting = Task(meeting, 0, 10)
    until_waiting(server, 1)
    server.forget("plan")
    assert waiting.outcome() is None
    assert Task(meeting, 1, 11).outcome() is None


# Many


def test_thousands_of_tasks_meet(server: Rendezvous) -> None:
    workers = 4096
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 3 * workers:
        pytest.skip(f"this process may have only {hard} files open, and both ends are in it")
    make_room_for(2 * workers)
    meeting = server.meeting("plan")
    ports = [1024 + rank for rank in range(workers)]
    with ExitStack() as opened:
        tasks = []
        for rank, port in enumerate(ports):
            sock = socket.create_connection((server.host, server.port), timeout=LIMIT)
            tasks.append(opened.enter_context(sock))
            greet(sock, meeting.secret, rank, meeting.number, timeout=LIMIT)
            address = Address(f"machine {rank // 16}", f"/tmp/{rank * 7919}", "10.0.0.1", port)
            about = {"stage": 7, "attempt": rank, "workers": workers, "address": vars(address)}
            said = json.dumps(about).encode()
            sock.sendall(len(said).to_bytes(4, "little") + said)
        answers = set()
        for sock in tasks:
            sock.settimeout(LIMIT)
            size = int.from_bytes(receive_exactly(sock, 4), "little")
            answers.add(receive_exactly(sock, size))
    (answer,) = answers
    here, there = socket.socketpair()
    with here, there:
        here.sendall(len(answer).to_bytes(4, "little") + answer)
        epoch, ranks, _, _, _, found = _receive(there)
    assert (epoch, ranks, found) == (1, [*range(workers)], ports)
    # Each answer names all tasks, so that the sum grows with the square.
    assert len(answer) < 100_000


def test_a_task_that_does_not_read_its_answer_holds_up_nobody(server: Rendezvous) -> None:
    meeting = server.meeting("plan")
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        deaf.connect((server.host, server.port))
        greet(deaf, meeting.secret, 0, meeting.number, timeout=LIMIT)
        # Random, so that it does not compress.
        where = os.urandom(30_000).hex()
        address = vars(Address("machine", where, "127.0.0.1", 10))
        said = json.dumps({"stage": 7, "attempt": 10, "workers": 3, "address": address}).encode()
        deaf.sendall(len(said).to_bytes(4, "little") + said)
        others = [Task(meeting, rank, 10 + rank) for rank in (1, 2)]
        assert [task.outcome() for task in others] == [(1, [10, 11, 12])] * 2
        assert Task(server.meeting("other"), 0, 20, workers=1).outcome() == (2, [20])
