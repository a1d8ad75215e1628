"""DESIGN §4, rule 1: a token in other hands, on other threads, outside a step, after the run."""

from __future__ import annotations

import pytest
from tests.core.uses import USES, TokenAct
from tests.helpers import FROM_ZERO, consume, held, in_thread, keeping, stolen, with_token

import jeton as jt
from jeton import Antichain
from jeton.dataflow.ports import Session
from jeton.errors import TokenError


def test_token_of_another_operator_raises() -> None:
    tokens: list[jt.TimestampToken] = []
    raised: list[str] = []

    def keep(token: jt.TimestampToken, input: jt.Input, output: jt.Output) -> None:
        consume(input)
        tokens.append(token)

    def use(token: jt.TimestampToken, input: jt.Input, output: jt.Output) -> None:
        consume(input)
        if tokens:
            with pytest.raises(TokenError, match="its own output only") as caught:
                output.session(tokens[0])
            raised.append(str(caught.value))
            tokens[0].drop()
            tokens.clear()
            token.drop()

    flow = jt.Flow("two operators", time=FROM_ZERO)
    kept = flow.input("in").unary_frontier(keeping(keep), name="owner")
    kept.unary_frontier(keeping(use), name="thief")
    with flow.open() as run:
        run.run_to_rest()
    assert len(raised) == 1
    assert "'owner'" in raised[0]
    assert "'thief'" in raised[0]


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_token_of_another_worker_raises(use: TokenAct) -> None:
    raised: list[str] = []

    def act(worker: int) -> None:
        if worker == 1 and not raised:
            with pytest.raises(TokenError, match="outside its worker's step") as caught:
                use(loot.tokens[0])
            raised.append(str(caught.value))

    with stolen(workers=2) as loot:
        loot.act = act
        loot.run.input("in", 1).send({"time": [3], "n": [1]})
        loot.run.run_to_rest()
        assert len(raised) == 1
        assert "worker 0" in raised[0]
        assert held(loot.run, "victim") == {0: 2}
        assert loot.tokens[0].time == 0


def test_token_of_another_worker_opens_no_session() -> None:
    raised: list[str] = []

    def act(worker: int) -> None:
        if worker == 1 and not raised:
            for output in loot.outputs:
                with pytest.raises(TokenError) as caught:
                    output.session(loot.tokens[0]).give(n=[1])
                raised.append(str(caught.value))

    with stolen(workers=2) as loot:
        loot.act = act
        loot.run.input("in", 1).send({"time": [3], "n": [1]})
        loot.run.run_to_rest()
        assert len(raised) == 2
        assert loot.run.results()["out"].num_rows == 0


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_token_in_another_thread_raises(use: TokenAct) -> None:
    raised: list[BaseException | None] = []

    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        raised.append(in_thread(lambda: use(token)))
        assert not token.dropped

    with_token(act)
    assert isinstance(raised[0], TokenError)
    assert "outside its worker's step" in str(raised[0])


def test_session_in_another_thread_raises() -> None:
    raised: list[BaseException | None] = []

    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        raised.append(in_thread(lambda: output.session(token).give(n=[1])))

    assert with_token(act)["out"].num_rows == 0
    assert isinstance(raised[0], TokenError)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_token_outside_a_step_raises(use: TokenAct) -> None:
    with stolen() as loot:
        with pytest.raises(TokenError, match=r"outside its worker's step.*activating"):
            use(loot.tokens[0])
        assert not loot.tokens[0].dropped
        loot.run.run_to_rest()
        assert held(loot.run, "victim") == {0: 1}


@pytest.mark.parametrize("value", [1, [1, 2]])
def test_session_outside_a_step_raises_and_sends_nothing(value: object) -> None:
    with stolen() as loot:
        with pytest.raises(TokenError, match="outside its worker's step"):
            loot.outputs[0].session(loot.tokens[0]).give(n=value)
        loot.run.run_to_rest()
        assert loot.run.results()["out"].num_rows == 0


def test_session_kept_open_raises_outside_its_step() -> None:
    sessions: list[Session] = []

    def act(worker: int) -> None:
        sessions.append(loot.outputs[0].session(loot.tokens[0]))

    with stolen() as loot:
        loot.act = act
        loot.run.input("in").send({"time": [3], "n": [1]})
        loot.run.run_to_rest()
        with pytest.raises(TokenError, match="outside its worker's step"):
            sessions[0].give(n=[1])


def test_tokens_mean_nothing_after_the_run() -> None:
    with stolen() as loot:
        pass
    loot.tokens[0].drop()


def test_activating_token_wakes_the_flow_from_another_thread() -> None:
    with stolen() as loot:
        token = loot.run_in_step(loot.tokens[0].activating)
        loot.run.input("in").advance_to(9)
        loot.run.run_to_rest()
        assert loot.run.probe("after").frontier == Antichain([0])
        assert in_thread(lambda: token.downgrade(5)) is None
        loot.run.run_to_rest()
        assert loot.run.probe("after").frontier == Antichain([5])
        assert in_thread(token.drop) is None
        loot.run.run_to_rest()
        assert loot.run.probe("after").frontier == Antichain([9])


def test_activating_token_is_checked_as_any_other() -> None:
    with stolen() as loot:
        token = loot.run_in_step(loot.tokens[0].activating)
        token.downgrade(5)
        with pytest.raises(TokenError, match="not ≥"):
            token.downgrade(4)
        clone = token.clone()
        token.drop()
        with pytest.raises(TokenError, match="dropped"):
            token.drop()
        loot.run.run_to_rest()
        assert held(loot.run, "victim") == {5: 1}
        assert isinstance(clone, jt.ActivatingToken)
        clone.drop()
        loot.run.finish()
