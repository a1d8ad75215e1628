"""Timers: operators that want to be invoked once the clock has moved on."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush


class Timers:
    """Calls that are due at a time, in the order in which they were requested.

    >>> timers = Timers()
    >>> timers.add(2.5, operator=7)
    >>> timers.add(1.5, operator=3)
    >>> timers.next, list(timers.take_due(now=2.0)), timers.next
    (1.5, [3], 2.5)
    """

    __slots__ = ("_count", "_heap", "wait")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int]] = []
        self._count = 0
        self.wait = False
        """Whether timers that are due are put off for now."""

    def add(self, when: float, operator: int) -> None:
        """Have an operator invoked at a time of the clock."""
        self._count += 1
        heappush(self._heap, (when, self._count, operator))

    @property
    def next(self) -> float | None:
        """When the next timer is due."""
        return self._heap[0][0] if self._heap and not self.wait else None

    def pending(self, now: float) -> dict[int, float]:
        """The operators that have timers, each with the seconds until the first of its own.

        >>> timers = Timers()
        >>> timers.add(2.5, operator=7)
        >>> timers.add(1.5, operator=7)
        >>> timers.pending(now=1.0)
        {7: 0.5}
        """
        return {operator: when - now for when, _, operator in sorted(self._heap, reverse=True)}

    def take_due(self, now: float) -> Iterator[int]:
        """Take out the operators whose time has come."""
        while not self.wait and self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[2]
