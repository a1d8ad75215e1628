"""Memory of an operator that makes very many records from one, with and without flow control.

``jeton bench memory`` makes 10 million and 100 million records from a single one, with flow control
(`jeton.idioms.flow_control`) and without, and reports the peak growth of memory.
Each run has a process of its own. Without flow control, memory grows with the number of records:
that variant is measured at smaller sizes only, unless ``--all`` is given.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal

import numpy as np

import jeton as jt
from jeton.idioms.flow_control import flat_map_bounded
from jeton_evaluation.bench.harness import Line, OptionError, Say, Table, child_line, command

PIECE = 65_536
"""Records in a piece, as they are produced."""
LIMIT = 1_000_000
"""Records under way at a time, with flow control."""


TABLE = Table(
    {
        "flow control": "flow_control:>12",
        "records": "records:>13",
        "peak growth, MB": "peak_mb:>18.1f",
        "seconds": "seconds:>10.2f",
        "M records/s": "rate:>14.1f",
    }
)


def run(
    say: Say,
    records: Annotated[int, "the most records"] = 100_000_000,
    workers: Annotated[int, "workers in one process"] = 1,
    *,
    all: Annotated[bool, "the most records without flow control too"] = False,
    one: Annotated[Literal["with", "without"] | None, argparse.SUPPRESS] = None,
) -> list[Line]:
    """Measure all sizes, each in a process of its own; ``one`` is such a process."""
    if one:
        print(json.dumps(measure(records, workers, one == "with")))
        return []
    if records < 100:
        raise OptionError(f"a hundredth of {records} records is less than one: --records is 100 up")
    sizes = (records // 100, records // 10, records)
    say(TABLE.head)
    rows = []
    for control, few in (("without", not all), ("with", False)):
        for size in sizes[:2] if few else sizes:
            row = {"flow_control": control, **in_a_child(control, size, workers)}
            say(TABLE.row(row | {"rate": row["records"] / row["seconds"] / 1e6}))
            rows.append(row)
    return rows


main = command(run)


def in_a_child(control: str, records: int, workers: int) -> Line:
    """One run in a process of its own, so that its peak is its own."""
    options = ("--one", control, "--records", records, "--workers", workers)
    return child_line(__spec__.name, *options)


def measure(records: int, workers: int, control: bool) -> Line:
    """Make `records` records from one; returns the peak growth of memory, and the seconds."""
    flow = sums(control)
    flow.run({"asked": {"time": [0], "n": [PIECE]}}, workers=workers)
    before = peak_mb()
    start = perf_counter()
    result = flow.run({"asked": {"time": [0], "n": [records]}}, workers=workers)
    seconds = perf_counter() - start
    [total] = result["sums"]["sum"].to_pylist()
    if total != records * (records - 1) // 2:
        raise AssertionError(f"the sum of the numbers below {records} is not {total}")
    return {
        "records": records,
        "workers": workers,
        "peak_mb": round(peak_mb() - before, 1),
        "seconds": round(seconds, 3),
    }


def sums(control: bool) -> jt.Flow:
    """A flow that makes all numbers below each number, moves them to other workers, adds them."""
    flow = jt.Flow("sums")
    asked = flow.input("asked")
    if control:
        added = flat_map_bounded(asked, numbers, add_up, limit=LIMIT)
    else:
        added = add_up(asked.unary(all_at_once))
    flow.output("sums", added.key_by().each_time().sum("sum"))
    return flow


def numbers(batch: jt.Batch) -> Iterator[dict[str, Any]]:
    """All numbers below each number, piece by piece."""
    for n in batch["n"].tolist():
        for start in range(0, n, PIECE):
            yield {"i": np.arange(start, min(start + PIECE, n))}


def add_up(made: jt.Stream) -> jt.Stream:
    """The consumer of the records: each message becomes one record with its sum."""
    return made.exchange("i").unary(_sum_of_each)


def _sum_of_each(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            output.session(ref).give(sum=int(batch["i"].sum()))

    return step


def all_at_once(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
    """The same records without flow control: all of them before it yields."""
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            with output.session(ref) as session:
                for piece in numbers(batch):
                    session.give(piece)

    return step


def peak_mb() -> float:
    """The most memory that this process ever had, in megabytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not from getrusage, where a child inherits its parent's peak.
        [line] = [one for one in status.read_text().splitlines() if one.startswith("VmHWM")]
        return int(line.split()[1]) / 1024
    import resource

    scale = 2**20 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


if __name__ == "__main__":
    raise SystemExit(main())
