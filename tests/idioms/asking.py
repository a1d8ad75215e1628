"""Services and checks for tests of asynchronous operators."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

from tests.idioms.service import get

import jeton as jt

Row = dict[str, Any]


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


class Told:
    """A service that answers a number when the test lets it."""

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
        """Wait until that number of calls more have begun."""
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
