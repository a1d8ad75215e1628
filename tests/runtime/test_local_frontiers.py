"""Frontiers of a worker: they wait for what can reach it, and for nothing else."""

from __future__ import annotations

import pytest

import jeton as jt
from jeton.core.antichain import Antichain
from jeton.core.times import IntegerTimes
from jeton.progress.graph import ProgressGraph
from jeton.progress.tracker import Tracker
from tests.helpers import UnaryStep

SEEDS = [None, *range(20)]
FROM_ZERO = IntegerTimes(minimum=0)


def watching(
    pact: jt.Pact, leaves: frozenset[int] = frozenset()
) -> tuple[jt.Flow, dict[int, int | None]]:
    """A flow with an operator that notes its frontier; on some workers it leaves its input."""
    seen: dict[int, int | None] = {}

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            if info.worker not in leaves:
                for ref, batch in input:
                    output.session(ref).give(batch)
            seen[info.worker] = input.frontier.only

        return step

    flow = jt.Flow("watching", time=FROM_ZERO)
    numbers = flow.input("in")
    numbers.probe("before")
    numbers.unary_frontier(build, pact=pact, notify="always").probe("after")
    return flow, seen


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("pact", "expected"),
    [
        (jt.Pipeline(), {0: 4, 1: 4}),
        (jt.Pipeline(local_frontier=True), {0: 7, 1: 4}),
        (jt.Exchange("n"), {0: 4, 1: 4}),
        (jt.Broadcast(), {0: 4, 1: 4}),
    ],
    ids=repr,
)
def test_only_local_frontiers_do_not_wait_for_other_workers(
    pact: jt.Pact, expected: dict[int, int], seed: int | None
) -> None:
    flow, seen = watching(pact)
    with flow.open(workers=2, seed=seed) as run:
        for worker, time in enumerate((7, 4)):
            run.input("in", worker).send({"time": [2, 3], "n": [worker, 5]})
            run.input("in", worker).advance_to(time)
        run.run_to_rest()
        assert seen == expected
        for worker in range(2):
            assert run.probe("before", worker).frontier == Antichain([4])
            assert run.probe("after", worker).frontier == Antichain([4])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_message_holds_the_worker_that_it_goes_to(seed: int | None) -> None:
    flow, seen = watching(jt.Exchange("n"), leaves=frozenset({1}))
    with flow.open(workers=3, seed=seed) as run:
        run.input("in", 0).send({"time": [3] * 100, "n": list(range(100))})
        for worker in range(3):
            run.input("in", worker).advance_to(9)
        run.run_to_rest()
        assert seen == {0: 9, 1: 3, 2: 9}
        assert [run.probe("after", worker).frontier for worker in range(3)] == [Antichain([3])] * 3


def test_a_wide_frontier_does_not_go_back_and_waits_for_all() -> None:
    graph = ProgressGraph()
    [held] = graph.add("source", inputs=0, outputs=1, kind=FROM_ZERO).outputs
    [seen] = graph.add("sink", inputs=1, outputs=0, kind=FROM_ZERO).inputs
    graph.connect(held, seen)
    tracker = Tracker(graph, elsewhere=1)
    tracker.apply([((held, 0), -1), ((held, 7), +1)])
    assert tracker.least(seen) == (7,)
    assert tracker.least_anywhere(seen) == (0,)
    tracker.widen()
    assert (tracker.least(seen), tracker.has_caught_up(seen)) == ((7,), False)
    tracker.apply([((held, 7), -1), ((held, 9), +1)])
    assert (tracker.least(seen), tracker.has_caught_up(seen)) == ((7,), False)
    tracker.apply((), elsewhere=[((held, 0), -1), ((held, 8), +1)])
    assert (tracker.least(seen), tracker.has_caught_up(seen)) == ((8,), True)
    tracker.narrow()
    assert tracker.least(seen) == (9,)
