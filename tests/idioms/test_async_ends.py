"""Asynchronous operators: failures and ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.dataflow.test_user_times import Pair
from tests.idioms.asking import Row, Told, numbers

import jeton as jt
from jeton.errors import FlowStalled, OperatorFailed, TokenError
from jeton.idioms.asynchronous import async_unary
from jeton.idioms.event_loop import AsyncInput, AsyncOutput, Event
from jeton.idioms.map_async import map_async

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


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
        (_returns, OperatorFailed, "returned before its input had ended"),
        (_answers_late, TokenError, "this event is over"),
        (_answers_early, TokenError, "cannot be earlier"),
        (_cancels_itself, OperatorFailed, "CancelledError"),
        (_fails_at_the_end, OperatorFailed, "at the end"),
        (_exits, OperatorFailed, "SystemExit"),
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
    with pytest.raises(OperatorFailed, match=r"nobody there.*'lookup'"):
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
        with pytest.raises(OperatorFailed, match="elsewhere"):
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


def test_a_stalled_flow_is_still_distinguished_from_one_that_waits() -> None:
    async def ask(row: Row) -> Row:
        return row

    flow = jt.Flow("stalled")
    flow.output("out", map_async(flow.input("in"), ask).probe("after"))
    with flow.open() as run:
        run.input("in").send({"time": [1], "n": [1]})
        with pytest.raises(FlowStalled, match="input 'in' on worker 0 is at the start of time"):
            run.run_until(lambda: run.probe("after").done)
        run.input("in").advance_to(5)
        with pytest.raises(FlowStalled, match="input 'in' on worker 0 is at 5"):
            run.run_until(lambda: run.probe("after").done)


class Goodbye:
    """Emits at the end, once it may."""

    def __init__(self) -> None:
        self.begun, self.allowed = threading.Event(), threading.Event()
        self.said: list[bool] = []

    async def say(self) -> None:
        self.begun.set()
        self.said.append(await asyncio.to_thread(self.allowed.wait, 20.0))

    async def __aenter__(self) -> Goodbye:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.say()


async def _says_goodbye(input: AsyncInput, output: AsyncOutput, goodbye: Goodbye) -> None:
    async for event in input:
        output.give(event, event.batch)
    await goodbye.say()


async def _leaves_it_to_the_client(input: AsyncInput, output: AsyncOutput, _: Goodbye) -> None:
    async for event in input:
        output.give(event, event.batch)


@asynccontextmanager
async def _kept(goodbye: Goodbye) -> AsyncIterator[Goodbye]:
    yield goodbye


def saying_goodbye(rows: jt.Stream, whose: str, goodbye: Goodbye) -> jt.Stream:
    if whose == "the client's":
        return async_unary(
            rows, _leaves_it_to_the_client, client=lambda: goodbye, concurrency=1, name="mine"
        )
    return async_unary(
        rows, _says_goodbye, client=lambda: _kept(goodbye), concurrency=1, name="mine"
    )


@pytest.mark.parametrize("whose", ["the coroutine's", "the client's"])
@pytest.mark.parametrize("looped", [False, True])
def test_the_worker_goes_on_while_goodbyes_are_said(whose: str, looped: bool) -> None:
    goodbye = Goodbye()
    flow = jt.Flow("goodbye")
    source = flow.input("in")
    rows: jt.Stream = source.enter(flow.loop()) if looped else source
    answers = saying_goodbye(rows, whose, goodbye)
    answers = answers.leave() if looped else answers
    flow.output("counts", answers.key_by().tumbling(10).count().probe("counts"))
    flow.output("others", flow.input("others"))
    with flow.open() as run:
        run.input("in").send({"time": [1, 4], "n": [1, 2]})
        run.input("in").close()
        # Operators behind need not wait, ...
        run.run_until(lambda: run.results()["counts"].num_rows == 1)
        run.run_to_rest()
        assert goodbye.begun.wait(20.0)
        # ... nor need others on the same worker; but the flow has not come to its end.
        run.input("others").send({"time": [1], "n": [1]})
        run.run_to_rest()
        assert run.results()["others"].num_rows == 1
        assert goodbye.said == []
        assert not run.probe("counts").done
        goodbye.allowed.set()
        run.run_until(lambda: run.probe("counts").done)
        assert goodbye.said == [True]
        assert run.finish().leaks == []


def test_the_flow_waits_for_goodbyes() -> None:
    goodbye = Goodbye()

    def allow() -> None:
        if goodbye.begun.wait(20.0):
            goodbye.allowed.set()

    threading.Thread(target=allow).start()
    flow = jt.Flow("goodbye")
    flow.output("out", saying_goodbye(flow.input("in"), "the client's", goodbye))
    with flow.open(workers=2) as run:
        run.input("in").send({"time": [1], "n": [1]})
        run.input("in").close()
        run.finish()
        assert goodbye.said == [True]


def test_times_of_the_users_own_have_no_last_one_and_yet_goodbyes_are_said() -> None:
    goodbye = Goodbye()
    goodbye.allowed.set()
    flow = jt.Flow("pairs", time=Pair)
    flow.output("out", saying_goodbye(flow.input("in"), "the client's", goodbye))
    with flow.open() as run:
        run.input("in").send({"n": [1]}, times=[Pair(1, 2)])
        assert run.finish()["out"].num_rows == 1
        assert goodbye.said == [True]


@pytest.mark.parametrize("whose", ["the coroutine's", "the client's"])
def test_coroutines_that_delay_the_end_are_reported(
    whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    goodbye = Goodbye()
    emitted: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            emitted.append(record.getMessage())
            goodbye.allowed.set()

    monkeypatch.setattr("jeton.idioms.event_loop.PATIENCE", 0.001)
    log, handler = logging.getLogger("jeton.idioms.event_loop"), Handler()
    flow = jt.Flow("waits")
    flow.output("out", saying_goodbye(flow.input("in"), whose, goodbye))
    log.addHandler(handler)
    try:
        flow.run({"in": {"time": [1], "n": [1]}})
    finally:
        log.removeHandler(handler)
    assert goodbye.said == [True]
    assert len(emitted) == 1
    assert "mine on worker 0: its input ended" in emitted[0]
    assert ("1 of its coroutines" if whose == "the coroutine's" else "its client") in emitted[0]
