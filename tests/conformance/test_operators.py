"""CONFORMANCE.md, "Operators": inputs, probes, scopes, results by time, and the sequencer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.helpers import FROM_ZERO, UnaryBuild, UnaryStep, dropping, pass_on, seeded, stamped

import jeton as jt
from jeton import Antichain


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_36_probe_follows_ten_rounds(workers: int, seed: int | None) -> None:
    """Before `advance_to(r+1)` the probe is still ≤ r; after closing it is done."""
    flow = jt.Flow("rounds", time=FROM_ZERO)
    pact = jt.Exchange("n")
    flow.output("out", flow.input("n").unary(dropping(pass_on), pact=pact).probe("seen"))
    with flow.open(workers=workers, seed=seed) as run:
        probes = [run.probe("seen", worker) for worker in range(workers)]
        for r in range(10):
            for worker in range(workers):
                run.input("n", worker).send({"time": [r, r], "n": [r, r + worker]})
            run.run_to_rest()
            assert all(probe.less_equal(r) and not probe.less_than(r) for probe in probes)
            for worker in range(workers):
                assert probes[0].less_equal(r)
                run.input("n", worker).advance_to(r + 1)
            run.run_until(lambda r=r: not any(p.less_equal(r) for p in probes))  # type: ignore[misc]
        assert not any(probe.done for probe in probes)
        result = run.finish()
        assert all(probe.done for probe in probes)
        assert result["out"].num_rows == 20 * workers


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_37_delay_moves_records_to_their_times(workers: int, seed: int | None) -> None:
    """`delay` each record i of 0..9 to time i: record i comes out at i."""
    flow = jt.Flow("delay")
    flow.output("out", flow.input("in").delay(lambda batch: batch["n"]))
    rows = {"time": [0] * 10, "n": list(range(10))}
    result = flow.run({"in": rows}, workers=workers, seed=seed)
    assert stamped(result["out"]) == [(i, i) for i in range(10)]


def per_time(answer: Callable[[list[int]], dict[str, object]]) -> UnaryBuild:
    """One result for each time, once it is complete, from all its values."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()
        waiting: jt.state.TimeMap[tuple[jt.TimestampToken, list[int]]] = jt.state.TimeMap()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input.by_time():
                if ref.time not in waiting:
                    waiting[ref.time] = (ref.retain(), [])
                waiting[ref.time][1].extend(batch["n"].tolist())
            for _, (mine, values) in waiting.pop_before(input.frontier):
                with mine, output.session(mine) as session:
                    session.give(answer(values))

        return step

    return build


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_39_count_and_sum_per_time(workers: int, seed: int | None) -> None:
    """Count per time of ten records at 0 → one result 10; their sum 45."""
    flow = jt.Flow("count")
    numbers = flow.input("in")
    together = jt.Exchange("time")
    count = per_time(lambda values: {"n": len(values)})
    total = per_time(lambda values: {"n": sum(values)})
    flow.output("count", numbers.unary_frontier(count, pact=together))
    flow.output("sum", numbers.unary_frontier(total, pact=together))
    rows = {"time": [0] * 10, "n": list(range(10))}
    result = flow.run({"in": rows}, workers=workers, seed=seed)
    assert stamped(result["count"]) == [(0, 10)]
    assert stamped(result["sum"]) == [(0, 45)]


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_40_aggregate_by_parity(workers: int, seed: int | None) -> None:
    """Aggregate 0..9 by parity → (even, 20), (odd, 25)."""

    def by_parity(values: list[int]) -> dict[str, object]:
        sums = {
            parity: sum(n for n in values if n % 2 == parity) for parity in {*np.mod(values, 2)}
        }
        return {
            "parity": ["odd" if parity else "even" for parity in sums],
            "n": list(sums.values()),
        }

    flow = jt.Flow("parity")
    pact = jt.Exchange(lambda batch: batch["n"] % 2)
    flow.output("out", flow.input("in").unary_frontier(per_time(by_parity), pact=pact))
    rows = {"time": [0] * 10, "n": list(range(10))}
    table = flow.run({"in": rows}, workers=workers, seed=seed)["out"]
    assert sorted(zip(table["parity"].to_pylist(), table["n"].to_pylist(), strict=True)) == [
        ("even", 20),
        ("odd", 25),
    ]


@seeded
@pytest.mark.parametrize("order", [range(10), range(9, -1, -1), [5, 0, 9, 1, 8, 2, 7, 3, 6, 4]])
def test_43_unordered_input(order: list[int], seed: int | None) -> None:
    """Records sent at time i arrive stamped i, in any order of sending."""
    flow = jt.Flow("unordered")
    flow.output("out", flow.unordered_input("in").unary(dropping(pass_on)).probe("seen"))
    with flow.open(seed=seed) as run:
        handle = run.input("in")
        tokens: dict[int, jt.ActivatingToken] = {}
        for i in range(10):
            tokens[i] = handle.token.clone()
            tokens[i].downgrade(i)
        handle.token.drop()
        for sent, i in enumerate(order):
            left = [j for j in range(10) if j not in list(order)[:sent]]
            run.run_to_rest()
            assert run.probe("seen").frontier == Antichain([min(left)])
            with tokens[i] as token, handle.session(token) as session:
                session.give(n=i)
        assert stamped(run.finish()["out"]) == [(i, i) for i in range(10)]
        assert run.probe("seen").done


