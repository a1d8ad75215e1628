"""Activators: ask for an operator to be invoked again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from jeton.core.errors import TimeError


class Wakeable(Protocol):
    """The part of a worker that activators use."""

    def activate(self, operator: int) -> None:
        """Invoke an operator soon; called on the worker's own thread."""
        ...

    def activate_after(self, operator: int, seconds: float) -> None:
        """Invoke an operator once the worker's clock has moved on by ``seconds``."""
        ...

    def now(self) -> float:
        """The time of the worker's clock, in seconds."""
        ...

    def post(self, act: Callable[[], None]) -> None:
        """Run an act in the worker's next step; safe from any thread."""
        ...

    def expect_threads(self, change: int) -> None:
        """Count the outside threads that may still wake this worker."""
        ...


class Activator:
    """Asks for one operator on one worker to be invoked again."""

    __slots__ = ("_operator", "_worker")

    def __init__(self, worker: Wakeable, operator: int) -> None:
        self._worker = worker
        self._operator = operator

    def activate(self) -> None:
        """Invoke the operator again soon, input or not."""
        self._worker.activate(self._operator)

    def after(self, seconds: float) -> None:
        """Invoke the operator once ``seconds`` have passed on the worker's clock.

        In process the clock is simulated: when nothing else is left to do, it jumps.
        """
        if math.isnan(seconds):
            raise TimeError("an operator cannot be invoked after NaN seconds: no moment is that")
        self._worker.activate_after(self._operator, float(seconds))

    def now(self) -> float:
        """The time of the worker's clock, in seconds, to see whether a delay is over."""
        return self._worker.now()

    def for_thread(self) -> ThreadActivator:
        """An activator for another thread: until it is closed, a flow at rest waits for it."""
        return ThreadActivator(self._worker, self._operator)


class ThreadActivator:
    """Invokes an operator from any thread; use it as a context manager or close it."""

    __slots__ = ("_closed", "_operator", "_worker")

    def __init__(self, worker: Wakeable, operator: int) -> None:
        self._worker = worker
        self._operator = operator
        self._closed = False
        worker.expect_threads(+1)

    def activate(self) -> None:
        """Invoke the operator in the worker's next step."""
        worker, operator = self._worker, self._operator
        worker.post(lambda: worker.activate(operator))

    def close(self) -> None:
        """No more activations will come from here."""
        if not self._closed:
            self._closed = True
            self._worker.expect_threads(-1)

    def __enter__(self) -> ThreadActivator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
