"""The schedule: which operators have something to do, and which is next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from random import Random
from typing import Final

PASSED_OVER: Final = 3
"""So often in a row operators that have something to do go before sources."""


class Schedule:
    """Operators that wait to be invoked, by number.

    A sweep goes through them in the order of the graph, so that data runs from one operator to the
    next. One that is activated while the sweep is on its way takes part in it if its turn is still
    to come, and waits for the next sweep if not. So one that activates itself starves no other.

    Sources, which are operators without inputs, wait apart: what has begun goes on before anything
    new begins, though not indefinitely.

    >>> schedule = Schedule(operators=5, sources={0})
    >>> for operator in (3, 0, 1):
    ...     schedule.activate(operator)
    >>> order = []
    >>> while (operator := schedule.take()) is not None:
    ...     order.append(operator)
    ...     if operator == 2:
    ...         schedule.activate(1)
    ...     if operator == 1:
    ...         schedule.activate(2)
    >>> order, schedule.goes_on, schedule.take(), schedule.take(), schedule.take_sources()
    ([1, 2, 3], True, 1, None, [0])
    """

    def __init__(self, operators: int, sources: Iterable[int]) -> None:
        self._now: list[int] = []
        self._next: list[int] = []
        self._waiting_sources: list[int] = []
        self._waits = bytearray(operators)
        self._at = -1
        self._sources = frozenset(sources)
        self._holding = False
        self._passed_over = 0

    def activate(self, operator: int) -> None:
        """Let an operator be invoked."""
        if not self._waits[operator]:
            self._waits[operator] = 1
            if operator in self._sources:
                self._waiting_sources.append(operator)
            else:
                heappush(self._now if operator > self._at else self._next, operator)

    def take(self) -> int | None:
        """Take out the next operator of a sweep; ``None`` ends it, and then another one begins."""
        now = self._now
        if now:
            operator = self._at = heappop(now)
            self._waits[operator] = 0
            return operator
        self._at = -1
        self._now, self._next = self._next, now
        return None

    def is_for_sources(self) -> bool:
        """Whether it is the sources' turn: nothing else waits, or they were passed over too often.

        >>> schedule = Schedule(operators=2, sources={0})
        >>> for operator in (0, 1):
        ...     schedule.activate(operator)
        >>> [schedule.is_for_sources() for _ in range(6)]
        [False, False, False, True, False, False]
        """
        waiting = bool(self._waiting_sources) and not self._holding
        if self.goes_on and not (waiting and self._passed_over == PASSED_OVER):
            self._passed_over += waiting
            return False
        self._passed_over = 0
        return True

    def take_sources(self) -> list[int]:
        """Take out the sources, unless they are held."""
        if self._holding:
            return []
        sources, self._waiting_sources = self._waiting_sources, []
        for source in sources:
            self._waits[source] = 0
        return sources

    def stumble(self, random: Random) -> Iterator[int]:
        """Take out a few operators in random order: for simulation."""
        for _ in range(random.randint(1, 3)):
            waiting = sorted(self._now + self._next + self._waiting_sources)
            if not waiting:
                return
            operator = random.choice(waiting)
            for some in (self._now, self._next, self._waiting_sources):
                if operator in some:
                    some.remove(operator)
            heapify(self._now)
            heapify(self._next)
            self._waits[operator] = 0
            yield operator

    def hold_sources(self, hold: bool) -> None:
        """Put sources off, or let them go on: for back-pressure."""
        self._holding = hold

    @property
    def goes_on(self) -> bool:
        """Whether any operator that is not a source waits to be invoked."""
        return bool(self._now or self._next)

    def __bool__(self) -> bool:
        """Whether any operator waits to be invoked now."""
        return self.goes_on or bool(self._waiting_sources and not self._holding)
