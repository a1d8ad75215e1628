"""CONFORMANCE.md, "Operators": what is captured can be replayed, by any number of workers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.helpers import FROM_ZERO, dropping, pass_on, seeded, stamped

import jeton as jt
from jeton import Antichain
from jeton.dataflow.operators.capture import Event, Sent


def accumulated(captured: list[list[Event]]) -> list[set[Antichain]]:
    """For each worker's events, the frontiers they pass through."""
    frontiers = []
    for events in captured:
        now = jt.state.MutableAntichain()
        seen = set()
        for event in events:
            if not isinstance(event, Sent):
                now.update(event.changes)
                seen.add(Antichain(now.frontier))
        assert now.frontier.is_empty
        frontiers.append(seen)
    return frontiers


def records(captured: list[list[Event]]) -> list[tuple[int, int]]:
    return sorted(
        (row["time"], row["n"])
        for events in captured
        for event in events
        if isinstance(event, Sent)
        for row in event.batch.rows()
    )


@seeded
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_44_capture_and_replay(workers: int, seed: int | None) -> None:
    """Replay with more or with fewer workers: same data, same frontiers."""
    first = jt.Flow("first", time=FROM_ZERO)
    first.input("in").unary(dropping(pass_on), pact=jt.Exchange("n")).capture("events")
    with first.open(workers=2, seed=seed) as run:
        for r in range(5):
            for worker in range(2):
                run.input("in", worker).send({"time": [r, r + 3], "n": [r, 10 + worker]})
                run.input("in", worker).advance_to(r + 1)
            run.run_to_rest()
        run.finish()
        events = run.captured("events")
    expected = {Antichain([r]) for r in range(6)} | {Antichain()}
    assert accumulated(events) == [expected, expected]

    second = jt.Flow("second", time=FROM_ZERO)
    replayed = second.replay(events).capture("again").probe("seen")
    second.output("out", replayed)
    with second.open(workers=workers, seed=seed) as run:
        result = run.finish()
        again = run.captured("again")
        assert run.probe("seen").done
    assert stamped(result["out"]) == records(events)
    assert records(again) == records(events)
    # A replay may pass several frontiers in one step, but shows none that was not captured.
    assert all(seen <= expected for seen in accumulated(again))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_44_replayed_frontiers_step_as_the_captured_ones(workers: int) -> None:
    """Driven step by step, a replay holds each frontier that was captured, in order."""
    first = jt.Flow("first", time=FROM_ZERO)
    first.input("in").capture("events")
    with first.open(workers=2) as run:
        for r in range(100):
            run.input("in", 0).send({"time": [r], "n": [r]})
            for worker in range(2):
                run.input("in", worker).advance_to(r + 1)
            run.run_to_rest()
        run.finish()
        events = run.captured("events")

    second = jt.Flow("second", time=FROM_ZERO)
    second.replay(events).probe("seen")
    with second.open(workers=workers) as run:
        captured = set.union(*accumulated(events))
        shown: list[Antichain] = []
        while run.turn():
            frontier = run.probe("seen").frontier
            if not shown or shown[-1] != frontier:
                shown.append(frontier)
        assert set(shown) <= captured
        assert all(one.dominates(other) for one, other in pairwise(shown))
        assert shown[-1].is_empty
