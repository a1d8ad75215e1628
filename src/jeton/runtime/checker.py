"""The checker: no worker's frontier is ever ahead of a pointstamp that exists and leads there.

It observes all changes that workers make, so it knows the true pointstamps of all workers at any
moment. The plain reference derives from them how far every frontier may be at most, on each worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from jeton.core.antichain import Antichain
from jeton.core.errors import ProtocolError
from jeton.progress import reference
from jeton.progress.graph import ProgressGraph
from jeton.progress.protocol import WorkerPointstamp
from jeton.progress.tracker import Pointstamp
from jeton.runtime.worker import Worker


class Checker:
    """The true pointstamps of all workers, and a comparison of every frontier with them."""

    def __init__(self, graph: ProgressGraph, workers: list[Worker]) -> None:
        self._graph = graph
        self._workers = workers
        self.truth: dict[WorkerPointstamp, int] = {
            (worker.index, (at, graph.kinds[at].minimum)): 1
            for worker in workers
            for at in graph.sources()
        }
        self.checks = 0
        for worker in workers:
            worker.observe(partial(self._record, worker.index))

    def _record(
        self,
        worker: int,
        here: Mapping[Pointstamp, int],
        elsewhere: Mapping[WorkerPointstamp, int],
    ) -> None:
        for stamp, delta in here.items():
            self._change(worker, (worker, stamp), delta)
        for there, delta in elsewhere.items():
            self._change(worker, there, delta)

    def _change(self, by: int, stamp: WorkerPointstamp, delta: int) -> None:
        count = self.truth.get(stamp, 0) + delta
        if count < 0:
            worker, (location, time) = stamp
            raise ProtocolError(
                f"{self._graph.describe(location)} of worker {worker} has {count} pointstamps at "
                f"{time}: worker {by} took away some that did not exist"
            )
        if count:
            self.truth[stamp] = count
        else:
            del self.truth[stamp]

    def _true(self) -> list[list[Antichain]]:
        return reference.worker_frontiers(self._graph, self.truth, len(self._workers))

    def check(self) -> None:
        """Raise if a worker shows a frontier that is ahead of the true one."""
        self.checks += 1
        for worker, true in zip(self._workers, self._true(), strict=True):
            for location, at_most in enumerate(true):
                shown = worker.tracker.frontier(location)
                if not shown.dominates(at_most):
                    raise ProtocolError(
                        f"worker {worker.index} shows the frontier {shown} at "
                        f"{self._graph.describe(location)}, ahead of the true {at_most}"
                    )

    def check_at_rest(self) -> None:
        """Raise unless every worker shows exactly the true frontiers, as it must at rest."""
        for worker, true in zip(self._workers, self._true(), strict=True):
            for location, exact in enumerate(true):
                shown = worker.tracker.frontier(location)
                if shown != exact and not worker.tracker.is_wide:
                    raise ProtocolError(
                        f"at rest, worker {worker.index} shows {shown} at "
                        f"{self._graph.describe(location)}, but the truth is {exact}"
                    )
