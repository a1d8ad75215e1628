"""The coordinator: the driver's side of everything that all workers do together.

It sends numbered commands to the workers of one attempt, gathers what each of them answers, and
hands them on when all are there; the owner then commits a checkpoint. Micro-batches commit one for
each of Spark's micro-batches. Long-lived queries have a `CheckpointSchedule`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from jeton.cluster.checkpoint_committer import CheckpointCommitter
from jeton.cluster.checkpoint_writer import RestorePoint
from jeton.cluster.failures import Failure
from jeton.cluster.inquiry import Inquiry
from jeton.connectors.inbox import Inbox
from jeton.core.errors import JetonError, ProtocolError
from jeton.dataflow.partitions import least_of_active
from jeton.runtime.commands import Checkpoint, Command, Connection, Stop

if TYPE_CHECKING:
    from jeton.cluster.steering import Steering

log = logging.getLogger(__name__)

REST_PATIENCE: Final = 60.0
"""Seconds after which a worker gives up to come to rest for a checkpoint."""
BREATH: Final = 0.1
"""Seconds to wait after a version that workers missed."""
REMIND_AFTER: Final = 10.0
"""Seconds after which workers that have not answered are sent a command again."""
ANSWER_PATIENCE: Final = REST_PATIENCE + 15.0
"""Seconds after which workers that have not answered are named in the log."""

C = TypeVar("C", bound=Command)
Answer = Mapping[str, Any]


class Owner(Protocol):
    """The query, or the plan of a stage, whose workers a coordinator has."""

    def hear(
        self, coordinator: Coordinator, worker: int, header: dict[str, Any], payload: bytes
    ) -> None:
        """A worker has sent a frame."""
        ...

    def misheard(self, coordinator: Coordinator, worker: int, error: Exception) -> None:
        """A frame of a worker's cannot be read, or `hear` has failed with it."""
        ...

    def left(self, coordinator: Coordinator, worker: int) -> None:
        """A worker has hung up."""
        ...


