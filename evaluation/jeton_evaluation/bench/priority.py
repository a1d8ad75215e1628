"""The cost of a pending time: whole columns, a heap, or a token for each.

Records arrive with distinct times in the future, in random order. Then the frontier advances in
steps, and each step releases the records that it has passed. The measurement includes source,
container, tokens and progress. The variants alternate in one run; the result is the median of the
thread's own time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import thread_time
from typing import Annotated, Any

import numpy as np

import jeton as jt
from jeton.idioms.priority import Agenda, HeapAgenda
from jeton_evaluation.bench.harness import Line, Rounds, Say, command, in_turn

BLOCK = 4096
FIRST = 10
"""The least time that anything waits for."""
TIMES = [100_000, 1_000_000]


def run(
    say: Say,
    times: Annotated[list[int], "numbers of pending times"] = TIMES,
    most: Annotated[int, "beyond this number, measure only the columns"] = 1_000_000,
    rounds: Rounds = 3,
) -> list[Line]:
    """Measure all variants at each number of times."""
    ways = {"columns": releasing(Agenda), "heap": releasing(HeapAgenda), "token each": token_each}
    say(f"{'pending times':>14}" + "".join(f"{way:>14}" for way in ways) + "   (ns for each)")
    rows = []
    for count in times:
        measured = [way for way in ways if way == "columns" or count <= most]
        seconds = in_turn(rounds, *(partial(release, ways[way], count) for way in measured))
        cost = {way: each / count * 1e9 for way, each in zip(measured, seconds, strict=True)}
        cells = (f"{cost[way]:>14,.0f}" if way in cost else f"{'–':>14}" for way in ways)
        say(f"{count:>14,}" + "".join(cells))
        rows.append({"times": count, **cost})
    return rows


main = command(run)


def release(build: Callable[..., Any], times: int) -> float:
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


def releasing(make: Any) -> Callable[..., Any]:
    """An operator that holds whole batches until their times."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        pending = make(info.kind)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                pending.push(ref, batch, batch.column("due"))
            for held, batch in pending.pop_before(input.frontier):
                output.session(held).give(batch)

        return step

    return build


def token_each(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
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
