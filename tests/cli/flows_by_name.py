"""Flows that the tests of the command line name."""

from typing import Any

import jeton as jt


def make_averages() -> jt.Flow:
    made = jt.Flow("averages")
    readings = made.input("readings", time="ts", schema={"sensor": str, "value": float})
    made.output("means", readings.key_by("sensor").tumbling(10).mean("value"))
    made.output("high", readings.filter(jt.col("value") > 30).select("sensor"))
    return made


averages = make_averages()


def make_arrivals() -> jt.Flow:
    """Numbers batches in order of arrival: its rows depend on the schedule."""
    made = jt.Flow("arrivals")

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> object:
        token.drop()
        seen = 0

        def step(input: jt.Input, output: jt.Output) -> None:
            nonlocal seen
            for ref, batch in input:
                with output.session(ref) as session:
                    session.give(jt.Batch({"seen": [seen] * len(batch)}, batch.times))
                seen += 1

        return step

    numbers = made.input("numbers", schema={"n": int})
    made.output("seen", numbers.unary(build, pact=jt.Gather()))  # type: ignore[arg-type]
    return made


def make_forgetful() -> jt.Flow:
    """Passes each number on once, but keeps what it has seen where no snapshot finds it."""
    made = jt.Flow("forgetful")

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> object:
        token.drop()
        seen: set[int] = set()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                new = set(batch["n"].tolist()) - seen
                seen.update(new)
                with output.session(ref) as session:
                    session.give(n=sorted(new))

        return step

    numbers = made.input("numbers", schema={"n": int})
    made.output("once", numbers.unary(build, pact=jt.Exchange("n")))  # type: ignore[arg-type]
    return made


def make_unrestorable() -> jt.Flow:
    """Holds tokens and keeps no state: no snapshot can be taken while records wait."""
    made = jt.Flow("unrestorable")

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> object:
        token.drop()
        held: jt.state.TimeMap[list[Any]] = jt.state.TimeMap()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                for time, part in batch.split_by(lambda times: times + 10):
                    if time not in held:
                        held.get_or(time, lambda: [None, 0])[0] = ref.retain(time)
                    held.get_or(time, list)[1] += len(part)
            for _, (token, count) in held.pop_before(input.frontier):
                with token, output.session(token) as session:
                    session.give(count=count)

        return step

    numbers = made.input("numbers", schema={"n": int})
    made.output("counts", numbers.unary_frontier(build, pact=jt.Gather()))  # type: ignore[arg-type]
    return made


def make_failing() -> jt.Flow:
    made = jt.Flow("failing")

    def fail(batch: jt.Batch) -> jt.Batch:
        raise ValueError("no price")

    numbers = made.input("numbers")
    made.output("copy", numbers)
    made.output("made", numbers.map(fail))
    return made


def make_interrupted() -> jt.Flow:
    made = jt.Flow("interrupted")

    def interrupt(batch: jt.Batch) -> jt.Batch:
        raise KeyboardInterrupt

    made.output("made", made.input("numbers").map(interrupt))
    return made


def make_stamped() -> jt.Flow:
    made = jt.Flow("stamped")
    clicks = made.input("clicks", time="at", schema={"page": str, "seconds": float})
    made.output("counts", clicks.key_by("page").tumbling("10s").count())
    return made


def make_broken() -> jt.Flow:
    raise RuntimeError("no catalogue")


def make_nothing() -> None: ...


def needs_size(size: int) -> None: ...


not_a_flow = 3
