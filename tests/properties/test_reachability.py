"""The tracker's frontiers are those that follow from the pointstamps, on any graph."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from tests.properties import oracle
from tests.properties.generators import (
    Changes,
    add,
    flat_graphs,
    flow_graphs,
    histories,
    on_workers,
    patience,
)

from jeton.errors import ZeroCycleError
from jeton.progress import reference
from jeton.progress.graph import ProgressGraph
from jeton.progress.tracker import Tracker

Counts = dict[tuple[int, Any], int]
HERE, ELSEWHERE = 0, 1


def initial(graph: ProgressGraph, workers: int) -> Counts:
    return {(at, graph.kinds[at].minimum): workers for at in graph.sources() if workers}


def assert_true(tracker: Tracker, here: Counts, elsewhere: Counts) -> None:
    """The tracker shows the oracle's frontiers, whichever way it is asked."""
    graph = tracker.graph
    stamps = {(HERE, stamp): n for stamp, n in here.items()}
    stamps |= {(ELSEWHERE, stamp): n for stamp, n in elsewhere.items()}
    expected, others = oracle.worker_frontiers(graph, stamps, 2)
    shown = [tracker.frontier(at) for at in graph.locations]
    assert [set(frontier) for frontier in shown] == expected
    assert all(len(frontier) == len(set(frontier)) for frontier in shown)
    assert reference.worker_frontiers(graph, stamps, 2)[HERE] == shown
    for at in graph.locations:
        assert set(tracker.frontier_anywhere(at)) == oracle.minimal(expected[at] | others[at])
    total = dict(here)
    add(total, list(elsewhere.items()))
    assert tracker.pointstamps() == total
    assert tracker.is_complete == (not here and not elsewhere)


def assert_sweeps_agree(tracker: Tracker) -> None:
    """All positions of a segment asked for in one sweep, as the worker does."""
    segments: dict[int, dict[int, int]] = {}
    for location, (segment, position) in enumerate(tracker.places):
        segments.setdefault(segment, {})[position] = location
    for segment, at in segments.items():
        positions = sorted(at)
        swept = tracker.frontiers(segment, positions)
        assert list(map(set, swept)) == [set(tracker.least(at[p])) for p in positions]


def replay(graph: ProgressGraph, history: list[tuple[int, Changes]], workers: int) -> None:
    """Apply changes, each on one side, to the view of one of some workers."""
    with patience():
        tracker = Tracker(graph, elsewhere=workers - 1)
    counts = (initial(graph, 1), initial(graph, workers - 1))
    assert_true(tracker, *counts)
    for side, changes in history:
        before = [tracker.frontier(at) for at in graph.locations]
        with patience():
            moved = tracker.apply(*((changes, ()) if side == HERE else ((), changes)))
        add(counts[side], changes)
        assert_true(tracker, *counts)
        assert_sweeps_agree(tracker)
        for at, (segment, _) in enumerate(tracker.places):
            assert segment in moved or tracker.frontier(at) == before[at]
    # Whatever was counted, taking it all away leaves nothing behind.
    with patience():
        tracker.apply(*([(stamp, -count) for stamp, count in side.items()] for side in counts))
    assert_true(tracker, {}, {})


@st.composite
def runs(draw: st.DrawFn, graphs: st.SearchStrategy[ProgressGraph]) -> tuple[Any, ...]:
    """A graph and what happens on it; most often the initial tokens go first."""
    graph = draw(on_workers(graphs))
    workers = draw(st.integers(1, 3))
    sides = st.sampled_from([HERE, ELSEWHERE] if workers > 1 else [HERE])
    history = [(draw(sides), changes) for changes in draw(histories(graph))]
    if draw(st.sampled_from([True, True, False])):
        for side, count in ((HERE, 1), (ELSEWHERE, workers - 1)):
            tokens = initial(graph, count).items()
            history.insert(0, (side, [(stamp, -n) for stamp, n in tokens]))
    return graph, history, workers


@given(runs(flat_graphs()))
def test_flat_graphs(run: tuple[Any, ...]) -> None:
    replay(*run)


@given(runs(flow_graphs()))
def test_nested_loops(run: tuple[Any, ...]) -> None:
    graph = run[0]
    assume(not oracle.has_still_cycle(graph))
    event(f"depth {max(kind.depth for kind in graph.kinds)}")
    replay(*run)


@given(st.integers(0, 60), st.data())
def test_long_chain_is_one_run(length: int, data: st.DataObject) -> None:
    """Many positions of one segment: each sees what is counted before it, nothing after."""
    graph = ProgressGraph()
    last = graph.add("source", inputs=0, outputs=1).outputs[0]
    for index in range(length):
        node = graph.add(f"op{index}", inputs=1, outputs=1)
        graph.connect(last, node.inputs[0], exchanged=data.draw(st.booleans()))
        last = node.outputs[0]
    sides = st.sampled_from([HERE, ELSEWHERE])
    history = [(data.draw(sides), changes) for changes in data.draw(histories(graph))]
    tokens = [(stamp, -n) for stamp, n in initial(graph, 1).items()]
    replay(graph, [(HERE, tokens), (ELSEWHERE, tokens), *history], 2)


def assert_refused_rightly(graph: ProgressGraph) -> None:
    still = oracle.has_still_cycle(graph)
    event("refused" if still else "accepted")
    if still:
        with pytest.raises(ZeroCycleError):
            Tracker(graph)
    else:
        Tracker(graph)


@given(flat_graphs(advancing=False))
def test_still_cycles_of_flat_graphs_are_refused(graph: ProgressGraph) -> None:
    assert_refused_rightly(graph)


@given(flow_graphs())
def test_still_cycles_through_nested_loops_are_refused(graph: ProgressGraph) -> None:
    assert_refused_rightly(graph)
