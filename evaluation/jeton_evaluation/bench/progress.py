"""The cost of progress tracking: one advance of a frontier over a chain of idle operators.

``jeton bench progress`` drives an input forward one time at a time, through chains of
8 to 1024 operators that never get any data, until a probe at the far end has seen each advance.
It also measures the cost of retaining, downgrading and dropping a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Annotated

import jeton as jt
from jeton_evaluation.bench.harness import Line, Rounds, Say, command, in_turn

LENGTHS = (8, 64, 256, 1024)


def run(
    say: Say, advances: Annotated[int, "advances a round"] = 2000, rounds: Rounds = 9
) -> list[Line]:
    """Measure all lengths, and the cost of a token."""
    say(f"{rounds} rounds of {advances:,} advances over {len(LENGTHS)} chains\n")
    costs = advance_costs(LENGTHS, advances, rounds)
    say("idle operators   µs per advance   × the shortest")
    for length, cost in costs.items():
        say(f"{length:>14}   {cost:>14.2f}   {cost / costs[LENGTHS[0]]:>14.2f}")
    call, token = token_cost(advances * 10, rounds)
    say(f"\nretain + downgrade + drop of a token: {token:.2f} µs (an empty call: {call:.2f} µs)")
    return [
        *({"length": n, "us_per_advance": round(us, 3)} for n, us in costs.items()),
        {"us_per_token": round(token, 3), "us_per_empty_call": round(call, 3)},
    ]


main = command(run)


def advance_costs(lengths: Sequence[int], advances: int, rounds: int) -> dict[int, float]:
    """Microseconds for one advance, end to end, for chains of these lengths."""
    chains = [_advancing(length, advances) for length in lengths]
    seconds = in_turn(rounds, *(partial(next, chain) for chain in chains))
    return {length: each / advances * 1e6 for length, each in zip(lengths, seconds, strict=True)}


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
                    run.turn()
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
