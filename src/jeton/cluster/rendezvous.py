"""The rendezvous: where the tasks of a barrier stage find each other.

Spark's own way, `allGather`, takes a second, since the JVM sleeps between polls. A small server at
the driver takes a millisecond: each task proves that it knows the query's secret, says where it can
be reached, and receives the addresses of all others. Spark may run a stage again while tasks of the
first attempt are still running; each set of tasks is an *epoch*, and workers refuse peers of
another one.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from jeton.cluster.failures import FailedBefore, Failure, Failures
from jeton.core.errors import ProtocolError
from jeton.mesh.acceptor import Acceptor
from jeton.mesh.binding import Binding
from jeton.mesh.certificates import Credentials, issue
from jeton.mesh.handshake import Claim, HandshakeError, greet, reach
from jeton.mesh.listener import Address
from jeton.mesh.liveness import Keepalive, prepare
from jeton.mesh.open_files import make_room_for
from jeton.mesh.receive import receive_exactly
from jeton.mesh.tls import ManyPlans, Tls, TlsSocket, tls_with

log = logging.getLogger(__name__)

_LONGEST: Final = 1 << 16
"""Bytes of a task's message about itself."""
_LONGEST_ANSWER: Final = 1 << 24
"""Bytes of the answer, compressed or not: the addresses of all tasks."""
_TELLING: Final = 30.0
"""Seconds after which a task that does not take its answer is left out."""


@dataclass(frozen=True)
class Meeting:
    """The address and the secret by which a task meets the others; part of the task's code."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    """Known only to the tasks of this plan, and never printed."""
    plan: str
    heard: bool = False
    """Whether a handler at the driver takes what the tasks report."""
    number: int = 0
    """The plan's number at the rendezvous."""
    credentials: Credentials | None = field(default=None, repr=False)
    """The workers' certificate and key, if connections between machines are under TLS."""
    binding: Binding = field(default_factory=Binding)
    """Where workers listen."""


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
        """Close the connections of tasks of an earlier attempt than this one."""
        self.oldest = max(self.oldest, attempt - workers + 1)
        for rank in [r for r, member in self.members.items() if member[0] < self.oldest]:
            self.members.pop(rank)[2].close()

    def close(self) -> None:
        """Close the connections of all tasks that wait."""
        for _, _, sock in self.members.values():
            sock.close()


ConnectionHandler = Callable[[int, int, socket.socket], None]
"""Gets each worker's number, its epoch and its connection, which stays open."""


@dataclass(frozen=True, slots=True)
class _Plan:
    meeting: Meeting
    handler: ConnectionHandler | None


