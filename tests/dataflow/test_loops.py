"""Loops: feedback, iterate, loops in loops, and cycles that are refused."""

from __future__ import annotations

import pytest
from tests.helpers import dropping, pass_on, seeded, stamped

import jeton as jt
from jeton import Antichain, Product
from jeton.errors import GraphError, JetonError, ZeroCycleError


def decrement(batch: jt.Batch) -> jt.Batch:
    return batch.with_columns({"n": batch["n"] - 1})


def count_down(numbers: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
    going, done = numbers.branch(lambda batch: batch["n"] <= 0)
    return going.map(decrement), done


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_iterate_goes_around_until_nothing_is_left(workers: int, seed: int | None) -> None:
    rounds: list[int] = []

    def body(numbers: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        spread = numbers.unary(dropping(pass_on), pact=jt.Exchange("n"))
        back, out = count_down(spread)
        return back, out.inspect(lambda batch: rounds.extend(batch.times[:, 1].tolist()))

    flow = jt.Flow("count down")
    flow.output("out", flow.input("in").iterate(body).probe("after"))
    rows = {"time": [0, 0, 5], "n": [3, 0, 2], "start": [3, 0, 2]}
    result = flow.run({"in": rows}, workers=workers, seed=seed)
    assert stamped(result["out"], "start") == [(0, 0), (0, 3), (5, 2)]
    assert sorted(rounds) == [0, 2, 3]


@seeded
def test_frontier_outside_waits_for_what_goes_around(seed: int | None) -> None:
    seen: list[int] = []
    flow = jt.Flow("held in the loop")
    done = flow.input("in").iterate(count_down)
    done.inspect(lambda batch: seen.extend(batch["n"].tolist())).probe("after")
    with flow.open(workers=2, seed=seed) as run:
        run.input("in", 0).send({"time": [1], "n": [50]})
        for worker in range(2):
            run.input("in", worker).advance_to(9)
        run.run_until(lambda: not run.probe("after").less_equal(1))
        assert seen == [0]
        run.run_to_rest()
        assert run.probe("after").frontier == Antichain([9])


@seeded
def test_feedback_adds_its_step(seed: int | None) -> None:
    flow = jt.Flow("every third")
    again = flow.feedback(step=3)
    numbers = flow.input("in").concat(again.stream)
    again.connect(numbers.map(decrement).filter(lambda batch: batch["n"] > 0))
    flow.output("out", numbers)
    result = flow.run({"in": {"time": [1], "n": [3]}}, workers=2, seed=seed)
    assert stamped(result["out"]) == [(1, 3), (4, 2), (7, 1)]


@seeded
def test_loops_nest(seed: int | None) -> None:
    seen: list[Product] = []

    def outer_body(numbers: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        def inner_body(inside: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
            look = inside.inspect(
                lambda batch: seen.extend(Product.of(tuple(t)) for t in batch.times.tolist())
            )
            going, done = look.branch(lambda batch: batch["n"] % 3 == 0)
            return going.map(decrement), done

        going, done = numbers.iterate(inner_body, name="inner").branch(lambda b: b["n"] <= 0)
        return going.map(decrement), done

    flow = jt.Flow("nested")
    flow.output("out", flow.input("in").iterate(outer_body, name="outer").probe("after"))
    result = flow.run({"in": {"time": [4], "n": [5]}}, workers=2, seed=seed)
    assert stamped(result["out"]) == [(4, 0)]
    # 5 → 4 → 3 in the inner loop, out and on to 2 → 1 → 0.
    assert sorted(seen, key=Product.sort_key) == [
        Product(4, outer, inner) for outer in (0, 1) for inner in (0, 1, 2)
    ]


@seeded
def test_loop_with_a_time_column_of_another_name(seed: int | None) -> None:
    flow = jt.Flow("named")
    flow.output("out", flow.input("in", time="ts").iterate(count_down))
    result = flow.run({"in": {"ts": [4], "n": [2], "time": ["noon"]}}, workers=2, seed=seed)
    assert result["out"].to_pylist() == [{"ts": 4, "n": 0, "time": "noon"}]


@seeded
def test_feedback_that_is_never_connected_stays_silent(seed: int | None) -> None:
    flow = jt.Flow("open end")
    again = flow.feedback()
    flow.output("out", flow.input("in").concat(again.stream))
    assert stamped(flow.run({"in": {"time": [1], "n": [1]}}, seed=seed)["out"]) == [(1, 1)]


def test_feedback_must_advance() -> None:
    flow = jt.Flow("still")
    with pytest.raises(GraphError, match="at least 1"):
        flow.feedback(step=0)
    with pytest.raises(GraphError, match="at least 1"):
        flow.feedback(step=jt.IDENTITY)


def test_feedback_is_connected_once() -> None:
    flow = jt.Flow("twice")
    again = flow.feedback(name="again")
    numbers = flow.input("in").concat(again.stream)
    again.connect(numbers)
    with pytest.raises(GraphError, match="'again' is connected already"):
        again.connect(numbers)


def test_cycle_that_forgets_its_rounds_is_refused_naming_its_operators() -> None:
    flow = jt.Flow("zero")
    loop = flow.loop("loop")
    again = loop.feedback(name="again")
    outside = flow.input("in").concat(again.stream.leave()).map(lambda b: b, name="outside")
    again.connect(outside.enter(loop).map(lambda b: b, name="inside"))
    with pytest.raises(ZeroCycleError) as caught:
        flow.run({"in": {"time": [0], "n": [1]}})
    for name in ("'loop.again'", "'outside'", "'loop.inside'"):
        assert name in str(caught.value)
    assert "'in'" not in str(caught.value)


@seeded
def test_cycle_around_a_loop_that_advances_outside_is_fine(seed: int | None) -> None:
    flow = jt.Flow("both")
    again = flow.feedback()
    numbers = flow.input("in").concat(again.stream).iterate(count_down)
    flow.output("out", numbers)
    again.connect(numbers.map(lambda b: b).filter(lambda b: b["more"] & (b.times < 3)))
    rows = {"time": [0], "n": [2], "more": [True]}
    result = flow.run({"in": rows}, workers=2, seed=seed)
    assert result["out"]["time"].to_pylist() == [0, 1, 2, 3]


def test_rounds_end_with_time() -> None:
    flow = jt.Flow("the end")
    again = flow.feedback(step=5)
    again.connect(flow.input("in").concat(again.stream).probe("seen"))
    with flow.open() as run:
        run.input("in").advance_to(jt.END_OF_TIME - 3)
        run.run_to_rest()
        assert run.probe("seen").frontier == Antichain([jt.END_OF_TIME - 3])
        run.input("in").send(n=[1])
        with pytest.raises(JetonError, match="past the end of time"):
            run.finish()
