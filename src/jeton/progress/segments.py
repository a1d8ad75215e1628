"""Segments: runs of locations that pass times on unchanged, one to the next.

Between the places where a graph branches, joins, or changes times, a location's frontier is the
least of what enters its run and what is counted at the locations before it. So a long chain of
operators is one segment: a change in it costs a comparison, not a walk over its operators.

Counts and frontiers have two *sides*: ``HERE``, on this worker, and ``ELSEWHERE``, on all others
together. What is counted on one side reaches the other side only through an input that is
exchanged. To merge all others loses nothing: whatever leads here from one of them leads here by
an exchange, which any of them could have come by.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from jeton.core.antichain import Antichain, MutableAntichain, TotalCounts, frontier_changes
from jeton.core.summaries import IDENTITY, Summary
from jeton.core.times import Time
from jeton.progress.graph import ProgressGraph

HERE: Final = 0
ELSEWHERE: Final = 1
Side = int
"""``HERE`` or ``ELSEWHERE``."""

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
    crossings: list[list[int]]
    """For each segment and position the last position up to it that is exchanged, or -1."""


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
    crossings: list[list[int]] = []
    for start in graph.locations:
        if not starts[start]:
            continue
        end = start
        places[end] = (len(ends), 0)
        position = 0
        crossing = [0 if graph.exchanged[end] else -1]
        while (following := follows[end]) is not None:
            end = following
            position += 1
            places[end] = (len(ends), position)
            crossing.append(position if graph.exchanged[end] else crossing[-1])
        ends.append(end)
        crossings.append(crossing)
    # A run that bites its own tail has no start. Such a cycle does not advance times and was
    # refused before, so every location has a place by now.
    placed = [place for place in places if place is not None]
    assert len(placed) == len(graph.steps), "graph.check() refuses cycles without a start"
    return SegmentLayout(
        places=placed,
        exits=[[(placed[step.to][0], step.summary) for step in graph.steps[end]] for end in ends],
        total=[graph.kinds[end].total for end in ends],
        crossings=crossings,
    )


class Segment:
    """Counts along one segment, and the frontiers that they imply."""

    __slots__ = ("_at", "_crossing", "_entry")

    _entry: tuple[Any, Any]
    """For each side, the times that the segments before imply at the start."""
    _at: tuple[dict[int, Any], dict[int, Any]]
    """For each side, the counts of each position that has any."""
    _crossing: list[int]
    """For each position the last one up to it at which the sides meet, or -1."""

    @staticmethod
    def of(total: bool, crossing: list[int]) -> Segment:
        """A segment of totally or of partially ordered times."""
        return _TotalSegment(crossing) if total else _PartialSegment(crossing)

    @abstractmethod
    def count(self, position: int, time: Time, delta: int, side: Side) -> bool:
        """Add to the pointstamps at a position; returns whether frontiers may have changed."""

    def enter(self, time: Time, delta: int, side: Side) -> bool:
        """Add to the times that the segments before imply at the start; returns the same."""
        changed: bool = self._entry[side].change(time, delta)
        return changed

    @abstractmethod
    def frontier(self, position: int) -> tuple[Time, ...]:
        """The least times that may still appear here at a position."""

    @abstractmethod
    def frontier_anywhere(self, position: int) -> tuple[Time, ...]:
        """The least times that may still appear at a position, on any worker."""

    @abstractmethod
    def frontiers(self, positions: Collection[int]) -> list[tuple[Time, ...]]:
        """The frontiers here for many positions, in ascending order, in one sweep."""

    @abstractmethod
    def exit_changes(self) -> list[tuple[Side, Time, int]]:
        """The changes of the frontiers at the segment's end since the last call, on each side."""

    def pointstamps(self, position: int) -> Iterator[tuple[Time, int]]:
        """The pointstamps of each side at a position, with their counts."""
        for counted in self._at:
            counts = counted.get(position)
            if counts is not None:
                yield from counts.items()

    @property
    def occupied(self) -> bool:
        """Whether anything is counted anywhere."""
        return any(counts.items() for counted in self._at for counts in counted.values())


