"""Watermarks when some are idle: who is waited for, for how long, and what is late then."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.helpers import UnaryStep, stamped
from tests.idioms.marking import counting, send, times

import jeton as jt
from jeton.idioms.watermark_ports import ACTIVE, CLOSED, IDLE
from jeton.idioms.watermark_sources import marks_from_times


def test_an_idle_worker_holds_others_back_only_for_a_while() -> None:
    with counting(workers=2) as run:
        send(run, 0, 10, 20)
        run.run_to_rest()
        assert times(run, "counts") == []
    with counting(workers=2, idle_after=5.0) as run:
        send(run, 0, 10, 20)
        assert times(run, "counts") == []
        run.run_to_rest()
        assert run.now >= 5
        # Worker 1 has been idle for longer than worker 0, but now both are, and nothing moves.
        # The next record lets worker 0 go on alone.
        send(run, 0, 30)
        assert times(run, "counts") == [10, 20]
        assert run.finish()["counts"].num_rows == 3


def test_idleness_begins_when_nothing_has_come_for_the_whole_of_it() -> None:
    """A record in between puts it off, though the alarm was set before."""
    statuses: list[tuple[float, int]] = []
    flow = jt.Flow("patience")
    marked = marks_from_times(flow.input("words"), 0, idle_after=5.0)

    def watch(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for _, batch in input:
                if "jeton.mark" in batch:
                    statuses.append((info.activator.now(), int(batch["jeton.mark"][0]) & 3))

        return step

    def alarm(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()
        info.activator.after(3.0)
        return lambda output: None

    marked.stream.unary(watch)
    flow.source(alarm)
    with flow.open() as run:
        run.run_until(lambda: run.now >= 3)
        run.input("words").send({"time": [1], "n": [1]})
        run.run_to_rest()
        assert statuses == [(3.0, ACTIVE), (8.0, IDLE)]
        run.input("words").send({"time": [1], "n": [1]})
        run.run_to_rest()
        assert statuses[2:] == [(8.0, ACTIVE), (13.0, IDLE)]
        run.finish()
        assert statuses[4:] == [(13.0, CLOSED)]


def test_late_records_after_idleness_go_aside_at_their_own_times() -> None:
    with counting(workers=2, idle_after=5.0) as run:
        send(run, 1, 4)
        run.run_to_rest()
        send(run, 0, 10, 20)
        assert times(run, "counts") == [4, 10]
        # The frontier has not run ahead: the idle worker still holds its token.
        assert run.probe("after").frontier.less_equal(4)
        send(run, 1, 6, 19, 20)
        assert stamped(run.results()["late"]) == [(6, 1), (19, 1)]
        # Worker 1 has caught up, and is waited for again.
        send(run, 0, 40)
        assert times(run, "counts") == [4, 10]
        send(run, 1, 25)
        assert times(run, "counts") == [4, 10, 20, 20]
        result = run.finish()
    assert result["counts"]["time"].to_pylist() == [4, 10, 20, 20, 25, 40]
    assert result["counts"]["count"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert result["late"].num_rows == 2


def test_a_worker_that_comes_back_far_behind_holds_no_operator_back() -> None:
    with counting(workers=2, idle_after=5.0) as run:
        run.run_to_rest()
        send(run, 0, 10, 20)
        send(run, 1, 3)
        send(run, 0, 30)
        assert times(run, "counts") == [10, 20]
        assert times(run, "late") == [3]


@pytest.mark.parametrize("seed", range(60))
def test_no_record_is_lost_whatever_is_idle_when(seed: int) -> None:
    """Every record is counted or late, and counts are those of what was not late."""
    random = Random(seed)
    workers = random.randint(1, 4)
    sent: list[int] = []
    with counting(
        workers=workers,
        disorder=random.randint(0, 5),
        idle_after=random.choice([None, 1.0]),
        seed=seed,
    ) as run:
        for _ in range(12):
            some = [random.randint(0, 40) for _ in range(random.randint(1, 4))]
            sent += some
            worker = random.randrange(workers)
            run.input("words", worker).send({"time": some, "n": [1] * len(some)})
            if random.random() < 0.3:
                run.run_to_rest()
            for _ in range(random.randint(0, 6)):
                run.turn()
        result = run.finish()
    counted = result["counts"]["time"].to_pylist()
    assert sorted(counted + result["late"]["time"].to_pylist()) == sorted(sent)
    assert result["counts"]["count"].to_pylist() == list(range(1, len(counted) + 1))
    assert counted == sorted(counted)


def test_an_operator_can_tell_whether_a_delay_is_over() -> None:
    seen: list[float] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()
        start = info.activator.now()
        info.activator.after(2.5)
        info.activator.activate()
        return lambda output: seen.append(info.activator.now() - start)

    flow = jt.Flow("clock")
    flow.source(build)
    flow.run()
    assert seen == [0.0, 2.5]


def test_a_worker_whose_input_has_ended_is_idle_until_all_have() -> None:
    with counting(workers=2) as run:
        send(run, 0, 5)
        run.input("words", 0).close()
        send(run, 1, 20)
        run.run_to_rest()
        assert times(run, "counts") == []
    with counting(workers=2, idle_after=5.0) as run:
        send(run, 0, 5)
        run.input("words", 0).close()
        run.run_to_rest()
        send(run, 1, 20, 30)
        assert times(run, "counts") == [5, 20]
        assert run.finish()["counts"].num_rows == 3
