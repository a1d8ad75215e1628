"""Capture and replay: also inside loops' outsides, with partial orders, and unfinished."""

from __future__ import annotations

import pytest
from tests.helpers import UnaryStep, seeded, stamped

import jeton as jt
from jeton import Antichain
from jeton.core.changes import ChangeBatch
from jeton.dataflow.operators.capture import Event, Progressed, Sent
from jeton.errors import FlowStalled


def capture_of(
    rows: dict[str, list[int]], workers: int, seed: int | None = None
) -> list[list[Event]]:
    flow = jt.Flow("first")
    flow.input("in").capture("events")
    with flow.open(workers=workers, seed=seed) as run:
        run.feed({"in": rows})
        run.finish()
        return run.captured("events")


def test_events_start_at_the_minimum_and_end_empty() -> None:
    (events,) = capture_of({"time": [1, 2], "n": [10, 20]}, workers=1)
    assert events[0] == Progressed(((jt.START_OF_TIME, +1),))
    assert sum(len(event.batch) for event in events if isinstance(event, Sent)) == 2
    net = ChangeBatch[int]()
    for event in events:
        if isinstance(event, Progressed):
            net.extend(event.changes)
    assert len(net) == 0


@seeded
def test_no_message_comes_after_its_time_has_passed(seed: int | None) -> None:
    rows = {"time": [5, 1, 3, 2, 4] * 4, "n": list(range(20))}
    for events in capture_of(rows, workers=2, seed=seed):
        frontier = jt.state.MutableAntichain()
        for event in events:
            if isinstance(event, Sent):
                assert frontier.frontier.less_equal(event.time)
            else:
                frontier.update(event.changes)


@seeded
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_replaying_a_replay(workers: int, seed: int | None) -> None:
    rows = {"time": [5, 1, 3, 2, 4], "n": [5, 1, 3, 2, 4]}
    events = capture_of(rows, workers=3, seed=seed)
    flow = jt.Flow("second")
    flow.replay(events).capture("again")
    with flow.open(workers=workers, seed=seed) as run:
        run.finish()
        again = run.captured("again")
    third = jt.Flow("third")
    third.output("out", third.replay(again))
    assert stamped(third.run(seed=seed)["out"]) == [(n, n) for n in range(1, 6)]


@seeded
def test_windows_of_a_replay_close_as_they_did(seed: int | None) -> None:
    rows = {"time": [3, 12, 7, 25], "n": [1, 2, 3, 4]}
    events = capture_of(rows, workers=2, seed=seed)
    seen: list[tuple[int, int]] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()
        windows: jt.state.TimeMap[tuple[jt.TimestampToken, list[int]]] = jt.state.TimeMap()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                for end, part in batch.split_by(lambda times: (times // 10 + 1) * 10):
                    if end not in windows:
                        windows[end] = (ref.retain(end), [])
                    windows[end][1].extend(part["n"].tolist())
            for end, (mine, values) in windows.pop_before(input.frontier):
                mine.drop()
                seen.append((end, sum(values)))

        return step

    flow = jt.Flow("windows")
    together = jt.Exchange(lambda batch: batch.times * 0)
    flow.replay(events).unary_frontier(build, pact=together)
    flow.run(workers=3, seed=seed)
    assert seen == [(10, 4), (20, 2), (30, 4)]


def test_replay_of_an_unfinished_capture_stays_where_it_stopped() -> None:
    flow = jt.Flow("first")
    flow.input("in").capture()
    with flow.open() as run:
        run.input("in").send({"time": [1], "n": [1]})
        run.input("in").advance_to(7)
        run.run_to_rest()
        events = run.captured()
    again = jt.Flow("second")
    again.output("out", again.replay(events).probe("seen"))
    with again.open() as run:
        run.run_to_rest()
        assert run.probe("seen").frontier == Antichain([7])
        assert stamped(run.results()["out"]) == [(1, 1)]
        with pytest.raises(FlowStalled, match="'replay' holds 1 token at 7"):
            run.finish()


def test_replay_keeps_a_time_column_s_name() -> None:
    events = capture_of({"time": [1], "n": [1]}, workers=1)
    flow = jt.Flow("second")
    flow.output("out", flow.replay(events, time="ts"))
    assert flow.run()["out"].to_pylist() == [{"ts": 1, "n": 1}]
