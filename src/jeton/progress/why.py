"""Why: the pointstamps that hold a frontier, and the paths by which they do.

A token at an output, or a message on its way to an input, holds the frontier of every location
that it could still lead to. This module finds those that hold a given one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jeton.core.antichain import Antichain
from jeton.core.times import Time, nested_key
from jeton.progress.graph import ProgressGraph
from jeton.progress.tracker import Pointstamp


@dataclass(frozen=True, slots=True)
class Hold:
    """The pointstamps of one location that hold a frontier."""

    location: int
    stamps: tuple[tuple[Time, int], ...]
    """Their times and counts, least times first."""
    arrives: Time
    """A least time that they may lead to at the target."""
    path: tuple[str, ...]
    """The operators between them and the target, both included."""

    @property
    def count(self) -> int:
        """How many tokens or messages they are."""
        return sum(count for _, count in self.stamps)


def holds(
    graph: ProgressGraph,
    pointstamps: Mapping[Pointstamp, int],
    target: int,
    at: Time | None = None,
) -> list[Hold]:
    """The pointstamps that could result in a time ``<= at`` at a target, nearest times first.

    Without ``at``, those that could result in an element of the target's frontier.

    >>> graph = ProgressGraph()
    >>> numbers = graph.add("numbers", inputs=0, outputs=1)
    >>> window = graph.add("window", inputs=1, outputs=1)
    >>> means = graph.add("means", inputs=1, outputs=0)
    >>> graph.connect(numbers.outputs[0], window.inputs[0])
    >>> graph.connect(window.outputs[0], means.inputs[0])
    >>> stamps = {(numbers.outputs[0], 7): 1, (window.outputs[0], 10): 2}
    >>> [(hold.path, hold.arrives) for hold in holds(graph, stamps, means.inputs[0])]
    [(('numbers', 'window', 'means'), 7)]
    >>> [hold.path[0] for hold in holds(graph, stamps, means.inputs[0], at=10)]
    ['numbers', 'window']
    >>> holds(graph, stamps, means.inputs[0], at=6)
    []
    """
    found: list[Hold] = []
    leading = _leading_to(graph, target)
    for location, stamps in _by_location(pointstamps):
        if location in leading:
            found.extend(_holds(graph, location, stamps, target, leading, at))
    if at is None:
        frontier = Antichain(hold.arrives for hold in found)
        found = [hold for hold in found if hold.arrives in tuple(frontier)]
    return sorted(found, key=lambda hold: (nested_key(hold.arrives), hold.location))


def everything(graph: ProgressGraph, pointstamps: Mapping[Pointstamp, int]) -> list[Hold]:
    """All pointstamps, whatever they lead to, least times first.

    >>> graph = ProgressGraph()
    >>> window = graph.add("window", inputs=1, outputs=1)
    >>> stamps = {(window.outputs[0], 10): 1, (window.inputs[0], 3): 2}
    >>> [(hold.location, hold.stamps) for hold in everything(graph, stamps)]
    [(0, ((3, 2),)), (1, ((10, 1),))]
    """
    found = [
        Hold(location, tuple(stamps), stamps[0][0], (_name(graph, location),))
        for location, stamps in _by_location(pointstamps)
    ]
    return sorted(found, key=lambda hold: (nested_key(hold.arrives), hold.location))


def _by_location(
    pointstamps: Mapping[Pointstamp, int],
) -> Iterable[tuple[int, list[tuple[Time, int]]]]:
    """For each location its times and counts, least first; counts below 1 hold nothing."""
    by_location: dict[int, list[tuple[Time, int]]] = {}
    for (location, time), count in pointstamps.items():
        if count > 0:
            by_location.setdefault(location, []).append((time, count))
    for stamps in by_location.values():
        stamps.sort(key=lambda stamp: nested_key(stamp[0]))
    return by_location.items()


def _holds(
    graph: ProgressGraph,
    location: int,
    stamps: Sequence[tuple[Time, int]],
    target: int,
    leading: set[int],
    at: Time | None,
) -> list[Hold]:
    """The holds of one location: a single one if its times are totally ordered."""

    def arrive(time: Time) -> list[tuple[Time, tuple[int, ...]]]:
        arrivals = _arrivals(graph, location, time, target, leading)
        return [each for each in arrivals if at is None or each[0] <= at]

    def hold(some: Sequence[tuple[Time, int]], arrival: tuple[Time, tuple[int, ...]]) -> Hold:
        return Hold(location, tuple(some), arrival[0], _names(graph, arrival[1]))

    if not graph.kinds[location].total:
        return [hold([stamp], each) for stamp in stamps for each in arrive(stamp[0])]
    first = arrive(stamps[0][0])
    if not first:
        return []
    # A later time does not arrive earlier: without `at`, only the least counts.
    many = 1
    if at is not None:
        many = bisect_right(stamps, False, lo=1, key=lambda stamp: not arrive(stamp[0]))
    least = min(first, key=lambda arrival: nested_key(arrival[0]))
    return [hold(stamps[:many], least)]


def _arrivals(
    graph: ProgressGraph, start: int, time: Time, target: int, leading: set[int]
) -> list[tuple[Time, tuple[int, ...]]]:
    """The least times at which something at a location may arrive at a target, each with a path.

    Only times that are not dominated go on from a location. Around a loop times advance, so
    that this comes to an end.
    """
    reached: dict[int, Antichain] = {start: Antichain([time])}
    found: list[tuple[Time, tuple[int, ...]]] = []
    work: deque[tuple[int, Time, tuple[int, ...]]] = deque([(start, time, (start,))])
    while work:
        at, now, path = work.popleft()
        if now not in tuple(reached[at]):
            continue  # an earlier one came by another path
        if at == target:
            found.append((now, path))
        for step in graph.steps[at]:
            later = step.summary.apply(now) if step.to in leading else None
            if later is not None and reached.setdefault(step.to, Antichain()).insert(later):
                work.append((step.to, later, (*path, step.to)))
    least = tuple(reached.get(target, ()))
    return [(now, path) for now, path in found if now in least]


def _leading_to(graph: ProgressGraph, target: int) -> set[int]:
    """The locations from which a target can be reached, itself included."""
    back: list[list[int]] = [[] for _ in graph.locations]
    for location in graph.locations:
        for step in graph.steps[location]:
            back[step.to].append(location)
    found, work = {target}, [target]
    while work:
        for location in back[work.pop()]:
            if location not in found:
                found.add(location)
                work.append(location)
    return found


def _names(graph: ProgressGraph, path: Iterable[int]) -> tuple[str, ...]:
    """The operators on a path of locations, each once in a row."""
    names: list[str] = []
    before: int | None = None
    for location in path:
        operator = graph.owner[location]
        if operator != before:
            names.append(graph.nodes[operator].name)
        before = operator
    return tuple(names)


def _name(graph: ProgressGraph, location: int) -> str:
    return graph.nodes[graph.owner[location]].name
