"""Breakpoints of long-lived queries: pause, look, step, checkpoint and resume, on Spark."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Memory
from jeton.connectors.sources import Batches, Rate
from jeton.errors import GraphError, PredicateFailed, TimeError
from jeton.spark.query import Query
from tests.simulation.test_breakpoints import (
    LAST,
    PARTITIONS,
    TABLES,
    Rows,
    counted,
    random_flow,
    tables,
    undisturbed,
)

LIMIT = 120.0


def gated_sources(seed: int, gate: Path, first: int) -> dict[str, Batches]:
    """The sources of the simulation; after some tables they wait for a file."""

    def gated(partition: int) -> Iterator[Any]:
        for at, table in enumerate(tables(seed, partition)):
            while at >= first and not gate.exists():
                yield None
            yield table

    return {
        "left": Batches(lambda partition, _: gated(partition), PARTITIONS),
        "right": Batches(lambda partition, _: gated(10 + partition), PARTITIONS),
    }


class Paused:
    """A random query on Spark that is paused at random times."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.flow, self.moves_on = random_flow(self.random)
        self.expected, self.late = undisturbed(self.flow, seed)
        self.spark, self.folder, self.seed = spark, folder, seed
        self.gate = folder / "gate"
        self.before: dict[str, Rows] = {name: Counter() for name in self.flow.outputs}
        """Rows of earlier starts."""

    def start(self) -> Query:
        self.sinks = {name: Memory() for name in self.flow.outputs}
        query = self.flow.start(
            self.spark,
            sources=gated_sources(self.seed, self.gate, self.random.randrange(TABLES)),
            sinks=self.sinks,
            workers=2,
            checkpoint=self.folder / "checkpoint",
            every=None,
        )
        query.await_running(LIMIT)
        return query

    def rows(self) -> dict[str, Rows]:
        found = {}
        for name, sink in self.sinks.items():
            table = sink.table()
            now = Counter() if table is None else counted(table)
            found[name] = self.before[name] + now
        return found

    def run(self) -> None:
        random = self.random
        query = self.start()
        restarted = random.random() < 0.5
        with ExitStack() as stack:
            stack.enter_context(query)
            self.pause(query)
            self.check(query)
            for _ in range(random.randrange(3)):
                self.step(query)
                query.await_paused(LIMIT)
                if random.random() < 0.5:
                    self.check(query)
            if restarted:
                query.stop()
                self.before = self.rows()
                query = stack.enter_context(self.start())
            else:
                query.resume()
            assert query.await_termination(LIMIT)
        assert self.rows() == self.expected
        if not restarted:
            assert query.metrics()["late"] == self.late

    def pause(self, query: Query) -> None:
        try:
            at = query.pause_at(self.random.randrange(LAST))
        except TimeError:
            at = query.pause_at()
        assert query.paused_at == at
        self.gate.touch()
        query.await_paused(LIMIT)

    def step(self, query: Query) -> None:
        try:
            query.step(self.random.choice([None, query.paused_at + 3]))
        except GraphError as error:
            if "nothing is held back" not in str(error):
                raise

    def check(self, query: Query) -> None:
        """A checkpoint while the query is paused publishes everything before the breakpoint."""
        at = query.paused_at
        query.checkpoint(LIMIT)
        for name, rows in self.rows().items():
            expected = self.expected[name]
            if not self.moves_on:
                assert all(row[0] < at for row in rows), f"{name} at or after {at}"
            early = Counter({row: n for row, n in rows.items() if row[0] < at})
            assert early == Counter({row: n for row, n in expected.items() if row[0] < at})


