"""Segments: runs of locations that pass times on unchanged, one to the next.

Between the places where a graph branches, joins, or changes times, a location's frontier is the
least of what enters its run and what is counted at the locations before it. So a long chain of
operators is one segment: a change in it costs a comparison, not a walk over its operators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final

from jeton.core.antichain import Antichain, MutableAntichain, TotalCounts, frontier_changes
from jeton.core.summaries import IDENTITY, Summary
from jeton.core.times import Time
from jeton.progress.graph import ProgressGraph

_END: Final = 1 << 62
"""A position after every other."""

Place = tuple[int, int]
"""Where a location lies: its segment, and the position in it."""

_FEW: Final = 8
"""The number of positions that are cheaper to visit than to forget and remember again."""


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """A graph cut into segments."""

    places: list[Place]
    """For each location, its place."""
    exits: list[list[tuple[int, Summary]]]
    """For each segment, the segments that its end leads to."""
    total: list[bool]
    """For each segment, whether its times are totally ordered."""


def lay_out(graph: ProgressGraph) -> SegmentLayout:
    """Cut a graph into segments."""
    incoming = [0] * len(graph.steps)
    for steps in graph.steps:
        for step in steps:
            incoming[step.to] += 1
    follows: list[int | None] = [None] * len(graph.steps)
    starts = [True] * len(graph.steps)
    for at, steps in enumerate(graph.steps):
        if len(steps) == 1 and steps[0].summary is IDENTITY and incoming[steps[0].to] == 1:
            follows[at] = steps[0].to
            starts[steps[0].to] = False

    places: list[Place | None] = [None] * len(graph.steps)
    ends: list[int] = []
    for start in graph.locations:
        if not starts[start]:
            continue
        end = start
        places[end] = (len(ends), 0)
        position = 0
        while (following := follows[end]) is not None:
            end = following
            position += 1
            places[end] = (len(ends), position)
        ends.append(end)
    # A run that bites its own tail has no start. Such a cycle does not advance times and was
    # refused before, so every location has a place by now.
    placed = [place for place in places if place is not None]
    assert len(placed) == len(graph.steps), "graph.check() refuses cycles without a start"
    return SegmentLayout(
        places=placed,
        exits=[[(placed[step.to][0], step.summary) for step in graph.steps[end]] for end in ends],
        total=[graph.kinds[end].total for end in ends],
    )


class Segment(ABC):
    """Counts along one segment, and the frontiers that they imply."""

    __slots__ = ("_at", "_entry")

    _entry: TotalCounts | MutableAntichain
    """The times that the segments before imply at the start."""
    _at: dict[int, Any]
    """The counts of each position that has any."""

    @staticmethod
    def of(total: bool) -> Segment:
        """A segment of totally or of partially ordered times."""
        return _TotalSegment() if total else _PartialSegment()

    @abstractmethod
    def count(self, position: int, time: Time, delta: int) -> bool:
        """Add to the pointstamps at a position; returns whether frontiers may have changed."""

    def enter(self, time: Time, delta: int) -> bool:
        """Add to the times that the segments before imply at the start; returns the same."""
        return self._entry.change(time, delta)

    @abstractmethod
    def frontier(self, position: int) -> tuple[Time, ...]:
        """The least times that may still appear at a position."""

    @abstractmethod
    def frontiers(self, positions: list[int]) -> list[tuple[Time, ...]]:
        """The same for many positions, in ascending order, in one sweep."""

    @abstractmethod
    def exit_changes(self) -> list[tuple[Time, int]]:
        """The changes of the frontier at the segment's end since the last call."""

    def pointstamps(self, position: int) -> list[tuple[Time, int]]:
        """The pointstamps at a position, with their counts."""
        counts = self._at.get(position)
        return list(counts.items()) if counts is not None else []

    @property
    def occupied(self) -> bool:
        """Whether anything is counted anywhere."""
        return any(counts.items() for counts in self._at.values())


class _TotalSegment(Segment):
    """A segment of totally ordered times: each frontier is a minimum."""

    __slots__ = ("_exit",)

    def __init__(self) -> None:
        self._entry: TotalCounts = TotalCounts()
        self._at: dict[int, TotalCounts] = {}
        self._exit: Time | None = None

    def count(self, position: int, time: Time, delta: int) -> bool:
        at = self._at
        counts = at.get(position)
        if counts is None:
            counts = at[position] = TotalCounts()
        changed = counts.change(time, delta)
        if counts.minimum is None and len(at) > _FEW and not counts.items():
            del at[position]
        return changed

    def _least(self, position: int) -> Time | None:
        least = self._entry.minimum
        for at, counts in self._at.items():
            if at <= position:
                time = counts.minimum
                if time is not None and (least is None or time < least):
                    least = time
        return least

    def frontier(self, position: int) -> tuple[Time, ...]:
        least = self._least(position)
        return () if least is None else (least,)

    def frontiers(self, positions: list[int]) -> list[tuple[Time, ...]]:
        if len(positions) < 3:
            return [self.frontier(position) for position in positions]
        result: list[tuple[Time, ...]] = []
        least = self._entry.minimum
        active = sorted(self._at)
        taken = 0
        for position in positions:
            while taken < len(active) and active[taken] <= position:
                time = self._at[active[taken]].minimum
                taken += 1
                if time is not None and (least is None or time < least):
                    least = time
            result.append(() if least is None else (least,))
        return result

    def exit_changes(self) -> list[tuple[Time, int]]:
        before = self._exit
        after = self._exit = self._least(_END)
        if before == after:
            return []
        changes = [] if before is None else [(before, -1)]
        if after is not None:
            changes.append((after, +1))
        return changes


class _PartialSegment(Segment):
    """A segment of partially ordered times: each frontier is an antichain."""

    __slots__ = ("_exit",)

    def __init__(self) -> None:
        self._entry: MutableAntichain = MutableAntichain()
        self._at: dict[int, MutableAntichain] = {}
        self._exit: tuple[Time, ...] = ()

    def count(self, position: int, time: Time, delta: int) -> bool:
        counts = self._at.get(position)
        if counts is None:
            counts = self._at[position] = MutableAntichain()
        changed = counts.change(time, delta)
        if not counts:
            del self._at[position]
        return changed

    def frontier(self, position: int) -> tuple[Time, ...]:
        return self.frontiers([position])[0]

    def frontiers(self, positions: list[int]) -> list[tuple[Time, ...]]:
        result: list[tuple[Time, ...]] = []
        least = Antichain.trusted(self._entry.least())
        active = sorted(self._at)
        taken = 0
        for position in positions:
            while taken < len(active) and active[taken] <= position:
                least.extend(self._at[active[taken]].least())
                taken += 1
            result.append(tuple(least))
        return result

    def exit_changes(self) -> list[tuple[Time, int]]:
        before, self._exit = self._exit, self.frontier(_END)
        return frontier_changes(before, self._exit)
