"""The cost of a pending time: whole columns in an agenda, a heap, or a token for each.

Records arrive with distinct times in the future, in random order. Then the frontier advances in
steps, and each step releases the records that it has passed. The measurement includes source,
agenda, tokens and progress. The variants alternate in one run; the result is the median of the
thread's own time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import median
from time import thread_time
from typing import Any

import numpy as np

import jeton as jt
from jeton.idioms.priority import Agenda, HeapAgenda

BLOCK = 4096
FIRST = 10
"""The least time that anything waits for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        prog="jeton bench priority", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--times", type=int, nargs="+", default=[100_000, 1_000_000], metavar="N",
        help="numbers of pending times (default: 100000 1000000)",
    )  # fmt: skip
    parser.add_argument(
        "--most", type=int, default=1_000_000, metavar="N",
        help="beyond this number, measure only the columns (default: 1000000)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds (default: 3)")
    options = parser.parse_args(argv)
    ways: dict[str, Callable[..., Any]] = {
        "columns": _releasing(Agenda),
        "heap": _releasing(HeapAgenda),
        "token each": _token_each,
    }
    print(f"{'pending times':>14}" + "".join(f"{way:>14}" for way in ways) + "   (ns for each)")
    for times in options.times:
        measured: dict[str, list[float]] = {
            way: [] for way in ways if way == "columns" or times <= options.most
        }
        for _ in range(options.rounds):
            for way, taken in measured.items():
                taken.append(run(ways[way], times) / times * 1e9)
        row = (
            f"{median(measured[way]):>14,.0f}" if way in measured else f"{'–':>14}" for way in ways
        )
        print(f"{times:>14,}" + "".join(row), flush=True)
    return 0


def run(build: Callable[..., Any], times: int) -> float:
    """Seconds of this thread for a number of distinct times."""
    due = np.random.default_rng(1).permutation(times).astype(np.int64) + FIRST
    released = [0]

    def count(batch: jt.Batch) -> jt.Batch:
        released[0] += len(batch)
        return batch

    flow = jt.Flow("pending")
    flow.source(_source(due)).unary_frontier(build).map(count).probe("after")
    with flow.open() as opened:
        start = thread_time()
        opened.run_to_rest()
        seconds = thread_time() - start
    assert released[0] == times
    return seconds


def _source(due: Any) -> Callable[..., Any]:
    """All records at time 0, then one step of the frontier after the other."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
        at = [0]

        def step(output: jt.Output) -> None:
            start, at[0] = at[0], at[0] + BLOCK
            part = due[start : start + BLOCK]
            if len(part):
                output.session(token).give({"due": part})
            elif token.time < FIRST + len(due):
                token.downgrade(max(token.time, FIRST) + BLOCK)
            else:
                token.drop()
                return
            info.activator.activate()

        return step

    return build


def _releasing(make: Any) -> Callable[..., Any]:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        agenda = make(info.kind)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                agenda.push(ref, batch, batch["due"])
            for held, batch in agenda.pop_before(input.frontier):
                output.session(held).give(batch)

        return step

    return build


def _token_each(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
    """A token for each time that something waits for, as for each open window in the paper."""
    waiting: jt.state.TimeMap[tuple[jt.TimestampToken, list[int]]] = jt.state.TimeMap()
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            for due in batch["due"].tolist():
                if due in waiting:
                    waiting[due][1].append(due)
                else:
                    waiting[due] = (ref.retain(due), [due])
        for _, (held, found) in waiting.pop_before(input.frontier):
            with held:
                session = output.session(held)
                for due in found:
                    session.give(due=due)

    return step


if __name__ == "__main__":
    raise SystemExit(main())
