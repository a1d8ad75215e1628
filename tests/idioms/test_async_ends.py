"""Asynchronous operators: failures, ends and restarts."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from tests.idioms.asking import Arrivals, Row, Told, numbers

import jeton as jt
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
