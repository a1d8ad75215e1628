"""Seeds: the same seed gives the same run, any seed the same results."""

from __future__ import annotations

import pytest

import jeton as jt
from tests.helpers import UnaryStep, seeded, stamped

Trace = list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]


def traced(seed: int | None, workers: int = 3) -> tuple[Trace, jt.Result]:
    """Run sums per time, and note each invocation: worker, step, values and frontier seen."""
    trace: Trace = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()
        sums: jt.state.TimeMap[tuple[jt.TimestampToken, list[int]]] = jt.state.TimeMap()

        def step(input: jt.Input, output: jt.Output) -> None:
            values: list[int] = []
            for ref, batch in input.by_time():
                values += batch["n"].tolist()
                if ref.time not in sums:
                    sums[ref.time] = (ref.retain(), [])
                sums[ref.time][1].extend(batch["n"].tolist())
            for _, (mine, numbers) in sums.pop_before(input.frontier):
                with mine, output.session(mine) as session:
                    session.give(n=sum(numbers))
            trace.append((info.worker, run.steps, tuple(values), tuple(input.frontier)))

        return step

    flow = jt.Flow("traced")
    together = jt.Exchange("time")
    flow.output("out", flow.input("in").unary_frontier(build, pact=together))
    times = [t for t in range(12) for _ in range(3)]
    run = flow.open(workers=workers, seed=seed)
    with run:
        run.feed({"in": {"time": times, "n": list(range(36))}})
        return trace, run.finish()


@seeded
def test_same_seed_same_trace(seed: int | None) -> None:
    (one, result), (other, again) = traced(seed), traced(seed)
    assert one == other
    assert result["out"].equals(again["out"])
    assert (result.steps, result.progress_batches) == (again.steps, again.progress_batches)


def test_different_seeds_differ_in_trace_but_not_in_results() -> None:
    expected = [(t, 9 * t + 3) for t in range(12)]
    traces = []
    for seed in (None, *range(30)):
        for workers in (1, 2, 3):
            trace, result = traced(seed, workers)
            assert stamped(result["out"]) == expected
            traces.append(tuple(trace))
    assert len(set(traces)) > 60


def test_seed_turns_the_checker_on() -> None:
    assert traced(None)[1].checks == 0
    _, result = traced(1)
    assert result.checks == result.steps > 0


@pytest.mark.parametrize("check", [True, False])
def test_checker_can_be_asked_for_or_left_out(check: bool) -> None:
    flow = jt.Flow("checked")
    flow.output("out", flow.input("in"))
    rows = {"in": {"time": [1], "n": [1]}}
    for seed in (None, 1):
        assert bool(flow.run(rows, seed=seed, check=check).checks) == check


def test_flow_can_run_again() -> None:
    flow = jt.Flow("again")
    flow.output("out", flow.input("in").iterate(lambda s: s.branch(lambda b: b["n"] > 0)))
    rows = {"in": {"time": [1], "n": [1]}}
    assert [stamped(flow.run(rows, workers=w, seed=w)["out"]) for w in (1, 2, 3)] == [[(1, 1)]] * 3


@seeded
def test_two_runs_of_one_flow_do_not_meet(seed: int | None) -> None:
    flow = jt.Flow("two runs")
    flow.sequencer("commands")
    flow.output("out", flow.input("in"))
    with flow.open(workers=2, seed=seed) as one, flow.open(workers=2, seed=seed) as other:
        one.input("in").send({"time": [1], "n": [1]})
        other.input("in").send({"time": [2], "n": [2]})
        one.sequencer("commands").push("one")
        other.sequencer("commands").push("other")
        assert stamped(one.finish()["out"]) == [(1, 1)]
        assert stamped(other.finish()["out"]) == [(2, 2)]
        assert [one.sequencer("commands", w).next() for w in range(2)] == ["one"] * 2
        assert [other.sequencer("commands", w).next() for w in range(2)] == ["other"] * 2
