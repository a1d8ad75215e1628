"""Asynchronous operators: nothing lost, nothing twice, in order, and nobody waits for them."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import pytest
from tests.helpers import seeded
from tests.idioms.service import get, serving
from tests.mesh import harness

import jeton as jt
from jeton.idioms.asynchronous import async_operator, async_unary
from jeton.idioms.calls import Order
from jeton.idioms.event_loop import AsyncInput, AsyncOutput, Event
from jeton.idioms.map_async import map_async, try_map_async

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert {t for t in threading.enumerate() if t.is_alive()} <= before


def asking(port: int) -> Callable[[Row], Any]:
    async def ask(row: Row) -> Row:
        return {"n": row["n"], "answer": await get(port, row["n"])}

    return ask


def numbers(count: int, times: int = 7) -> dict[str, list[int]]:
    mixed = random.Random(1).sample(range(count), count)
    return {"time": [n % times for n in mixed], "n": mixed}


def table(result: jt.Result, name: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in result[name].to_pylist()]


class Arrivals:
    """Notes the order in which records arrive at a place, on one worker."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.ns: list[int] = []

    def after(self, stream: jt.Stream) -> jt.Stream:
        def note(batch: jt.Batch) -> jt.Batch:
            self.times += batch.times.tolist()
            self.ns += batch["n"].tolist()
            return batch

        return stream.map(note)


# A real service


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
def test_a_call_that_fails_always_is_told_apart(seed: int | None, order: Order) -> None:
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
        with pytest.raises(jt.OperatorFailed, match=r"answered 500 .*'lookup', worker 0, time 4\]"):
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


# Order, progress and room, with a service that does as it is told


