"""CONFORMANCE.md, "Operators": idle ones cost nothing, and there can be ten thousand of them."""

from __future__ import annotations

from tests.helpers import UnaryBuild, consume, dropping, operator, stamped

import jeton as jt
from jeton import Antichain


def test_51_idle_operators_are_never_invoked() -> None:
    """An operator that receives nothing and holds no token is never invoked, for 10⁵ times."""
    calls: list[str] = []

    def idle(name: str) -> UnaryBuild:
        def step(input: jt.Input, output: jt.Output) -> None:
            calls.append(name)
            consume(input)

        return dropping(step)

    flow = jt.Flow("idle")
    numbers = flow.input("in")
    near = numbers.unary_frontier(idle("near"), name="near")
    chain: jt.Stream = near
    for _ in range(5):
        chain = chain.map(lambda batch: batch)
    chain.unary_frontier(idle("far"), name="far").probe("after")
    with flow.open() as run:
        handle, probe = run.input("in"), run.probe("after")
        for time in range(1, 100_001):
            handle.advance_to(time)
            run.turn()
            if time % 10_000 == 0:
                assert probe.frontier == Antichain([time])
        run.finish()
        assert calls == []
        assert operator(run, "near").invocations == 0
        assert operator(run, "far").invocations == 0
        assert sum(op.invocations for op in run.workers[0].operators) == 0


def test_53_ten_thousand_operators() -> None:
    """A graph of 10⁴ operators builds in seconds and its frontiers move."""
    flow = jt.Flow("long")
    stream: jt.Stream = flow.input("in")
    for _ in range(10_000):
        stream = stream.map(lambda batch: batch)
    flow.output("out", stream.probe("end"))
    assert len(flow.operators) >= 10_000
    with flow.open() as run:
        for r in range(5):
            run.input("in").send({"time": [r], "n": [r]})
            run.input("in").advance_to(r + 1)
            run.run_to_rest()
            assert run.probe("end").frontier == Antichain([r + 1])
        assert stamped(run.finish()["out"]) == [(r, r) for r in range(5)]
        assert run.probe("end").done


def test_53_ten_thousand_operators_side_by_side() -> None:
    """The same when they branch from one stream and join again."""
    flow = jt.Flow("wide")
    source = flow.input("in")
    arms = [source.map(lambda batch: batch) for _ in range(10_000)]
    arms[0].concat(*arms[1:]).probe("end")
    with flow.open() as run:
        for r in range(3):
            run.input("in").advance_to(r + 1)
            run.run_to_rest()
            assert run.probe("end").frontier == Antichain([r + 1])
        run.finish()
        assert run.probe("end").done
