"""Functions to call at the end of a run are called once, on success or failure."""

from __future__ import annotations

import pytest

import jeton as jt
from jeton.errors import OperatorFailed
from jeton.runtime.agent import Agent
from tests.helpers import UnaryStep


def noting(ends: list[str], *, fails: bool = False) -> jt.Flow:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        info.at_end(lambda: ends.append(f"first on {info.worker}"))
        info.at_end(lambda: ends.append(f"second on {info.worker}"))
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                if fails:
                    raise ValueError("broken")
                output.session(ref).give(batch)

        return step

    flow = jt.Flow("ends")
    flow.output("out", flow.input("in").unary(build))
    return flow


ROWS = {"in": {"time": [1], "n": [1]}}


def test_a_run_that_completes() -> None:
    ends: list[str] = []
    with noting(ends).open(workers=2) as run:
        run.feed(ROWS)
        run.finish()
        assert not ends
    # The last first, as for context managers.
    assert ends == [f"{which} on {w}" for w in range(2) for which in ("second", "first")]
    run.close()
    assert len(ends) == 4


def test_a_run_that_fails() -> None:
    ends: list[str] = []
    with pytest.raises(OperatorFailed):
        noting(ends, fails=True).run(ROWS)
    assert len(ends) == 2


def test_a_run_that_is_given_up() -> None:
    ends: list[str] = []
    with noting(ends).open() as run:
        run.input("in").send(ROWS["in"])
    assert len(ends) == 2


def test_a_worker_in_a_process_of_its_own() -> None:
    ends: list[str] = []
    agent = Agent(noting(ends))
    agent.worker.handles[0].close()
    agent.run()
    assert not ends
    agent.close()
    assert len(ends) == 2
