"""The schedule: which operators have something to do, and which is next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from random import Random


class Schedule:
    """Operators that wait to be invoked, by number.

    A sweep goes through them in the order of the graph, so that data runs from one operator to the
    next. One that is activated while the sweep is on its way takes part in it if its turn is still
    to come, and waits for the next sweep if not: an operator that activates itself starves nobody.

    >>> schedule = Schedule(operators=5, sources={0})
    >>> for operator in (3, 1):
    ...     schedule.activate(operator)
    >>> order = []
    >>> for operator in schedule.sweep():
    ...     order.append(operator)
    ...     if operator == 1:
    ...         schedule.activate(2)
    ...         schedule.activate(0)
    >>> order, bool(schedule)
    ([1, 2, 3], True)
    """

    def __init__(self, operators: int, sources: Iterable[int]) -> None:
        self._now: list[int] = []
        self._next: list[int] = []
        self._waits = bytearray(operators)
        self._at = -1
        self._sources = frozenset(sources)
        self._holding = False
        self._held: list[int] = []

    def activate(self, operator: int) -> None:
        """Let an operator be invoked."""
        if not self._waits[operator]:
            self._waits[operator] = 1
            heappush(self._now if operator > self._at else self._next, operator)

    def sweep(self) -> Iterator[int]:
        """Take out the operators of one sweep, each when its turn has come."""
        now = self._now
        try:
            while now:
                operator = self._at = heappop(now)
                self._waits[operator] = 0
                if self._holding and operator in self._sources:
                    self._held.append(operator)
                else:
                    yield operator
        finally:
            self._at = -1
            self._now, self._next = self._next, now

    def stumble(self, random: Random) -> Iterator[int]:
        """Take out a few operators in random order: for simulation."""
        for _ in range(random.randint(1, 3)):
            self._now += self._next
            self._next.clear()
            if not self._now:
                return
            operator = self._now.pop(random.randrange(len(self._now)))
            self._now.sort()
            self._waits[operator] = 0
            yield operator

    def hold_sources(self, hold: bool) -> None:
        """Put operators without inputs off, or let them go on: for back-pressure."""
        if hold != self._holding:
            self._holding = hold
            held, self._held = self._held, []
            for operator in held:
                self.activate(operator)

    def __bool__(self) -> bool:
        """Whether any operator waits to be invoked now."""
        return bool(self._now or self._next)
