"""CONFORMANCE.md, "Reachability": from pointstamps to frontiers, alone and in running flows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations

import pytest
from tests.helpers import FROM_ZERO, consume, dropping, pass_on, seeded

import jeton as jt
from jeton import Advance, Antichain, Product
from jeton.core.times import IntegerTimes, ProductTimes
from jeton.dataflow.plan import Step
from jeton.errors import ZeroCycleError
from jeton.progress.graph import Node, ProgressGraph
from jeton.progress.tracker import Tracker

# The ring 0 → 1 → 2 → 0, once as a bare graph and once as a flow.


def ring(*, step: int = 1, closed: bool = True) -> tuple[ProgressGraph, list[Node]]:
    graph = ProgressGraph()
    arcs = [[[[Advance(step * (i > 1))]]] for i in range(3)]
    add = partial(graph.add, kind=FROM_ZERO, inputs=1, outputs=1)
    nodes = [add(f"node {i}", summaries=arcs[i]) for i in range(3)]
    for one, following in ((0, 1), (1, 2), (2, 0))[: 3 if closed else 2]:
        graph.connect(nodes[one].outputs[0], nodes[following].inputs[0])
    return graph, nodes


class Ring:
    """A tracker over the ring, with no tokens but the ones that are put there."""

    def __init__(self) -> None:
        graph, self.nodes = ring()
        self.tracker = Tracker(graph)
        self.tracker.apply(((node.outputs[0], 0), -1) for node in self.nodes)

    def change(self, *changes: tuple[int, int]) -> None:
        """Change the counts of tokens at node 0's output."""
        location = self.nodes[0].outputs[0]
        self.tracker.apply(((location, time), delta) for time, delta in changes)

    @property
    def frontiers(self) -> list[Antichain]:
        return [self.tracker.frontier(node.inputs[0]) for node in self.nodes]


def at(*times: int) -> list[Antichain]:
    return [Antichain([time]) for time in times]


@dataclass
class RingRun:
    """The ring as a flow: node 0's token is in the test's hands, on each worker."""

    run: jt.Run
    tokens: list[jt.ActivatingToken]
    shown: list[Antichain] = field(default_factory=list)

    @property
    def frontiers(self) -> list[Antichain]:
        """The frontiers of the three inputs, at rest."""
        self.run.run_to_rest()
        seen = [
            [self.run.probe(f"into {i}", worker).frontier for i in range(3)]
            for worker in range(len(self.run.workers))
        ]
        assert all(one == seen[0] for one in seen)
        return seen[0]


@contextmanager
def ring_flow(workers: int, seed: int | None) -> Iterator[RingRun]:
    tokens: list[jt.ActivatingToken] = []
    shown: list[Antichain] = []
    flow = jt.Flow("ring", time=FROM_ZERO)
    back = flow.feedback(step=1, name="node 2")
    zero = flow.operator("node 0")
    zero.input(back.stream.probe("into 0"))
    zero.output()

    def build(first: list[jt.TimestampToken], info: jt.OperatorInfo) -> Step:
        tokens.append(first.pop().activating())

        def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
            consume(inputs[0])
            shown.append(inputs[0].frontier)

        return step

    from_zero = zero.build(build, notify="always")[0].probe("into 1")
    from_one = from_zero.unary(dropping(pass_on), name="node 1").probe("into 2")
    back.connect(from_one)
    with flow.open(workers=workers, seed=seed) as run:
        yield RingRun(run, tokens, shown)


def test_12_ring_with_a_step_shows_18_17_17() -> None:
    """One token at node 0's output at 17 → input frontiers of 0,1,2 are {18},{17},{17}."""
    rings = Ring()
    rings.change((17, +1))
    assert rings.frontiers == at(18, 17, 17)


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_12_ring_in_a_flow_shows_18_17_17(workers: int, seed: int | None) -> None:
    """One token at node 0's output at 17 → input frontiers of 0,1,2 are {18},{17},{17}."""
    with ring_flow(workers, seed) as ring:
        for token in ring.tokens:
            token.downgrade(17)
        assert ring.frontiers == at(18, 17, 17)


