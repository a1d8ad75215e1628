"""The tracker: from counted pointstamps to the frontier at every location.

It is fed with net changes to the number of pointstamps (tokens held at outputs, messages in
flight to inputs) and answers which times may still appear where. Changes travel from segment to
segment least time first, equal ones summed before they are applied: on cycles, any other order
may never end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from jeton.core.antichain import Antichain
from jeton.core.errors import ProtocolError
from jeton.core.summaries import IDENTITY
from jeton.core.times import IntegerTimes, Product, Time, nested_key
from jeton.progress.graph import ProgressGraph
from jeton.progress.segments import ELSEWHERE, HERE, Segment, Side, lay_out

Pointstamp = tuple[int, Time]
"""A location and a time."""


class Tracker:
    """One worker's view of the pointstamps of all workers, and the frontiers they imply.

    Each worker starts with one token for each output at the least time. A frontier is about what
    may still appear on this worker: pointstamps of others count as far as they lead here.

    >>> graph = ProgressGraph()
    >>> from_zero = IntegerTimes(minimum=0)
    >>> a = graph.add("a", inputs=0, outputs=1, kind=from_zero)
    >>> b = graph.add("b", inputs=1, outputs=1, kind=from_zero)
    >>> c = graph.add("c", inputs=1, outputs=0, kind=from_zero)
    >>> graph.connect(a.outputs[0], b.inputs[0], exchanged=True)
    >>> graph.connect(b.outputs[0], c.inputs[0])
    >>> tracker = Tracker(graph, elsewhere=1)
    >>> _ = tracker.apply([((a.outputs[0], 0), -1), ((a.outputs[0], 5), +1)])
    >>> tracker.frontier(b.inputs[0])
    Antichain([0])
    >>> _ = tracker.apply((), elsewhere=[((a.outputs[0], 0), -1), ((a.outputs[0], 7), +1)])
    >>> tracker.frontier(b.inputs[0])
    Antichain([5])

    The other worker's ``b`` can only send to its own ``c``:

    >>> _ = tracker.apply([((b.outputs[0], 0), -1)])
    >>> tracker.frontier(c.inputs[0]), tracker.frontier_anywhere(c.inputs[0])
    (Antichain([5]), Antichain([0]))
    """

    __slots__ = (
        "_depths",
        "_exits",
        "_has_exits",
        "_key",
        "_segments",
        "_shown",
        "graph",
        "places",
    )

    def __init__(self, graph: ProgressGraph, workers: int = 1, *, elsewhere: int = 0) -> None:
        """``workers`` are counted as this one, and so many as others."""
        graph.check()
        layout = lay_out(graph)
        self.graph = graph
        self.places = layout.places
        self._depths = [kind.depth for kind in graph.kinds]
        self._exits = layout.exits
        self._has_exits = any(layout.exits)
        self._segments = list(map(Segment.of, layout.total, layout.crossings))
        plain = all(isinstance(kind, IntegerTimes) for kind in graph.kinds)
        self._key: Callable[[Time], Any] = _same if plain else nested_key
        self._shown: dict[int, tuple[Time, ...]] | None = None
        """While frontiers are wide: those that were further before, where they still are."""
        minimum = [(at, graph.kinds[at].minimum) for at in graph.sources()]
        self.apply(
            [(pointstamp, workers) for pointstamp in minimum],
            [(pointstamp, elsewhere) for pointstamp in minimum if elsewhere],
        )

    def require_known(self, changes: Iterable[tuple[Pointstamp, int]]) -> None:
        """Refuse changes from elsewhere at a location, or a time, that this graph does not have."""
        depths = self._depths
        last = len(depths) - 1
        for (location, time), _ in changes:
            depth = len(time) - 1 if type(time) is Product else 0
            if not 0 <= location <= last or depth != depths[location]:
                raise ProtocolError(
                    f"a progress batch has a change at location {location} and time {time}, which "
                    "this flow does not have: do all workers run the same flow?"
                )

    def apply(
        self,
        here: Iterable[tuple[Pointstamp, int]],
        elsewhere: Iterable[tuple[Pointstamp, int]] = (),
    ) -> set[int]:
        """Add net changes on this worker and on others.

        Returns the segments in which frontiers may have changed.
        """
        places, segments = self.places, self._segments
        changed: set[int] = set()
        for (location, time), delta in here:
            segment, position = places[location]
            if segments[segment].count(position, time, delta, HERE):
                changed.add(segment)
        for (location, time), delta in elsewhere:
            segment, position = places[location]
            if segments[segment].count(position, time, delta, ELSEWHERE):
                changed.add(segment)
        if changed and self._has_exits:
            self._propagate(changed)
        return changed

    def _propagate(self, changed: set[int]) -> None:
        """Carry changes of segments' ends on, least time first; ``changed`` grows as they go."""
        exits, segments, key = self._exits, self._segments, self._key
        work: list[tuple[Any, int, Side, int, Time, int]] = []
        tie = count()

        def push_exit(segment: int) -> None:
            leads_to = exits[segment]
            if leads_to:
                for side, time, delta in segments[segment].exit_changes():
                    for to, summary in leads_to:
                        later = time if summary is IDENTITY else summary.apply(time)
                        if later is not None:
                            heappush(work, (key(later), to, side, next(tie), later, delta))

        for segment in sorted(changed):
            push_exit(segment)
        while work:
            rank, segment, side, _, time, delta = heappop(work)
            net = {time: delta}
            # Equal keys of one segment are taken together, so that changes that cancel never show.
            while work and work[0][0] == rank and work[0][1] == segment and work[0][2] == side:
                *_, time, delta = heappop(work)
                net[time] = net.get(time, 0) + delta
            moved = False
            for time, delta in net.items():
                if delta and segments[segment].enter(time, delta, side):
                    moved = True
            if moved:
                changed.add(segment)
                push_exit(segment)

    def least(self, location: int) -> tuple[Time, ...]:
        """The elements of the frontier at a location of this worker."""
        if self._shown is not None:
            return self._least_wide(location)
        segment, position = self.places[location]
        return self._segments[segment].frontier(position)

    def least_anywhere(self, location: int) -> tuple[Time, ...]:
        """The elements of the frontier at a location of all workers together."""
        segment, position = self.places[location]
        return self._segments[segment].frontier_anywhere(position)

    def frontier(self, location: int) -> Antichain:
        """The least times that may still appear at a location of this worker."""
        return Antichain.frozen(self.least(location))

    def frontier_anywhere(self, location: int) -> Antichain:
        """The least times that may still appear at a location of any worker."""
        return Antichain.frozen(self.least_anywhere(location))

    def frontiers(self, segment: int, positions: Collection[int]) -> list[tuple[Time, ...]]:
        """The frontiers' elements at ascending positions of one segment, in one sweep."""
        return self._segments[segment].frontiers(positions)

    # While state moves between workers, a pointstamp may move too, from any to any.

    @property
    def is_wide(self) -> bool:
        """Whether frontiers count the pointstamps of all workers as if they were here."""
        return self._shown is not None

    def widen(self) -> None:
        """Show frontiers of all workers together from now on; one that is further stays there."""
        locations = self.graph.locations
        self._shown = {
            at: here for at in locations if (here := self.least(at)) != self.least_anywhere(at)
        }

    def narrow(self) -> None:
        """Show this worker's own frontiers again."""
        self._shown = None

    def has_caught_up(self, location: int) -> bool:
        """Whether the frontier of all workers is where this worker's was when it was widened."""
        if self._shown is None:
            return True
        self._least_wide(location)
        return location not in self._shown

    def _least_wide(self, location: int) -> tuple[Time, ...]:
        least = self.least_anywhere(location)
        assert self._shown is not None
        before = self._shown.get(location)
        if before is not None:
            if not all(any(one <= time for one in before) for time in least):
                return before
            del self._shown[location]
        return least

    def pointstamps(self) -> dict[Pointstamp, int]:
        """All counted pointstamps of all workers, from which the frontiers are derived."""
        found: dict[Pointstamp, int] = {}
        for location, (segment, position) in enumerate(self.places):
            for time, n in self._segments[segment].pointstamps(position):
                total = found.pop((location, time), 0) + n
                if total:
                    found[location, time] = total
        return found

    @property
    def is_complete(self) -> bool:
        """Whether no pointstamp is left anywhere, so that nothing can ever happen again."""
        return not any(segment.occupied for segment in self._segments)


def _same(time: Time) -> Any:
    return time
