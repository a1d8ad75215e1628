"""Planted stalls: flows whose output never gets on, each for a reason of its own.

The same flows run in this process and on Spark. ``python -m tests.stalls`` runs all of them on
Spark with two workers, and prints what `why` says first about each.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Callback, Memory, Sink
from jeton.connectors.sources import Batches
from jeton.idioms.map_async import map_async
from jeton.runtime.why import Why
from jeton.spark.query import Query

LIMIT = 120.0


def some(partition: int, partitions: int) -> Iterator[Any]:
    """A few records at times up to 50, then nothing, for as long as it is asked."""
    for at in range(6):
        yield {"time": [10 * at + partition], "n": [at]}
    while True:
        yield None


def mostly(partition: int, partitions: int) -> Iterator[Any]:
    """Records in the first partition only."""
    for at in range(6):
        yield {"time": [10 * at], "n": [at]} if partition == 0 else None
    while True:
        yield None


def steady(partition: int, partitions: int) -> Iterator[Any]:
    """Records that go on, one every few milliseconds."""
    for at in range(100_000):
        yield {"time": [at], "n": [at]}
        due = time.monotonic() + 0.005
        while time.monotonic() < due:
            yield None


def hot(partition: int, partitions: int) -> Iterator[Any]:
    """Many records, nine in ten of which have the same user."""
    for at in range(100_000):
        users = np.where(np.arange(50) % 10, 7, np.arange(50) + 100)
        yield {"time": np.full(50, at), "n": np.arange(50), "user": users}
        if at % 20 == 19:
            yield None


def large(partition: int, partitions: int) -> Iterator[Any]:
    """More rows than a sink at the driver may leave untaken."""
    for at in range(100_000):
        rows = 1 << 17
        yield pa.table({"time": np.full(rows, at), "n": np.arange(rows)})


# The operators


def in_a_dictionary(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
    token.drop()
    kept: dict[int, jt.TimestampToken] = {}

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            if batch["n"][0] == 2:
                kept[2] = ref.retain()  # never dropped

    return step


def in_a_closure(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
    token.drop()
    later: list[Callable[[], None]] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            if batch["n"][0] == 2:
                held = ref.retain()  # for the closure
                later.append(partial(jt.TimestampToken.drop, held))

    return step


async def never_answered(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 2:
        await asyncio.Event().wait()  # no one sets it
    return row


def around(stream: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
    kept = stream.unary(in_a_dictionary, name="turning")
    return kept.filter(lambda batch: batch["n"] > 0), kept


def spinning(release: Path) -> Any:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                while batch["n"][0] == 2 and not release.exists():
                    time.sleep(0.01)  # around and around
                output.session(ref).give(batch)

        return step

    return build


def slowly(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            time.sleep(0.001 * len(batch))  # each record takes its time
            output.session(ref).give(batch)

    return step


def with_lateness(operator: Callable[[jt.Stream], jt.Stream], lateness: int | None = 0) -> jt.Flow:
    flow = jt.Flow("stalled")
    flow.output("out", operator(flow.input("in", lateness=lateness)))
    return flow


# The stalls


@dataclass
class Planted:
    """A flow that stalls, and a pattern of what `why` should say first."""

    flow: jt.Flow
    says: str
    source: Callable[[int, int], Iterator[Any]] = some
    sink: Sink = field(default_factory=Memory)
    release: Callable[[], Any] = lambda: None
    """Lets it go on, so that it can be stopped."""


def dictionary(_: Path) -> Planted:
    flow = with_lateness(lambda s: s.unary(in_a_dictionary, name="keeper"))
    return Planted(flow, r"'keeper' holds \d tokens? at 2\d.*stalls.py:\d+: kept\[2\] = ref.retain")


def closure(_: Path) -> Planted:
    flow = with_lateness(lambda s: s.unary(in_a_closure, name="keeper"))
    return Planted(flow, r"'keeper' holds \d tokens? at 2\d.*stalls.py:\d+: held = ref.retain")


def async_call(_: Path) -> Planted:
    flow = with_lateness(lambda s: map_async(s, never_answered, name="asking"))
    says = r"'asking' holds .* call.? not answered yet, at .*stalls.py:\d+: await asyncio.Event\(\)"
    return Planted(flow, says)


def never_advanced(_: Path) -> Planted:
    flow = with_lateness(lambda s: s.map(lambda batch: batch), lateness=None)
    says = r"input 'in' on worker 0 is at the start of time: .* 6 records were sent"
    return Planted(flow, says)


def idle_partition(_: Path) -> Planted:
    flow = with_lateness(lambda s: s.map(lambda batch: batch))
    says = r"input 'in' on worker 1 .*partition 1(/2)? of its source has had no record for [1-9]"
    return Planted(flow, says, mostly)


def cyclic_token(_: Path) -> Planted:
    flow = with_lateness(lambda s: s.iterate(around))
    says = r"'iterate.turning' holds \d tokens? at 2\d in round 0.*: kept\[2\] = ref.retain"
    return Planted(flow, says)


def endless_loop(folder: Path) -> Planted:
    release = folder / "go on"
    flow = with_lateness(lambda s: s.unary(spinning(release), name="spinner"))
    says = r"worker \d runs 'spinner', for \d+\.\d s, at .*stalls.py:\d+: time.sleep\(0.01\)"
    return Planted(flow, says, release=release.touch)


def hot_key(_: Path) -> Planted:
    flow = with_lateness(lambda s: s.unary(slowly, pact=jt.Exchange("user"), name="slow"))
    return Planted(flow, r"'slow'.*9\d% of their rows have user=7", hot)


def slow_sink(_: Path) -> Planted:
    go_on = threading.Event()
    flow = with_lateness(lambda s: s)
    says = (
        r"the sink of output 'out' has not taken \d+ tables with [\d,]+ rows, the oldest for "
        r"\d+\.\d s: it has been taking one of them for .*stalls.py:\d+: .*go_on.wait\(\)"
    )
    return Planted(flow, says, large, Callback(lambda table: go_on.wait()), go_on.set)


STALLS: dict[str, Callable[[Path], Planted]] = {
    "token in a dictionary": dictionary,
    "token in a closure": closure,
    "token of a dead async call": async_call,
    "input never advanced": never_advanced,
    "one idle partition": idle_partition,
    "slow sink": slow_sink,
    "hot key": hot_key,
    "cyclic token": cyclic_token,
    "worker in an endless loop": endless_loop,
}


# On Spark


def asked(query: Query, says: str, at: Any = None) -> Why:
    """The answer once it says what it should, which may take until the flow has come so far."""
    deadline = time.monotonic() + LIMIT
    while not re.search(says, headline(why := query.why("out", at=at))):
        assert time.monotonic() < deadline, f"not {says!r} but\n{why}"
        time.sleep(0.05)
    return why


def headline(why: Why) -> str:
    return str(why).splitlines()[0]


@contextmanager
def planted(
    spark: SparkSession, stall: Planted, name: str = "stalled", **options: Any
) -> Iterator[Query]:
    sources, sinks = {"in": Batches(stall.source)}, {"out": stall.sink}
    query = stall.flow.start(spark, sources=sources, sinks=sinks, workers=2, name=name, **options)
    try:
        yield query
    finally:
        stall.release()
        query.stop(timeout=20.0)


def ask_stalled(spark: SparkSession, name: str, folder: Path) -> Why:
    stall = STALLS[name](folder)
    with planted(spark, stall) as query:
        return asked(query, stall.says)


def ask_stopped(spark: SparkSession) -> Why:
    """One worker's process is stopped."""
    with planted(spark, Planted(with_lateness(lambda s: s), "")) as query:
        query.await_running(LIMIT)
        pids = {
            facts.worker: facts.pid for facts in query._coordinator.inquiry.ask(query._coordinator)
        }
        os.kill(pids[1], signal.SIGSTOP)
        try:
            return asked(
                query, rf"worker 1 does not answer \(process {pids[1]} on .* silent for \d"
            )
        finally:
            os.kill(pids[1], signal.SIGCONT)