def test_13_ring_empties() -> None:
    """Remove it → all three become empty, in finitely many steps."""
    rings = Ring()
    rings.change((17, +1))
    rings.change((17, -1))
    assert all(frontier.is_empty for frontier in rings.frontiers)
    assert rings.tracker.is_complete


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_13_ring_in_a_flow_empties(workers: int, seed: int | None) -> None:
    """Remove it → all three become empty, in finitely many steps."""
    with ring_flow(workers, seed) as ring:
        for token in ring.tokens:
            token.downgrade(17)
        assert ring.frontiers == at(18, 17, 17)
        for token in ring.tokens:
            token.drop()
        assert all(frontier.is_empty for frontier in ring.frontiers)
        ring.run.finish()


def test_15_dropping_one_of_two_changes_nothing() -> None:
    """Count 2 at 17, drop one → no frontier changes."""
    rings = Ring()
    rings.change((17, +2))
    location = rings.nodes[0].outputs[0]
    assert rings.tracker.apply([((location, 17), -1)]) == set()
    assert rings.frontiers == at(18, 17, 17)


@seeded
def test_15_dropping_a_clone_changes_nothing_in_a_flow(seed: int | None) -> None:
    """Count 2 at 17, drop one → no frontier changes."""
    with ring_flow(1, seed) as ring:
        (token,) = ring.tokens
        token.downgrade(17)
        clone = token.clone()
        assert ring.frontiers == at(18, 17, 17)
        before = len(ring.shown)
        clone.drop()
        assert ring.frontiers == at(18, 17, 17)
        assert len(ring.shown) == before
        token.drop()
        ring.run.finish()


@pytest.mark.parametrize("changes", list(permutations([(17, -1), (20, +1)])))
def test_16_atomic_downgrade(changes: tuple[tuple[int, int], ...]) -> None:
    """One atomic downgrade 17→20 → {21},{20},{20}."""
    rings = Ring()
    rings.change((17, +1))
    rings.change(*changes)
    assert rings.frontiers == at(21, 20, 20)


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_16_atomic_downgrade_in_a_flow(workers: int, seed: int | None) -> None:
    """One atomic downgrade 17→20 → {21},{20},{20}, with no moment at which one is empty."""
    with ring_flow(workers, seed) as ring:
        probes = [ring.run.probe(f"into {i}", w) for i in range(3) for w in range(workers)]
        for time in (17, 20):
            for token in ring.tokens:
                token.downgrade(time)
            while ring.run.turn():
                assert not any(probe.done for probe in probes)
        assert ring.frontiers == at(21, 20, 20)
        assert not any(frontier.is_empty for frontier in ring.shown)


def test_17_ring_without_a_step_is_refused() -> None:
    """The ring with no +1 anywhere is refused when built; the error names the operators."""
    graph, nodes = ring(step=0)
    with pytest.raises(ZeroCycleError) as caught:
        Tracker(graph)
    for node in nodes:
        assert node.name in str(caught.value)


def test_17_flow_that_forgets_its_rounds_is_refused() -> None:
    """A cycle through the outside of its loop advances nothing: refused, naming operators."""
    flow = jt.Flow("zero cycle", time=FROM_ZERO)
    loop = flow.loop("around")
    again = loop.feedback(name="again")
    outside = again.stream.leave().concat(flow.input("in")).map(lambda b: b, name="outside")
    again.connect(outside.enter(loop))
    with pytest.raises(ZeroCycleError, match=r"around\.again") as caught:
        flow.open()
    assert "'outside'" in str(caught.value)


def test_18_open_path_is_accepted() -> None:
    """The same path without the closing edge is accepted."""
    graph, nodes = ring(step=0, closed=False)
    tracker = Tracker(graph)
    assert tracker.frontier(nodes[2].inputs[0]) == Antichain([0])


def diamond() -> tuple[ProgressGraph, int, list[int]]:
    """From a source through arms that add 2 and 5 to the two inputs of a join."""
    graph = ProgressGraph()
    source = graph.add("source", kind=FROM_ZERO, inputs=0, outputs=1)
    join = graph.add("join", kind=FROM_ZERO, inputs=2, outputs=0)
    for port, step in enumerate((2, 5)):
        arm = graph.add(
            f"+{step}", kind=FROM_ZERO, inputs=1, outputs=1, summaries=[[[Advance(step)]]]
        )
        graph.connect(source.outputs[0], arm.inputs[0])
        graph.connect(arm.outputs[0], join.inputs[port])
    return graph, source.outputs[0], list(join.inputs)


