"""Simulated runs of a flow: whole tables under a random schedule, with restores on the way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from jeton.cli.command import UsageError
from jeton.columns.batch import Batch
from jeton.core.errors import JetonError, SnapshotError
from jeton.dataflow.flow import Flow
from jeton.dataflow.inputs import InputHandle
from jeton.runtime.result import Result

Rows = Counter[Any]
"""The rows of an output, in any order."""

_KEYS: Final = 7
"""How many values a random column has."""


@dataclass(frozen=True)
class Seen:
    """The result of one schedule."""

    rows: Mapping[str, Rows]
    restores: int = 0
    checks: int = 0
    error: str | None = None


class Simulation:
    """Runs a flow over the same tables again and again, under other schedules.

    >>> import jeton as jt
    >>> flow = jt.Flow("counts")
    >>> flow.output("counts", flow.input("words").key_by("word").tumbling(10).count())
    >>> table = pa.table({"time": [1, 2, 12], "word": ["a", "b", "a"]})
    >>> simulation = Simulation(lambda: flow, {"words": table}, workers=3)
    >>> all(simulation.run(seed).rows == simulation.plain() for seed in range(20))
    True
    """

    def __init__(
        self,
        make: Callable[[], Flow],
        tables: Mapping[str, pa.Table],
        workers: int,
        *,
        restores: bool = True,
    ) -> None:
        self._make = make
        self._tables = tables
        self._workers = workers
        self._restores = restores

    def plain(self) -> dict[str, Rows]:
        """The rows of a run on one worker, straight on."""
        return _rows([self._make().run(self._tables)])

    def run(self, seed: int) -> Seen:
        """The rows under one schedule, which the seed decides."""
        random = Random(seed)
        legs = random.choice([1, 1, 2, 3]) if self._restores else 1
        try:
            if legs > 1 and (seen := self._with_restores(random, legs)) is not None:
                return seen
            result = self._make().run(self._tables, workers=self._workers, seed=seed)
            return Seen(_rows([result]), checks=result.checks)
        except JetonError as error:
            return Seen({}, error=f"{type(error).__name__}: {error}")

    def _with_restores(self, random: Random, legs: int) -> Seen | None:
        """Send some rows, come to rest, take a snapshot, go on from it elsewhere.

        Nothing if no snapshot can be taken of the flow.
        """
        flow = self._make()
        if not _is_restorable(flow):
            return None
        left = dict(self._tables)
        results: list[Result] = []
        snapshot = None
        for leg in range(legs):
            last = leg == legs - 1
            workers = random.randint(1, self._workers)
            seed = random.randrange(1 << 30)
            with flow.open(workers=workers, seed=seed, restore=snapshot) as run:
                if last:
                    run.feed(left)
                    results.append(run.finish())
                    break
                for name in flow.inputs:
                    handles = [run.input(name, worker) for worker in range(workers)]
                    time_name = flow.operators[flow.handle("input", name)].time_name
                    left[name] = _send_some(random, handles, left[name], time_name, run.turn)
                run.run_to_rest()
                try:
                    snapshot = run.snapshot()
                except SnapshotError:
                    return None
                results.append(run.results())
        checks = sum(result.checks for result in results)
        return Seen(_rows(results), restores=legs - 1, checks=checks)


def _send_some(
    random: Random,
    handles: Sequence[InputHandle],
    table: pa.Table,
    time_name: str,
    turn: Callable[[], bool],
) -> pa.Table:
    """Send the first rows of a table to any workers; returns the others."""
    end = random.randint(0, table.num_rows)
    for handle in handles:
        # A table is complete, so nothing in it is late.
        handle.lateness = None
    at = 0
    while at < end:
        size = random.randint(1, max(1, end // 3))
        random.choice(handles).send(table.slice(at, min(size, end - at)))
        at += size
        for _ in range(random.randrange(8)):
            turn()
    left = table.slice(end)
    if left.num_rows:
        rest = Batch.from_arrow(left, time=time_name)
        for handle in handles:
            least = int(handle.in_flow_unit(rest).times.min())
            if random.random() < 0.8 and handle.time < least:
                handle.advance_to(least)
    return left


def _is_restorable(flow: Flow) -> bool:
    """Whether it has no sources of its own, which would begin anew."""
    inputs = {flow.handle("input", name) for name in flow.inputs}
    return all(plan.inputs or plan.index in inputs for plan in flow.operators)


def _rows(results: Sequence[Result]) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for result in results:
        for name, table in result.items():
            rows = (tuple(sorted(row.items())) for row in table.to_pylist())
            found.setdefault(name, Counter()).update(map(_frozen, rows))
    return found


def _frozen(value: Any) -> Any:
    """A value that can be counted; not-a-number equals itself."""
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple(sorted((name, _frozen(each)) for name, each in value.items()))
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value


def random_tables(flow: Flow, inputs: Sequence[str], rows: int) -> dict[str, pa.Table]:
    """Random rows for inputs with a schema: few different keys, times not quite in order."""
    found = {}
    for name in inputs:
        schema = flow.input_schemas.get(name)
        if schema is None:
            raise UsageError(
                f"input {name!r} of flow {flow.name!r} has no schema to make random rows from: add "
                f"--input {name}=PATH, or declare it, flow.input({name!r}, schema=…)"
            )
        random = Random(name)
        times = pa.array([at // 2 + random.randrange(5) for at in range(rows)], pa.int64())
        if flow.domain.stamps:
            kind = flow.domain.type
            known = pa.types.is_timestamp(kind)
            times = _seconds(times, kind if known else pa.timestamp(flow.domain.unit))
        time_name = flow.operators[flow.handle("input", name)].time_name
        columns = {field.name: _random_column(random, field, rows) for field in schema}
        found[name] = pa.table({time_name: times, **columns})
    return found


def _seconds(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    return numbers.cast(pa.timestamp("s")).cast(pa.timestamp(kind.unit, kind.tz))


def _random_column(random: Random, field: pa.Field, rows: int) -> pa.Array:
    kind = field.type
    numbers = pa.array([random.randrange(_KEYS) for _ in range(rows)], pa.int64())
    try:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return pa.array([f"{field.name} {n}" for n in numbers.to_pylist()], kind)
        if pa.types.is_timestamp(kind):
            return _seconds(numbers, kind)
        if pa.types.is_date(kind):
            return numbers.cast(pa.int32()).cast(pa.date32()).cast(kind)
        if pa.types.is_boolean(kind):
            return pc.equal(pc.bit_wise_and(numbers, 1), 1)
        if pa.types.is_floating(kind):
            # Halves add up exactly, in any order.
            return pc.divide(numbers.cast(pa.float64()), 2.0).cast(kind)
        return numbers.cast(kind)
    except pa.ArrowException as error:
        raise UsageError(
            f"there are no random values of type {kind} for column {field.name!r}: add a file with "
            "--input"
        ) from error
