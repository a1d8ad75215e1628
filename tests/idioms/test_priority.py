"""Agendas: everything at its own time, in order, whatever the schedule, and under one token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import UnaryStep, seeded
from tests.operators.twins import Schedule, assert_same, run_twin, schedules

import jeton as jt
from jeton.errors import FlowStalled, GraphError, TimeError
from jeton.idioms.priority import Agenda, HeapAgenda, schedule

AGENDAS: list[Any] = [Agenda, HeapAgenda]


def releasing(make: Any, *, inclusive: bool = False) -> Callable[..., UnaryStep]:
    """An operator that releases records at their times ``due``, with the agenda of your choice."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        agenda = make(info.kind, ["due"])
        info.keep(agenda, token)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                agenda.push(ref, batch, batch["due"])
            for held, batch in agenda.pop_before(input.frontier, inclusive=inclusive):
                output.session(held).give(batch)

        return step

    return build


records = st.lists(
    st.builds(
        lambda time, wait, key: {"time": time, "due": time + wait, "key": key},
        st.integers(0, 30),
        st.integers(0, 40),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=25,
)


@given(rows=records, how=schedules(), inclusive=st.booleans())
@settings(max_examples=100)
def test_schedule_and_its_twin(rows: list[dict[str, int]], how: Schedule, inclusive: bool) -> None:
    def build(flow: jt.Flow) -> None:
        released = schedule(flow.input("in"), at="due", key=["key"], inclusive=inclusive)
        flow.output("out", released)

    found = run_twin(build, {"in": rows}, how)["out"]
    assert_same(found, [{**row, "time": row["due"]} for row in rows])


@given(rows=records, seed=st.integers(0, 1000))
@settings(max_examples=50)
def test_both_agendas_say_the_same_in_the_same_order(rows: list[dict[str, int]], seed: int) -> None:
    def emitted(make: Any) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []

        def note(batch: jt.Batch) -> jt.Batch:
            found.extend(zip(batch.times.tolist(), batch["n"].tolist(), strict=True))
            return batch

        flow = jt.Flow("agenda")
        released = flow.input("in").unary_frontier(releasing(make))
        flow.output("out", released.map(note))
        numbered = [{**row, "n": n} for n, row in enumerate(rows)]
        with flow.open(seed=seed) as run:
            for row in numbered:  # in the order given, so that equal times can be compared
                run.input("in").send([row])
                run.turn()
            run.finish()
        return found

    by_heap = emitted(HeapAgenda)
    assert by_heap == emitted(Agenda)
    assert by_heap == sorted((row["due"], n) for n, row in enumerate(rows))


@pytest.mark.parametrize("make", AGENDAS)
def test_one_token_stands_for_all_that_waits(make: Any) -> None:
    flow = jt.Flow("one")
    out = flow.input("in").unary_frontier(releasing(make), name="agenda")
    flow.output("out", out.probe("after"))
    with flow.open() as run:
        due = np.random.default_rng(1).permutation(1000) + 50
        for at in range(0, 1000, 100):
            run.input("in").send({"time": [0] * 100, "due": due[at : at + 100]})
        run.input("in").close()
        run.run_to_rest()
        assert run.results()["out"].num_rows == 1000
        assert run.probe("after").done
    with flow.open() as run:
        for at in range(0, 1000, 100):
            run.input("in").send({"time": [0] * 100, "due": due[at : at + 100]})
            run.run_to_rest()
        run.input("in").advance_to(60)
        with pytest.raises(FlowStalled, match=r"'agenda' holds 1 token at 60 on worker 0: "):
            run.run_until(lambda: run.probe("after").done)
        assert run.results()["out"]["time"].to_pylist() == list(range(50, 60))


@pytest.mark.parametrize("make", AGENDAS)
@pytest.mark.parametrize(("inclusive", "expected"), [(False, [4]), (True, [4, 5])])
def test_what_is_due_at_the_frontier(make: Any, inclusive: bool, expected: list[int]) -> None:
    flow = jt.Flow("edge")
    build = releasing(make, inclusive=inclusive)
    flow.output("out", flow.input("in").unary_frontier(build))
    with flow.open() as run:
        run.input("in").send({"time": [0, 0, 0], "due": [6, 5, 4]})
        run.input("in").advance_to(5)
        run.run_to_rest()
        assert run.results()["out"]["time"].to_pylist() == expected
        assert run.finish()["out"]["time"].to_pylist() == [4, 5, 6]


@pytest.mark.parametrize(("inclusive", "expected"), [(False, [4]), (True, [4, 5])])
def test_schedule_at_the_frontier(inclusive: bool, expected: list[int]) -> None:
    flow = jt.Flow("edge")
    flow.output("out", schedule(flow.input("in"), at="due", inclusive=inclusive))
    with flow.open() as run:
        run.input("in").send({"time": [0, 0, 0], "due": [6, 5, 4]})
        run.input("in").advance_to(5)
        run.run_to_rest()
        assert run.results()["out"]["time"].to_pylist() == expected
        assert run.finish()["out"]["time"].to_pylist() == [4, 5, 6]


@seeded
def test_each_key_comes_in_order_on_one_worker(seed: int | None) -> None:
    found: dict[int, list[tuple[int, int]]] = {}

    def note(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for _, batch in input:
                for key, due in zip(batch["key"].tolist(), batch.times.tolist(), strict=True):
                    found.setdefault(key, []).append((info.worker, due))

        return step

    flow = jt.Flow("keys")
    schedule(flow.input("in"), at="due", key=["key"]).unary(note)
    numbers = np.random.default_rng(3).permutation(60)
    rows = {"time": numbers // 6, "key": numbers % 5, "due": numbers + 10}
    flow.run({"in": rows}, workers=3, seed=seed)
    assert len({worker for emitted in found.values() for worker, _ in emitted}) > 1
    for key, emitted in found.items():
        assert len({worker for worker, _ in emitted}) == 1
        assert [due for _, due in emitted] == [n + 10 for n in range(60) if n % 5 == key]


@pytest.mark.parametrize("make", AGENDAS)
@seeded
def test_work_leads_to_more_work(seed: int | None, make: Any) -> None:
    """Each record comes again after its own ``wait``, three times over."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        agenda = make(info.kind)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                agenda.push(ref, batch.with_columns({"round": [0] * len(batch)}))
            for held, batch in agenda.pop_before(input.frontier):
                output.session(held).give(batch)
                again = batch.filter(batch["round"] < 3)
                later = again.with_columns({"round": again["round"] + 1})
                agenda.push(held, later, again.times + again["wait"])

        return step

    flow = jt.Flow("again")
    flow.output("out", flow.input("in").unary_frontier(build))
    rows = {"time": [3, 1, 9], "wait": [1, 7, 2]}
    result = flow.run({"in": rows}, workers=2, seed=seed)
    expected = [(t + r * w, w, r) for t, w in zip(*rows.values(), strict=True) for r in range(4)]
    assert sorted(tuple(r.values()) for r in result["out"].to_pylist()) == sorted(expected)
    assert result.leaks == []


@pytest.mark.parametrize(
    ("make", "in_a_loop"), [(Agenda, False), (HeapAgenda, False), (Agenda, True)]
)
def test_leaving_early_loses_nothing(make: Any, in_a_loop: bool) -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        agenda = make(info.kind)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                agenda.push(ref, batch)
            for held, batch in agenda.pop_before(input.frontier):
                output.session(held).give(batch)
                info.activator.activate()
                break

        return step

    flow = jt.Flow("early")
    rows = flow.input("in")
    if in_a_loop:
        loop = flow.loop()
        flow.output("out", rows.enter(loop).unary_frontier(build).leave())
    else:
        flow.output("out", rows.unary_frontier(build))
    result = flow.run({"in": {"time": [4, 2, 3, 2], "n": [1, 2, 3, 4]}})
    assert result["out"].to_pylist() == [
        {"time": 2, "n": 2},
        {"time": 2, "n": 4},
        {"time": 3, "n": 3},
        {"time": 4, "n": 1},
    ]
    assert result.leaks == []


@seeded
def test_partially_ordered_times(seed: int | None) -> None:
    """Inside a loop: each round waits for its own time of each outer time."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        agenda = Agenda(info.kind)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                agenda.push(ref, batch)
            for held, batch in agenda.pop_before(input.frontier):
                output.session(held).give(batch)

        return step

    flow = jt.Flow("loop")
    loop = flow.loop()
    again = loop.feedback()
    rounds = flow.input("in").enter(loop).concat(again.stream).unary_frontier(build)
    again.connect(
        rounds.filter(lambda batch: batch["n"] > 1).map(lambda batch: {"n": batch["n"] // 2})
    )
    flow.output("out", rounds.leave())
    result = flow.run({"in": {"time": [0, 5, 5], "n": [9, 4, 2]}}, workers=2, seed=seed)
    found = sorted(tuple(row.values()) for row in result["out"].to_pylist())
    assert found == sorted([(0, 9), (0, 4), (0, 2), (0, 1), (5, 4), (5, 2), (5, 1), (5, 2), (5, 1)])


@pytest.mark.parametrize("make", AGENDAS)
@given(rows=records, how=schedules())
@settings(max_examples=15, deadline=None)
def test_what_waits_is_a_part_of_snapshots(
    make: Any, rows: list[dict[str, int]], how: Schedule
) -> None:
    def build(flow: jt.Flow) -> None:
        released = flow.input("in").unary_frontier(releasing(make), pact=jt.Exchange("due"))
        flow.output("out", released)

    found = run_twin(build, {"in": rows}, how)["out"]
    assert_same(found, [{**row, "time": row["due"]} for row in rows])


@pytest.mark.parametrize("make", AGENDAS)
def test_after_a_restart_records_are_where_their_keys_are(make: Any) -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        agenda = make(info.kind, ["key"])
        info.keep(agenda, token)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                agenda.push(ref, batch)
            for held, batch in agenda.pop_before(input.frontier):
                where = np.full(len(batch), info.worker)
                output.session(held).give(batch.with_columns({"worker": where}))

        return step

    flow = jt.Flow("places")
    flow.output("out", flow.input("in").unary_frontier(build, pact=jt.Exchange("key")))
    rows = {"time": [1] * 20, "key": list(range(20))}
    with flow.open(workers=2) as run:
        run.input("in").send(rows)
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=3, restore=snapshot) as run:
        run.input("in").send(rows)
        found = run.finish()["out"].to_pylist()
    places = {(row["key"], row["worker"]) for row in found}
    assert len(found) == 40
    assert len(places) == 20


def test_a_million_distinct_times() -> None:
    count = 1_000_000
    due = np.random.default_rng(2).permutation(count) + 10
    flow = jt.Flow("million")
    flow.output("out", schedule(flow.input("in"), at="due"))
    result = flow.run({"in": {"time": np.zeros(count, np.int64), "due": due}})
    assert (result["out"]["time"].to_numpy() == np.arange(10, count + 10)).all()


def test_a_function_of_the_batch_says_when() -> None:
    flow = jt.Flow("function")
    flow.output("out", schedule(flow.input("in"), at=lambda batch: batch.times * 10))
    result = flow.run({"in": {"time": [2, 1], "n": [1, 2]}})
    assert result["out"].to_pylist() == [{"time": 10, "n": 2}, {"time": 20, "n": 1}]


def test_text_and_another_name_for_the_time() -> None:
    flow = jt.Flow("text")
    rows = flow.input("in", time="ts")
    flow.output("heap", rows.unary_frontier(releasing(HeapAgenda)))
    flow.output("columns", rows.unary_frontier(releasing(Agenda)))
    given = {"ts": [1, 1], "time": ["a", None], "due": [9, 8]}
    result = flow.run({"in": given})
    expected = [{"ts": 8, "time": None, "due": 8}, {"ts": 9, "time": "a", "due": 9}]
    assert result["heap"].to_pylist() == result["columns"].to_pylist() == expected


def test_misuse_is_reported() -> None:
    flow = jt.Flow("wrong")
    rows = flow.input("in", schema={"due": int})
    with pytest.raises(GraphError, match=r"'dues': did you mean 'due'"):
        schedule(rows, at="dues")
    with pytest.raises(GraphError, match="inside a loop"):
        schedule(rows.enter(flow.loop()), at="due")
    for due, says in [
        (pa.array([9, None]), "1 of 2 records have no time to wait for, but null"),
        (pa.array([9, 2**63], pa.uint64()), "9223372036854775808 is beyond the end of time"),
    ]:
        wrong = jt.Flow("wrong")
        wrong.output("out", schedule(wrong.input("in"), at="due", name="mine"))
        with pytest.raises(TimeError, match=rf"{says}.*operator 'mine'"):
            wrong.run({"in": {"time": [3, 5], "due": due}})
    flow.output("out", schedule(rows, at="due", name="mine"))
    with pytest.raises(TimeError, match=r"time 5 is to wait for 4.*operator 'mine'"):
        flow.run({"in": {"time": [3, 5], "due": [9, 4]}})
    flow = jt.Flow("heap")
    loop = flow.loop()
    flow.input("in").enter(loop).unary_frontier(releasing(HeapAgenda), name="mine")
    with pytest.raises(TimeError, match=r"totally ordered.*operator 'loop.mine'"):
        flow.run({"in": {"time": []}})
