"""Antichains: sets of mutually incomparable times, the shape of every frontier.

A *frontier* ``f`` says which times may still arrive: those ``t`` with ``f.less_equal(t)``.
The empty frontier says that nothing more will come.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from jeton.core.errors import JetonError
from jeton.core.times import Time, sort_key


class Antichain:
    """Mutually incomparable times; inserting keeps only the least ones.

    Hashing an antichain freezes it, so that it can be a dictionary key or be shared.

    >>> frontier = Antichain([2])
    >>> frontier.insert(3), frontier.insert(1), frontier
    (False, True, Antichain([1]))
    >>> frontier.less_equal(1), frontier.less_than(1), frontier.passed(0)
    (True, False, True)
    """

    __slots__ = ("_elements", "_frozen")

    def __init__(self, times: Iterable[Time] | None = None) -> None:
        self._elements: list[Time] = []
        self._frozen = False
        if times is not None:
            self.extend(times)

    @classmethod
    def trusted(cls, elements: Iterable[Time]) -> Antichain:
        """An antichain of times that are known to be incomparable already.

        Comparing them again would cost the square of their number.
        """
        made = Antichain()
        made._elements = list(elements)
        return made

    @classmethod
    def frozen(cls, elements: Iterable[Time]) -> Antichain:
        """The same, frozen."""
        made = Antichain()
        made._elements = list(elements)
        made._frozen = True
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # By its times alone, so that compiled and Python modules read what the others wrote.
        return Antichain, (list(self._elements),)

    def insert(self, time: Time) -> bool:
        """Insert ``time`` unless an element is ``<=`` it; returns whether it was inserted."""
        if self._frozen:
            raise JetonError("this antichain is frozen (hashed or shared): copy it with list()")
        elements = self._elements
        for element in elements:
            if element <= time:
                return False
        self._elements = [e for e in elements if not time <= e]
        self._elements.append(time)
        return True

    def extend(self, times: Iterable[Time]) -> bool:
        """Insert many times; returns whether any was inserted."""
        changed = False
        for time in times:
            changed = self.insert(time) or changed
        return changed

    def less_equal(self, time: Time) -> bool:
        """Whether some element is ``<=`` the time: the time may still arrive."""
        return any(element <= time for element in self._elements)

    def less_than(self, time: Time) -> bool:
        """Whether some element is strictly below the time."""
        return any(element <= time and element != time for element in self._elements)

    def passed(self, time: Time) -> bool:
        """Whether the time can no longer arrive at a place that has this frontier."""
        return not self.less_equal(time)

    def dominates(self, other: Antichain) -> bool:
        """Whether every element of ``other`` is ``>=`` some element of this one.

        >>> Antichain([1]).dominates(Antichain([3])), Antichain().dominates(Antichain([3]))
        (True, False)
        """
        return all(self.less_equal(time) for time in other._elements)

    @property
    def is_empty(self) -> bool:
        """Whether nothing more can arrive."""
        return not self._elements

    @property
    def only(self) -> Time | None:
        """The element of a frontier over totally ordered times, ``None`` if it is empty.

        >>> Antichain([7]).only
        7
        """
        if len(self._elements) > 1:
            raise JetonError(f"{self!r} has more than one element")
        return self._elements[0] if self._elements else None

    def __iter__(self) -> Iterator[Time]:
        return iter(self._elements)

    def __len__(self) -> int:
        return len(self._elements)

    def __contains__(self, time: object) -> bool:
        return time in self._elements

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Antichain):
            return NotImplemented
        mine, theirs = self._elements, other._elements
        return mine == theirs or (len(mine) == len(theirs) and set(mine) == set(theirs))

    def __hash__(self) -> int:
        self._frozen = True
        return hash(frozenset(self._elements))

    def __repr__(self) -> str:
        return f"Antichain({sorted(self._elements, key=sort_key)!r})"


class MutableAntichain:
    """Counted times, with the frontier of those whose count is above zero.

    Counts may be negative for a while: the frontier ignores them.

    >>> held = MutableAntichain([1])
    >>> held.update([(1, -1), (2, +7)])
    [(1, -1), (2, 1)]
    >>> held.frontier
    Antichain([2])
    """

    __slots__ = ("_counts", "_least", "_removed")

    def __init__(self, times: Iterable[Time] = ()) -> None:
        self._counts: dict[Time, int] = {}
        self._least: tuple[Time, ...] = ()
        self._removed: list[Time] = []
        """Times that left the frontier since it was last read: they may have hidden others."""
        self.update((time, 1) for time in times)

    def change(self, time: Time, delta: int) -> bool:
        """Add ``delta`` to the count of ``time``; returns whether that may change the frontier."""
        counts = self._counts
        before = counts.get(time, 0)
        after = before + delta
        if after:
            counts[time] = after
        else:
            counts.pop(time, None)
        if before <= 0 < after:
            for element in self._least:
                if element <= time:
                    return False
            self._least = (*(e for e in self._least if not time <= e), time)
            return True
        if after <= 0 < before and time in self._least:
            self._least = tuple(e for e in self._least if e != time)
            self._removed.append(time)
            return True
        return False

    def _rebuild(self) -> None:
        """Add the times that were hidden: once for many removals, since it visits all times."""
        removed, self._removed = self._removed, []
        antichain = Antichain.trusted(self._least)
        for time, count in self._counts.items():
            if count > 0 and any(one <= time for one in removed):
                antichain.insert(time)
        self._least = tuple(antichain)

    def update(self, changes: Iterable[tuple[Time, int]]) -> list[tuple[Time, int]]:
        """Add many changes; returns how the frontier changed: ``-1`` left, ``+1`` entered."""
        before = self.least()
        for time, delta in changes:
            self.change(time, delta)
        return frontier_changes(before, self.least())

    def least(self) -> tuple[Time, ...]:
        """The elements of the frontier."""
        if self._removed:
            self._rebuild()
        return self._least

    @property
    def frontier(self) -> Antichain:
        """The least times whose count is above zero."""
        return Antichain.frozen(self.least())

    def items(self) -> ItemsView[Time, int]:
        """All times with a count other than zero."""
        return self._counts.items()

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        return f"MutableAntichain({dict(self._counts)!r})"


class TotalCounts:
    """`MutableAntichain` for totally ordered times: the frontier is the minimum, by a heap.

    >>> counts = TotalCounts()
    >>> counts.change(5, +1), counts.change(3, +1), counts.change(3, -1), counts.minimum
    (True, True, True, 5)
    """

    __slots__ = ("_counts", "_heap", "minimum")

    def __init__(self) -> None:
        self._counts: dict[Time, int] = {}
        self._heap: list[Time] = []
        self.minimum: Time | None = None

    def change(self, time: Time, delta: int) -> bool:
        """Add ``delta`` to the count of ``time``; returns whether the minimum changed."""
        counts = self._counts
        before = counts.get(time, 0)
        after = before + delta
        if after:
            counts[time] = after
        else:
            counts.pop(time, None)
        minimum = self.minimum
        if before <= 0:
            if after > 0:
                if minimum is None or time < minimum:
                    if minimum is not None:
                        heappush(self._heap, minimum)
                    self.minimum = time
                    return True
                heappush(self._heap, time)
                if len(self._heap) > 2 * len(counts) + 32:
                    self._compact()
            return False
        if after <= 0 and time == minimum:
            heap = self._heap
            while heap:
                candidate = heappop(heap)
                if counts.get(candidate, 0) > 0:
                    self.minimum = candidate
                    return True
            self.minimum = None
            return True
        return False

    def _compact(self) -> None:
        """A time that comes and goes above the minimum leaves entries behind: forget them."""
        self._heap = [t for t, n in self._counts.items() if n > 0 and t != self.minimum]
        heapify(self._heap)

    def least(self) -> tuple[Time, ...]:
        """The minimum, as a frontier's elements."""
        return () if self.minimum is None else (self.minimum,)

    def items(self) -> ItemsView[Time, int]:
        """All times with a count other than zero."""
        return self._counts.items()


def frontier_changes(before: tuple[Time, ...], after: tuple[Time, ...]) -> list[tuple[Time, int]]:
    """The times that left (``-1``) and that entered (``+1``) between two frontiers.

    >>> frontier_changes((1,), (2,))
    [(1, -1), (2, 1)]
    """
    if before == after:
        return []
    left = [(time, -1) for time in before if time not in after]
    return left + [(time, +1) for time in after if time not in before]
