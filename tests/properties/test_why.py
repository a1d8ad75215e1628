"""What is said to hold a frontier is what holds it, on any graph."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import oracle
from tests.properties.generators import add, flow_graphs, histories, times

from jeton.progress.graph import ProgressGraph
from jeton.progress.why import holds

Counts = dict[tuple[int, Any], int]


@st.composite
def moments(draw: st.DrawFn) -> tuple[ProgressGraph, Counts, int, Any]:
    """A graph with some pointstamps on it, a location, and a time there."""
    graph = draw(flow_graphs())
    counts: Counts = {}
    for changes in draw(histories(graph)):
        add(counts, changes)
    target = draw(st.sampled_from(list(graph.locations)))
    return graph, counts, target, draw(times(graph.kinds[target]))


@settings(max_examples=settings().max_examples // 3)
@given(moments())
def test_holds_are_those_that_the_oracle_finds(moment: tuple[Any, ...]) -> None:
    graph, counts, target, at = moment
    alone = {
        stamp: oracle.frontiers(graph, {stamp: 1})[target]
        for stamp, count in counts.items()
        if count > 0
    }
    late_enough = {stamp for stamp, led in alone.items() if any(time <= at for time in led)}
    found = holds(graph, counts, target, at)
    assert {(hold.location, time) for hold in found for time, _ in hold.stamps} == late_enough
    for hold in found:
        assert all(counts[hold.location, time] == count for time, count in hold.stamps)
        names = [graph.nodes[graph.owner[place]].name for place in (hold.location, target)]
        assert [hold.path[0], hold.path[-1]] == names

    frontier = oracle.frontiers(graph, counts)[target]
    assert {hold.arrives for hold in holds(graph, counts, target)} == frontier
    for hold in holds(graph, counts, target):
        assert hold.arrives in alone[hold.location, hold.stamps[0][0]]
