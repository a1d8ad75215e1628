"""The breakpoint of a stream: the first micro-batch with records at or after a time waits there.

Spark takes a micro-batch whole from its sources to its sinks. So the workers of one that has such
records hold them back, as those of a long-lived query do, and rest; its commit waits for `step` or
`resume`. No micro-batch is committed while it holds anything back: rows and checkpoints are those
of a stream without breakpoints.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from jeton.cluster.coordinator import Coordinator
from jeton.cluster.steering import WorkersLeft
from jeton.columns.time_domain import Units
from jeton.columns.time_units import in_words
from jeton.core.errors import GraphError, TimeError, summary
from jeton.core.times import END_OF_TIME, START_OF_TIME
from jeton.runtime import steering
from jeton.runtime.commands import Command, Fail
from jeton.runtime.state_view import stacked

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK: Final = 0.02
"""Seconds between questions whether workers rest."""
ANSWER: Final = 60.0
"""Seconds that workers which rest have to answer a user."""


class StreamBreakpoint:
    """Where a stream is to pause, and the micro-batches that wait there.

    >>> import jeton as jt
    >>> breakpoint = StreamBreakpoint(jt.Flow("stream"), "integer")
    >>> breakpoint.pause(5), breakpoint.is_paused
    (5, False)
    >>> breakpoint.resume()
    >>> breakpoint.shown
    """

    def __init__(self, flow: Flow, unit: str) -> None:
        self._flow = flow
        self._units = Units(flow.domain)
        self._units.unit = unit
        self.at: steering.At | None = None
        self.furthest: int | None = None
        """The greatest time of a record of the micro-batches that were committed."""
        self._changes = 0
        self._paused: list[Coordinator] = []
        """The attempts at micro-batches that rest at the breakpoint."""
        self._changed = threading.Condition()

    # The user

    @property
    def shown(self) -> Any:
        """The time of the breakpoint, as records have it; ``None`` if there is none."""
        at = self.at
        return None if at is None else at.shown

    @property
    def is_paused(self) -> bool:
        """Whether a micro-batch rests there."""
        return bool(self._paused)

    def pause(self, time: Any) -> Any:
        """Set it, by default right after all records of the micro-batches so far."""
        with self._changed:
            if self.at is not None:
                if time is None:
                    return self.shown
                raise GraphError("the stream is paused already: step(until=…), or resume() first")
            passed = self.furthest
            at = START_OF_TIME if passed is None else min(passed + 1, END_OF_TIME)
            if time is not None:
                at = self._given(time)
                if passed is not None and at <= passed:
                    shown = in_words(passed, self._units.unit)
                    raise TimeError(
                        f"the stream cannot pause at {time}: its micro-batches have passed {shown} "
                        "already. Pause later than that, or leave the time out to pause right "
                        "after it"
                    )
            self._set(at)
            return self.shown

    def step(self, until: Any) -> Any:
        """Move it on to a time, or to the next one of a record that is held back."""
        with self._changed:
            before, paused = self._require(), list(self._paused)
            if until is not None:
                at = self._given(until)
                if at < before.time:
                    raise TimeError(
                        f"the stream is paused at {before}, and cannot go back to "
                        f"{in_words(at, self._units.unit)}"
                    )
                self._set(at)
                return self.shown
        if not paused:
            raise GraphError(
                f"no micro-batch rests at {before} yet: await_paused() first, or say step(until=…)"
            )
        after = min(self._ask(each, steering.stepping(), ANSWER).time for each in paused)
        with self._changed:
            self._set(after)
            return self.shown

    def resume(self) -> None:
        """Remove it."""
        with self._changed:
            self._require()
            self.at = None
            self._note()

    def await_paused(self, timeout: float) -> None:
        """Wait until a micro-batch rests there."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.is_paused, timeout):
                at = self.at
                where = "there is no breakpoint" if at is None else f"nothing rests at {at} yet"
                raise TimeoutError(f"after {timeout:g} seconds, {where}")

    def look(self, protocol: Callable[[], steering.Protocol[pa.Table]]) -> pa.Table:
        """A table from all workers of the micro-batches that rest."""
        with self._changed:
            at, paused = self._require(), list(self._paused)
        if not paused:
            raise GraphError(f"no micro-batch rests at {at} yet: await_paused() first")
        return stacked([self._ask(each, protocol(), ANSWER) for each in paused])

    # The coordinator of micro-batches

    def hold(self, attempt: Coordinator, checkpoint: Command) -> None:
        """Have an attempt's checkpoint wait while records are held back, in a thread of its own."""
        thread = threading.Thread(
            target=self._hold, args=(attempt, checkpoint), name="jeton-breakpoint", daemon=True
        )
        thread.start()

    def advance(self, latest: int | None) -> None:
        """A micro-batch was committed."""
        with self._changed:
            if latest is not None and (self.furthest is None or latest > self.furthest):
                self.furthest = latest

    # Inside

    def _hold(self, attempt: Coordinator, checkpoint: Command) -> None:
        try:
            while True:
                with self._changed:
                    at, changes = self.at, self._changes
                if at is None:
                    self._ask(attempt, steering.resuming())
                    break
                self._ask(attempt, steering.moving(at.time))
                while not self._ask(attempt, steering.resting()):
                    time.sleep(LOOK)
                if not self._ask(attempt, steering.messages()).num_rows:
                    break  # all of it is before the breakpoint
                with self._changed:
                    if self._changes != changes:
                        continue
                    self._paused.append(attempt)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: attempt not in self._paused)
            attempt.send(checkpoint)
        except WorkersLeft:
            self.forget(attempt)
        except Exception as error:
            # Without a word to its workers, the micro-batch would wait indefinitely.
            log.exception("a micro-batch cannot wait at the breakpoint")
            attempt.send(Fail(text=f"it cannot wait at the breakpoint: {summary(error)}"))

    def forget(self, attempt: Coordinator) -> None:
        """An attempt is over."""
        with self._changed:
            if attempt in self._paused:
                self._paused.remove(attempt)
                self._changed.notify_all()

    def _ask(
        self, attempt: Coordinator, protocol: steering.Protocol[T], timeout: float | None = None
    ) -> T:
        """The result of a protocol; workers that are busy may take any time for it."""
        assert attempt.steering is not None, "it has begun"
        request = attempt.steering.ask(protocol)
        if not request.done.wait(timeout):
            raise TimeoutError(f"after {timeout:g} seconds, workers have not answered")
        return request.result()

    def _given(self, time: Any) -> int:
        return steering.in_flow_unit(*steering.given(time), self._units)

    def _require(self) -> steering.At:
        if self.at is None:
            raise GraphError("the stream is not paused: pause_at(…) first")
        return self.at

    def _set(self, at: int) -> None:
        self.at = steering.At(at, self._units.unit)
        self._note()

    def _note(self) -> None:
        """It has changed: micro-batches that rest go on, and rest again at its new time."""
        self._changes += 1
        self._paused.clear()
        self._changed.notify_all()
