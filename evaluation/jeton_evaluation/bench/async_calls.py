"""The effect of slow calls on other operators: latency with and without asynchronous calls.

A source offers single records at random moments, whether or not the worker keeps up. One operator
counts them; its latency is measured from the due time of a record to the moment when its count is
complete. A second source feeds nothing, a plain operator, or an asynchronous operator that sends
each record to a service over HTTP, which answers at once or after 50 ms. All run on one worker, in
alternating rounds with the same moments; compare the ratios.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from tqdm import tqdm

import jeton as jt
from jeton.idioms.map_async import map_async
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


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        prog="jeton bench async_calls", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--rate", type=int, default=500, metavar="N", help="records a second (500)")
    parser.add_argument("--calls", type=int, default=500, metavar="N", help="calls a second (500)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds a round (2)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each (5)")
    parser.add_argument(
        "--delay", type=int, default=50, metavar="MS", help="duration of a slow call, ms (50)"
    )
    options = parser.parse_args(argv)
    taken = {case: Taken([], []) for case in CASES}
    with serving() as port:
        for turn in tqdm(range(options.rounds + 1), "rounds", disable=None):
            for case in CASES:
                delay = options.delay if case == "slow calls" else 0
                rates = options.rate, options.calls
                found = run(case, *rates, options.seconds, port, delay, seed=turn)
                if turn:  # the first round warms up
                    taken[case].neighbour.extend(found.neighbour)
                    taken[case].answers.extend(found.answers)
    print(f"{options.rate} records/s beside {options.calls} calls/s; ms from due to complete")
    print(f"{'beside':24}{'p50':>9}{'p99':>9}{'ratios':>18}")
    alone = np.quantile(taken["nothing"].neighbour, SHARES)
    for case in CASES:
        found_here = np.quantile(taken[case].neighbour, SHARES)
        ratios = "".join(f"{ratio:>9.2f}" for ratio in found_here / alone)
        print(f"{case:24}" + "".join(f"{value / MS:>9.3f}" for value in found_here) + ratios)
    quick, slow = (np.quantile(taken[case].neighbour, SHARES) for case in CASES[2:])
    print(
        f"{'slow to quick calls':24}{'':18}" + "".join(f"{ratio:>9.2f}" for ratio in slow / quick)
    )
    for case in CASES[2:]:
        answers = np.quantile(taken[case].answers, SHARES) / MS
        print(f"answers to {case:13}" + "".join(f"{value:>9.3f}" for value in answers))
    return 0


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


if __name__ == "__main__":
    raise SystemExit(main())
