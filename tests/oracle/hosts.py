"""Cases in this process: straight, or in pieces and over a restart."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa

import jeton as jt
from tests.oracle.case import Case
from tests.oracle.tables import TIME


def in_process(case: Case) -> list[pa.Table]:
    """The tables of a case's outputs, from a run in this process."""
    flow = jt.Flow("case", unit=case.unit or "us")
    for number, stream in case.add_to(flow).items():
        flow.output(f"out{number}", stream)
    if case.schedule.restart is not None:
        found = restarted(flow, case)
    else:
        inputs = {f"in{n}": handed_in(case, table) for n, table in enumerate(case.tables)}
        result = flow.run(inputs, workers=case.schedule.workers, seed=case.schedule.seed)
        if any(result.late.values()):
            raise AssertionError(f"records of a batch run are late: {result.late}")
        found = {name: [result[name]] for name in flow.outputs}
    return [joined(found[f"out{number}"]) for number in case.ends]


def joined(parts: list[pa.Table]) -> pa.Table:
    """One table of several."""
    full = [part for part in parts if part.num_rows] or parts[:1]
    return full[0] if len(full) == 1 else pa.concat_tables(full, promote_options="default")


def handed_in(case: Case, table: pa.Table) -> Any:
    """A table as a user may have it."""
    form = case.schedule.form
    if form == "polars" and all(map(_in_polars, table.schema.types)):
        return pl.from_arrow(table)
    if form == "pandas":
        return table.to_pandas(types_mapper=pd.ArrowDtype)
    if form == "chunks":
        return pa.concat_tables(list(_pieces(table, Random(case.schedule.seed or 0))) or [table])
    return table


def _in_polars(kind: pa.DataType) -> bool:
    """Whether Polars has the type itself: what it converts is another table."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or kind in (pa.float32(), pa.float64(), pa.date32(), pa.bool_(), pa.duration("us"))
        or types.is_large_string(kind)
        or types.is_string(kind)
        or types.is_string_view(kind)
        or types.is_binary(kind)
        or (types.is_timestamp(kind) and kind.unit != "s")
    )


def _pieces(table: pa.Table, random: Random) -> Iterator[pa.Table]:
    start = 0
    while start < table.num_rows:
        size = random.choice([1, 2, 3, 7, 20])
        yield table.slice(start, size)
        start += size


def restarted(flow: jt.Flow, case: Case) -> dict[str, list[pa.Table]]:
    """The output if records are sent in pieces, with a snapshot in the middle."""
    random = Random(case.schedule.seed or 0)
    sends = [
        (f"in{number}", piece)
        for number, table in enumerate(case.tables)
        for piece in _pieces(table, random)
    ]
    random.shuffle(sends)
    found: dict[str, list[pa.Table]] = {name: [] for name in flow.outputs}

    def send(run: jt.Run, at: int) -> None:
        name, piece = sends[at]
        handle = run.input(name, random.randrange(len(run.workers)))
        handle.send(piece)
        for other in flow.inputs:
            left = [time for n, rest in sends[at + 1 :] if n == other for time in stamps(rest)]
            for worker in range(len(run.workers)):
                handle = run.input(other, worker)
                if left and handle.time < min(left):
                    handle.advance_to(min(left))
        for _ in range(random.randint(0, 3)):
            run.turn()

    def drive(run: jt.Run, start: int, stop: int) -> None:
        for name in flow.inputs:
            for worker in range(len(run.workers)):
                # Here the driver says what is complete.
                run.input(name, worker).lateness = None
        for at in range(start, stop):
            send(run, at)

    stop = min(case.schedule.restart or 0, len(sends))
    with flow.open(workers=case.schedule.workers, seed=case.schedule.seed) as run:
        drive(run, 0, stop)
        run.run_to_rest()
        snapshot = run.snapshot()
        collect(run, found)
    workers = random.randint(1, 4)
    with flow.open(workers=workers, seed=case.schedule.seed, restore=snapshot) as run:
        drive(run, stop, len(sends))
        run.finish()
        collect(run, found)
    return found


def stamps(table: pa.Table) -> list[int]:
    """The times that are there."""
    times = table[TIME].drop_null()
    found: list[int] = (
        times.cast(pa.int64()) if pa.types.is_timestamp(times.type) else times
    ).to_pylist()
    return found


def collect(run: jt.Run, found: dict[str, list[pa.Table]]) -> None:
    """Add the tables of a run."""
    for name, table in run.results().items():
        found[name].append(table)
