"""Discovery: partitions of sources that appear while a query runs, and go to its workers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from jeton.cluster.coordinator import Coordinator
from jeton.connectors.source_plan import SourcePlan, owner
from jeton.core.errors import summary
from jeton.runtime.commands import AddPartitions

log = logging.getLogger(__name__)


class Discovery:
    """Asks the sources of one attempt for new partitions, and has workers read them.

    A partition that no checkpoint has is found again by the next attempt. `poll` does what is due.
    With ``background``, a thread of its own calls it.
    """

    def __init__(
        self,
        plan: SourcePlan,
        coordinator: Coordinator,
        *,
        clock: Callable[[], float] = time.monotonic,
        background: bool = True,
    ) -> None:
        self._plan = plan
        self._coordinator = coordinator
        self._clock = clock
        self._due = dict.fromkeys(plan.growing, clock())
        self._over = threading.Event()
        if background and self._due:
            threading.Thread(target=self._run, name="jeton-discovery", daemon=True).start()

    def poll(self) -> float:
        """Ask the sources that it is time for; returns the seconds until the next one is due."""
        # Before, there is no worker to read what is found.
        if self._coordinator.is_full:
            for name, due in self._due.items():
                if self._clock() >= due:
                    self._ask(name)
                    self._due[name] = self._clock() + self._plan.growing[name]
        return max(0.0, min(self._due.values()) - self._clock())

    def end(self) -> None:
        """The attempt is over: find nothing for it any more."""
        self._over.set()

    def _run(self) -> None:
        wait = 0.1
        while not self._over.wait(wait):
            wait = max(self.poll(), 0.1)

    def _ask(self, name: str) -> None:
        try:
            found = self._plan.discover(name)
        except Exception as error:
            # What it has is read meanwhile; it is asked again.
            log.warning("the source of input %r cannot find partitions: %s", name, summary(error))
            return
        workers = self._coordinator.workers
        for each, at in found.items():
            if not self._over.is_set():
                worker = owner(self._plan.partitions[name], each, workers)
                log.info("worker %d reads partition %r of input %r, a new one", worker, each, name)
                self._coordinator.send(
                    AddPartitions(input=name, partitions={each: dict(at)}), worker
                )
