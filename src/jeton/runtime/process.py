"""The process host: one worker in a process of its own, joined to the others by the mesh.

It steps the worker while there is something to do, spins briefly when there is not, since an
answer may be microseconds away, and then blocks, so that an idle query costs next to nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import Event, get_ident
from typing import TYPE_CHECKING, Final, NoReturn

from jeton.core.errors import FlowStalled
from jeton.dataflow.plan import OperatorPlan, progress_graph
from jeton.progress.explain import holders
from jeton.runtime.network import Network
from jeton.runtime.quiescence import STALL, Rounds
from jeton.runtime.worker import Worker
from jeton.state.snapshot import Snapshot

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow
    from jeton.mesh.mesh import Mesh

SPIN: Final = 100e-6
"""Seconds to look for work again and again before blocking."""
ALERT: Final = 0.01
"""Seconds after something happened in which it is worth spinning."""
MOST_OUT: Final = 8 << 20
"""Bytes waiting for one peer from which on sources are not invoked."""
MOST_QUEUED: Final = 4096
"""Messages waiting in inputs from which on no more data is read from peers."""
MOST_QUEUED_BYTES: Final = 64 << 20
"""The same in bytes, as far as they can be estimated."""
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
        self._thread = get_ident()
        self._woken = Event()
        self._line = _Line(mesh)
        plans: list[OperatorPlan] = flow.operators
        self.worker = Worker(
            plans,
            progress_graph(plans),
            index=index,
            workers=workers,
            network=self._line,
            clock=time.monotonic,
            wake=self._wake,
            restore=restore,
            bins=flow.bins,
        )
        if mesh is not None:
            mesh.attach(self.worker)
        handles = self.worker.handles
        self._inputs = [
            handles[flow.handle(what, name)]
            for what, name in flow.handles()
            if what in ("input", "sequencer")
        ]
        self._beaten = self._busy_at = time.monotonic()
        self._turns = 0
        self._seen_bytes = 0
        self._congested = False
        self._resting = False
        self._own_rounds = Rounds(0, 1, lambda told: None)

    def rejoin(self, mesh: Mesh | None) -> None:
        """Go on with the same peers over other connections, once all have come to rest."""
        self.mesh = mesh
        self._line.lead_through(mesh)
        self._seen_bytes = 0
        if mesh is not None:
            mesh.attach(self.worker)

    @property
    def is_complete(self) -> bool:
        """Whether nothing can ever happen again, on any worker."""
        return self.worker.tracker.is_complete

    @property
    def is_held_up(self) -> bool:
        """Whether so much is under way, here or at a peer, that sources should wait."""
        mesh = self.mesh
        if mesh is None:
            return False
        # Sources go on only after a good part has gone, so that they do not stop and go.
        self._congested = mesh.backlog > (MOST_OUT // 2 if self._congested else MOST_OUT)
        mesh.announce(self._congested)
        return self._congested or mesh.has_busy_peers

    def turn(self, *, block: float = 0.0) -> bool:
        """Receive, step, send: once around. Tells whether anything happened.

        If nothing did, it spins briefly and then blocks for up to ``block`` seconds.
        """
        self._thread = get_ident()
        did = self._poll(0.0)
        worker = self.worker
        worker.hold_sources(self.is_held_up or self._resting)
        if worker.has_work:
            worker.step()
            did = True
        elif not did and block > 0.0:
            did = self._wait(block)
        if did:
            self._busy_at = time.monotonic()
        return did

    def close(self) -> None:
        """The run is over, however it ended."""
        self.worker.close()

    def run(self, *, until: Callable[[], bool] | None = None) -> None:
        """Go around until the flow is complete, or until a condition holds."""
        while not self.is_complete and not (until is not None and until()):
            self.turn(block=BEAT)

    # Coming to rest together, for instance to take a snapshot

    @property
    def called_to_rest(self) -> int:
        """The number of the latest round that anybody has begun; 0 if there was none."""
        return self._rounds.begun

    def rest_together(self, number: int, *, patience: float = math.inf) -> bool:
        """Come to rest together with all workers, while inputs stay open: a matter of milliseconds.

        Do it on all workers, with the same number, greater than those before; whoever begins tells
        the others, who see it in `called_to_rest`. Meanwhile nothing may be sent to inputs.
        Operators without inputs and timers wait; threads that operators expect are waited for.

        Returns once no worker has anything left to do and nothing is under way between them. That
        stays so until all have called `go_on_together`. Tells whether it came to that: after
        ``patience`` seconds a worker gives up, and no worker may rely on this round then.

        >>> import jeton as jt
        >>> flow = jt.Flow("counts")
        >>> flow.output("counts", flow.input("words").key_by("word").running().count())
        >>> process = Process(flow, None)
        >>> process.worker.handles[flow.handle("input", "words")].send({"word": ["a", "b"]})
        >>> process.rest_together(1)
        True
        >>> snapshot = process.worker.snapshot()
        >>> process.go_on_together(1)
        """
        deadline = time.monotonic() + patience
        self._resting = self.worker.timers.wait = True
        self._rounds.begin(number)
        while not self._rounds.all_rest(number):
            if time.monotonic() > deadline:
                return False
            if self.turn():
                continue
            if not self.worker.threads_expected:
                if self.mesh is not None:
                    self.mesh.say_rest(number)
                else:
                    self._rounds.say(number, sent=0, received=0)
            if not self._rounds.all_rest(number):
                self.turn(block=min(BEAT, max(0.0, deadline - time.monotonic())))
        # If a worker gave up, what it did since may have come together with this.
        return not self.worker.has_work

    def go_on_together(self, number: int) -> None:
        """End a round, once all workers have; nothing that one does now disturbs another's rest."""
        self._rounds.say_ready(number)
        try:
            while not self._rounds.all_ready(number):
                self.turn(block=BEAT)
        finally:
            self._resting = self.worker.timers.wait = False

    # Inside

    @property
    def _rounds(self) -> Rounds:
        return self._own_rounds if self.mesh is None else self.mesh.rounds

    def _wait(self, block: float) -> bool:
        if self.mesh is not None:
            self.mesh.pause(False)
        timer = self.worker.timers.next
        if timer is not None:
            block = min(block, max(0.0, timer - time.monotonic()))
        now = time.monotonic()
        # Where nothing has happened for long, nothing is likely to happen in a moment either.
        spun = now + min(SPIN, block) if now - self._busy_at < ALERT else now
        while time.monotonic() < spun:
            if self._poll(0.0):
                return True
        return self._poll(block)

    def _poll(self, timeout: float) -> bool:
        mesh = self.mesh
        if mesh is None:
            if timeout and self._rests:
                self._say_stalled()
            woken = self._woken.wait(timeout) if timeout else self._woken.is_set()
            self._woken.clear()
            return woken
        self._turns += 1
        if self._turns % 16 == 0 or mesh.message_bytes - self._seen_bytes > MOST_OUT:
            self._seen_bytes = mesh.message_bytes
            mesh.pause(self._has_enough(mesh))
        did = mesh.poll(timeout)
        now = time.monotonic()
        if now - self._beaten > BEAT:
            self._beaten = now
            mesh.beat()
            if self._rests:
                mesh.say_rest(STALL)
                if mesh.rounds.all_rest(STALL):
                    self._say_stalled()
        return did

    @property
    def _rests(self) -> bool:
        """Whether this worker will not act again unless another one does."""
        worker = self.worker
        return not (
            self.is_complete
            or self._resting
            or worker.has_work
            or worker.timers.next is not None
            or worker.threads_expected
            or not all(handle.closed for handle in self._inputs)
        )

    def _say_stalled(self) -> NoReturn:
        worker = self.worker
        held = "; ".join(holders(worker.graph, worker.tracker.pointstamps()))
        raise FlowStalled(
            f"all workers came to rest but the flow is not complete: {held or 'nothing is held'}"
        )

    def _has_enough(self, mesh: Mesh) -> bool:
        """Whether so much waits in inputs that no more should be read now."""
        # If operators leave their input alone, what they wait for may be still to come.
        if not self.worker.has_work:
            return False
        queued = self.worker.queued
        size = mesh.message_bytes / max(mesh.messages_in, 1)
        return queued > MOST_QUEUED or queued * size > MOST_QUEUED_BYTES

    def _wake(self) -> None:
        """Something was posted: from another thread, this one may have to be woken."""
        if self.mesh is None:
            self._woken.set()
        elif get_ident() != self._thread:
            self.mesh.wake()


class _Line:
    """What a worker sends through: a mesh, in whose place another one may come."""

    def __init__(self, mesh: Mesh | None) -> None:
        self.lead_through(mesh)

    def lead_through(self, mesh: Mesh | None) -> None:
        network: Network = _Alone() if mesh is None else mesh
        self.send_message = network.send_message
        self.send_progress = network.send_progress


class _Alone:
    """The network of a single worker: there is nobody to send to."""

    def send_message(self, *_: object) -> None:
        raise AssertionError("a single worker sends nothing")

    def send_progress(self, *_: object) -> None:
        raise AssertionError("a single worker sends nothing")
