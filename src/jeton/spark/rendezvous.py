"""The rendezvous: where the tasks of a barrier stage find each other.

Spark's own way, `allGather`, takes a second, since the JVM sleeps between polls. A small server at
the driver takes a millisecond: each task proves that it knows the query's secret, says where it can
be reached, and is told where all others are. Spark may run a stage again while tasks of the first
attempt still linger; each set of tasks is an *epoch*, and workers refuse peers of another one.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from jeton.spark.failures import FailedBefore, Failure, Failures
from jeton.worker.doorway import Address
from jeton.worker.handshake import HandshakeError, answer, greet

log = logging.getLogger(__name__)

_LONGEST: Final = 1 << 16


@dataclass(frozen=True)
class Meeting:
    """What a task must know to meet the others; it travels inside the task's code."""

    host: str
    port: int
    secret: bytes
    plan: str
    heard: bool = False
    """Whether somebody at the driver listens to what the tasks report."""


@dataclass(slots=True)
class _Party:
    """The tasks of one stage that have come and wait for the others.

    Spark numbers the tasks of all stages as it starts them, and it starts those of a barrier stage
    together. So the numbers of tasks that belong together follow each other; lower ones are of an
    earlier attempt at the stage.
    """

    oldest: int = 0
    """The least number that a task may have: those below are of an attempt that is over."""
    members: dict[int, tuple[int, Address, socket.socket]] = field(default_factory=dict)

    def drop_stale(self, attempt: int, workers: int) -> None:
        """Part with those that cannot belong together with this one."""
        self.oldest = max(self.oldest, attempt - workers + 1)
        for rank in [r for r, member in self.members.items() if member[0] < self.oldest]:
            self.members.pop(rank)[2].close()


Listener = Callable[[int, int, socket.socket], None]
"""Gets each worker's number, its epoch and its connection, which stays open."""


class Rendezvous:
    """The server at the driver: one for each Spark application.

    >>> server = Rendezvous("127.0.0.1")
    >>> here = Address("this one", "/tmp/worker", "127.0.0.1", 4711)
    >>> epoch, addresses, connection = meet(
    ...     server.meeting("plan"), rank=0, workers=1, stage=3, attempt=0, address=here
    ... )
    >>> epoch, addresses[0].port
    (1, 4711)
    >>> connection.close()
    >>> server.close()
    """

    def __init__(self, host: str, bind: str | None = None) -> None:
        """Listen at the address that Spark shows for the driver, or else where it binds itself."""
        self._listener = _listen_at(host, bind)
        self.host, self.port = host, self._listener.getsockname()[1]
        self.secret = os.urandom(32)
        self.refused = 0
        self.failures = Failures()
        self.on_final: Callable[[int, Failure], None] | None = None
        """Gets the stage and the failure, when one will not succeed however often it is run."""
        self._parties: dict[tuple[str, int], _Party] = {}
        self._listeners: dict[str, Listener] = {}
        self._epochs = itertools.count(1)
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="jeton-rendezvous", daemon=True).start()

    def meeting(self, plan: str, listener: Listener | None = None) -> Meeting:
        """What the tasks of a plan must know; a listener takes their connections over."""
        if listener is not None:
            with self._lock:
                self._listeners[plan] = listener
        return Meeting(self.host, self.port, self.secret, plan, listener is not None)

    @property
    def waiting(self) -> int:
        """How many tasks wait for others of their stage."""
        with self._lock:
            return sum(len(party.members) for party in self._parties.values())

    def forget(self, plan: str) -> None:
        """A plan will not run again."""
        with self._lock:
            self._listeners.pop(plan, None)
            for key in [key for key in self._parties if key[0] == plan]:
                del self._parties[key]

    def forget_stages(self, plan: str, below: int) -> None:
        """A plan's earlier stages will not run again."""
        with self._lock:
            for key in [key for key in self._parties if key[0] == plan and key[1] < below]:
                del self._parties[key]

    def close(self) -> None:
        """Stop listening."""
        # A thread that waits in accept() is not woken by close() alone.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                sock, where = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._admit, args=(sock, where), daemon=True).start()

    def _admit(self, sock: socket.socket, where: object) -> None:
        try:
            rank, _ = answer(sock, self.secret, 0)
            told = _receive(sock)
            if "failure" in told:
                self._hear_failure(told, sock)
            else:
                self._join(rank, told, sock)
        except (HandshakeError, OSError, ValueError, KeyError, TypeError) as error:
            self.refused += 1
            log.warning("refused a connection from %s: %s", where, error)
            sock.close()

    def _join(self, rank: int, told: dict[str, Any], sock: socket.socket) -> None:
        key = (str(told["plan"]), int(told["stage"]))
        attempt, workers = int(told["attempt"]), int(told["workers"])
        known = self.failures.final(*key)
        if known is not None:
            _send(sock, {"failure": known.to_json()})
            sock.close()
            return
        with self._lock:
            party = self._parties.setdefault(key, _Party())
            if attempt < party.oldest:
                raise HandshakeError(f"attempt {attempt} of worker {rank} is stale")
            party.drop_stale(attempt, workers)
            party.members[rank] = (attempt, Address(**told["address"]), sock)
            if len(party.members) < workers:
                return
            epoch, members = next(self._epochs), party.members
            self.failures.begin(*key, epoch)
            everyone = {
                "epoch": epoch,
                "addresses": {str(r): asdict(m[1]) for r, m in members.items()},
            }
            # Whoever comes from now on belongs to another attempt.
            party.oldest = max(number for number, _, _ in members.values()) + 1
            party.members = {}
            listener = self._listeners.get(key[0])
        for member, (_, _, connection) in members.items():
            try:
                _send(connection, everyone)
            except OSError as error:
                log.warning("a worker left before the others came: %s", error)
                connection.close()
                continue
            if listener is not None:
                listener(member, epoch, connection)
            else:
                connection.close()

    def _hear_failure(self, told: dict[str, Any], sock: socket.socket) -> None:
        stage, failure = int(told["stage"]), Failure.from_json(told["failure"])
        first = self.failures.record(str(told["plan"]), stage, int(told["epoch"]), failure)
        _send(sock, {"failure": first.to_json()})
        sock.close()
        if first is failure and failure.final and self.on_final is not None:
            self.on_final(stage, failure)


