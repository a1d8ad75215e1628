"""The checker: no worker's frontier is ever ahead of a pointstamp that exists.

It observes all changes that workers make, so it knows the true pointstamps of all workers at any
moment. The plain reference derives from them how far every frontier may be at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from jeton.core.errors import ProtocolError
from jeton.progress import reference
from jeton.progress.graph import ProgressGraph
from jeton.progress.tracker import Pointstamp
from jeton.runtime.worker import Worker


class Checker:
    """The true pointstamps of all workers, and a comparison of every frontier with them."""

    def __init__(self, graph: ProgressGraph, workers: list[Worker]) -> None:
        self._graph = graph
        self._workers = workers
        self.truth: dict[Pointstamp, int] = {
            (at, graph.kinds[at].minimum): len(workers) for at in graph.sources()
        }
        self.checks = 0
        for worker in workers:
            worker.observe(partial(self._record, worker.index))

    def _record(self, worker: int, changes: Mapping[Pointstamp, int]) -> None:
        for pointstamp, delta in changes.items():
            count = self.truth.get(pointstamp, 0) + delta
            if count < 0:
                location, time = pointstamp
                raise ProtocolError(
                    f"{self._graph.describe(location)} has {count} pointstamps at {time}: "
                    f"worker {worker} took away some that did not exist"
                )
            if count:
                self.truth[pointstamp] = count
            else:
                del self.truth[pointstamp]

    def check(self) -> None:
        """Raise if a worker shows a frontier that is ahead of the true one."""
        self.checks += 1
        true = reference.frontiers(self._graph, self.truth)
        for worker in self._workers:
            for location, at_most in enumerate(true):
                shown = worker.tracker.frontier(location)
                if not shown.dominates(at_most):
                    raise ProtocolError(
                        f"worker {worker.index} shows the frontier {shown} at "
                        f"{self._graph.describe(location)}, ahead of the true {at_most}"
                    )

    def check_at_rest(self) -> None:
        """Raise unless every worker shows exactly the true frontiers, as it must at rest."""
        true = reference.frontiers(self._graph, self.truth)
        for worker in self._workers:
            for location, exact in enumerate(true):
                shown = worker.tracker.frontier(location)
                if shown != exact:
                    raise ProtocolError(
                        f"at rest, worker {worker.index} shows {shown} at "
                        f"{self._graph.describe(location)}, but the truth is {exact}"
                    )