class Rendezvous:
    """The server at the driver: one for each Spark application.

    It has a port for plans under TLS and one for others, which it opens when they are needed.

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

    def __init__(self, host: str, binding: Binding | None = None) -> None:
        """Listen at the address that Spark shows for the driver, or else where it binds itself."""
        self.host = host
        self._binding = binding or Binding()
        self.failures = Failures()
        self.on_final: Callable[[int, Failure], None] | None = None
        """Called with the stage and the failure, if the stage would fail at each attempt."""
        self._plans: dict[int, _Plan] = {}
        self._parties: dict[tuple[int, int], _Party] = {}
        self._numbers = itertools.count(1)
        self._epochs = itertools.count(1)
        self._lock = threading.Lock()
        self._tls: dict[str, Tls] = {}
        """The driver's end of TLS for each plan, by the name in its certificate."""
        self._doors: dict[bool, _Door] = {}

    def meeting(
        self,
        plan: str,
        handler: ConnectionHandler | None = None,
        *,
        tls: bool = False,
        binding: Binding | None = None,
    ) -> Meeting:
        """A meeting for the tasks of a plan; a handler takes over their connections.

        With ``tls``, it has certificates of its own. ``binding`` says where its workers listen.
        """
        number = next(self._numbers)
        driver, workers = issue(number) if tls else (None, None)
        with self._lock:
            if driver is not None:
                self._tls[driver.driver_name] = Tls(driver)
            made = Meeting(
                self.host,
                self._door(tls).port,
                os.urandom(32),
                plan,
                handler is not None,
                number,
                workers,
                binding or Binding(),
            )
            self._plans[number] = _Plan(made, handler)
        return made

    def _door(self, tls: bool) -> _Door:
        if tls not in self._doors:
            listener = self._binding.listen(self.host)
            self._doors[tls] = _Door(self, listener, ManyPlans(self._tls) if tls else None)
        return self._doors[tls]

    @property
    def port(self) -> int:
        """Where the tasks of plans without TLS come."""
        with self._lock:
            return self._door(False).port

    @property
    def refused(self) -> int:
        """How many connections were turned away."""
        return sum(door.acceptor.refused for door in self._doors.values())

    @property
    def waiting(self) -> int:
        """How many tasks wait for others of their stage."""
        with self._lock:
            return sum(len(party.members) for party in self._parties.values())

    def forget(self, plan: str) -> None:
        """A plan will not run again: its secret opens nothing any more."""
        with self._lock:
            numbers = {n for n, known in self._plans.items() if known.meeting.plan == plan}
            for number in numbers:
                credentials = self._plans.pop(number).meeting.credentials
                if credentials is not None:
                    del self._tls[credentials.driver_name]
            self._part(lambda key: key[0] in numbers)

    def forget_stages(self, plan: str, below: int) -> None:
        """A plan's earlier stages will not run again."""
        with self._lock:
            numbers = {n for n, known in self._plans.items() if known.meeting.plan == plan}
            self._part(lambda key: key[0] in numbers and key[1] < below)

    def _part(self, over: Callable[[tuple[int, int]], bool]) -> None:
        for key in [key for key in self._parties if over(key)]:
            self._parties.pop(key).close()

    def close(self) -> None:
        """Stop listening."""
        for door in self._doors.values():
            door.acceptor.close()
        with self._lock:
            self._part(lambda key: True)

    # Called by the doors

    def secret_of(self, claim: Claim, tls: bool) -> bytes:
        """Each plan has a secret of its own, which is good at one of the ports only."""
        with self._lock:
            plan = self._plans.get(claim.group)
        if plan is None or (plan.meeting.credentials is not None) is not tls:
            raise HandshakeError(f"plan {claim.group} is over, or was never planned here")
        return plan.meeting.secret

    def admit(self, claim: Claim, message: bytes, sock: socket.socket) -> None:
        """Admit a task; the last one of its stage completes it, and all get their answer."""
        if isinstance(sock, TlsSocket):
            self._require_own(claim, sock)
        try:
            said = json.loads(message)
            if "failure" in said:
                self._in_background(self._hear_failure, claim.group, said, sock)
                return
            key, attempt = (claim.group, int(said["stage"])), int(said["attempt"])
            workers, address = int(said["workers"]), Address(**said["address"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"worker {claim.worker} cannot be understood: {error}") from error
        prepare(sock, Keepalive())
        with self._lock:
            plan = self._plans.get(claim.group)
            if plan is None:
                raise HandshakeError(f"plan {claim.group} is over")
            known = self.failures.final(plan.meeting.plan, key[1])
            if known is not None:
                self._in_background(_answer_failure, sock, known)
                return
            if key not in self._parties:
                self._parties[key] = _Party()
                make_room_for(workers)
            party = self._parties[key]
            if attempt < party.oldest:
                raise HandshakeError(f"attempt {attempt} of worker {claim.worker} is stale")
            party.drop_stale(attempt, workers)
            before = party.members.pop(claim.worker, None)
            if before is not None:
                before[2].close()
            party.members[claim.worker] = (attempt, address, sock)
            if len(party.members) < workers:
                return
            epoch, members = next(self._epochs), party.members
            self.failures.begin(plan.meeting.plan, key[1], epoch)
            # Tasks that come from now on belong to another attempt.
            party.oldest = max(number for number, _, _ in members.values()) + 1
            party.members = {}
        # A task that does not read its answer must not keep others from being let in.
        self._in_background(_tell_all, epoch, members, plan.handler)

    def _require_own(self, claim: Claim, sock: TlsSocket) -> None:
        """Refuse a task of one plan that comes with the certificate of another."""
        with self._lock:
            plan = self._plans.get(claim.group)
            credentials = None if plan is None else plan.meeting.credentials
            own = None if credentials is None else self._tls.get(credentials.driver_name)
        if own is None or not sock.is_accepted_by(own):
            raise HandshakeError(f"worker {claim.worker} has no certificate of plan {claim.group}")

    def _in_background(self, act: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=act, args=args, name="jeton-meeting", daemon=True).start()

    def _hear_failure(self, number: int, said: dict[str, Any], sock: socket.socket) -> None:
        with self._lock:
            plan = self._plans.get(number)
        if plan is None:
            sock.close()
            return
        try:
            stage, failure = int(said["stage"]), Failure.from_json(said["failure"])
            epoch = int(said["epoch"])
        except (ValueError, KeyError, TypeError) as error:
            log.warning("a failure of plan %s cannot be understood: %s", plan.meeting.plan, error)
            sock.close()
            return
        first = self.failures.record(plan.meeting.plan, stage, epoch, failure)
        _answer_failure(sock, first)
        if first is failure and failure.final and self.on_final is not None:
            self.on_final(stage, failure)


class _Door:
    """One port of the rendezvous, with TLS or without."""

    def __init__(self, server: Rendezvous, listener: socket.socket, tls: ManyPlans | None) -> None:
        self._server = server
        self._tls = tls is not None
        self.port: int = listener.getsockname()[1]
        self.admit = server.admit
        self.acceptor = Acceptor(
            [listener], self, name="jeton-rendezvous", longest=_LONGEST, tls=tls
        )

    def secret_of(self, claim: Claim) -> bytes:
        """The secret of the plan that a task claims to belong to."""
        return self._server.secret_of(claim, self._tls)

    def is_ready(self, claim: Claim) -> bool:
        """Tasks may come at any time."""
        return True


def _answer_failure(sock: socket.socket, failure: Failure) -> None:
    answer = zlib.compress(json.dumps(["failure", failure.to_json()]).encode(), 6)
    try:
        sock.settimeout(_TELLING)
        sock.sendall(len(answer).to_bytes(4, "little") + answer)
    except OSError as error:
        log.info("a worker left before it heard of a failure: %s", error)
    sock.close()


def _tell_all(
    epoch: int,
    members: Mapping[int, tuple[int, Address, socket.socket]],
    handler: ConnectionHandler | None,
) -> None:
    """Tell all tasks of a stage where the others are, and hand their connections over."""
    everyone = [[rank, *vars(address).values()] for rank, (_, address, _) in members.items()]
    # Columns of similar values, so that they compress well: each of N tasks gets all N.
    answer = zlib.compress(json.dumps([epoch, *zip(*everyone, strict=True)]).encode(), 6)
    frame = len(answer).to_bytes(4, "little") + answer
    deadline = time.monotonic() + _TELLING
    left: list[tuple[int, socket.socket, int]] = []

    def send_answer(rank: int, sock: socket.socket, at: int, timeout: float) -> None:
        try:
            sock.settimeout(timeout)
            if timeout:
                sock.sendall(memoryview(frame)[at:])
            elif (at := sock.send(frame)) < len(frame):
                left.append((rank, sock, at))
                return
            sock.settimeout(None)
            if handler is None:
                sock.close()
            else:
                handler(rank, epoch, sock)
        except BlockingIOError:
            left.append((rank, sock, 0))
        except OSError as error:
            log.warning("worker %s left before the others came: %s", rank, error)
            sock.close()
        except Exception:
            log.exception("the connection of worker %s could not be taken over", rank)
            sock.close()

    # Those that cannot take all of it at once do not keep the others waiting.
    for rank, (_, _, sock) in members.items():
        send_answer(rank, sock, 0, 0.0)
    for rank, sock, at in list(left):
        send_answer(rank, sock, at, max(deadline - time.monotonic(), 1e-3))


def meet(
    meeting: Meeting, *, rank: int, workers: int, stage: int, attempt: int, address: Address
) -> tuple[int, dict[int, Address], socket.socket]:
    """A task's side: returns the epoch, where everyone is, and the connection to the driver."""
    about = {"stage": stage, "attempt": attempt, "workers": workers, "address": asdict(address)}
    said = json.dumps(about).encode()
    if len(said) > _LONGEST:
        raise ProtocolError(
            f"the address of worker {rank} has {len(said)} bytes, which is too long"
        )
    sock = _reach(meeting, rank, time.monotonic() + 30.0)
    try:
        sock.sendall(len(said).to_bytes(4, "little") + said)
        prepare(sock, Keepalive())
        # The other tasks of a barrier stage start together with this one, or not at all.
        sock.settimeout(120.0)
        epoch, *columns = _receive(sock)
        if epoch == "failure":
            raise FailedBefore(Failure.from_json(columns[0]))
    except BaseException:
        sock.close()
        raise
    addresses = {rank: Address(*where) for rank, *where in zip(*columns, strict=True)}
    return epoch, addresses, sock


def report_failure(
    meeting: Meeting, *, rank: int, stage: int, epoch: int, failure: Failure
) -> Failure:
    """Tell the driver that a task has failed; returns the failure that counts for all tasks."""
    said = json.dumps({"stage": stage, "epoch": epoch, "failure": failure.to_json()}).encode()
    with _reach(meeting, rank, time.monotonic() + 5.0) as sock:
        sock.sendall(len(said).to_bytes(4, "little") + said)
        sock.settimeout(5.0)
        return Failure.from_json(_receive(sock)[1])


def _reach(meeting: Meeting, rank: int, deadline: float) -> socket.socket:
    """An authenticated connection to the driver."""

    def connect(left: float) -> socket.socket:
        sock = socket.create_connection((meeting.host, meeting.port), timeout=left)
        credentials = meeting.credentials
        return sock if credentials is None else tls_with(credentials).to_driver(sock)

    return reach(
        connect,
        lambda sock, _: greet(sock, meeting.secret, rank, meeting.number),
        deadline,
    )


def _receive(sock: socket.socket) -> list[Any]:
    size = int.from_bytes(_exactly(sock, 4), "little")
    if size > _LONGEST_ANSWER:
        raise HandshakeError(f"the driver announced an answer of {size} bytes, which is too long")
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(_exactly(sock, size), _LONGEST_ANSWER)
        value: list[Any] = json.loads(text)
    except (zlib.error, ValueError) as error:
        raise HandshakeError(f"the driver's answer cannot be read: {error}") from error
    return value


def _exactly(sock: socket.socket, size: int) -> bytes:
    received = receive_exactly(sock, size)
    if len(received) < size:
        raise HandshakeError("the other end hung up")
    return received
