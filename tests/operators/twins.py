"""Twins: run a flow on random schedules, with a restart in the middle, and compare its rows.

Every operator has a slow obvious twin in its test, a function over plain rows. `run_twin` feeds the
rows in random pieces to random workers, stops at rest somewhere in the middle, takes a snapshot,
goes on with another number of workers, and returns all rows that came out, to be compared with what
the twin says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import jeton as jt

Row = dict[str, Any]

ALL_TIMES = min(jt.IntegerTimes(), jt.IntegerTimes(minimum=1 - 2**63), key=lambda k: k.minimum)
"""Times from the least that a flow can have."""


@dataclass(frozen=True)
class Schedule:
    """How a flow is run: everything that must not change its answer."""

    workers: int
    seed: int | None
    piece: int
    """The most records that are sent at a time."""
    restart: float | None
    """After which part of the pieces to stop, snapshot and go on."""
    workers_after: int
    mixed: bool = True
    """Whether pieces come in any order; else roughly in that of their times, so that much is
    complete before the restart."""


def schedules() -> st.SearchStrategy[Schedule]:
    """Random schedules: 1–4 workers, half of them with a restart (often from 2 to 3 workers)."""
    return st.builds(
        Schedule,
        workers=st.sampled_from([2, 1, 3, 4]),
        seed=st.one_of(st.integers(0, 10_000), st.none()),
        piece=st.sampled_from([1, 2, 3, 7, 1000]),
        restart=st.one_of(st.none(), st.floats(0.0, 1.0)),
        workers_after=st.sampled_from([3, 1, 2, 4]),
        mixed=st.booleans(),
    )


def schedule_of(seed: int) -> Schedule:
    """A schedule for those who count seeds rather than let Hypothesis choose."""
    random = Random(seed)
    return Schedule(
        workers=1 + seed % 4,
        seed=seed,
        piece=random.choice([1, 2, 7, 1000]),
        restart=random.choice([None, None, random.random()]),
        workers_after=random.randint(1, 4),
        mixed=random.random() < 0.5,
    )


def run_twin(
    build: Callable[[jt.Flow], None],
    inputs: Mapping[str, Sequence[Row]],
    schedule: Schedule,
    *,
    schema: Mapping[str, pa.Schema] | None = None,
    time: str = "time",
    kind: jt.IntegerTimes | None = None,
) -> dict[str, list[Row]]:
    """All rows of each output, over a restart if the schedule has one.

    ``schema`` gives the Arrow types of an input's columns, the time column included; rows of an
    input without one must have values in every column of the first piece, or Arrow cannot tell.
    """
    flow = jt.Flow("twin", time=kind or int)
    build(flow)
    random = Random(schedule.seed or 0)
    sends = _sends(inputs, schedule, random, time)
    stop = None if schedule.restart is None else round(schedule.restart * len(sends))
    found: dict[str, list[Row]] = {name: [] for name in flow.outputs}

    def send(run: jt.Run, name: str, worker: int, rows: Sequence[Row]) -> None:
        table = pa.Table.from_pylist(list(rows), schema=(schema or {}).get(name))
        run.input(name, worker % len(run.workers)).send(table)

    def advance(run: jt.Run, at: int) -> None:
        for name in flow.inputs:
            left = [row[time] for n, _, rows in sends[at:] if n == name for row in rows]
            for worker in range(len(run.workers)):
                handle = run.input(name, worker)
                if left and handle.time < min(left):
                    handle.advance_to(min(left))

    def drive(run: jt.Run, start: int, end: int) -> None:
        for at in range(start, end):
            send(run, *sends[at])
            if random.random() < 0.7:
                advance(run, at + 1)
            for _ in range(random.randint(0, 4)):
                run.turn()

    def collect(run: jt.Run) -> None:
        for name, table in run.results().items():
            found[name] += table.to_pylist()

    snapshot = None
    start = 0
    if stop is not None:
        with flow.open(workers=schedule.workers, seed=schedule.seed) as run:
            drive(run, 0, stop)
            run.run_to_rest()
            snapshot = run.snapshot()
            collect(run)
        start = stop
    workers = schedule.workers if stop is None else schedule.workers_after
    with flow.open(workers=workers, seed=schedule.seed, restore=snapshot) as run:
        drive(run, start, len(sends))
        run.finish()
        collect(run)
    return found


def _sends(
    inputs: Mapping[str, Sequence[Row]], schedule: Schedule, random: Random, time: str
) -> list[tuple[str, int, Sequence[Row]]]:
    """Pieces of all inputs in one random order, each with the worker that sends it."""
    sends: list[tuple[str, int, Sequence[Row]]] = []
    for name, rows in inputs.items():
        if not schedule.mixed:
            rows = sorted(rows, key=lambda row: row[time] + random.randint(0, 2))
        at = 0
        while at < len(rows):
            size = random.randint(1, schedule.piece)
            sends.append((name, random.randrange(schedule.workers), rows[at : at + size]))
            at += size
    random.shuffle(sends)
    if not schedule.mixed:
        sends.sort(key=lambda send: send[2][0][time])
    return sends


def assert_same(found: Iterable[Row], expected: Iterable[Row]) -> None:
    """The same rows, in any order; floating-point numbers to nine digits."""
    assert Counter(map(_frozen, found)) == Counter(map(_frozen, expected))


def _frozen(row: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, _plain(value)) for name, value in row.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.9g}") + 0.0
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return _frozen(value)
    return value
