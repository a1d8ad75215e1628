"""Asynchronous operators: order, progress and room, with a service that the test controls."""

from __future__ import annotations

import asyncio
import random
from typing import Literal

import pytest
from tests.helpers import seeded
from tests.idioms.asking import Arrivals, Row, Told, numbers, table

import jeton as jt
from jeton.idioms.map_async import map_async
from jeton.idioms.pending_calls import Order

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.mark.parametrize("order", ["by time", "as they come"])
def test_the_two_orders(order: Literal["by time", "as they come"]) -> None:
    service = Told()
    flow = jt.Flow("orders")
    seen = Arrivals()
    answers = map_async(flow.input("in"), service.ask, order=order)
    flow.output("out", seen.after(answers).probe("after"))
    with flow.open() as run:
        run.input("in").send({"time": [1, 2, 3, 4], "n": [1, 2, 3, 4]})
        run.input("in").advance_to(4)
        service.allow(3)
        if order == "as they come":
            run.run_until(lambda: seen.ns == [3])
        service.allow(4)
        if order == "as they come":
            run.run_until(lambda: seen.ns == [3, 4])
        assert run.probe("after").less_equal(1)
        assert not seen.ns or order == "as they come"
        service.allow(2, 1)
        run.run_until(lambda: set(seen.ns) >= {1, 2, 3})
        # The last is answered, but more may come at its time.
        assert seen.ns[-1] == 3 if order == "by time" else 4 in seen.ns
        run.run_until(lambda: not run.probe("after").less_than(4))
        run.finish()
    if order == "by time":
        assert seen.ns == [1, 2, 3, 4]
    assert sorted(seen.ns) == [1, 2, 3, 4]


@pytest.mark.parametrize("order", ["by time", "as they come"])
@seeded
def test_windows_behind_are_right(seed: int | None, order: Order) -> None:
    rng = random.Random(seed)

    async def ask(row: Row) -> Row:
        await asyncio.sleep(rng.random() * 0.004)
        return {"n": row["n"], "time": row["time"] + row["n"] % 3}

    flow = jt.Flow("windows")
    answers = map_async(flow.input("in"), ask, concurrency=7, order=order)
    flow.output("counts", answers.key_by().tumbling(5).count())
    rows = numbers(80, times=40)
    result = flow.run({"in": rows}, workers=2, seed=seed)
    expected: dict[int, int] = {}
    for t, n in zip(rows["time"], rows["n"], strict=True):
        end = ((t + n % 3) // 5 + 1) * 5
        expected[end] = expected.get(end, 0) + 1
    assert sorted(table(result, "counts")) == sorted(expected.items())
    assert result.leaks == []


def test_no_more_is_asked_when_there_is_enough_to_do() -> None:
    service = Told()
    flow = jt.Flow("room")
    flow.output("out", map_async(flow.input("in"), service.ask, concurrency=2))
    with flow.open() as run:
        for n in range(50):
            run.input("in").send({"time": [n], "n": [n]})
        run.run_to_rest()  # comes to rest: no operator polls for room
        service.await_calls(2)
        assert service.asked == [0, 1]
        steps = run.steps
        service.allow_all()
        result = run.finish()
    assert len(service.asked) == 50
    assert result["out"]["n"].to_pylist() == list(range(50))
    assert run.steps - steps < 200


@pytest.mark.parametrize("order", ["by time", "as they come"])
@seeded
def test_messages_that_wait_their_turn_come_in_any_order_of_time(
    seed: int | None, order: Order
) -> None:
    """The least that is left may be in any message, and only part of one may be asked."""

    async def ask(row: Row) -> Row:
        await asyncio.sleep(0)
        return {"n": row["n"]}

    flow = jt.Flow("mixed")
    seen = Arrivals()
    answers = map_async(flow.input("in"), ask, concurrency=1, order=order)
    flow.output("out", seen.after(answers).probe("after"))
    rows = numbers(40, times=40)
    with flow.open(seed=seed) as run:
        for at in range(0, 40, 4):
            run.input("in").send({name: rows[name][at : at + 4] for name in rows})
        run.finish()
    assert sorted(seen.ns) == list(range(40))
    if order == "by time":
        assert seen.times == sorted(seen.times)


def test_answers_that_wait_for_an_earlier_one_do_not_pile_up() -> None:
    asked: list[int] = []
    meanwhile: list[int] = []

    async def ask(row: Row) -> Row:
        asked.append(row["n"])
        if row["n"] == 0:  # the slowest of all
            for _ in range(500):
                await asyncio.sleep(0.001)
                if len(asked) > 100:
                    break
            meanwhile.append(len(asked))
        return {"n": row["n"]}

    flow = jt.Flow("pile")
    seen = Arrivals()
    flow.output("out", seen.after(map_async(flow.input("in"), ask, concurrency=4, waiting=20)))
    with flow.open() as run:
        for n in range(1000):
            run.input("in").send({"time": [n], "n": [n]})
        run.input("in").advance_to(1000)
        run.finish()
    # Twenty that wait, and what was under way when there were as many.
    assert 20 < meanwhile[0] <= 20 + 2 * 4
    assert seen.ns == list(range(1000))


def test_answers_that_wait_for_the_frontier_do_not_stop_the_flow() -> None:
    async def ask(row: Row) -> Row:
        return {"n": row["n"]}

    flow = jt.Flow("same time")
    flow.output("out", map_async(flow.input("in"), ask, concurrency=2, waiting=3))
    with flow.open() as run:
        for n in range(40):
            run.input("in").send({"time": [5], "n": [n]})
        assert run.finish()["out"].num_rows == 40
