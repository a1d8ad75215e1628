"""The cost of progress tracking: one advance of a frontier over a chain of idle operators.

``jeton bench progress`` drives an input forward one time at a time, through chains of
8 to 1024 operators that never get any data, until a probe at the far end has seen each advance.
It also measures the cost of retaining, downgrading and dropping a token.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter

import jeton as jt

LENGTHS = (8, 64, 256, 1024)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; ``--json`` prints a list of ``{"length", "us_per_advance"}``."""
    parser = argparse.ArgumentParser(
        prog="jeton bench progress", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    parser.add_argument(
        "--advances", type=int, default=2000, metavar="N", help="advances a round (default: 2000)"
    )
    parser.add_argument(
        "--rounds", type=int, default=9, metavar="N", help="rounds, of which the median counts"
    )
    options = parser.parse_args(argv)
    advances = advance_costs(LENGTHS, options.advances, options.rounds)
    if options.json:
        rows = [{"length": n, "us_per_advance": round(us, 3)} for n, us in advances.items()]
        print(json.dumps(rows))
        return 0
    print("idle operators   µs per advance   × the shortest")
    shortest = advances[LENGTHS[0]]
    for length, cost in advances.items():
        print(f"{length:>14}   {cost:>14.2f}   {cost / shortest:>14.2f}")
    call, token = token_cost(options.advances * 10, options.rounds)
    print(f"\nretain + downgrade + drop of a token: {token:.2f} µs (an empty call: {call:.2f} µs)")
    return 0


def advance_costs(lengths: Sequence[int], advances: int, rounds: int) -> dict[int, float]:
    """Microseconds for one advance, end to end, for chains of these lengths.

    The chains take turns in each round, so that a slow moment of the machine hits all of them.
    """
    chains = {length: _advancing(length, advances) for length in lengths}
    times: dict[int, list[float]] = {length: [] for length in lengths}
    for _ in range(rounds + 1):
        for length, chain in chains.items():
            times[length].append(next(chain) / advances * 1e6)
    return {length: median(measured[1:]) for length, measured in times.items()}


def idle_chain(length: int) -> jt.Flow:
    """An input, a chain of operators that watch their frontier and hold nothing, a probe."""

    def pass_on(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                output.session(ref).give(batch)

        return step

    flow = jt.Flow("idle chain")
    stream: jt.Stream = flow.input("numbers")
    for _ in range(length):
        stream = stream.unary_frontier(pass_on, name="pass on")
    stream.probe("end")
    return flow


def _advancing(length: int, advances: int) -> Iterator[float]:
    """Seconds for each round of advances."""
    with idle_chain(length).open() as run:
        numbers, end = run.input("numbers"), run.probe("end")
        run.run_to_rest()
        time = 0
        while True:
            start = perf_counter()
            for _ in range(advances):
                time += 1
                numbers.advance_to(time)
                while end.less_than(time):
                    run.step()
            yield perf_counter() - start


def token_cost(acts: int, rounds: int) -> tuple[float, float]:
    """Microseconds for an empty call, and for a token's whole life, inside an operator."""
    calls: list[float] = []
    lives: list[float] = []

    def measure(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        token.drop()

        def nothing() -> None:
            pass

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, _ in input:
                for _ in range(rounds):
                    start = perf_counter()
                    for _ in range(acts):
                        nothing()
                    middle = perf_counter()
                    for _ in range(acts):
                        held = ref.retain()
                        held.downgrade(10)
                        held.drop()
                    calls.append((middle - start) / acts * 1e6)
                    lives.append((perf_counter() - middle) / acts * 1e6)

        return step

    flow = jt.Flow("tokens")
    flow.input("numbers").unary(measure)
    flow.run({"numbers": {"time": [0], "n": [0]}})
    return median(calls), median(lives)


if __name__ == "__main__":
    raise SystemExit(main())
