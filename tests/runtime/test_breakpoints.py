"""Breakpoints in process: what is held, what is refused, and what a snapshot has of it."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

import jeton as jt
from jeton.cluster.worker_io import WorkerSources
from jeton.connectors.sources import Batches
from jeton.errors import FlowStalled, GraphError, PredicateFailed, TimeError
from jeton.runtime import steering
from tests.helpers import planned


def echo(**options: Any) -> jt.Flow:
    flow = jt.Flow("echo")
    flow.output("out", flow.input("in", **options))
    return flow


def numbers(result: jt.Result, name: str = "out") -> list[int]:
    return sorted(result[name]["n"].to_pylist())


# Times


START = datetime(2026, 1, 1)


@pytest.mark.parametrize(
    "time",
    [
        START + timedelta(minutes=2),
        pd.Timestamp("2026-01-01 00:02"),
        np.datetime64("2026-01-01T00:02"),
        np.datetime64("2026-01-01T00:02:00", "ns"),
    ],
)
def test_timestamps_of_any_library(time: Any) -> None:
    with echo().open() as run:
        times = [START + timedelta(minutes=minute) for minute in range(4)]
        run.feed({"in": {"time": times, "n": [0, 1, 2, 3]}})
        assert run.pause_at(time) == START + timedelta(minutes=2)
        run.run_to_rest()
        assert numbers(run.results()) == [0, 1]
        assert run.step() == START + timedelta(minutes=3)
        assert run.paused_at == START + timedelta(minutes=3)
        assert run.in_flight()["time"].tolist() == [pd.Timestamp(START + timedelta(minutes=3))]
        assert numbers(run.results()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (7, "the times of this flow are timestamps: a breakpoint needs one"),
        (datetime(2026, 1, 1, tzinfo=UTC), "timestamps with a time zone cannot be compared"),
        (np.datetime64("2026-01-01T00:00:00.000000001"), "is not a whole number of us"),
        (np.datetime64("NaT", "s"), "NaT"),
        ("2026-01-01", "needs a time of the flow"),
        (2.5, "needs a time of the flow"),
        (True, "needs a time of the flow"),
    ],
)
def test_times_that_are_none_of_this_flow(time: Any, message: str) -> None:
    with echo().open(workers=2) as run:
        run.input("in").send({"time": [datetime(2025, 1, 1)], "n": [1]})
        with pytest.raises(TimeError, match=message):
            run.pause_at(time)
        assert run.paused_at is None


def test_a_timestamp_for_integers() -> None:
    with echo().open() as run:
        run.input("in").send({"time": [1], "n": [1]})
        with pytest.raises(TimeError, match="the times of this flow are integers"):
            run.pause_at(START)


# Errors


def test_a_time_that_has_passed() -> None:
    with echo().open(workers=2) as run:
        run.input("in", worker=1).send({"time": [3, 9], "n": [3, 9]})
        with pytest.raises(TimeError, match="cannot pause at 9: input 'in' has passed 9 already"):
            run.pause_at(9)
        run.run_to_rest()
        # The workers that could have paused have not.
        assert run.paused_at is None
        assert numbers(run.results()) == [3, 9]
        assert run.pause_at() == 10


def test_a_promise_counts_as_passed() -> None:
    with echo().open() as run:
        run.input("in").advance_to(20)
        run.run_to_rest()
        with pytest.raises(TimeError, match="has passed 19"):
            run.pause_at(12)
        assert run.pause_at(20) == 20


def test_what_needs_a_breakpoint() -> None:
    with echo().open() as run:
        for act in (run.step, run.resume, run.in_flight, lambda: run.state("in")):
            with pytest.raises(GraphError, match="not paused: pause_at"):
                act()
        run.pause_at(5)
        with pytest.raises(GraphError, match="paused already"):
            run.pause_at(9)
        with pytest.raises(TimeError, match="paused at 5, and cannot go back to 3"):
            run.step(until=3)
        run.run_to_rest()
        with pytest.raises(GraphError, match="nothing is held back at 5"):
            run.step()
        with pytest.raises(GraphError, match="no operator 'out_'"):
            run.state("out_")
        with pytest.raises(jt.errors.JetonError, match="no output 'outt'"):
            run.pause_when("outt", len)
        run.input("in").send({"time": [7], "n": [7]})
        with pytest.raises(GraphError, match="has not come to rest at 5"):
            run.in_flight()
        with pytest.raises(FlowStalled, match="the breakpoint at 5: resume"):
            run.finish()
        run.resume()
        assert numbers(run.finish()) == [7]


def test_inputs_that_have_ended() -> None:
    with echo().open() as run:
        run.input("in").close()
        run.run_to_rest()
        with pytest.raises(GraphError, match="all inputs have ended"):
            run.pause_at(5)


# Records


def test_late_records_are_those_of_an_undisturbed_run() -> None:
    def run_it(pause: bool) -> tuple[Any, dict[str, int]]:
        flow = jt.Flow("late")
        numbers = flow.input("in", lateness=2)
        flow.output("out", numbers)
        flow.output("late", numbers.late)
        with flow.open() as run:
            if pause:
                run.pause_at(6)
            for times in ([1, 9], [5, 8], [30, 7], [29, 31]):
                run.input("in").send({"time": times})
                run.run_to_rest()
            if pause:
                assert run.results()["late"]["late_at"].to_pylist() == []
                assert run.results()["out"]["time"].to_pylist() == [1]
                run.step(until=20)
                assert run.results()["late"]["late_at"].to_pylist() == [7]
                run.resume()
            result = run.finish()
            return [table.to_pylist() for table in result.values()], result.late

    assert run_it(pause=True) == run_it(pause=False)


def test_records_at_later_times_wait_at_the_output() -> None:
    flow = jt.Flow("delayed")
    flow.output("out", flow.input("in").delay(10))
    with flow.open() as run:
        run.pause_at(8)
        run.input("in").send({"time": [1, 2], "n": [1, 2]})
        run.run_to_rest()
        assert run.results()["out"].num_rows == 0
        assert run.in_flight()[["operator", "side", "time"]].values.tolist() == [
            ["out", "input", 11]
        ]
        assert run.step() == 11
        assert run.step() == 12
        assert numbers(run.results()) == [1]
        assert run.step() == 13
        assert numbers(run.results()) == [1, 2]


def test_a_snapshot_has_what_is_held() -> None:
    flow = jt.Flow("sums")
    rows = flow.input("in", lateness=0)
    flow.output("out", rows.delay(4))
    flow.output("sums", rows.key_by("k").tumbling(10).sum("n"))
    data = {"time": list(range(0, 40, 3)), "n": list(range(14)), "k": [0, 1] * 7}
    expected = flow.run({"in": data})
    for workers in (1, 2, 3):
        rows_seen: list[Counter[Any]] = []
        with flow.open(workers=2) as run:
            run.pause_at(12)
            run.input("in").send(data)
            run.run_to_rest()
            snapshot = run.snapshot()
            rows_seen.append(rows_of(run.results()))
        with flow.open(workers=workers, restore=snapshot) as run:
            rows_seen.append(rows_of(run.finish()))
        assert rows_seen[0] + rows_seen[1] == rows_of(expected)
        assert rows_seen[0]


def rows_of(result: jt.Result) -> Counter[Any]:
    return Counter(
        (name, *sorted(row.items())) for name, table in result.items() for row in table.to_pylist()
    )


def test_workers_do_not_rest_while_progress_is_on_its_way() -> None:
    """A worker that has not heard of it may hold a window open that ends before the breakpoint."""
    with echo(lateness=0).open(workers=2) as run:
        run.pause_at(10)
        for worker in (0, 1):
            run.input("in", worker).advance_to(20)
        while any(agent.step() for agent in run.agents):
            pass
        assert not run._steer(steering.resting())
        run.run_to_rest()
        assert run._steer(steering.resting())


def test_fed_tables_are_read_no_further_than_needed() -> None:
    with echo().open() as run:
        run.pause_at(1000)
        run.feed({"in": {"time": np.arange(200_000), "n": np.arange(200_000)}})
        run.run_to_rest()
        assert run.results()["out"].num_rows == 1000
        assert run.input("in").sent_count < 200_000
        run.resume()
        assert run.finish()["out"].num_rows == 200_000


def test_a_partition_that_has_passed_waits_for_the_others() -> None:
    """It is not read on, and the time until the flow goes on does not make it idle."""
    slow = [
        None,
        {"time": [3], "n": [3]},
        {"time": [12], "n": [12]},
        None,
        {"time": [13], "n": [13]},
    ]
    fast = [{"time": [n], "n": [n]} for n in range(100, 150)]
    source = Batches(lambda partition, _: iter((fast, slow)[partition]), 2)
    with echo(lateness=0, idle_after=10.0).open() as run:
        partitions = planned({"in": source})
        run.attach(
            0, feed=WorkerSources(run.agents[0], {"in": source}, partitions, lambda: run.now)
        )
        feed = run.agents[0].feed
        run.pause_at(10)
        while run.agents[0].read():
            run.run_to_rest()
        assert run.is_paused
        assert numbers(run.results()) == [3]
        positions = feed.positions()["in"]
        assert {number: at["position"] for number, at in positions.items()} == {"0/2": 1, "1/2": 2}
        run.now += 1000.0
        run.resume()
        run.agents[0].read()
        assert not any(partition.idle for partition in run.input("in").partitions)
        while not feed.ended:
            run.agents[0].read()
        result = run.finish()
        assert result.late == {"in": 0}
        assert numbers(result) == [3, 12, 13, *range(100, 150)]


# Sources that hold their own tokens


def counting(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
    """Ten numbers on each worker, one in each invocation."""
    left = iter(range(10))

    def step(output: jt.Output) -> None:
        n = next(left, None)
        if n is None:
            token.drop()
            return
        token.downgrade(n)
        with output.session(token) as session:
            session.give(n=n, k=info.worker)
        info.activator.activate()

    return step


@pytest.mark.parametrize("seed", range(12))
def test_any_source_is_held(seed: int) -> None:
    """Sources, unordered inputs and those with partitions, under random schedules."""

    def build() -> jt.Flow:
        flow = jt.Flow("sources")
        made = flow.source(counting).concat(flow.unordered_input("free"), flow.input("in"))
        flow.output("out", made.key_by("k").each_time().count())
        flow.output("sums", made.key_by("k").tumbling(4).sum("n"))
        return flow

    def act(run: jt.Run, random: Random) -> None:
        """The same records in any case."""
        for worker in range(workers):
            free, rows = run.input("free", worker), run.input("in", worker)
            a, b = rows.partition("a"), rows.partition("b")
            tokens = [free.token.clone() for _ in range(3)]
            free.token.drop()
            for time, token in zip((2, 7, 11), tokens, strict=True):
                with token:
                    free.session(token, time).give(n=time, k=worker)
                for _ in range(random.randrange(6)):
                    run.turn()
            for time in (1, 5, 9, 12):
                for part in (a, b):
                    part.send({"time": [time], "n": [time], "k": [worker]})
                    part.advance_to(time)
            rows.close()

    random = Random(seed)
    workers = random.choice([1, 2, 3])
    with build().open(workers=workers) as run:
        act(run, Random(0))
        expected = rows_of(run.finish())
    with build().open(workers=workers, seed=seed) as run:
        at = run.pause_at(random.randrange(1, 13))
        act(run, random)
        run.run_to_rest()
        assert run.is_paused
        while True:
            early = Counter({row: n for row, n in expected.items() if dict(row[1:])["time"] < at})
            assert rows_of(run.results()) == early
            if random.random() < 0.3 or run.in_flight().empty:
                break
            at = run.step()
        run.resume()
        result = run.finish()
        assert rows_of(result) == expected
        assert not result.leaks


def test_a_sequencer_goes_on() -> None:
    flow = echo()
    flow.sequencer("order")
    with flow.open(workers=2) as run:
        run.pause_at(0)
        run.sequencer("order", 0).push("first")
        run.sequencer("order", 1).close()
        run.run_to_rest()
        assert run.sequencer("order", 1).next() == "first"


def test_the_first_match_pauses_all_workers() -> None:
    with echo().open(workers=2, seed=3) as run:
        run.pause_when("out", lambda batch: bool((batch["n"] > 4).any()))
        for n in range(10):
            run.input("in", worker=n % 2).send({"time": [n], "n": [n]})
            run.run_to_rest()
        assert run.matched is not None
        assert run.matched["n"].to_pylist() == [5]
        assert run.paused_at == 6
        assert numbers(run.results()) == [0, 1, 2, 3, 4, 5]
        run.resume()
        assert numbers(run.finish()) == list(range(10))


def test_a_match_after_all_inputs_have_ended_is_reported() -> None:
    flow = jt.Flow("windows")
    flow.output("out", flow.input("in").key_by().tumbling(10).count())
    with flow.open(workers=2) as run:
        run.pause_when("out", lambda batch: batch["count"] > 1)
        run.input("in").send({"time": [1, 2], "n": [1, 2]})
        result = run.finish()
        assert run.matched is not None
        assert run.matched["count"].to_pylist() == [2]
        assert run.paused_at is None
        assert result["out"]["count"].to_pylist() == [2]


def test_a_source_is_held_beside_dead_weak_proxies() -> None:
    class Referent:
        pass

    dead = weakref.proxy(Referent())
    flow = jt.Flow("source")
    flow.output("out", flow.source(counting))
    with flow.open() as run:
        assert run.pause_at(4) == 4
        run.run_to_rest()
        assert numbers(run.results()) == [0, 1, 2, 3]
        run.resume()
        assert numbers(run.finish()) == list(range(10))
    del dead


def ahead(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
    """Ten numbers at once, while the token stays behind them."""
    sent: list[bool] = []

    def step(output: jt.Output) -> None:
        if not sent:
            sent.append(True)
            with output.session(token) as session:
                session.give(n=np.arange(10), times=np.arange(10))
            token.downgrade(1)

    return step


def test_a_source_that_has_sent_ahead_of_its_token() -> None:
    flow = jt.Flow("ahead")
    flow.output("out", flow.source(ahead, name="ticks"))
    with flow.open(workers=2) as run:
        run.run_to_rest()
        with pytest.raises(TimeError, match="cannot pause at 5: source 'ticks' has passed 9"):
            run.pause_at(5)
        assert run.paused_at is None
        assert run.pause_at() == 10
    with flow.open(workers=2) as run:
        # Before it has sent anything, the same time is ahead.
        run.pause_at(5)
        run.run_to_rest()
        assert numbers(run.results()) == sorted([0, 1, 2, 3, 4] * 2)


def test_tokens_ahead_of_a_breakpoint_have_sent_nothing() -> None:
    flow = jt.Flow("free")
    flow.output("out", flow.unordered_input("in"))
    with flow.open() as run:
        handle = run.input("in")
        later = handle.token.clone()
        later.downgrade(100)
        run.run_to_rest()
        run.pause_at(50)
        handle.session(handle.token, 3).give(n=3)
        handle.session(later).give(n=100)
        run.run_to_rest()
        assert numbers(run.results()) == [3]
        run.resume()
        handle.token.drop()
        later.drop()
        assert numbers(run.finish()) == [3, 100]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pause_before_anything_was_sent(workers: int) -> None:
    flow = echo(lateness=0)
    with flow.open(workers=workers) as run:
        run.pause_at()
        run.input("in").send({"time": [-7, 5, 9], "n": [1, 2, 3]})
        run.run_to_rest()
        assert run.is_paused
        assert run.results()["out"].num_rows == 0
        assert run.in_flight()["rows"].sum() == 3
        snapshot = run.snapshot()
        assert run.step() == -7
        assert run.step() == 5
        assert numbers(run.results()) == [1]
    with flow.open(workers=2, restore=snapshot) as run:
        assert run.pause_at() == run.pause_at()  # the records of the snapshot are still held
        run.resume()
        assert numbers(run.finish()) == [1, 2, 3]


@pytest.mark.parametrize("zone", [None, UTC])
def test_the_start_of_time_is_a_timestamp(zone: Any) -> None:
    flow = echo(schema={"time": pa.timestamp("us", None if zone is None else "UTC"), "n": int})
    with flow.open() as run:
        at = run.pause_at()
        assert isinstance(at, datetime)
        assert at.tzinfo == zone or str(at.tzinfo) == "UTC"
        assert at.year == 1
        run.run_to_rest()
        assert "at the start of time" in str(run.why("out"))
        assert run.step(until=datetime(2026, 1, 1, tzinfo=zone)).year == 2026


# Predicates that fail


def raises(batch: jt.Batch) -> Any:
    raise ValueError("no such price")


FAULTY: list[tuple[Any, str]] = [
    (raises, "ValueError: no such price"),
    (lambda batch: batch["nix"] > 1, "there is no column 'nix'"),
    (lambda batch: None, "it returned None, not a mask of the rows or a bool"),
    (lambda batch: "yes", r"it returned 'yes' \(a str\), not a mask"),
    (lambda batch: 1, "it returned 1"),
    (lambda batch: batch["n"], "its mask is of type int64, not boolean"),
    (lambda batch: [True, False, True], "the mask has 3 values, but the batch has 2"),
    (lambda batch: exit(3), r"SystemExit\(3\)"),
]


@pytest.mark.parametrize(("predicate", "message"), FAULTY)
def test_a_predicate_that_fails_pauses_the_run(predicate: Any, message: str) -> None:
    with echo().open(workers=2) as run:
        run.pause_when("out", predicate)
        run.input("in").send({"time": [3, 4], "n": [1, 2]})
        with pytest.raises(PredicateFailed, match=message) as failed:
            run.run_to_rest()
        assert "[operator 'out', worker 0, time 3]" in str(failed.value)
        assert (run.matched, run.paused_at) == (None, 5)
        run.input("in").send({"time": [5], "n": [3]})
        run.run_to_rest()
        assert run.is_paused
        assert numbers(run.results()) == [1, 2]
        first = run.why("out").holders[0]
        assert first.what == "input"  # worker 1 was never advanced
        (held,) = [each for each in run.why("out", at=5).holders if each.what == "breakpoint"]
        assert re.search(f"since the predicate of pause_when.*failed: .*{message}", held.text)
        run.resume()
        assert numbers(run.finish()) == [1, 2, 3]


def test_a_predicate_that_cannot_be_called() -> None:
    with echo().open() as run, pytest.raises(GraphError, match=r"pause_when needs a function.*5"):
        run.pause_when("out", 5)  # type: ignore[arg-type]


def test_masks_of_other_libraries() -> None:
    masks: list[Any] = [
        lambda batch: pa.array([False, None, True]),
        lambda batch: pd.Series([False, False, True]),
        lambda batch: [False, False, True],
        jt.col("n") > 2,
        lambda batch: np.array([False, False, True]),
    ]
    for mask in masks:
        with echo().open() as run:
            run.pause_when("out", mask)
            run.input("in").send({"time": [1, 2, 3], "n": [1, 2, 3]})
            run.run_to_rest()
            assert run.matched is not None
            assert run.matched["n"].to_pylist() == [3]


# The ends of time, and times before any record


@pytest.mark.parametrize("time", [2**63, -(2**63) - 1])
def test_a_time_that_does_not_fit_64_bits(time: int) -> None:
    with echo().open() as run:
        with pytest.raises(TimeError, match="is outside"):
            run.pause_at(time)
        assert run.paused_at is None


def test_the_last_time_there_is() -> None:
    with echo(lateness=0).open() as run:
        run.pause_at(10)
        run.input("in").send({"time": [2**63 - 1], "n": [1]})
        run.run_to_rest()
        assert run.step() == 2**63 - 1
        with pytest.raises(GraphError, match=r"at the last time there is.*resume\(\)"):
            run.step()
        run.resume()
        run.run_to_rest()
        assert numbers(run.results()) == [1]
        with pytest.raises(TimeError, match="cannot pause: input 'in' has passed the last time"):
            run.pause_at()


def test_a_timestamp_before_any_record_is_returned_as_one() -> None:
    time = datetime(2024, 1, 1, tzinfo=UTC)
    with echo().open(workers=2) as run:
        assert run.pause_at(time) == time
        assert run.paused_at == time
        assert run.step(until=time + timedelta(days=1)) == time + timedelta(days=1)


def test_a_step_sees_records_that_were_just_sent() -> None:
    flow = jt.Flow("sent")
    flow.output("out", flow.input("in", lateness=9))
    with flow.open(workers=2) as run:
        run.pause_at(3)
        run.input("in", 0).send({"time": [8], "n": [1]})
        run.run_to_rest()
        run.input("in", 1).send({"time": [5], "n": [2]})
        assert run.step() == 5
        assert run.step() == 8
        assert run.results()["out"]["n"].to_pylist() == [2]