class Told:
    """A service that answers a number when it is told to."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.cancelled = 0
        self._allowed: set[int] = set()
        self._all = False
        self._calls = threading.Semaphore(0)

    def allow(self, *ns: int) -> None:
        self._allowed.update(ns)

    def allow_all(self) -> None:
        self._all = True

    def await_calls(self, count: int) -> None:
        """Wait until so many more calls have begun."""
        for _ in range(count):
            assert self._calls.acquire(timeout=20.0)

    async def ask(self, row: Row) -> Row:
        n: int = row["n"]
        self.asked.append(n)
        self._calls.release()
        try:
            while not (self._all or n in self._allowed):
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return {"n": n}


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


def test_input_is_left_alone_when_there_is_enough_to_do() -> None:
    service = Told()
    flow = jt.Flow("room")
    flow.output("out", map_async(flow.input("in"), service.ask, concurrency=2))
    with flow.open() as run:
        for n in range(50):
            run.input("in").send({"time": [n], "n": [n]})
        run.run_to_rest()  # comes to rest: nobody looks again and again for room
        assert run.workers[0].queued == 50 - 2 * 2
        steps = run.steps
        service.allow_all()
        result = run.finish()
    assert len(service.asked) == 50
    assert result["out"]["n"].to_pylist() == list(range(50))
    assert run.steps - steps < 200


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


# Coroutines of one's own


@pytest.mark.parametrize("rows", [None, 1, 4])
@pytest.mark.parametrize("workers", [1, 2])
@seeded
def test_events_are_dealt_out_to_the_coroutines(
    seed: int | None, workers: int, rows: int | None
) -> None:
    sizes: list[int] = []

    async def split(input: AsyncInput, even: AsyncOutput, odd: AsyncOutput) -> None:
        async for event in input:
            sizes.append(len(event.batch))
            batch = event.batch
            await asyncio.sleep(0)
            even.give(event, batch.filter(batch["n"] % 2 == 0))
            odd.give(event, {"n": batch["n"], "of": [len(batch)] * len(batch)}, times=batch.times)

    flow = jt.Flow("split")
    even, odd = async_operator(flow.input("in"), split, outputs=2, rows=rows, concurrency=3)
    flow.output("even", even)
    flow.output("all", odd)
    result = flow.run({"in": numbers(50)}, workers=workers, seed=seed)
    assert sorted(table(result, "even")) == sorted((n % 7, n) for n in range(0, 50, 2))
    assert sorted((t, n) for t, n, _ in table(result, "all")) == sorted(
        (n % 7, n) for n in range(50)
    )
    assert sum(sizes) == 50
    assert rows is None or max(sizes) <= rows


def test_batches_with_map_async() -> None:
    async def double(batch: jt.Batch) -> Any:
        return {"n": batch["n"] * 2} if batch["n"][0] % 2 else batch

    flow = jt.Flow("double")
    flow.output("out", map_async(flow.input("in"), double, rows=1))
    result = flow.run({"in": {"time": [1, 2], "n": [3, 4]}})
    assert table(result, "out") == [(1, 6), (2, 4)]


def test_rows_become_none_or_several() -> None:
    async def spread(row: Row) -> list[Row] | None:
        n = row["n"]
        return [{"n": n, "time": row["time"] + k} for k in range(n)] if n else None

    flow = jt.Flow("spread")
    flow.output("out", map_async(flow.input("in"), spread))
    result = flow.run({"in": {"time": [1, 2, 3], "n": [2, 0, 1]}})
    assert table(result, "out") == [(1, 2), (2, 2), (3, 1)]


def test_the_client_is_shared_and_closed() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def client() -> AsyncIterator[list[str]]:
        log.append("open")
        try:
            yield log
        finally:
            await asyncio.sleep(0)
            log.append("close")

    async def ask(row: Row, client: list[str]) -> Row:
        client.append("ask")
        return row

    flow = jt.Flow("client")
    seen = Arrivals()
    answers = map_async(flow.input("in"), ask, client=client, order="as they come")
    flow.output("out", seen.after(answers))
    with flow.open() as run:
        run.input("in").send(numbers(3))
        run.run_until(lambda: len(seen.ns) == 3)
        run.run_to_rest()
        assert log == ["open", "ask", "ask", "ask"]
        run.finish()
        # The end of the input is enough: nobody need close the run.
        assert log == ["open", "ask", "ask", "ask", "close"]


@seeded
def test_inside_a_loop(seed: int | None) -> None:
    async def halve(row: Row) -> Row:
        await asyncio.sleep(0)
        return {"n": row["n"] // 2}

    flow = jt.Flow("loop")
    loop = flow.loop()
    again = loop.feedback()
    numbers = flow.input("in").enter(loop).concat(again.stream)
    even, odd = numbers.branch(lambda batch: batch["n"] % 2 == 1)
    again.connect(map_async(even, halve))
    flow.output("odd", odd.leave())
    rows = {"time": [0, 0, 1], "n": [12, 7, 80]}
    result = flow.run({"in": rows}, workers=2, seed=seed)
    assert sorted(table(result, "odd")) == [(0, 3), (0, 7), (1, 5)]


def test_answers_at_incomparable_times_that_come_together() -> None:
    """One in the first round of a time, one in the second round of the time before."""
    asked: set[int] = set()
    both = asyncio.Event()

    async def halve(row: Row) -> Row:
        asked.add(row["n"])
        if asked >= {6, 10}:
            both.set()
        if row["n"] in (6, 10):
            await both.wait()
        return {"n": row["n"] // 2}

    flow = jt.Flow("loop")
    loop = flow.loop()
    again = loop.feedback()
    numbers = flow.input("in").enter(loop).concat(again.stream)
    even, odd = numbers.branch(lambda batch: batch["n"] % 2 == 1)
    again.connect(map_async(even, halve, order="as they come"))
    flow.output("odd", odd.leave())
    result = flow.run({"in": {"time": [0, 1], "n": [12, 10]}})
    assert sorted(table(result, "odd")) == [(0, 3), (1, 5)]


def test_a_call_that_takes_too_long_has_failed() -> None:
    async def never(row: Row) -> Row:
        await asyncio.Event().wait()
        return row

    flow = jt.Flow("late")
    _, rejected = try_map_async(
        flow.input("in"), never, timeout=0.001, retries=1, backoff=0.0, rows=2
    )
    flow.output("rejected", rejected)
    result = flow.run({"in": {"time": [1, 2], "n": [1, 2]}})
    text = "TimeoutError: no answer within 0.001 seconds"
    assert [row[2:] for row in table(result, "rejected")] == [(text, 2), (text, 2)]


# Failures and ends


async def _returns(input: AsyncInput, output: AsyncOutput) -> None:
    async for _ in input:
        return


async def _answers_late(input: AsyncInput, output: AsyncOutput) -> None:
    before: Event | None = None
    async for event in input:
        if before is not None:
            output.give(before, n=1)
        before = event


async def _answers_early(input: AsyncInput, output: AsyncOutput) -> None:
    async for event in input:
        output.give(event, {"n": [1]}, times=[event.time - 1])


async def _cancels_itself(input: AsyncInput, output: AsyncOutput) -> None:
    async for _ in input:
        raise asyncio.CancelledError


async def _fails_at_the_end(input: AsyncInput, output: AsyncOutput) -> None:
    async for _ in input:
        pass
    raise ValueError("at the end")


async def _exits(input: AsyncInput, output: AsyncOutput) -> None:
    async for _ in input:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("logic", "error", "text"),
    [
        (_returns, jt.OperatorFailed, "returned before its input had ended"),
        (_answers_late, jt.TokenError, "this event is over"),
        (_answers_early, jt.TokenError, "cannot be earlier"),
        (_cancels_itself, jt.OperatorFailed, "CancelledError"),
        (_fails_at_the_end, jt.OperatorFailed, "at the end"),
        (_exits, jt.OperatorFailed, "SystemExit"),
    ],
)
def test_what_a_coroutine_must_not_do(logic: Any, error: type[Exception], text: str) -> None:
    flow = jt.Flow("wrong")
    flow.output("out", async_unary(flow.input("in"), logic, name="mine", rows=1, concurrency=1))
    with pytest.raises(error, match=rf"{text}.*operator 'mine', worker 0"):
        flow.run({"in": {"time": [3, 4], "n": [1, 2]}})


def test_a_client_that_cannot_be_opened_fails_the_flow() -> None:
    class Client:
        async def __aenter__(self) -> None:
            raise OSError("nobody there")

        async def __aexit__(self, *_: object) -> None:
            pass

    async def ask(row: Row, client: None) -> Row:
        return row

    flow = jt.Flow("no client")
    flow.output("out", map_async(flow.input("in"), ask, client=Client, name="lookup"))
    with pytest.raises(jt.OperatorFailed, match=r"nobody there.*'lookup'"):
        flow.run({"in": numbers(3)})


def waiting_for_ever(service: Told) -> jt.Flow:
    flow = jt.Flow("for ever")
    flow.output("out", map_async(flow.input("in"), service.ask, concurrency=3))
    return flow


def test_a_run_that_is_closed_midway_leaves_no_thread() -> None:
    service = Told()
    with waiting_for_ever(service).open(workers=2) as run:
        run.feed({"in": numbers(10)})
        run.run_to_rest()
        service.await_calls(6)
    assert service.cancelled == 6


def test_another_operators_failure_ends_the_calls() -> None:
    service = Told()
    flow = waiting_for_ever(service)

    def fail(batch: jt.Batch) -> jt.Batch:
        raise ValueError("elsewhere")

    flow.output("other", flow.input("other").map(fail, name="other"))
    with flow.open() as run:
        run.input("in").send(numbers(10))
        run.run_to_rest()
        service.await_calls(3)
        run.input("other").send({"time": [1], "n": [1]})
        with pytest.raises(jt.OperatorFailed, match="elsewhere"):
            run.run_to_rest()
    assert service.cancelled == 3


def test_a_run_that_is_forgotten_leaves_no_thread() -> None:
    service = Told()
    run = waiting_for_ever(service).open()
    run.input("in").send(numbers(10))
    run.run_to_rest()
    service.await_calls(3)
    (thread,) = (t for t in threading.enumerate() if t.name.startswith("map_async"))
    del run
    gc.collect()
    thread.join(10.0)
    assert not thread.is_alive()


def test_a_flow_that_asks_nothing_begins_no_thread() -> None:
    before = threading.active_count()
    with waiting_for_ever(Told()).open(workers=3) as run:
        run.input("in").advance_to(5)
        run.run_to_rest()
        assert threading.active_count() == before


def test_a_stalled_flow_is_still_told_apart_from_one_that_waits() -> None:
    async def ask(row: Row) -> Row:
        return row

    flow = jt.Flow("stalled")
    flow.output("out", map_async(flow.input("in"), ask).probe("after"))
    with flow.open() as run:
        run.input("in").send({"time": [1], "n": [1]})
        with pytest.raises(jt.FlowStalled, match="'in' holds 1 token at 0"):
            run.run_until(lambda: run.probe("after").done)
        run.input("in").advance_to(5)
        with pytest.raises(jt.FlowStalled, match="'in' holds 1 token at 5"):
            run.run_until(lambda: run.probe("after").done)


def snapshot_with(run: jt.Run, *, answers: int) -> jt.Snapshot:
    """A snapshot from the time when so many answers wait for earlier ones."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        run.run_to_rest()
        with suppress(jt.SnapshotError):  # an answer came in between
            snapshot = run.snapshot()
            if snapshot.operators["ask"]["answers 0"].num_rows == answers:
                return snapshot
    raise AssertionError("the answers do not come")


