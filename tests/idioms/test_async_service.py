"""Asynchronous operators and a real service: nothing lost, nothing twice, no worker waits."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from tests.helpers import seeded
from tests.idioms.asking import Arrivals, Row, asking, numbers, table
from tests.idioms.service import get, serving
from tests.mesh import harness

import jeton as jt
from jeton.errors import OperatorFailed
from jeton.idioms.event_loop import SWITCH_INTERVAL
from jeton.idioms.map_async import map_async, try_map_async
from jeton.idioms.pending_calls import Order

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.mark.parametrize("workers", [1, 3])
@seeded
def test_every_record_is_answered_once_in_order_of_time(seed: int | None, workers: int) -> None:
    with serving(delay=0.002) as (service, port):
        flow = jt.Flow("ask")
        seen = Arrivals()
        flow.output("out", seen.after(map_async(flow.input("in"), asking(port), concurrency=8)))
        result = flow.run({"in": numbers(60)}, workers=workers, seed=seed)
    assert sorted(table(result, "out")) == sorted((n % 7, n, 10 * n) for n in range(60))
    assert service.asked == dict.fromkeys(range(60), 1)
    if workers == 1:
        assert seen.times == sorted(seen.times)


def test_answers_come_in_order_of_time_although_the_service_is_out_of_order() -> None:
    with serving(delay=0.0) as (service, port):
        first = threading.Event()

        async def ask(row: Row) -> Row:
            if row["n"] == 0:
                while not first.is_set():
                    await asyncio.sleep(0.001)
            answer = await get(port, row["n"])
            if row["n"] == 29:
                first.set()
            return {"n": row["n"], "answer": answer}

        flow = jt.Flow("ask")
        seen = Arrivals()
        flow.output("out", seen.after(map_async(flow.input("in"), ask, concurrency=3)))
        flow.run({"in": {"time": list(range(30)), "n": list(range(30))}})
    assert service.answers.index(0) > service.answers.index(28)
    assert seen.ns == list(range(30))


def test_a_neighbour_goes_on_while_all_calls_are_slow() -> None:
    events: list[str] = []
    with serving() as (service, port):
        service.gate.clear()

        async def ask(row: Row) -> Row:
            answer = await get(port, row["n"])
            events.append("answer")
            return {"n": row["n"], "answer": answer}

        flow = jt.Flow("neighbours")
        rows = flow.input("in")
        flow.output("slow", map_async(rows, ask, concurrency=4))
        flow.output("quick", rows.key_by().tumbling(10).count().probe("quick"))
        with flow.open() as run:
            run.feed({"in": {"time": list(range(40)), "n": list(range(40))}})
            run.run_until(lambda: run.probe("quick").done)
            events.append("neighbour is done")
            assert run.results()["quick"]["count"].to_pylist() == [10] * 4
            service.gate.set()
            result = run.finish()
    assert events[0] == "neighbour is done"
    assert result["slow"].num_rows == 40


def test_no_more_calls_at_a_time_than_allowed() -> None:
    with serving() as (service, port):
        flow = jt.Flow("few")
        flow.output("out", map_async(flow.input("in"), asking(port), concurrency=5))
        result = flow.run({"in": numbers(20)})
    assert result["out"].num_rows == 20
    assert service.most == 5


def test_a_call_that_fails_at_first_is_tried_again() -> None:
    def status(n: int, attempt: int) -> int:
        return 500 if n % 3 == 0 and attempt == 1 else 200

    with serving(status, delay=0.0) as (service, port):
        flow = jt.Flow("again")
        flow.output("out", map_async(flow.input("in"), asking(port), retries=2, backoff=0.001))
        result = flow.run({"in": numbers(30)}, workers=2)
    assert sorted(table(result, "out")) == sorted((n % 7, n, 10 * n) for n in range(30))
    assert service.asked == {n: 2 if n % 3 == 0 else 1 for n in range(30)}


@pytest.mark.parametrize("order", ["by time", "as they come"])
@seeded
def test_a_call_that_fails_always_is_distinguished(seed: int | None, order: Order) -> None:
    with serving(lambda n, _: 500 if n % 3 == 0 else 200, delay=0.0) as (service, port):
        flow = jt.Flow("apart")
        answered, rejected = try_map_async(
            flow.input("in"), asking(port), retries=1, backoff=0.001, order=order
        )
        flow.output("answered", answered)
        flow.output("rejected", rejected)
        result = flow.run({"in": numbers(30)}, workers=2, seed=seed)
    good, bad = [n for n in range(30) if n % 3], [n for n in range(30) if n % 3 == 0]
    text = "OSError: the service answered 500"
    assert sorted(table(result, "answered")) == sorted((n % 7, n, 10 * n) for n in good)
    assert sorted(table(result, "rejected")) == sorted((n % 7, n, text, 2) for n in bad)
    assert service.asked == {n: 1 if n % 3 else 2 for n in range(30)}


def test_without_a_way_out_a_failure_fails_the_flow() -> None:
    with serving(lambda n, _: 500 if n == 4 else 200, delay=0.0) as (_, port):
        flow = jt.Flow("fails")
        rows = map_async(flow.input("in"), asking(port), name="lookup")
        flow.output("out", rows)
        with pytest.raises(OperatorFailed, match=r"answered 500 .*'lookup', worker 0, time 4\]"):
            flow.run({"in": {"time": list(range(9)), "n": list(range(9))}})


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_in_processes_of_their_own_are_woken(workers: int) -> None:
    def make() -> jt.Flow:
        async def ask(row: Row) -> Row:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /{row['n']} HTTP/1.0\r\n\r\n".encode())
            body = (await reader.read()).rpartition(b"\r\n")[2]
            writer.close()
            await writer.wait_closed()
            return {"n": row["n"], "answer": int(body)}

        flow = jt.Flow("processes")
        rows = flow.input("in").exchange("n")
        flow.output("out", map_async(rows, ask, concurrency=3))
        flow.output("counts", map_async(rows, ask, concurrency=3).key_by().each_time().count())
        return flow

    with serving(delay=0.001) as (_, port):
        reports = harness.run(make, {"in": numbers(40)}, workers=workers)
    assert harness.gathered(reports, "out") == harness.in_order(
        {"time": n % 7, "n": n, "answer": 10 * n} for n in range(40)
    )
    assert sorted(harness.gathered(reports, "counts")) == [(t, 6 - (t > 4)) for t in range(7)]


def test_neighbours_go_first() -> None:
    events: list[str] = []

    async def ask(row: Row) -> None:
        events.append("asked")

    def note(batch: jt.Batch) -> jt.Batch:
        events.append("counted")
        return batch

    flow = jt.Flow("first")
    rows = flow.input("in")
    map_async(rows, ask).probe("asked")
    rows.key_by().each_time().count().map(note).probe("counted")
    with flow.open() as run:
        for n in range(5):
            run.input("in").send({"time": [n], "n": [n]})
            run.input("in").advance_to(n + 1)
            run.run_until(lambda n=n: run.probe("asked").frontier.passed(n))  # type: ignore[misc]
    assert events == ["counted", "asked"] * 5


def test_threads_take_turns_soon_while_there_are_calls() -> None:
    before = sys.getswitchinterval()
    during: list[float] = []

    async def ask(row: Row) -> None:
        during.append(sys.getswitchinterval())

    flow = jt.Flow("turns")
    map_async(flow.input("a"), ask)
    map_async(flow.input("b"), ask)
    flow.run({"a": numbers(3), "b": numbers(3)}, workers=2)
    assert during == pytest.approx([SWITCH_INTERVAL] * 6)
    assert sys.getswitchinterval() == pytest.approx(before)
