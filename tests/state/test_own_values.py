"""States that are Python values of any kind: they come back as they were, on any worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.helpers import seeded

import jeton as jt
from jeton.errors import SnapshotError

VALUES: dict[str, Callable[[int], Any]] = {
    "dictionaries": lambda n: {f"of {n}": n},
    "sets": lambda n: {n, -n},
    "tuples": lambda n: (n, str(n)),
    "numbers of both kinds": lambda n: n if n % 2 else n + 0.5,
    "large integers": lambda n: 10**30 + n,
    "anything": lambda n: [n, {"a": (n,)}, [None]][n % 3],
}


def states(make: Callable[[int], Any], kind: str) -> jt.Flow:
    """A flow whose state for each key is made at its first record, and emitted at the second."""
    flow = jt.Flow("states")
    keyed = flow.input("in").key_by("n")
    if kind == "state machine":

        def step(state: Any, row: dict[str, Any]) -> Any:
            return make(row["n"]), [] if state == "new" else [{"emitted": repr(state)}]

        flow.output("out", keyed.stateful_map(step, "new"))
    elif kind == "fold":
        flow.output(
            "out",
            keyed.running()
            .fold("n", lambda: "new", lambda s, n: make(n) if s == "new" else s, finish=repr)
            .with_columns(emitted=lambda batch: batch["fold"]),
        )
    else:
        flow.output("out", keyed.unary_frontier(remembering(make), name="remember"))
    return flow


def remembering(make: Callable[[int], Any]) -> Any:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()
        values: jt.state.KeyedValues[Any] = jt.state.KeyedValues()
        info.keep(values)

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                for n in batch["n"].tolist():
                    if n in values:
                        output.session(ref).give(n=n, emitted=repr(values[n]))
                    values[n] = make(n)

        return step

    return build


@pytest.mark.parametrize("kind", ["state machine", "fold", "keyed values"])
@pytest.mark.parametrize("values", VALUES)
@seeded
def test_states_come_back_as_they_were(seed: int | None, values: str, kind: str) -> None:
    make = VALUES[values]
    rows = {"time": [0] * 6, "n": list(range(6))}
    with states(make, kind).open(workers=2, seed=seed) as run:
        run.input("in").send(rows)
        run.input("in").advance_to(1)
        run.input("in", 1).advance_to(1)
        run.run_to_rest()
        snapshot = run.snapshot()
    with states(make, kind).open(workers=3, seed=seed, restore=snapshot) as run:
        run.input("in").send({**rows, "time": [1] * 6})
        emitted = run.finish()["out"].to_pylist()
    assert {row["n"]: row["emitted"] for row in emitted} == {n: repr(make(n)) for n in range(6)}


def test_an_operator_that_waits_without_keeping_is_refused() -> None:
    def forgetful(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()
        waiting: jt.state.TimeMap[Any] = jt.state.TimeMap()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, _ in input.by_time():
                waiting.get_or(ref.time, ref.retain)
            for _, token in waiting.pop_before(input.frontier):
                token.drop()

        return step

    flow = jt.Flow("forgetful")
    flow.output("out", flow.input("in").unary_frontier(forgetful, name="mine"))
    with flow.open() as run:
        run.input("in").send({"time": [3], "n": [1]})
        run.run_to_rest()
        with pytest.raises(SnapshotError, match=r"holds tokens but keeps no state.*'mine'"):
            run.snapshot()
        run.input("in").advance_to(4)
        run.run_to_rest()
        run.snapshot()


def test_an_operator_may_say_that_it_begins_anew() -> None:
    def holding(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        info.keep_nothing()

        def step(input: jt.Input, output: jt.Output) -> None:
            for _ in input:
                pass
            if input.frontier.is_empty and not token.dropped:
                with token, output.session(token) as session:
                    session.give(end=True)

        return step

    flow = jt.Flow("anew")
    flow.output("out", flow.input("in").unary_frontier(holding))
    with flow.open() as run:
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(restore=snapshot) as run:
        assert run.finish()["out"]["end"].to_pylist() == [True]