def test_20_diamond_shows_12_and_15() -> None:
    """A diamond whose arms add 2 and 5, from 10: the join's inputs are at {12} and {15}."""
    graph, source, inputs = diamond()
    tracker = Tracker(graph)
    tracker.apply(((location, 0), -1) for location in graph.sources())
    tracker.apply([((source, 10), +1)])
    assert [tracker.frontier(location) for location in inputs] == at(12, 15)


@seeded
@pytest.mark.parametrize("workers", [1, 2])
def test_20_diamond_in_a_flow(workers: int, seed: int | None) -> None:
    """A diamond whose arms add 2 and 5, from 10: the join's inputs are at {12} and {15}."""

    def later(step: int) -> jt.Stream:
        def move(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                with output.session(ref) as session:
                    session.give(batch, times=batch.times + step)

        return source.unary(dropping(move), step=step)

    flow = jt.Flow("diamond", time=FROM_ZERO)
    source = flow.input("in")
    arms = [later(step).probe(f"+{step}") for step in (2, 5)]
    flow.output("out", arms[0].concat(arms[1]))
    with flow.open(workers=workers, seed=seed) as run:
        for worker in range(workers):
            run.input("in", worker).advance_to(10)
        run.input("in").send({"time": [10, 11], "n": [1, 2]})
        run.run_to_rest()
        assert [run.probe(f"+{step}").frontier for step in (2, 5)] == at(12, 15)
        assert run.finish()["out"]["time"].to_pylist() == [12, 13, 15, 16]


def test_21_incomparable_summaries() -> None:
    """Summaries (+0,+2) and (+1,+0) on (3,4): output frontier {(3,6),(4,4)}."""
    kind = ProductTimes(IntegerTimes(minimum=0))
    graph = ProgressGraph()
    source = graph.add("source", inputs=0, outputs=1, kind=kind)
    summaries = [[[Advance(0, 2), Advance(1, 0)]]]
    node = graph.add("node", inputs=1, outputs=1, kind=kind, summaries=summaries)
    graph.connect(source.outputs[0], node.inputs[0])
    tracker = Tracker(graph)
    tracker.apply(((location, Product(0, 0)), -1) for location in graph.sources())
    tracker.apply([((source.outputs[0], Product(3, 4)), +1)])
    assert tracker.frontier(node.outputs[0]) == Antichain([Product(3, 6), Product(4, 4)])


@seeded
def test_21_incomparable_summaries_in_a_flow(seed: int | None) -> None:
    """Summaries (+0,+2) and (+1,+0) on (3,4): output frontier {(3,6),(4,4)}."""
    tokens: list[jt.ActivatingToken] = []
    flow = jt.Flow("two ways", time=FROM_ZERO)
    loop = flow.loop()

    def hand_out(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
        tokens.append(token.activating())
        return lambda output: None

    source = loop.source(hand_out)
    node = loop.operator("node")
    node.input(source)
    node.output({0: [(0, 2), (1, 0)]})

    def build(first: list[jt.TimestampToken], info: jt.OperatorInfo) -> Step:
        first.pop().drop()
        return lambda inputs, outputs: consume(inputs[0])

    node.build(build)[0].probe("after")
    with flow.open(seed=seed) as run:
        tokens[0].downgrade(Product(3, 4))
        run.run_to_rest()
        assert run.probe("after").frontier == Antichain([Product(3, 6), Product(4, 4)])
        tokens[0].drop()
        run.finish()


def test_23_concatenation_shows_the_least() -> None:
    """Two inputs at 100 and 3 concatenated: {3}; closing the second: {100}."""
    graph = ProgressGraph()
    sources = [graph.add(name, kind=FROM_ZERO, inputs=0, outputs=1).outputs[0] for name in "ab"]
    node = graph.add("concat", kind=FROM_ZERO, inputs=1, outputs=0)
    for source in sources:
        graph.connect(source, node.inputs[0])
    tracker = Tracker(graph)
    tracker.apply([((sources[0], 0), -1), ((sources[0], 100), +1)])
    tracker.apply([((sources[1], 0), -1), ((sources[1], 3), +1)])
    assert tracker.frontier(node.inputs[0]) == Antichain([3])
    tracker.apply([((sources[1], 3), -1)])
    assert tracker.frontier(node.inputs[0]) == Antichain([100])


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_23_concatenation_in_a_flow(workers: int, seed: int | None) -> None:
    """Two inputs at 100 and 3 concatenated: {3}; closing the second: {100}."""
    flow = jt.Flow("concat", time=FROM_ZERO)
    flow.input("a").concat(flow.input("b")).probe("both")
    with flow.open(workers=workers, seed=seed) as run:
        for worker in range(workers):
            run.input("a", worker).advance_to(100)
            run.input("b", worker).advance_to(3)
        run.run_to_rest()
        assert run.probe("both").frontier == Antichain([3])
        for worker in range(workers):
            run.input("b", worker).close()
        run.run_to_rest()
        assert run.probe("both").frontier == Antichain([100])


def test_24_disconnected_pipelines_do_not_meet() -> None:
    """Two disconnected pipelines at 7 and 2 stay at 7 and 2."""
    graph = ProgressGraph()
    ends = []
    for name in "ab":
        source = graph.add(f"source {name}", kind=FROM_ZERO, inputs=0, outputs=1)
        sink = graph.add(f"sink {name}", kind=FROM_ZERO, inputs=1, outputs=0)
        graph.connect(source.outputs[0], sink.inputs[0])
        ends.append((source.outputs[0], sink.inputs[0]))
    tracker = Tracker(graph)
    for (source_at, _), time in zip(ends, (7, 2), strict=True):
        tracker.apply([((source_at, 0), -1), ((source_at, time), +1)])
    assert [tracker.frontier(sink_at) for _, sink_at in ends] == at(7, 2)


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_24_disconnected_pipelines_in_a_flow(workers: int, seed: int | None) -> None:
    """Two disconnected pipelines at 7 and 2 stay at 7 and 2."""
    flow = jt.Flow("apart", time=FROM_ZERO)
    for name in "ab":
        flow.input(name).unary(dropping(pass_on)).probe(name)
    with flow.open(workers=workers, seed=seed) as run:
        for worker in range(workers):
            run.input("a", worker).advance_to(7)
            run.input("b", worker).advance_to(2)
        run.run_to_rest()
        assert [run.probe(name).frontier for name in "ab"] == at(7, 2)


def test_27_four_workers_share_the_least() -> None:
    """Four at 0, three downgrade to 5,6,7: {0} everywhere; the fourth to 9: {5}."""
    graph = ProgressGraph()
    source = graph.add("source", kind=FROM_ZERO, inputs=0, outputs=1).outputs[0]
    sink = graph.add("sink", kind=FROM_ZERO, inputs=1, outputs=0).inputs[0]
    graph.connect(source, sink)
    tracker = Tracker(graph, workers=4)
    for time in (5, 6, 7):
        tracker.apply([((source, 0), -1), ((source, time), +1)])
        assert tracker.frontier(sink) == Antichain([0])
    tracker.apply([((source, 0), -1), ((source, 9), +1)])
    assert tracker.frontier(sink) == Antichain([5])


@seeded
def test_27_four_workers_in_a_flow(seed: int | None) -> None:
    """Four at 0, three downgrade to 5,6,7: {0} everywhere; the fourth to 9: {5}."""
    flow = jt.Flow("four", time=FROM_ZERO)
    flow.input("in").probe("seen")
    with flow.open(workers=4, seed=seed) as run:
        for worker, time in enumerate((5, 6, 7)):
            run.input("in", worker).advance_to(time)
        run.run_to_rest()
        assert [run.probe("seen", w).frontier for w in range(4)] == at(0, 0, 0, 0)
        run.input("in", 3).advance_to(9)
        run.run_to_rest()
        assert [run.probe("seen", w).frontier for w in range(4)] == at(5, 5, 5, 5)
