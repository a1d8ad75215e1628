"""The rebalancer: looks at the load of a query's workers now and then, and moves bins by itself.

What the user does comes first. A call of `migrate`, `rebalance` or `rescale` ends a migration of
the rebalancer's after the step under way, and is followed by a cool-down. Nothing moves while the
query is paused, or its workers are not all there. Checkpoints come between steps, as always.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from jeton.core.errors import JetonError
from jeton.runtime.balance import Counts, Decision, Rebalance
from jeton.state.bins import Placement

log = logging.getLogger(__name__)

KEPT: Final = 100
"""Decisions that are kept."""


class Balanced(Protocol):
    """A query whose bins can move."""

    name: str

    @property
    def is_active(self) -> bool:
        """Whether it has not come to its end yet."""
        ...

    @property
    def paused_at(self) -> Any:
        """The time of the breakpoint, if there is one."""
        ...

    def count_records(self, seconds: float) -> tuple[Placement, Counts]:
        """The owners of bins, and the records of each that come in some seconds."""
        ...

    def move_bins(
        self, moves: Mapping[int, int], plan: str | int, gives_way: Callable[[], bool]
    ) -> Mapping[int, int]:
        """Move bins, step by step, as long as it need not give way; returns those that moved."""
        ...


class Rebalancer:
    """Decides whether bins of a query move, every few seconds, in a thread of its own."""

    def __init__(self, query: Balanced, policy: Rebalance) -> None:
        self.policy = policy
        self.decisions: deque[tuple[float, Decision]] = deque(maxlen=KEPT)
        """The latest decisions, each with its time in seconds since 1970."""
        self._query = query
        self._turn = threading.Condition()
        self._works = False
        """Whether it is counting records, or moving bins."""
        self._users = 0
        """Calls of the user that move bins, or wait for their turn."""
        self._uneven = 0
        """The number of looks in a row that found an uneven load."""
        self._quiet_until = 0.0
        self._over = threading.Event()
        self._looks = self._migrations = self._bins = 0

    def start(self) -> None:
        """Look every few seconds, until the query has ended."""
        threading.Thread(
            target=self._run, name=f"jeton-rebalancer-{self._query.name}", daemon=True
        ).start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    @contextmanager
    def held_off(self, timeout: float) -> Iterator[None]:
        """Let the user move bins: after the step under way, and with a cool-down afterwards."""
        with self._turn:
            self._users += 1
            free = self._turn.wait_for(lambda: not self._works, timeout)
        try:
            if not free:
                raise TimeoutError(
                    f"after {timeout:.3g} seconds, rebalance= still moves bins of query "
                    f"{self._query.name!r}, or waits until it can count records"
                )
            yield
        finally:
            with self._turn:
                self._users -= 1
            self._cool_down()

    def metrics(self) -> dict[str, Any]:
        """How many looks and migrations there were, the bins that have moved, the last reason."""
        last = self.decisions[-1][1] if self.decisions else None
        return {
            "looks": self._looks,
            "migrations": self._migrations,
            "bins_moved": self._bins,
            "reason": None if last is None else last.reason,
            "load": [] if last is None else list(last.load),
        }

    def _run(self) -> None:
        while not self._over.wait(self.policy.every) and self._query.is_active:
            try:
                decision = self._look()
            except (JetonError, TimeoutError) as error:
                # Workers have left or do not answer, or the flow has been paused, or its records
                # follow no bins.
                said = error.message if isinstance(error, JetonError) else error
                decision = Decision(f"bins cannot move now: {said}")
            self._note(decision)

    def _look(self) -> Decision:
        """Count, decide and move, unless that is not the moment."""
        left = self._quiet_until - time.monotonic()
        if left > 0:
            return Decision(f"the cool-down after a migration takes {left:.0f} s more")
        if self._query.paused_at is not None:
            return Decision(f"the query is paused at {self._query.paused_at}")
        with self._turn:
            if self._users:
                return Decision("the user moves bins")
            self._works = True
        try:
            return self._rebalance()
        finally:
            with self._turn:
                self._works = False
                self._turn.notify_all()

    def _rebalance(self) -> Decision:
        policy = self.policy
        placement, load = self._query.count_records(policy.seconds)
        decision = policy.decide(placement, load, policy.seconds)
        self._uneven = self._uneven + 1 if decision.is_uneven else 0
        if not decision.is_uneven:
            return decision
        if self._uneven < policy.looks:
            seen = f"{decision.reason}: waiting for look {self._uneven + 1} of {policy.looks}"
            return Decision(seen, load=decision.load)
        moved = self._query.move_bins(decision.moves, policy.plan, lambda: self._users > 0)
        self._cool_down()
        self._migrations += 1
        self._bins += len(moved)
        if len(moved) < len(decision.moves):
            seen = f"{decision.reason}, of which {len(moved)} moved before the user took over"
            return Decision(seen, moved, decision.load, True)
        return decision

    def _cool_down(self) -> None:
        """Let nothing move for a while: looks before do not count for what comes after."""
        self._quiet_until = time.monotonic() + self.policy.cool_down
        self._uneven = 0

    def _note(self, decision: Decision) -> None:
        before = self.decisions[-1][1] if self.decisions else None
        self._looks += 1
        self.decisions.append((time.time(), decision))
        # Every move is logged, and every change of the reason why there is none.
        kinds = [_kind(each.reason) for each in (before, decision) if each is not None]
        again = not decision.moves and len(kinds) == 2 and kinds[0] == kinds[1]
        said = "moved bins" if decision.moves else "moves no bins"
        log.log(
            logging.DEBUG if again else logging.INFO,
            "query %r %s: %s",
            self._query.name,
            said,
            decision.reason,
        )


def _kind(reason: str) -> str:
    """A reason without its numbers.

    >>> _kind("worker 3 has 12 % more") == _kind("worker 0 has 5 % more")
    True
    """
    return "".join(letter for letter in reason if not letter.isdigit() and letter not in ".,")