def ask_paused(spark: SparkSession) -> Why:
    """A breakpoint was left on."""
    with planted(spark, Planted(with_lateness(lambda s: s), "", steady)) as query:
        at = query.pause_at()
        query.await_paused(LIMIT)
        says = rf"a breakpoint holds 'in' at {at} on workers 0 and 1: step\(\) or resume\(\)"
        return asked(query, says)


def ask_without_slots(spark: SparkSession) -> Why:
    """Another query has the slots: three of four, or all of two."""
    first = Planted(with_lateness(lambda s: s), "")
    workers = spark.sparkContext.defaultParallelism
    source = {"in": Batches(first.source)}
    with first.flow.start(spark, sources=source, workers=workers - 1, name="first") as holding:
        holding.await_running(LIMIT)
        with planted(spark, Planted(with_lateness(lambda s: s), ""), "second") as query:
            says = (
                r"2 of 2 workers have no slot yet: slots are held by job \d+, Jeton query 'first'"
            )
            why = asked(query, says)
            holding.stop()
            return why


OTHERS: dict[str, Callable[[SparkSession], Why]] = {
    "breakpoint left on": ask_paused,
    "worker stopped": ask_stopped,
    "no slots": ask_without_slots,
}


def main() -> None:
    """Print a table of all of them."""
    from jeton.spark.session import local_session

    spark = local_session(workers=3)
    try:
        for name in STALLS:
            with tempfile.TemporaryDirectory() as folder:
                why = ask_stalled(spark, name, Path(folder))
            print(f"| {name} | {headline(why)} |", flush=True)
        for name, ask in OTHERS.items():
            print(f"| {name} | {headline(ask(spark))} |", flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
