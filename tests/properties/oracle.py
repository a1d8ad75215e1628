"""A brute-force oracle for frontiers and for cycles that do not advance.

It knows the graph's operators and edges, `<=` on times and `apply` of summaries, and nothing
else: no heap, no order of work, no segments, no counting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jeton.core.summaries import Summary
from jeton.progress.graph import ProgressGraph

Edge = tuple[int, int, Summary]


def edges(graph: ProgressGraph) -> list[Edge]:
    """Every step between locations: inside operators as declared, outside as connected."""
    inside = [
        (at, to, summary)
        for node in graph.nodes
        for at, row in zip(node.inputs, node.summaries, strict=True)
        for to, cell in zip(node.outputs, row, strict=True)
        for summary in cell
    ]
    outside = [(at, s.to, s.summary) for at in graph.sources() for s in graph.steps[at]]
    return inside + outside


def minimal(times: Iterable[Any]) -> set[Any]:
    """The least of some times."""
    distinct = set(times)
    return {t for t in distinct if not any(u <= t and u != t for u in distinct)}


def frontiers(graph: ProgressGraph, pointstamps: Mapping[tuple[int, Any], int]) -> list[set[Any]]:
    """At each location the least times that the pointstamps with a count above zero lead to."""
    [found] = worker_frontiers(graph, {(0, stamp): n for stamp, n in pointstamps.items()}, 1)
    return found


def worker_frontiers(
    graph: ProgressGraph, pointstamps: Mapping[tuple[int, tuple[int, Any]], int], workers: int
) -> list[list[set[Any]]]:
    """The same for each worker, if each has the whole graph, and all feed exchanged inputs."""
    found: list[list[set[Any]]] = [[set() for _ in graph.locations] for _ in range(workers)]
    for (worker, (at, time)), count in pointstamps.items():
        if count > 0:
            found[worker][at].add(time)
    steps = [
        (found[giver], at, found[taker], to, summary)
        for at, to, summary in edges(graph)
        for giver in range(workers)
        for taker in range(workers)
        if giver == taker or graph.exchanged[to]
    ]
    changed = True
    while changed:
        changed = False
        for giver, at, taker, to, summary in steps:
            led = {summary.apply(time) for time in giver[at]} - {None}
            if any(not any(known <= time for known in taker[to]) for time in led):
                taker[to] = minimal(taker[to] | led)
                changed = True
    return [[minimal(times) for times in each] for each in found]


def has_still_cycle(graph: ProgressGraph) -> bool:
    """Whether some time can come back to where it was without having become later."""
    return any(_is_still(graph, cycle) for cycle in _simple_cycles(edges(graph)))


def _is_still(graph: ProgressGraph, cycle: list[Edge]) -> bool:
    """Whether a time that has gone around a cycle once gains nothing the second time.

    The first time around it may gain a round of a loop that it then loses on each way out.
    """
    for turn in range(len(cycle)):
        start = graph.kinds[cycle[turn][0]].minimum
        once = _follow(cycle[turn:] + cycle[:turn], start)
        twice = None if once is None else _follow(cycle[turn:] + cycle[:turn], once)
        if twice is not None and twice <= once:
            return True
    return False


def _follow(path: list[Edge], time: Any) -> Any:
    for _, _, summary in path:
        time = summary.apply(time)
        if time is None:
            return None
    return time


def _simple_cycles(steps: list[Edge]) -> Iterator[list[Edge]]:
    """Every cycle without a repeated location, listed from its least location."""
    leading: dict[int, list[Edge]] = {}
    for step in steps:
        leading.setdefault(step[0], []).append(step)

    def extend(path: list[Edge], start: int, seen: frozenset[int]) -> Iterator[list[Edge]]:
        at = path[-1][1] if path else start
        for step in leading.get(at, []):
            if step[1] == start:
                yield [*path, step]
            elif step[1] > start and step[1] not in seen:
                yield from extend([*path, step], start, seen | {step[1]})

    for start in leading:
        yield from extend([], start, frozenset())
