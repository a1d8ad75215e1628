"""The tracker: from counted pointstamps to the frontier at every location.

It is fed with net changes to the number of pointstamps (tokens held at outputs, messages in
flight to inputs) and answers which times may still appear where. Changes travel from segment to
segment least time first, equal ones summed before they are applied: on cycles, any other order
may never end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from jeton.core.antichain import Antichain
from jeton.core.times import IntegerTimes, Time, nested_key
from jeton.progress.graph import ProgressGraph
from jeton.progress.segments import Segment, lay_out

Pointstamp = tuple[int, Time]
"""A location and a time."""


class Tracker:
    """One worker's view of the pointstamps of all workers, and the frontiers they imply.

    Each worker starts with one token for each output at the least time.

    >>> graph = ProgressGraph()
    >>> from_zero = IntegerTimes(minimum=0)
    >>> a = graph.add("a", inputs=0, outputs=1, kind=from_zero)
    >>> b = graph.add("b", inputs=1, outputs=0, kind=from_zero)
    >>> graph.connect(a.outputs[0], b.inputs[0])
    >>> tracker = Tracker(graph, workers=2)
    >>> token = a.outputs[0]
    >>> _ = tracker.apply([((token, 0), -1), ((token, 5), +1)])
    >>> tracker.frontier(b.inputs[0])
    Antichain([0])
    >>> _ = tracker.apply([((token, 0), -1), ((token, 7), +1)])
    >>> tracker.frontier(b.inputs[0])
    Antichain([5])
    """

    __slots__ = ("_exits", "_has_exits", "_key", "_segments", "graph", "places")

    def __init__(self, graph: ProgressGraph, workers: int = 1) -> None:
        graph.check()
        layout = lay_out(graph)
        self.graph = graph
        self.places = layout.places
        self._exits = layout.exits
        self._has_exits = any(layout.exits)
        self._segments = list(map(Segment.of, layout.total))
        plain = all(isinstance(kind, IntegerTimes) for kind in graph.kinds)
        self._key: Callable[[Time], Any] = _same if plain else nested_key
        minimum = ((at, graph.kinds[at].minimum) for at in graph.sources())
        self.apply((pointstamp, workers) for pointstamp in minimum)

    def apply(self, changes: Iterable[tuple[Pointstamp, int]]) -> set[int]:
        """Add net changes; returns the segments in which frontiers may have changed."""
        places, segments = self.places, self._segments
        changed: set[int] = set()
        for (location, time), delta in changes:
            segment, position = places[location]
            if segments[segment].count(position, time, delta):
                changed.add(segment)
        if changed and self._has_exits:
            self._propagate(changed)
        return changed

    def _propagate(self, changed: set[int]) -> None:
        """Carry changes of segments' ends on, least time first; ``changed`` grows as they go."""
        exits, segments, key = self._exits, self._segments, self._key
        work: list[tuple[Any, int, int, Time, int]] = []
        tie = count()

        def push_exit(segment: int) -> None:
            leads_to = exits[segment]
            if leads_to:
                for time, delta in segments[segment].exit_changes():
                    for to, summary in leads_to:
                        later = summary.apply(time)
                        if later is not None:
                            heappush(work, (key(later), to, next(tie), later, delta))

        for segment in sorted(changed):
            push_exit(segment)
        while work:
            rank, segment, _, time, delta = heappop(work)
            net = {time: delta}
            # Equal keys of one segment are taken together, so that changes that cancel never show.
            while work and work[0][0] == rank and work[0][1] == segment:
                _, _, _, time, delta = heappop(work)
                net[time] = net.get(time, 0) + delta
            moved = False
            for time, delta in net.items():
                if delta and segments[segment].enter(time, delta):
                    moved = True
            if moved:
                changed.add(segment)
                push_exit(segment)

    def least(self, location: int) -> tuple[Time, ...]:
        """The elements of the frontier at a location."""
        segment, position = self.places[location]
        return self._segments[segment].frontier(position)

    def frontier(self, location: int) -> Antichain:
        """The least times that may still appear at a location."""
        return Antichain.frozen(self.least(location))

    def frontiers(self, segment: int, positions: list[int]) -> list[tuple[Time, ...]]:
        """The frontiers' elements at ascending positions of one segment, in one sweep."""
        return self._segments[segment].frontiers(positions)

    def pointstamps(self) -> dict[Pointstamp, int]:
        """All counted pointstamps, from which the frontiers are derived."""
        return {
            (location, time): count
            for location, (segment, position) in enumerate(self.places)
            for time, count in self._segments[segment].pointstamps(position)
        }

    @property
    def is_complete(self) -> bool:
        """Whether no pointstamp is left anywhere, so that nothing can ever happen again."""
        return not any(segment.occupied for segment in self._segments)


def _same(time: Time) -> Any:
    return time
