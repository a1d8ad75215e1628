"""What slow calls do to their neighbours: latency with and without an asynchronous operator beside.

A source offers a few records every so often, at its pace whatever happens. One operator counts
them; how long after its due time each count is complete is what is measured. In every other round
each record is also sent to a service that takes 50 ms, by an asynchronous operator of the same
worker. The rounds take turns, and what counts is the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

import jeton as jt
from jeton.idioms.map_async import map_async

MS = 1_000_000
SHARES = (0.5, 0.99)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        prog="jeton bench async_calls", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--rate", type=int, default=500, metavar="N", help="records and calls a second (500)"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds a round (2)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each (3)")
    parser.add_argument("--delay", type=float, default=50.0, help="ms that a call takes (50)")
    options = parser.parse_args(argv)
    taken: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(options.rounds + 1):
        for calls in (False, True):
            found = run(options.rate, options.seconds, options.delay if calls else None)
            if turn:  # the first round warms up
                taken[calls] += found
    print(f"{options.rate} records/s; ms from due to complete, at the neighbour")
    print(f"{'':16}{'p50':>9}{'p99':>9}")
    rows = {calls: np.quantile(found, SHARES) / MS for calls, found in taken.items()}
    for calls, name in ((False, "without calls"), (True, "beside calls")):
        print(f"{name:16}" + "".join(f"{value:>9.3f}" for value in rows[calls]))
    print(f"{'ratio':16}" + "".join(f"{value:>9.2f}" for value in rows[True] / rows[False]))
    return 0


def run(rate: int, seconds: float, delay: float | None) -> list[float]:
    """The latency of each record at the neighbour, in nanoseconds."""
    flow = jt.Flow("neighbours")
    records = flow.source(_offer(rate, int(rate * seconds)))
    latencies: list[float] = []

    def note(batch: jt.Batch) -> jt.Batch:
        latencies.extend((perf_counter_ns() - batch.times).tolist())
        return batch

    records.key_by().each_time().count().map(note)
    if delay is not None:

        async def ask(row: dict[str, Any]) -> dict[str, Any]:
            await asyncio.sleep(delay / 1e3)
            return row

        map_async(records, ask, concurrency=rate).probe("answers")
    with flow.open() as opened:
        opened.finish()
    return latencies


def _offer(rate: int, count: int) -> Callable[..., Any]:
    """A record at each of its due times, which are nanoseconds of the clock."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
        interval = 1_000 * MS // rate
        due = perf_counter_ns() + 10 * MS
        left = [count]

        def step(output: jt.Output) -> None:
            nonlocal due
            now = perf_counter_ns()
            while left[0] and due <= now:
                token.downgrade(due)
                output.session(token).give(n=1)
                due += interval
                left[0] -= 1
                # It will speak at the next due time only, so that this one is complete.
                token.downgrade(due)
            if left[0]:
                info.activator.activate()
            else:
                token.drop()

        return step

    return build


if __name__ == "__main__":
    raise SystemExit(main())
