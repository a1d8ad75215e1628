"""DESIGN §4, rule 1: what can and what cannot be done with a token."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
from pyspark import cloudpickle
from tests.core.uses import USES, TokenAct
from tests.helpers import FROM_ZERO, consume, held, in_step, keeping, stamped, stolen, with_token

import jeton as jt
from jeton import Product
from jeton.errors import TimeError, TokenError


@pytest.mark.parametrize("cls", [jt.TimestampToken, jt.ActivatingToken])
def test_tokens_cannot_be_constructed(cls: type[jt.TimestampToken]) -> None:
    with pytest.raises(TokenError, match="made by the system only"):
        cls()
    with pytest.raises(TokenError, match="made by the system only"):
        cls(0, 3)


def test_a_subclass_makes_no_tokens_either() -> None:
    class Forged(jt.TimestampToken):
        pass

    with pytest.raises(TokenError, match="made by the system only"):
        Forged()


COPIES: list[Callable[[object], object]] = [
    copy.copy,
    copy.deepcopy,
    lambda token: copy.deepcopy({"kept": [token]}),
    pickle.dumps,
    lambda token: pickle.dumps({"kept": token}, protocol=2),
    lambda token: cloudpickle.dumps(token),  # type: ignore[no-untyped-call]
    lambda token: cloudpickle.dumps(lambda: token),  # type: ignore[no-untyped-call]
]


@pytest.mark.parametrize("duplicate", COPIES)
@pytest.mark.parametrize("activating", [False, True])
def test_tokens_cannot_be_copied_or_pickled(
    duplicate: Callable[[object], object], activating: bool
) -> None:
    with stolen() as loot:
        token = loot.tokens[0]
        if activating:
            token = loot.run_in_step(token.activating)
        with pytest.raises(TokenError, match=r"cannot be (copied|pickled)") as caught:
            duplicate(token)
        assert "'victim'" in str(caught.value)
        assert held(loot.run, "victim") == {0: 1}


@pytest.mark.parametrize("duplicate", COPIES)
def test_references_cannot_be_copied_or_pickled(duplicate: Callable[[object], object]) -> None:
    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            with pytest.raises(TokenError, match="retain"):
                duplicate(ref)

    in_step(act)


def test_clone_is_a_token_of_its_own() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        clone = token.clone()
        assert clone.time == token.time
        clone.downgrade(4)
        assert (token.time, clone.time) == (0, 4)
        token.drop()
        assert not clone.dropped
        with clone, output.session(clone) as session:
            session.give(n=1)

    assert stamped(with_token(act)["out"]) == [(4, 1)]


def test_with_drops_at_the_end() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        with token as same:
            assert same is token
            assert not token.dropped
        assert token.dropped

    with_token(act)


def test_with_drops_after_an_error_too() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        with pytest.raises(ZeroDivisionError), token:
            _ = 1 // 0
        assert token.dropped

    with_token(act)


def test_with_leaves_a_token_that_was_dropped_inside() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        with token:
            token.drop()
        assert token.dropped

    with_token(act)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_use_after_drop_raises(use: TokenAct) -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        token.drop()
        with pytest.raises(TokenError, match="after it had been dropped"):
            use(token)
        assert token.dropped

    with_token(act)


def test_session_with_and_entering_after_drop_raise() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        token.drop()
        with pytest.raises(TokenError, match="after it had been dropped"):
            output.session(token)
        with pytest.raises(TokenError, match="after it had been dropped"), token:
            pass
        with pytest.raises(TokenError, match="dropped"):
            jt.state.TokenSet([token])

    with_token(act)


def test_what_was_made_activating_is_given_up() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        with token.activating(), pytest.raises(TokenError, match="dropped"):
            output.session(token)

    with_token(act)


@pytest.mark.parametrize("wrong", ["soon", 1.5, None, Product(1, 2)])
def test_downgrade_to_what_is_no_time_raises(wrong: object) -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        with pytest.raises((TimeError, TokenError)):
            token.downgrade(wrong)
        assert token.time == 0

    with_token(act)


def test_downgrade_past_the_end_of_time_raises() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        with pytest.raises((TimeError, TokenError)):
            token.downgrade(jt.END_OF_TIME + 1)
        assert token.time == 0

    with_token(act)


def test_downgrade_to_an_integer_in_a_loop_raises() -> None:
    seen: list[Product] = []

    def step(token: jt.TimestampToken, input: jt.Input, output: jt.Output) -> None:
        consume(input)
        with pytest.raises((TimeError, TokenError)):
            token.downgrade(5)
        seen.append(token.time)

    flow = jt.Flow("loop", time=FROM_ZERO)
    flow.input("in").enter(flow.loop()).unary(keeping(step))
    with flow.open() as run:
        run.run_to_rest()
    assert seen == [Product(0, 0)]


def test_downgrade_to_its_own_time_is_fine() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        token.downgrade(0)
        token.downgrade(3)
        token.downgrade(3)
        assert token.time == 3

    with_token(act)


def test_errors_name_operator_worker_and_time() -> None:
    raised: list[TokenError] = []

    def act(worker: int) -> None:
        if worker == 1 and not raised:
            loot.tokens[1].downgrade(4)
            with pytest.raises(TokenError) as caught:
                loot.tokens[1].downgrade(2)
            raised.append(caught.value)

    with stolen(workers=2) as loot:
        loot.act = act
        loot.run.input("in", 1).send({"time": [3], "n": [1]})
        loot.run.run_to_rest()
    assert (raised[0].operator, raised[0].worker, raised[0].time) == ("victim", 1, 4)
    assert "[operator 'victim', worker 1, time 4]" in str(raised[0])


def test_errors_that_reach_the_caller_are_located() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        token.drop()
        token.drop()

    with pytest.raises(TokenError, match=r"\[operator 'acting', worker 0, time 0\]"):
        with_token(act)


def test_a_located_error_is_not_its_own_cause() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        token.drop()
        token.drop()

    with pytest.raises(TokenError) as caught:
        with_token(act)
    assert caught.value.__cause__ is not caught.value


def test_located_errors_survive_pickling() -> None:
    error = TokenError("no").located(operator="mean", worker=1, time=12)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is TokenError
    assert str(again) == str(error)
