"""DESIGN §4, rule 1: a forgotten token is dropped, and reported with the line that retained it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.helpers import FROM_ZERO, UnaryStep, consume, dropping, here, seeded

import jeton as jt
from jeton import Antichain
from jeton.errors import LeakedToken

THIS = re.escape(__file__)


@seeded
def test_forgotten_token_is_dropped_and_reported(seed: int | None) -> None:
    lines: list[int] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            line, _token = here(), ref.retain(5)
            lines.append(line)

    flow = jt.Flow("leak", time=FROM_ZERO)
    flow.input("in").unary(dropping(step), name="leaky").probe("after")
    with flow.open(workers=2, seed=seed) as run:
        run.input("in", 1).send({"time": [3], "n": [1]})
        for worker in range(2):
            run.input("in", worker).advance_to(9)
        with pytest.warns(LeakedToken, match=f"retained at {THIS}:") as caught:
            run.run_to_rest()
        assert len(caught) == 1
        text = str(caught[0].message)
        assert f"{__file__}:{lines[0]}" in text
        assert "token at 5" in text
        assert "'leaky'" in text
        assert "worker 1" in text
        assert run.probe("after").frontier == Antichain([9])
        result = run.finish()
        assert result.leaks == [text]


def test_forgotten_clone_is_reported_with_the_line_that_cloned_it() -> None:
    lines: list[int] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            with ref.retain() as token:
                line, _clone = here(), token.clone()
                lines.append(line)

    flow = jt.Flow("leak", time=FROM_ZERO)
    flow.input("in").unary(dropping(step), name="leaky")
    with pytest.warns(LeakedToken):
        result = flow.run({"in": {"time": [3], "n": [1]}})
    assert len(result.leaks) == 1
    assert f"{__file__}:{lines[0]}" in result.leaks[0]


def test_forgotten_first_token_is_dropped_and_reported() -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        return lambda input, output: consume(input)

    flow = jt.Flow("leak", time=FROM_ZERO)
    flow.output("out", flow.input("in").unary(build, name="leaky"))
    with pytest.warns(LeakedToken, match="given at the start"):
        result = flow.run({"in": {"time": [3], "n": [1]}})
    assert len(result.leaks) == 1
    assert "'leaky'" in result.leaks[0]


def test_token_overwritten_in_a_map_is_reported() -> None:
    kept: dict[str, jt.TimestampToken] = {}

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input.by_time():
            kept["last"] = ref.retain()
        if input.frontier.is_empty and kept:
            kept.pop("last").drop()

    flow = jt.Flow("leak", time=FROM_ZERO)
    flow.input("in").unary_frontier(dropping(step), name="leaky")
    with pytest.warns(LeakedToken) as caught:
        result = flow.run({"in": {"time": [1, 2, 3], "n": [1, 2, 3]}})
    assert len(caught) == 1  # once for the line that retained both
    assert sorted(leak.split(" for ")[0] for leak in result.leaks) == ["token at 1", "token at 2"]


def test_forgotten_activating_token_is_dropped_and_reported() -> None:
    kept: list[jt.ActivatingToken] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        kept.append(token.activating())
        return lambda input, output: consume(input)

    flow = jt.Flow("leak", time=FROM_ZERO)
    flow.input("in").unary(build, name="leaky").probe("after")
    with flow.open() as run:
        run.input("in").advance_to(9)
        run.run_to_rest()
        assert run.probe("after").frontier == Antichain([0])
        kept.clear()
        with pytest.warns(LeakedToken, match="'leaky'"):
            run.run_to_rest()
        assert run.probe("after").frontier == Antichain([9])


def test_forgotten_token_set_is_reported_with_a_line_of_the_user_s() -> None:
    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            tokens = jt.state.TokenSet([ref.retain()])
            tokens.downgrade([7])

    flow = jt.Flow("leak", time=FROM_ZERO)
    flow.input("in").unary(dropping(step), name="leaky")
    with pytest.warns(LeakedToken, match=THIS):
        result = flow.run({"in": {"time": [3], "n": [1]}})
    assert len(result.leaks) == 1


def test_python_shows_a_forgotten_token_by_default() -> None:
    program = """
import jeton as jt
def build(token, info):
    return lambda input, output: list(input)
flow = jt.Flow("leak")
flow.output("out", flow.input("in").unary(build, name="leaky"))
flow.run({"in": {"time": [3], "n": [1]}})
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "LeakedToken: token at " in shown.stderr
    assert "'leaky'" in shown.stderr


def test_dropped_tokens_are_not_reported() -> None:
    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            ref.retain().drop()
            with ref.retain() as token:
                token.activating().drop()

    flow = jt.Flow("tidy")
    flow.input("in").unary(dropping(step))
    assert flow.run({"in": {"time": [3], "n": [1]}}).leaks == []


def test_tokens_held_when_a_run_is_closed_are_not_reported() -> None:
    kept: list[jt.TimestampToken] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            kept.append(ref.retain())

    flow = jt.Flow("closed")
    flow.input("in").unary(dropping(step))
    with flow.open() as run:
        run.input("in").send({"time": [3], "n": [1]})
        run.run_to_rest()
    kept.clear()
    assert run.results().leaks == []
