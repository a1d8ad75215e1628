"""The effect of slow calls on other operators: latency with and without asynchronous calls.

A source offers single records at random moments, whether or not the worker keeps up. One operator
counts them; its latency is measured from the due time of a record to the moment when its count is
complete. A second source feeds nothing, a plain operator, or an asynchronous operator that sends
each record to a service over HTTP, which answers at once or after 50 ms. All run on one worker, in
alternating rounds with the same moments; compare the ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import nan
from time import perf_counter_ns
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from tqdm import tqdm

import jeton as jt
from jeton.idioms.map_async import map_async
from jeton_evaluation.bench.harness import OR_ZERO, Line, Rounds, Say, command
from jeton_evaluation.bench.slow_service import Connections, serving

MS: Final = 1_000_000
BEFORE: Final = 50 * MS
"""Nanoseconds until the first record is due: everything else has begun then."""
SHARES: Final = (0.5, 0.99)

Beside: TypeAlias = Literal["nothing", "a plain operator", "quick calls", "slow calls"]
CASES: Final[tuple[Beside, ...]] = get_args(Beside)


class Taken(NamedTuple):
    """Latencies of records from their due times, in nanoseconds."""

    neighbour: list[float]
    answers: list[float]


def measure(
    say: Say,
    rate: Annotated[int, "records a second"] = 500,
    calls: Annotated[int, "calls a second"] = 500,
    seconds: Annotated[float, "seconds a round"] = 2.0,
    rounds: Rounds = 5,
    delay: Annotated[int, "duration of a slow call, ms", OR_ZERO] = 50,
) -> list[Line]:
    """Run all cases in turn; the first round warms up."""
    taken = {case: Taken([], []) for case in CASES}
    with serving() as port:
        for turn in tqdm(range(rounds + 1), "rounds", disable=None):
            for case in CASES:
                wait = delay if case == "slow calls" else 0
                found = run(case, rate, calls, seconds, port, wait, seed=turn)
                if turn:
                    taken[case].neighbour.extend(found.neighbour)
                    taken[case].answers.extend(found.answers)
    late = {case: np.quantile(taken[case].neighbour, SHARES) / MS for case in CASES}
    rows: dict[str, list[float]] = {
        case: [*ms, *(ms / late["nothing"])] for case, ms in late.items()
    }
    rows["slow to quick calls"] = [nan, nan, *(late["slow calls"] / late["quick calls"])]
    for case in CASES[2:]:
        rows[f"answers to {case}"] = [*(np.quantile(taken[case].answers, SHARES) / MS), nan, nan]
    say(f"{rate} records/s beside {calls} calls/s; ms from due to complete")
    table = pd.DataFrame.from_dict(rows, "index", columns=["p50", "p99", "p50 ratio", "p99 ratio"])
    say(table.rename_axis("beside").to_string(float_format="{:.3f}".format, na_rep=""))
    return [{"beside": case, **row.dropna()} for case, row in table.iterrows()]


main = command(measure)


def run(
    beside: Beside, rate: int, calls: int, seconds: float, port: int, delay: int, *, seed: int
) -> Taken:
    """One round, with a service at that port and calls that take `delay` milliseconds."""
    flow = jt.Flow("neighbours")
    random = np.random.default_rng(seed)
    records = flow.source(_offer(rate, int(rate * seconds), random))
    others = flow.source(_offer(calls, int(calls * seconds), random), name="others")
    taken = Taken([], [])

    def note(batch: jt.Batch, into: list[float]) -> jt.Batch:
        into.extend((perf_counter_ns() - batch.times).tolist())
        return batch

    records.key_by().each_time().count().map(partial(note, into=taken.neighbour))
    if beside == "a plain operator":
        others.map_rows(lambda row: {"answer": row["n"]}).probe("answers")
    elif beside != "nothing":

        async def ask(row: dict[str, Any], service: Connections) -> dict[str, Any]:
            return {"answer": await service.get(row["n"], delay)}

        answers = map_async(others, ask, concurrency=calls, client=lambda: Connections(port))
        answers.map(partial(note, into=taken.answers)).probe("answers")
    with flow.open() as opened:
        opened.finish()
    return taken


def _offer(rate: int, count: int, random: np.random.Generator) -> Callable[..., Any]:
    """A record at each of its due times, which are nanoseconds of the clock."""
    gaps = random.exponential(1_000 * MS / rate, count).astype(np.int64) + 1

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
        dues = (perf_counter_ns() + BEFORE + np.cumsum(gaps)).tolist()
        dues.reverse()

        def step(output: jt.Output) -> None:
            while dues and dues[-1] <= perf_counter_ns():
                due = dues.pop()
                token.downgrade(due)
                output.session(token).give(n=count - len(dues))
                if dues:
                    # It will speak at the next due time only, so that this one is complete.
                    token.downgrade(dues[-1])
            if dues:
                info.activator.activate()
            else:
                token.drop()

        return step

    return build