@seeded
def test_45_nested_pass_through_scopes_on_three_workers(seed: int | None) -> None:
    """Nested pass-through scopes on three workers: the probe keeps up with the input."""
    flow = jt.Flow("nested")
    stream: jt.Stream = flow.input("in")
    outer = flow.scope("outer")
    inner = outer.scope("inner")
    loop = inner.loop()
    around = stream.enter(outer).enter(inner).enter(loop)
    stream = around.unary(dropping(pass_on), pact=jt.Exchange("n")).leave().leave().leave()
    flow.output("out", stream.probe("seen"))
    with flow.open(workers=3, seed=seed) as run:
        for r in range(10):
            for worker in range(3):
                run.input("in", worker).send({"time": [r], "n": [worker]})
                run.input("in", worker).advance_to(r + 1)
            run.run_to_rest()
            for worker in range(3):
                assert run.probe("seen", worker).frontier == Antichain([r + 1])
            assert run.results()["out"].num_rows == 3 * (r + 1)
        run.finish()
        assert run.probe("seen").done


@seeded
def test_45_scopes_that_only_pass_through(seed: int | None) -> None:
    """Entering and leaving scopes and loops with nothing inside changes nothing."""
    flow = jt.Flow("pass through")
    outer = flow.scope("outer")
    loop = outer.loop("loop")
    inner = loop.loop("inner")
    inside = flow.input("in").enter(outer).enter(loop).enter(inner)
    flow.output("out", inside.leave().leave().leave().probe("seen"))
    with flow.open(workers=3, seed=seed) as run:
        for worker in range(3):
            run.input("in", worker).send({"time": [4], "n": [worker]})
            run.input("in", worker).advance_to(5)
        run.run_to_rest()
        assert run.probe("seen").frontier == Antichain([5])
        assert stamped(run.finish()["out"]) == [(4, 0), (4, 1), (4, 2)]


@seeded
@pytest.mark.parametrize("workers", [1, 2])
def test_46_branch_by_time(workers: int, seed: int | None) -> None:
    """Branch by `time >= 5` splits 0–4 from 5–9."""
    flow = jt.Flow("branch")
    before, after = flow.input("in").branch(lambda batch: batch.times >= 5)
    flow.output("before", before)
    flow.output("after", after)
    rows = {"time": list(range(10)), "n": list(range(10))}
    result = flow.run({"in": rows}, workers=workers, seed=seed)
    assert stamped(result["before"]) == [(i, i) for i in range(5)]
    assert stamped(result["after"]) == [(i, i) for i in range(5, 10)]


@pytest.mark.parametrize("seed", [None, *range(50)])
def test_48_sequencer_hands_all_workers_the_same_order(seed: int | None) -> None:
    """A sequencer hands all workers the same commands in the same order."""
    flow = jt.Flow("commands")
    flow.sequencer("commands")
    with flow.open(workers=3, seed=seed) as run:
        ends = [run.sequencer("commands", worker) for worker in range(3)]
        orders: list[list[object]] = [[] for _ in ends]

        def take() -> None:
            for end, order in zip(ends, orders, strict=True):
                while (command := end.next()) is not None:
                    order.append(command)

        for number in range(6):
            for worker, end in enumerate(ends):
                end.push({"worker": worker, "number": number})
                run.turn()
                take()
        run.finish()
        take()
        assert len(orders[0]) == 18
        assert orders[1] == orders[0]
        assert orders[2] == orders[0]
        # Each giver's own commands stay in the order in which it gave them.
        for worker in range(3):
            mine = [c["number"] for c in orders[0] if c["worker"] == worker]  # type: ignore[index]
            assert mine == list(range(6))


@seeded
@pytest.mark.parametrize("workers", [1, 2])
def test_52_empty_batch_never_stalls_a_frontier(workers: int, seed: int | None) -> None:
    """An empty batch never stalls a frontier."""

    def give_nothing(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            with output.session(ref) as session:
                session.give(batch.filter(np.zeros(len(batch), dtype=bool)))
                session.give(n=[])

    flow = jt.Flow("empty")
    nothing = flow.input("in").unary(dropping(give_nothing)).filter(lambda batch: batch["n"] > 99)
    flow.output("out", nothing.unary(dropping(pass_on), pact=jt.Exchange("n")).probe("after"))
    with flow.open(workers=workers, seed=seed) as run:
        for worker in range(workers):
            handle = run.input("in", worker)
            handle.send({"time": [], "n": []})
            handle.send({"time": [1], "n": [1]})
            handle.send(jt.Batch({"n": np.array([], dtype=np.int64)}, times=[]))
            handle.advance_to(5)
        run.run_to_rest()
        assert run.probe("after").frontier == Antichain([5])
        assert run.finish()["out"].num_rows == 0
