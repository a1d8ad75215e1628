"""Asynchronous operators: coroutines of one's own, and their settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.helpers import seeded
from tests.idioms.asking import Arrivals, Row, asking, numbers, table

import jeton as jt
from jeton.errors import GraphError
from jeton.idioms.asynchronous import async_operator
from jeton.idioms.event_loop import AsyncInput, AsyncOutput
from jeton.idioms.map_async import map_async, try_map_async

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


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
        # The end of the input is enough: the run need not be closed.
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


def test_settings_are_checked() -> None:
    rows = jt.Flow("wrong").input("in")
    with pytest.raises(GraphError, match="concurrency"):
        map_async(rows, asking(0), concurrency=0)
    with pytest.raises(GraphError, match="retries"):
        map_async(rows, asking(0), retries=-1)