@pytest.mark.parametrize("seed", [1, 2])
def test_a_paused_query_gives_the_rows_of_an_undisturbed_one(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    Paused(spark, tmp_path, seed).run()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
def test_twenty_queries_paused_at_random(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    Paused(spark, tmp_path, seed).run()


START = datetime(2026, 1, 1)


def readings(partition: int, partitions: int) -> Iterator[Any]:
    """A reading for each minute, every few milliseconds."""
    for minute in range(100_000):
        yield {"time": [START + timedelta(minutes=minute)], "room": [partition], "value": [minute]}
        due = time.monotonic() + 0.005
        while time.monotonic() < due:
            yield None


def test_looking_at_a_paused_query(spark: SparkSession) -> None:
    flow = jt.Flow("rooms")
    rooms = flow.input("readings", lateness="0s")
    flow.output("readings", rooms)
    flow.output("sums", rooms.named("hours").key_by("room").tumbling("1h").sum("value"))
    sink = Memory()
    sources = {"readings": Batches(readings, 2)}
    with flow.start(spark, sources=sources, sinks={"readings": sink}, workers=2) as query:
        with pytest.raises(GraphError, match="is not paused: pause_at"):
            query.resume()
        with pytest.raises(GraphError, match="not paused"):
            query.step()
        with pytest.raises(jt.errors.JetonError, match="no output 'reading'"):
            query.pause_when("reading", len)
        with pytest.raises(GraphError, match="no operator 'hour': did you mean 'hours'"):
            query.state("hour")
        with pytest.raises(TimeError, match="needs a time of the flow"):
            query.pause_at("tomorrow")
        with pytest.raises(TimeError, match="timestamps: a breakpoint needs one"):
            query.pause_at(5)
        with pytest.raises(TimeError, match="cannot pause at 2026-01-01 00:00:00: input 'readi"):
            query.pause_at(START)
        least = query.metrics()["rows_in"]
        query.pause_when("readings", lambda batch: batch["value"] > least)
        query.await_paused(LIMIT)
        assert query.matched is not None
        assert min(query.matched["value"].to_pylist()) > least
        at = query.paused_at
        assert at > START + timedelta(minutes=least)
        state = query.state("hours")
        assert sorted(state["key.room"]) == [0, 1]
        assert all(end >= at for end in state["end"])
        assert list(state["tokens"]) == [1, 1]
        held = query.in_flight()
        assert set(held["status"]) == {"held"}
        assert held["time"].min() >= at
        with pytest.raises(TimeError, match="the times of this flow are timestamps"):
            query.step(until=5)
        with pytest.raises(TimeError, match="cannot go back"):
            query.step(until=START)
        assert query.step() >= held["time"].min()
        later = at + timedelta(hours=1)
        assert query.step(until=later) == later
        query.await_paused(LIMIT)
        until(lambda: rows_of(sink) == 2 * minutes(later), "all rows before the breakpoint")
        query.resume()
        assert query.paused_at is None
        assert not query.is_paused


def rows_of(sink: Memory) -> int:
    table = sink.table()
    return 0 if table is None else table.num_rows


def minutes(time: datetime) -> int:
    """How many whole minutes there are before a time, from the first on."""
    return -((START - time) // timedelta(minutes=1))


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that the other end will report."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def test_a_query_that_is_started_again_is_still_paused(spark: SparkSession, tmp_path: Path) -> None:
    flow = jt.Flow("restarted")
    flow.output("readings", flow.input("readings", lateness="0s"))
    sink = Memory()
    with flow.start(
        spark,
        sources={"readings": Batches(readings, 2)},
        sinks={"readings": sink},
        workers=2,
        checkpoint=tmp_path,
    ) as query:
        at = query.pause_at()
        query.await_paused(LIMIT)
        query.checkpoint(LIMIT)
        before = rows_of(sink)
        # One worker loses its connection to the driver, and Spark starts all of them again.
        query._coordinator.controls[0].close()
        until(lambda: query.metrics()["checkpoints"]["restarts"] == 1, "a restart")
        query.await_paused(LIMIT)
        assert query.paused_at == at
        query.checkpoint(LIMIT)
        assert rows_of(sink) == before
        query.resume()
        until(lambda: query.checkpoint(LIMIT) > 0 and rows_of(sink) > before, "more rows")
    table = sink.table()
    assert table is not None
    rows = Counter(zip(table["time"].to_pylist(), table["room"].to_pylist(), strict=True))
    assert set(rows.values()) == {1}


def kill_worker(query: Query) -> None:
    """Kill the process of one worker, and wait until Spark has started all of them again."""
    restarts = query.metrics()["checkpoints"]["restarts"]
    facts = query._coordinator.inquiry.ask(query._coordinator)
    os.kill(facts[0].pid, signal.SIGKILL)
    until(lambda: query.metrics()["checkpoints"]["restarts"] == restarts + 1, "a restart")
    query.await_running(LIMIT)


def test_workers_are_killed_before_and_after_a_match(spark: SparkSession, tmp_path: Path) -> None:
    flow = jt.Flow("killed")
    flow.output("readings", flow.input("readings", lateness="0s"))
    go_on = tmp_path / "go on"

    def gated(partition: int, partitions: int) -> Iterator[Any]:
        for number, table in enumerate(readings(partition, partitions)):
            while number == 20 and not go_on.exists():
                yield None
            yield table

    with flow.start(
        spark,
        sources={"readings": Batches(gated, 2)},
        sinks={"readings": Memory()},
        workers=2,
        checkpoint=tmp_path / "checkpoint",
    ) as query:
        query.await_running(LIMIT)
        query.pause_when("readings", lambda batch: batch["value"] > 20)
        kill_worker(query)
        assert query.paused_at is None
        go_on.touch()
        query.await_paused(LIMIT)
        at, matched = query.paused_at, query.matched
        assert matched is not None
        assert min(matched["value"].to_pylist()) > 20
        kill_worker(query)
        query.await_paused(LIMIT)
        assert query.paused_at == at
        assert query.matched is matched
        query.resume()


class Unloadable:
    """A predicate that workers cannot load."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)

    def __call__(self, batch: jt.Batch) -> bool:
        return True


def test_a_predicate_that_cannot_be_loaded_does_not_end_the_query(spark: SparkSession) -> None:
    flow = jt.Flow("predicate")
    flow.output("readings", flow.input("readings", lateness="0s"))
    with flow.start(spark, sources={"readings": Batches(readings, 2)}, workers=2) as query:
        with pytest.raises(GraphError, match="cannot be loaded on a worker: ValueError: invalid"):
            query.pause_when("readings", Unloadable())
        query.pause_at()
        assert query.is_active
        query.resume()


def test_an_input_that_has_not_reached_the_breakpoint_is_named(spark: SparkSession) -> None:
    flow = jt.Flow("two inputs")
    flow.output("left", flow.input("left", lateness=0))
    flow.output("right", flow.input("right", lateness=0))

    def nothing(partition: int, partitions: int) -> Iterator[Any]:
        while True:
            yield None

    source = Rate(1000, lambda positions: {"n": positions})
    sources = {"left": source, "right": Batches(nothing, 1)}
    with flow.start(spark, sources=sources, sinks={"left": Memory()}, workers=1) as query:
        query.await_running()
        at = query.pause_at()
        awaited = "input 'right' is at the start of time"
        with pytest.raises(TimeoutError, match=f"does not rest at {at} yet: {awaited}"):
            query.await_paused(2)
        with pytest.raises(GraphError, match=f"{awaited}. await_paused"):
            query.state("left")
        assert query.observe().awaited == awaited
        query.resume()
        query.pause_when("left", lambda batch: batch["price"] > 1)
        # It never rests, and the error is raised all the same.
        with pytest.raises(PredicateFailed, match="no column 'price'"):
            query.await_paused(LIMIT)


def test_a_predicate_that_fails_pauses_the_query(spark: SparkSession) -> None:
    flow = jt.Flow("predicate")
    flow.output("readings", flow.input("readings", lateness="0s"))

    def some_readings(partition: int, partitions: int) -> Iterator[Any]:
        for table in readings(partition, partitions):
            if table is not None and table["value"] == [200]:
                return
            yield table

    sink = Memory()
    with flow.start(
        spark,
        sources={"readings": Batches(some_readings, 2)},
        sinks={"readings": sink},
        workers=2,
    ) as query:
        query.pause_when("readings", lambda batch: batch["price"] > 1)
        for _ in range(2):
            with pytest.raises(PredicateFailed, match=r"no column 'price'.*\[operator 'readings"):
                query.await_paused(LIMIT)
        assert query.is_paused
        assert query.matched is None
        at = query.paused_at
        assert query.in_flight()["time"].min() >= at
        (held, *_) = query.why("readings").holders
        assert held.what == "breakpoint"
        assert held.time == at
        assert "since the predicate of pause_when('readings', …) failed: MissingCol" in held.text
        query.step()
        query.await_paused(LIMIT)
        query.resume()
        assert query.await_termination(LIMIT)
    table = sink.table()
    assert table is not None
    assert sorted(table["value"].to_pylist()) == sorted([*range(200)] * 2)