@pytest.mark.parametrize("workers", [1, 3])
def test_calls_under_way_are_asked_again_after_a_restart(workers: int) -> None:
    service = Told()
    service.allow(1, 2, 9)
    flow = jt.Flow("restart")
    seen = Arrivals()
    answers = map_async(flow.input("in"), service.ask, concurrency=5, name="ask")
    flow.output("out", seen.after(answers))
    with flow.open(workers=2) as run:
        ns = [9, 2, 1, 8, 3, 4, 5, *range(11, 40)]
        run.input("in").send({"time": ns, "n": ns, "bin": ns})
        for worker in range(2):
            run.input("in", worker).advance_to(7)
        snapshot = snapshot_with(run, answers=1)
        assert seen.ns == [1, 2]
    assert 9 in service.asked
    service.allow_all()
    again = len(service.asked)
    with flow.open(workers=workers, restore=snapshot) as run:
        run.finish()
    assert sorted(seen.ns) == sorted(ns)
    assert sorted(service.asked[again:]) == [3, 4, 5, 8, *range(11, 40)]


def test_inside_a_loop_there_is_no_snapshot_of_calls() -> None:
    service = Told()
    flow = jt.Flow("loop")
    loop = flow.loop()
    rows = flow.input("in").enter(loop)
    flow.output("out", map_async(rows, service.ask).leave())
    with flow.open() as run:
        run.input("in").send(numbers(3))
        run.run_to_rest()
        with pytest.raises(jt.SnapshotError, match="loops at rest"):
            run.snapshot()


def test_settings_are_checked() -> None:
    rows = jt.Flow("wrong").input("in")
    with pytest.raises(jt.GraphError, match="concurrency"):
        map_async(rows, asking(0), concurrency=0)
    with pytest.raises(jt.GraphError, match="retries"):
        map_async(rows, asking(0), retries=-1)
