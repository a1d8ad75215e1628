"""State that a control stream moves: the answers of a run in which it stays, on named workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

import jeton as jt
from jeton.errors import BatchError, GraphError, TimeError
from jeton.idioms.migration import movable_map

BINS = 256
TIMES = 60
Row = dict[str, Any]


def visits(state: tuple[int, int], row: Row | None, timer: Any) -> tuple[Any, list[Row]]:
    """Sums of each key, and what is known of it some time after each record: pending work."""
    total, left = state
    if row is None:
        return (total, left - 1), [{"total": total, "left": left - 1}]
    timer(row["n"] % 7 + 1)
    return (total + row["n"], left + 1), [{"total": total + row["n"], "left": left + 1}]


def where(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
    """The worker that each answer comes from."""
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            here = np.full(len(batch), info.worker)
            output.session(ref).give(batch.with_columns({"on": here}))

    return step


def moving() -> jt.Flow:
    flow = jt.Flow("moving", bins=BINS)
    records, moves = flow.input("records"), flow.input("moves")
    answers = movable_map(records, "k", visits, (0, 0), moves=moves)
    flow.output("answers", answers.unary(where))
    return flow


def rows_of(seed: int) -> list[tuple[int, int, int]]:
    random = Random(f"rows {seed}")
    rows = [
        (random.randrange(TIMES), random.randrange(6), random.randrange(40))
        for _ in range(random.randrange(80))
    ]
    return sorted(rows)


def expected(seed: int) -> Counter[Any]:
    """The answers, by plain Python: all calls of all keys in order of time."""
    calls: list[tuple[int, bool, str, int, Row | None]] = []
    for time, k, n in rows_of(seed):
        row = {"time": time, "k": k, "n": n}
        calls.append((time, False, str(row), k, row))
    states: dict[int, tuple[int, int]] = {}
    answers: Counter[Any] = Counter()
    while calls:
        calls.sort(key=lambda call: call[:3])
        time, _, _, k, record = calls.pop(0)

        def timer(delay: int, at: int = time, key: int = k) -> None:
            calls.append((at + delay, True, "", key, None))

        states[k], rows = visits(states.get(k, (0, 0)), record, timer)
        answers.update((time, k, row["total"], row["left"]) for row in rows)
    return answers


def table(rows: Sequence[tuple[int, ...]], names: str) -> dict[str, list[int]]:
    return {name: [row[at] for row in rows] for at, name in enumerate(names.split())}


def counted(result: jt.Result) -> Counter[Any]:
    rows = result["answers"].to_pylist()
    return Counter((row["time"], row["k"], row["total"], row["left"]) for row in rows)


def random_moves(random: Random, workers: int) -> list[tuple[int, int, int]]:
    moves: list[tuple[int, int, int]] = []
    for _ in range(random.randrange(6)):
        at, bins = random.randrange(TIMES), random.sample(range(BINS), random.choice([1, 40, 256]))
        moves += [(at, bin, random.randrange(workers)) for bin in bins]
    return sorted(moves)


@pytest.mark.parametrize("seed", range(40))
def test_answers_are_those_of_state_that_stays(seed: int) -> None:
    random = Random(seed)
    workers = random.choice([1, 2, 3, 4])
    records = table(rows_of(seed), "time k n")
    moves = table(random_moves(random, workers), "time bin worker")
    inputs = {"records": records, "moves": moves}
    assert counted(moving().run(inputs, workers=workers, seed=seed)) == expected(seed)


@pytest.mark.parametrize("seed", range(20))
def test_snapshots_include_state_records_and_moves_to_come(seed: int) -> None:
    random = Random(f"snapshots {seed}")
    flow, answers, snapshot = moving(), Counter[Any](), None
    moves, rows = random_moves(random, 2), rows_of(seed)
    cuts = sorted(random.sample(range(1, TIMES), 3))
    for first, last in zip([0, *cuts], [*cuts, TIMES], strict=True):
        workers = random.choice([2, 3, 4])
        with flow.open(workers=workers, seed=seed, restore=snapshot) as run:
            parts = {
                "records": table([row for row in rows if first <= row[0] < last], "time k n"),
                "moves": table([row for row in moves if first <= row[0] < last], "time bin worker"),
            }
            for name, part in parts.items():
                if part["time"]:
                    run.input(name, random.randrange(workers)).send(part)
                # Neither stream need be as far as the other.
                to = random.choice([first, last])
                for worker in range(workers):
                    run.input(name, worker).advance_to(to)
            if last == TIMES:
                answers += counted(run.finish())
            else:
                run.run_to_rest()
                snapshot = run.snapshot()
                answers += counted(run.results())
    assert answers == expected(seed)


def test_each_record_is_answered_where_its_time_says() -> None:
    moves = [(at, bin, at % 3) for at in (10, 20, 31) for bin in range(BINS)]
    rows = [(time, k, 1) for time in range(40) for k in range(6)]
    inputs = {"records": table(rows, "time k n"), "moves": table(moves, "time bin worker")}
    answers = moving().run(inputs, workers=3, seed=1)["answers"].to_pylist()
    on = {(row["time"], row["on"]) for row in answers if row["time"] >= 10}
    # Those at 40 and later are timers, which moved with the state that they are about.
    assert on == {(time, 1 if time < 20 else 2 if time < 31 else 1) for time in range(10, 42)}
    assert {row["on"] for row in answers if row["time"] < 10} == {0, 1}


def test_records_wait_for_the_configuration_of_their_time() -> None:
    with moving().open(workers=2) as run:
        run.input("records").send({"time": [1, 5], "k": [1, 1], "n": [1, 1]})
        for worker in range(2):
            run.input("moves", worker).advance_to(5)
            run.input("records", worker).advance_to(20)
        run.run_to_rest()
        assert [row["time"] for row in run.results()["answers"].to_pylist()] == [1, 3]


def test_misuse_is_named() -> None:
    flow = moving()
    records = {"time": [0], "k": [1], "n": [1]}
    moves = {"time": [0], "bin": [BINS], "worker": [0]}
    with pytest.raises(BatchError, match="bin 256 cannot go to worker 0: there are 256 bins"):
        flow.run({"records": records, "moves": moves}, workers=2)
    moves = {"time": [0], "bin": [3], "worker": [2]}
    with pytest.raises(BatchError, match="bin 3 cannot go to worker 2"):
        flow.run({"records": records, "moves": moves}, workers=2)
    loop = jt.Flow("loop")
    numbers, moves_in = loop.input("numbers"), loop.input("moves")
    with pytest.raises(GraphError, match="inside a loop cannot be moved"):
        numbers.iterate(
            lambda again: (again, movable_map(again, "k", visits, (0, 0), moves=moves_in))
        )

    def at_once(state: int, row: Row | None, timer: Any) -> tuple[int, list[Row]]:
        timer(0)
        return state, []

    flow = jt.Flow("now")
    stream = movable_map(flow.input("records"), "k", at_once, 0, moves=flow.input("moves"))
    flow.output("answers", stream)
    with pytest.raises(TimeError, match="a timer is for a later time"):
        flow.run({"records": records, "moves": {"time": [], "bin": [], "worker": []}})