@dataclass(slots=True, eq=False)
class Coordinator:
    """The workers of one attempt at a flow, as the driver knows them.

    >>> import socket
    >>> from jeton.cluster.control import Control
    >>> from jeton.runtime.commands import Stop
    >>> coordinator = Coordinator(workers=2)
    >>> ends = []
    >>> for worker in range(2):
    ...     here, there = socket.socketpair()
    ...     coordinator.join(worker, Control(here))
    ...     ends.append(Control(there))
    >>> coordinator.send(Stop(drain=True))
    Stop(number=1, drain=True)
    >>> ends[0].receive()
    ({'kind': 'stop', 'size': 0, 'number': 1, 'drain': True}, b'')
    >>> coordinator.gather(1, {"kind": "done", "number": 1, "rows": 5})
    >>> answers = coordinator.gather(0, {"kind": "done", "number": 1, "rows": 7})
    >>> [answer["rows"] for answer in answers]
    [7, 5]
    >>> coordinator.hang_up()
    >>> for end in ends:
    ...     end.close()

    A worker whose partitions of a source are all idle follows the others:

    >>> coordinator.reports = {0: {"inputs": {"n": (7, False)}}, 1: {"inputs": {"n": (3, True)}}}
    >>> coordinator.to_follow(1)
    {'n': 7}
    """

    workers: int = 0
    name: str = "jeton"
    cause: Failure | None = None
    """The first failure of a worker or of the driver."""
    lost: Failure | None = None
    """The report of a worker that lost a peer."""
    error: JetonError | None = None
    """The error at the driver that ended the attempt."""
    controls: dict[int, Connection] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    """The workers that have hung up."""
    listeners: list[threading.Thread] = field(default_factory=list)
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The latest report of each worker."""
    schedule: CheckpointSchedule | None = None
    """The checkpoints that a long-lived query takes."""
    steering: Steering | None = None
    """The breakpoints of a long-lived query."""
    inboxes: dict[str, Inbox] = field(default_factory=dict)
    """Rows for sinks at the driver, if there are no checkpoints to commit them."""
    inquiry: Inquiry = field(default_factory=Inquiry)
    """The answers of workers about the things that hold frontiers."""
    _number: int = 0
    _answers: dict[tuple[str, int], dict[int, Answer]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sending: threading.Lock = field(default_factory=threading.Lock)

    # Workers

    def join(self, worker: int, control: Connection) -> None:
        """A worker is there."""
        self.controls[worker] = control
        self.gone.discard(worker)

    def listen(self, worker: int, control: Connection, owner: Owner) -> threading.Thread:
        """Listen to a worker that has joined, in a thread of its own, until it hangs up."""
        thread = threading.Thread(
            target=self._listen,
            args=(worker, control, owner),
            name=f"{self.name}-{worker}",
            daemon=True,
        )
        self.listeners.append(thread)
        thread.start()
        return thread

    @property
    def is_full(self) -> bool:
        """Whether all workers have joined."""
        return len(self.controls) == self.workers

    def is_done(self, worker: int) -> bool:
        """Whether all outputs were complete when a worker last reported."""
        report = self.reports.get(worker)
        return report is not None and not any(report["frontiers"].values())

    @property
    def is_all_done(self) -> bool:
        """Whether all workers are: the flow is complete."""
        return self.is_full and all(map(self.is_done, self.controls))

    def hang_up(self) -> None:
        """Hang up on all workers."""
        for control in list(self.controls.values()):
            control.close()

    def _listen(self, worker: int, control: Connection, owner: Owner) -> None:
        try:
            while (frame := control.receive()) is not None:
                try:
                    owner.hear(self, worker, *frame)
                except Exception as error:
                    owner.misheard(self, worker, error)
        except Exception as error:
            # A frame that cannot be read: where the next one begins is not known.
            owner.misheard(self, worker, error)
        finally:
            self.gone.add(worker)
            owner.left(self, worker)

    # Commands and answers

    def numbered(self, command: C) -> C:
        """The command with the next number: for answers that may come before it is sent to all."""
        with self._lock:
            self._number += 1
            return replace(command, number=self._number)

    def send(self, command: C, worker: int | None = None) -> C:
        """Send a command to one worker or to all of them, with a number if it has none yet."""
        numbered = command if command.number else self.numbered(command)
        to = list(self.controls.values()) if worker is None else [self.controls[worker]]
        # All workers get the commands that are for all in the same order.
        with self._sending if worker is None else nullcontext():
            for control in to:
                # One that has left is noticed where its answer is awaited.
                with suppress(OSError):
                    control.send(numbered.kind, **numbered.to_json())
        return numbered

    def gather(self, worker: int, header: Answer) -> list[Answer] | None:
        """Take note of an answer; the answers of all workers, once they are there.

        Answers belong together if they are of the same kind, and to the same command.
        """
        if not 0 <= worker < self.workers:
            raise ProtocolError(f"worker {worker} has answered, but there are {self.workers}")
        key = (header["kind"], header.get("number", 0))
        answers = self._answers.setdefault(key, {})
        answers[worker] = header
        if len(answers) != self.workers:
            return None
        return [answers[each] for each in range(self.workers)]

    def unanswered(self, kind: str, command: Command) -> list[int]:
        """The workers that have not given an answer of some kind to a command."""
        answers = self._answers.get((kind, command.number), {})
        return [worker for worker in range(self.workers) if worker not in answers]

    def forget(self, command: Command) -> None:
        """Forget the answers to a command."""
        for key in [key for key in self._answers if key[1] == command.number]:
            del self._answers[key]

    def to_follow(self, worker: int) -> dict[str, int]:
        """How far inputs, all of whose partitions at a worker are idle, may follow the others."""
        said = [report.get("inputs", {}) for report in self.reports.values()]
        found: dict[str, int] = {}
        if len(said) == self.workers:
            for name, (time, idle) in self.reports[worker].get("inputs", {}).items():
                least = least_of_active(inputs[name] for inputs in said if name in inputs)
                if idle and least is not None and time < least:
                    found[name] = least
        return found


class CheckpointSchedule:
    """The checkpoints of one attempt at a long-lived query.

    They are begun one at a time: every some seconds, when the query asks for one, and when the
    flow is complete. Each is committed once the parts of all workers are there. Workers whose parts
    do not come are sent the command again, in case that it was lost: without one of them, no other
    can end its rest. A worker may take any time to write its part.

    `poll` does what is due. With ``background``, a thread of its own calls it.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        committer: CheckpointCommitter,
        restore_point: RestorePoint,
        *,
        every: float | None = None,
        failed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        background: bool = True,
    ) -> None:
        """``failed`` is called if a version cannot be committed."""
        self._coordinator = coordinator
        self._committer = committer
        self._every = every
        self._failed = failed
        self._clock = clock
        self._next = restore_point.next_version
        self._under_way: Checkpoint | None = None
        self._began = self._not_before = self._remind_at = self._clock()
        self._named = False
        """Whether workers without an answer have been named in the log."""
        self._heard: dict[int, int] = {}
        """The number of the latest part of each worker."""
        self._wanted: int | None = None
        """The least version that satisfies the pending requests."""
        self._last: int | None = None
        """The least version after which the workers are to end, once the flow is complete."""
        self._parts: list[Answer] | None = None
        """The parts of the version under way, once they are all there."""
        self._staged: dict[str, list[Any]] = {}
        self._over = False
        self._changed = threading.Condition()
        self.error: BaseException | None = None
        """Why a version could not be committed."""
        coordinator.schedule = self
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._run, name="jeton-checkpoints", daemon=True)
            self._thread.start()

    # Workers

    def joined(self) -> None:
        """A worker has joined; checkpoints begin when all have."""
        with self._changed:
            self._began = self._clock()
            self._changed.notify_all()

    def hear(self, worker: int, header: Answer) -> None:
        """A part is written, or was missed, or all is complete, so that there is a last one.

        A frame that comes twice counts once.
        """
        with self._changed:
            kind, under_way = header["kind"], self._under_way
            if kind == "complete":
                if self._last is None:
                    self._wanted = self._last = self._next
            elif kind != "part" or header["number"] > self._heard.get(worker, 0):
                if kind == "part":
                    self._heard[worker] = header["number"]
                    # They are covered by this version or, should it be missed, the next.
                    for output, items in header["staged"].items():
                        self._staged.setdefault(output, []).extend(items)
                if under_way is not None and header["number"] == under_way.number:
                    if kind == "part":
                        self._parts = self._coordinator.gather(worker, header)
                    else:
                        self._committer.missed(under_way.version, header["why"])
                        self._end()
                        self._not_before = self._clock() + BREATH
            self._changed.notify_all()

    # The query

    def take(self, timeout: float, *, last: bool = False) -> int | None:
        """Take a checkpoint now; returns its version once it is committed, if that is in time.

        None is begun by itself after the ``last`` one.
        """
        with self._changed:
            wanted = self.want()
            if last:
                self._every = None
            self._changed.wait_for(lambda: self._is_done(wanted) or self._over, timeout)
            return self._committer.version if self._is_done(wanted) else None

    def want(self) -> int:
        """Have a checkpoint taken soon; returns the least version that it may be."""
        with self._changed:
            self._wanted = self._next
            self._changed.notify_all()
            return self._next

    def poll(self) -> bool:
        """Commit the version whose parts are all there, or begin one that is due."""
        if self._parts is not None:
            self._commit(self._parts)
        elif (due := self._due()) is None or due > self._clock():
            return False
        elif (under_way := self._under_way) is not None:
            self._remind(under_way)
        else:
            self._begin()
        return True

    def wake(self) -> None:
        """State no longer moves: a checkpoint may be due."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """The attempt is over; what all workers have written still counts."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    # Inside

    def _is_done(self, version: int) -> bool:
        return self._committer.version is not None and self._committer.version >= version

    def _run(self) -> None:
        try:
            while self._wait():
                self.poll()
        except BaseException as error:
            with self._changed:
                self.error = error
                self._over = True
                self._changed.notify_all()
            self._failed()

    def _wait(self) -> bool:
        """Wait until there is something to do; returns whether there is."""
        with self._changed:
            while self._parts is None:
                if self._over:
                    return False
                due = self._due()
                now = self._clock()
                if due is not None and due <= now:
                    return True
                self._changed.wait(None if due is None else due - now)
            return True

    def _due(self) -> float | None:
        """When to begin the next version, if that is known, or to ask again for the present one."""
        if self._under_way is not None:
            return self._remind_at
        if not self._coordinator.is_full:
            return None
        steering = self._coordinator.steering
        if steering is not None and steering.is_moving:
            return None
        if self._wanted is not None:
            return self._not_before
        return None if self._every is None else max(self._began + self._every, self._not_before)

    def _begin(self) -> None:
        with self._changed:
            version, self._next = self._next, self._next + 1
            self._began = self._clock()
            self._remind_at = self._began + REMIND_AFTER
            self._named = False
            command = Checkpoint(version=version, patience=REST_PATIENCE)
            self._under_way = self._coordinator.numbered(command)
        # Without the lock: workers are heard meanwhile.
        self._coordinator.send(self._under_way)

    def _remind(self, command: Checkpoint) -> None:
        """Send a command again to workers that have not answered; those that know it ignore it."""
        with self._changed:
            left = self._coordinator.unanswered("part", command)
            now = self._clock()
            self._remind_at = now + REMIND_AFTER
            late = not self._named and now - self._began >= ANSWER_PATIENCE
            self._named = self._named or late
        if late:
            log.warning(
                "checkpoint %d waits for the parts of workers %s since %.0f seconds",
                command.version,
                left,
                now - self._began,
            )
        for worker in left:
            self._coordinator.send(command, worker)

    def _commit(self, parts: list[Answer]) -> None:
        with self._changed:
            under_way = self._under_way
            staged, self._staged = self._staged, {}
        assert under_way is not None
        version = under_way.version
        seconds = self._clock() - self._began
        self._committer.commit(version, dict(enumerate(parts)), staged, seconds)
        with self._changed:
            self._end()
            if self._wanted is not None and version >= self._wanted:
                self._wanted = None
            self._changed.notify_all()
        # Not before it is committed: a worker may have missed it, and must find the others there.
        if self._last is not None and version >= self._last:
            self._coordinator.send(Stop())

    def _end(self) -> None:
        if self._under_way is not None:
            self._coordinator.forget(self._under_way)
        self._under_way = self._parts = None