def _listen_at(host: str, bind: str | None) -> socket.socket:
    try:
        return socket.create_server((host, 0), family=_family(host))
    except OSError:
        # The driver may be known to others by an address that this machine does not have.
        if bind is None:
            raise
        return socket.create_server((bind, 0), family=_family(bind))


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def meet(
    meeting: Meeting, *, rank: int, workers: int, stage: int, attempt: int, address: Address
) -> tuple[int, dict[int, Address], socket.socket]:
    """A task's side: returns the epoch, where everyone is, and the connection to the driver."""
    sock = socket.create_connection((meeting.host, meeting.port), timeout=30.0)
    try:
        greet(sock, meeting.secret, rank, 0)
        _send(
            sock,
            {
                "plan": meeting.plan,
                "stage": stage,
                "attempt": attempt,
                "workers": workers,
                "address": asdict(address),
            },
        )
        # The other tasks of a barrier stage start together with this one, or not at all.
        sock.settimeout(120.0)
        told = _receive(sock)
        if "failure" in told:
            raise FailedBefore(Failure.from_json(told["failure"]))
    except BaseException:
        sock.close()
        raise
    addresses = {int(r): Address(**where) for r, where in told["addresses"].items()}
    return int(told["epoch"]), addresses, sock


def report_failure(
    meeting: Meeting, *, rank: int, stage: int, epoch: int, failure: Failure
) -> Failure:
    """Tell the driver that a task has failed; returns the failure that counts for all tasks."""
    with socket.create_connection((meeting.host, meeting.port), timeout=5.0) as sock:
        greet(sock, meeting.secret, rank, 0)
        told = {"plan": meeting.plan, "stage": stage, "epoch": epoch}
        _send(sock, told | {"failure": failure.to_json()})
        sock.settimeout(5.0)
        return Failure.from_json(_receive(sock)["failure"])


def _send(sock: socket.socket, value: dict[str, Any]) -> None:
    text = json.dumps(value).encode()
    sock.sendall(len(text).to_bytes(4, "little") + text)


def _receive(sock: socket.socket) -> dict[str, Any]:
    size = int.from_bytes(_exactly(sock, 4), "little")
    if size > _LONGEST:
        raise HandshakeError(f"a message of {size} bytes is too long")
    value: dict[str, Any] = json.loads(_exactly(sock, size))
    return value


def _exactly(sock: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = sock.recv(size - len(received))
        if not part:
            raise HandshakeError("the other end hung up")
        received += part
    return received
