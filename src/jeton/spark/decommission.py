"""Decommissioned executors: a query leaves them before they are gone.

With ``spark.decommission.enabled``, a cluster manager that wants a machine back says so first:
Kubernetes and standalone clusters do. Spark then starts no more tasks there, and waits for those
that run, which a worker of a long-lived query would never end. So the query goes on from a
checkpoint with workers on the other executors: as many as before if there are slots, or else as
many as there are. Once there are slots again, it goes back to the number it had.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from jeton.core.errors import JetonError
from jeton.spark.internals import leaving_executors, slots_of

if TYPE_CHECKING:
    from jeton.spark.query import Query

log = logging.getLogger(__name__)

EVERY: Final = 1.0
"""Seconds from one look to the next."""
COMES_BACK_AFTER: Final = 10.0
"""Seconds for which there must have been slots for all workers before these come back."""
WITHIN: Final = 120.0
"""Seconds in which a query has to go on elsewhere."""


class DecommissionWatch:
    """Looks whether executors of a query leave, once a second, in a thread of its own.

    >>> import jeton as jt
    >>> from jeton.connectors.sources import Rate
    >>> flow = jt.Flow("rate")
    >>> flow.output("numbers", flow.input("numbers"))
    >>> source = Rate(1_000, lambda positions: {"n": positions}, limit=100)
    >>> with flow.start(spark, sources={"numbers": source}, workers=1) as query:
    ...     DecommissionWatch(query, "jeton").start()  # here, none leaves
    ...     query.await_termination(60)
    True
    """

    def __init__(self, query: Query, tag: str) -> None:
        self._query = query
        self._tag = tag
        self._context = query.spark.sparkContext
        self._before: int | None = None
        """The number of workers that it goes back to."""
        self._left_with = 0
        """The number that it went on with."""
        self._since: float | None = None
        """Since when there have been slots for that number."""
        self._warned: list[str] = []

    def start(self) -> None:
        """Look from now on, until the query has ended."""
        threading.Thread(
            target=self._run, name=f"jeton-decommission-{self._query.name}", daemon=True
        ).start()

    def _run(self) -> None:
        query = self._query
        while not query.wait(EVERY) and query.is_active:
            if query.status != "running":
                continue
            try:
                leaving = leaving_executors(self._context, self._tag)
                if leaving is None:
                    return
                if leaving:
                    self._leave(leaving)
                elif self._before is not None:
                    self._come_back(self._before)
            except JetonError as error:
                # It was stopped, or has failed meanwhile; if it runs, the next look tries again.
                log.warning("query %r could not go on elsewhere yet: %s", query.name, error)
            except Exception:
                if query.is_active:
                    log.exception("query %r cannot look for executors that leave", query.name)
                return

    def _leave(self, executors: list[str]) -> None:
        """Go on without these executors."""
        query = self._query
        named = f"executor{'s' if len(executors) > 1 else ''} {', '.join(executors)}"
        slots = slots_of(self._context) or 0
        if query.committer is None or slots == 0:
            if self._warned != executors:
                self._warned = executors
                why = "has no checkpoint= to go on from" if slots else "has no slots elsewhere"
                log.warning("%s of query %r will leave, but it %s", named, query.name, why)
                if query.committer is not None:
                    query.checkpoint(WITHIN)
            return
        before, workers = query.workers, min(query.workers, slots)
        log.warning(
            "%s of query %r will leave: it goes on elsewhere with %d of %d workers",
            named,
            query.name,
            workers,
            before,
        )
        change = query.relocate(workers, WITHIN)
        if workers < before:
            self._before, self._left_with = max(before, self._before or 0), workers
        log.warning("query %r went on elsewhere after %.1f s", query.name, change.stopped)

    def _come_back(self, before: int) -> None:
        """Go back to the number of workers from before, once there have been slots for a while."""
        query = self._query
        if query.workers != self._left_with:
            # The user has decided otherwise.
            self._before = None
            return
        if (slots_of(self._context) or 0) < before:
            self._since = None
            return
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since >= COMES_BACK_AFTER:
            self._since = self._before = None
            log.warning("query %r goes back to %d workers", query.name, before)
            query.relocate(before, WITHIN)