class _TotalSegment(Segment):
    """A segment of totally ordered times: each frontier is a minimum."""

    __slots__ = ("_exits", "_minima")

    def __init__(self, crossing: list[int]) -> None:
        self._crossing = crossing
        self._entry = (TotalCounts(), TotalCounts())
        self._at = ({}, {})
        self._minima: tuple[dict[int, Time], dict[int, Time]] = ({}, {})
        """For each side, the least time of each position that has one."""
        self._exits: list[Time | None] = [None, None]

    def count(self, position: int, time: Time, delta: int, side: Side) -> bool:
        at = self._at[side]
        counts = at.get(position)
        if counts is None:
            counts = at[position] = TotalCounts()
        changed = counts.change(time, delta)
        minimum = counts.minimum
        if minimum is None:
            self._minima[side].pop(position, None)
            if len(at) > _FEW and not counts.items():
                del at[position]
        elif changed:
            self._minima[side][position] = minimum
        return changed

    def _least(self, position: int, side: Side) -> Time | None:
        least = self._entry[side].minimum
        for at, time in self._minima[side].items():
            if at <= position and (least is None or time < least):
                least = time
        crossing = self._crossing[position]
        if crossing >= 0:
            time = self._entry[1 - side].minimum
            if time is not None and (least is None or time < least):
                least = time
            for at, time in self._minima[1 - side].items():
                if at < crossing and (least is None or time < least):
                    least = time
        return least

    def frontier(self, position: int) -> tuple[Time, ...]:
        least = self._least(position, HERE)
        return () if least is None else (least,)

    def frontier_anywhere(self, position: int) -> tuple[Time, ...]:
        found = (self._least(position, HERE), self._least(position, ELSEWHERE))
        least = min((time for time in found if time is not None), default=None)
        return () if least is None else (least,)

    def frontiers(self, positions: Collection[int]) -> list[tuple[Time, ...]]:
        if len(positions) < _FEW:
            return [self.frontier(position) for position in positions]
        result: list[tuple[Time, ...]] = []
        here, elsewhere = self._minima
        least = self._entry[HERE].minimum
        active, crossed = sorted(here), sorted(elsewhere)
        taken = taken_elsewhere = 0
        has_crossed = False
        for position in positions:
            times: list[Time | None] = []
            while taken < len(active) and active[taken] <= position:
                times.append(here[active[taken]])
                taken += 1
            crossing = self._crossing[position]
            if crossing >= 0:
                if not has_crossed:
                    has_crossed = True
                    times.append(self._entry[ELSEWHERE].minimum)
                while taken_elsewhere < len(crossed) and crossed[taken_elsewhere] < crossing:
                    times.append(elsewhere[crossed[taken_elsewhere]])
                    taken_elsewhere += 1
            for time in times:
                if time is not None and (least is None or time < least):
                    least = time
            result.append(() if least is None else (least,))
        return result

    def exit_changes(self) -> list[tuple[Side, Time, int]]:
        changes: list[tuple[Side, Time, int]] = []
        exits, end = self._exits, len(self._crossing) - 1
        for side in (HERE, ELSEWHERE):
            before, after = exits[side], self._least(end, side)
            if before != after:
                exits[side] = after
                if before is not None:
                    changes.append((side, before, -1))
                if after is not None:
                    changes.append((side, after, +1))
        return changes


class _PartialSegment(Segment):
    """A segment of partially ordered times: each frontier is an antichain."""

    __slots__ = ("_exits",)

    def __init__(self, crossing: list[int]) -> None:
        self._crossing = crossing
        self._entry = (MutableAntichain(), MutableAntichain())
        self._at = ({}, {})
        self._exits: list[tuple[Time, ...]] = [(), ()]

    def count(self, position: int, time: Time, delta: int, side: Side) -> bool:
        at = self._at[side]
        counts = at.get(position)
        if counts is None:
            counts = at[position] = MutableAntichain()
        changed = counts.change(time, delta)
        if not counts:
            del at[position]
        return changed

    def frontier(self, position: int) -> tuple[Time, ...]:
        return self._sweep([position], HERE)[0]

    def frontier_anywhere(self, position: int) -> tuple[Time, ...]:
        least = Antichain.trusted(self.frontier(position))
        least.extend(self._sweep([position], ELSEWHERE)[0])
        return tuple(least)

    def frontiers(self, positions: Collection[int]) -> list[tuple[Time, ...]]:
        return self._sweep(positions, HERE)

    def _sweep(self, positions: Collection[int], side: Side) -> list[tuple[Time, ...]]:
        result: list[tuple[Time, ...]] = []
        own, other = self._at[side], self._at[1 - side]
        least = Antichain.trusted(self._entry[side].least())
        active, crossed = sorted(own), sorted(other)
        taken = taken_other = 0
        has_crossed = False
        for position in positions:
            while taken < len(active) and active[taken] <= position:
                least.extend(own[active[taken]].least())
                taken += 1
            crossing = self._crossing[position]
            if crossing >= 0:
                if not has_crossed:
                    has_crossed = True
                    least.extend(self._entry[1 - side].least())
                while taken_other < len(crossed) and crossed[taken_other] < crossing:
                    least.extend(other[crossed[taken_other]].least())
                    taken_other += 1
            result.append(tuple(least))
        return result

    def exit_changes(self) -> list[tuple[Side, Time, int]]:
        changes: list[tuple[Side, Time, int]] = []
        end = len(self._crossing) - 1
        for side in (HERE, ELSEWHERE):
            before, after = self._exits[side], self._sweep([end], side)[0]
            self._exits[side] = after
            changes += [(side, time, delta) for time, delta in frontier_changes(before, after)]
        return changes
