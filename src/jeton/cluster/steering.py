"""Steering at the driver: the breakpoint of a query, set, moved and removed on all its workers.

Requests are carried out one at a time: each is a protocol of `jeton.runtime.steering`, whose
commands go to all workers and whose answers are gathered here.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import pyarrow as pa

from jeton.cluster.coordinator import Coordinator
from jeton.core.errors import JetonError, PredicateFailed
from jeton.runtime import steering
from jeton.runtime.breakpoints import from_bytes
from jeton.runtime.migration import Moved
from jeton.state.bins import Placement

log = logging.getLogger(__name__)

T = TypeVar("T")


class WorkersLeft(JetonError):
    """The attempt was over before its workers had answered."""


class Request(Generic[T]):
    """A protocol that is to be carried out, and its result once it is."""

    def __init__(self, protocol: steering.Protocol[T], *, moves: bool = False) -> None:
        self.protocol = protocol
        self.moves = moves
        """Whether it moves state, so that no checkpoint can be taken meanwhile."""
        self.done = threading.Event()
        self.error: Exception | None = None
        self._result: list[T] = []

    def finish(self, result: T) -> None:
        """It is done."""
        self._result = [result]
        self.done.set()

    def fail(self, error: Exception) -> None:
        """It cannot be done."""
        self.error = error
        self.done.set()

    def result(self) -> T:
        """The result; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self._result[0]


class Steering:
    """The requests of one attempt at a query, and where its breakpoint is.

    >>> import socket, jeton as jt
    >>> from jeton.cluster.control import Control
    >>> from jeton.runtime.agent import Agent
    >>> from jeton.runtime.commands import Command
    >>> here, there = (Control(end) for end in socket.socketpair())
    >>> coordinator = Coordinator(workers=1)
    >>> coordinator.join(0, here)
    >>> driver = Steering(coordinator)
    >>> flow = jt.Flow("echo")
    >>> flow.output("out", flow.input("in"))
    >>> agent = Agent(flow)
    >>> agent.attach(driver=there)
    >>> request = driver.ask(steering.pausing(5))
    >>> agent.obey(Command.from_json(there.receive()[0]))
    >>> driver.hear(0, *here.receive())
    >>> request.result(), driver.at
    (At(time=5, unit='integer'), At(time=5, unit='integer'))
    >>> for end in (here, there):
    ...     end.close()
    """

    def __init__(
        self,
        coordinator: Coordinator,
        at: steering.At | None = None,
        placement: Placement | None = None,
    ) -> None:
        self.placement = placement or Placement.even(max(1, coordinator.workers))
        """The owners of bins."""
        self.at = at
        """Where the breakpoint is, if there is one."""
        self.watch: steering.Watch | None = None
        """The command to look for rows that match, while it is in force."""
        self.matched: pa.Table | None = None
        """The rows that `pause_when` has stopped at."""
        self.failed: PredicateFailed | None = None
        """The error of the predicate of `pause_when`, if it has stopped at that."""
        self._coordinator = coordinator
        self._waiting: deque[Request[Any]] = deque()
        self._under_way: Request[Any] | None = None
        self._command: steering.Steer | None = None
        self._lock = threading.RLock()
        self._over: str | None = None

    def follow(self, before: Steering) -> None:
        """Go on where the steering of an earlier attempt has ended."""
        self.at, self.watch = before.at, before.watch
        self.matched, self.failed = before.matched, before.failed
        if self.watch is not None and (self.matched is not None or self.failed is not None):
            if self.at is None:
                # Not all workers had paused at these rows: they will come again.
                self.matched = self.failed = None
            else:
                self.watch = None

    @property
    def is_moving(self) -> bool:
        """Whether state moves, or is about to."""
        return self._under_way is not None and self._under_way.moves

    def ask(self, protocol: steering.Protocol[T], *, moves: bool = False) -> Request[T]:
        """Have a protocol carried out, which ``moves`` state or does not."""
        request = Request(protocol, moves=moves)
        with self._lock:
            if self._over is not None:
                request.fail(WorkersLeft(self._over))
                return request
            self._waiting.append(request)
            if self._under_way is None:
                self._begin()
        return request

    def withdraw(self, request: Request[Any]) -> bool:
        """Take back a request that has not begun; returns whether it will not be carried out."""
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
                return True
            return False

    def hear(self, worker: int, header: Mapping[str, Any], payload: bytes) -> None:
        """A worker has answered, or has found rows that match."""
        with self._lock:
            if header["kind"] == "matched":
                if self.matched is None and self.failed is None:
                    if "error" in header:
                        self.failed = PredicateFailed(header["error"])
                        log.warning("the query pauses: %s", header["error"])
                    else:
                        self.matched = from_bytes(payload)
                    # In this order: until all have paused, a restart has to look for them again.
                    self.ask(steering.pausing(None, header["reason"]))
                    self.ask(steering.watching(None, None))
                return
            command = self._command
            if command is None or header["number"] != command.number:
                return
            answers = self._coordinator.gather(worker, {**header, "payload": payload})
            if answers is not None:
                self._coordinator.forget(command)
                self._go_on(answers)

    def end(self, why: str) -> None:
        """The attempt is over, and with it all that was asked for."""
        with self._lock:
            self._over = why
            requests = [self._under_way, *self._waiting]
            self._waiting.clear()
            self._under_way = self._command = None
        for request in requests:
            if request is not None:
                request.fail(WorkersLeft(why))

    def _begin(self) -> None:
        moved = self.is_moving
        self._under_way = self._waiting.popleft() if self._waiting else None
        schedule = self._coordinator.schedule
        if moved and schedule is not None:
            schedule.wake()
        if self._under_way is not None:
            self._go_on(None)

    def _go_on(self, answers: Any) -> None:
        request = self._under_way
        assert request is not None
        try:
            command = request.protocol.send(answers)
        except StopIteration as end:
            self._note(end.value)
            request.finish(end.value)
        except Exception as error:
            request.fail(error)
        else:
            self._command = self._coordinator.numbered(command)
            try:
                self._coordinator.send(self._command)
                return
            except JetonError as error:  # it is too large to be sent
                self._coordinator.forget(self._command)
                request.fail(error)
        self._command = None
        self._begin()

    def _note(self, result: Any) -> None:
        if isinstance(result, steering.At):
            if self.at is not None and result != self.at:
                self.failed = None
            self.at = result
        elif result is steering.RESUMED:
            self.at = self.failed = None
        elif isinstance(result, Moved):
            self.placement = self.placement.moved(result.moves)
        elif isinstance(result, steering.Watch):
            self.watch = result if result.output is not None else None
