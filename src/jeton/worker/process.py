"""The process host: one worker in a process of its own, joined to the others by the mesh.

It steps the worker while there is something to do, spins briefly when there is not, since an
answer may be microseconds away, and then blocks, so that an idle query costs next to nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jeton.dataflow.plan import OperatorPlan, progress_graph
from jeton.dataflow.state.snapshot import Snapshot
from jeton.worker.mesh import Mesh
from jeton.worker.worker import Worker

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow

SPIN: Final = 100e-6
"""Seconds to look for work again and again before blocking."""
MOST_OUT: Final = 8 << 20
"""Bytes waiting for one peer from which on sources are not invoked."""
MOST_QUEUED: Final = 4096
"""Messages waiting in inputs from which on no more data is read from peers."""
BEAT: Final = 0.5


class Process:
    """One worker of a flow, and the loop that drives it."""

    def __init__(
        self,
        flow: Flow,
        mesh: Mesh | None,
        *,
        index: int = 0,
        workers: int = 1,
        restore: Snapshot | None = None,
    ) -> None:
        self.mesh = mesh
        plans: list[OperatorPlan] = flow.operators
        self.worker = Worker(
            plans,
            progress_graph(plans),
            index=index,
            workers=workers,
            network=mesh if mesh is not None else _Alone(),
            clock=time.monotonic,
            wake=mesh.wake if mesh is not None else _nothing,
            restore=restore,
        )
        if mesh is not None:
            mesh.attach(self.worker)
        self._beaten = time.monotonic()
        self._turns = 0

    @property
    def is_complete(self) -> bool:
        """Whether nothing can ever happen again, on any worker."""
        return self.worker.tracker.is_complete

    @property
    def is_held_up(self) -> bool:
        """Whether so much waits to go out that sources should wait."""
        return self.mesh is not None and self.mesh.backlog > MOST_OUT

    def turn(self, *, block: float = 0.0) -> bool:
        """Receive, step, send: once around. Tells whether anything happened.

        If nothing did, it spins briefly and then blocks for up to ``block`` seconds.
        """
        did = self._poll(0.0)
        worker = self.worker
        worker.hold_sources(self.is_held_up)
        if worker.has_work:
            worker.step()
            did = True
        elif not did and block > 0.0:
            did = self._wait(block)
        return did

    def run(self, *, until: Callable[[], bool] | None = None) -> None:
        """Go around until the flow is complete, or until a condition holds."""
        while not self.is_complete and not (until is not None and until()):
            self.turn(block=BEAT)

    def _wait(self, block: float) -> bool:
        spun = time.monotonic() + SPIN
        while time.monotonic() < spun:
            if self._poll(0.0):
                return True
        timer = self.worker.next_timer
        if timer is not None:
            block = min(block, max(0.0, timer - time.monotonic()))
        return self._poll(block)

    def _poll(self, timeout: float) -> bool:
        mesh = self.mesh
        if mesh is None:
            if timeout:
                time.sleep(min(timeout, 0.001))
            return False
        self._turns += 1
        if self._turns % 16 == 0:
            mesh.pause(self.worker.queued > MOST_QUEUED)
        did = mesh.poll(timeout)
        now = time.monotonic()
        if now - self._beaten > BEAT:
            self._beaten = now
            mesh.beat()
        return did


class _Alone:
    """The network of a single worker: there is nobody to send to."""

    def send_message(self, *_: object) -> None:
        raise AssertionError("a single worker sends nothing")

    def send_progress(self, *_: object) -> None:
        raise AssertionError("a single worker sends nothing")


def _nothing() -> None:
    pass
