"""A set of tokens keeps the least ones and follows a frontier."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.helpers import FROM_ZERO, consume, held, keeping, stamped, stolen, with_token

import jeton as jt
from jeton import Product
from jeton.errors import TokenError


def in_loop(act: Callable[[jt.TimestampToken, jt.Output], None]) -> None:
    """Do something once with a token whose times are products."""
    done: list[bool] = []

    def step(token: jt.TimestampToken, input: jt.Input, output: jt.Output) -> None:
        consume(input)
        if not done:
            done.append(True)
            act(token, output)
            if not token.dropped:
                token.drop()

    flow = jt.Flow("in a loop", time=FROM_ZERO)
    flow.input("in").enter(flow.loop()).unary_frontier(keeping(step))
    flow.run({"in": {"time": []}})
    assert done


def at(token: jt.TimestampToken, time: object) -> jt.TimestampToken:
    made = token.clone()
    made.downgrade(time)
    return made


def test_incomparable_tokens_stay_side_by_side() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        tokens = jt.state.TokenSet([at(token, Product(1, 5)), at(token, Product(2, 3))])
        assert set(tokens.times) == {Product(1, 5), Product(2, 3)}
        assert not tokens.insert(at(token, Product(2, 5)))
        assert tokens.insert(at(token, Product(1, 3)))
        assert tokens.times == (Product(1, 3),)
        tokens.drop()
        assert len(tokens) == 0

    in_loop(act)


def test_token_for_gives_a_right_and_keeps_it() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        tokens = jt.state.TokenSet([at(token, 5)])
        assert tokens.covers(7)
        assert not tokens.covers(4)
        with pytest.raises(TokenError, match="allows to send at 4"):
            tokens.token_for(4)
        with output.session(tokens.token_for(7), time=7) as session:
            session.give(n=1)
        assert tokens.times == (5,)
        tokens.drop()

    assert stamped(with_token(act)["out"]) == [(7, 1)]


def test_downgrade_holds_exactly_the_frontier() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        tokens = jt.state.TokenSet([at(token, Product(1, 1))])
        tokens.downgrade([Product(1, 5), Product(2, 3)])
        assert set(tokens.times) == {Product(1, 5), Product(2, 3)}
        tokens.downgrade([Product(2, 5)])
        assert tokens.times == (Product(2, 5),)
        tokens.drop()

    in_loop(act)


def test_failed_downgrade_changes_nothing() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        tokens = jt.state.TokenSet([at(token, Product(1, 5))])
        before = output.book.held
        with pytest.raises(TokenError):
            tokens.downgrade([Product(2, 6), Product(3, 1)])
        assert tokens.times == (Product(1, 5),)
        assert output.book.held == before
        tokens.drop()

    in_loop(act)


def test_counts_follow_the_set() -> None:
    with stolen() as loot:
        tokens = loot.run_in_step(lambda: jt.state.TokenSet([loot.tokens[0]]))
        loot.run_in_step(lambda: tokens.downgrade([6]))
        assert held(loot.run, "victim") == {6: 1}
        loot.run_in_step(tokens.drop)
        assert held(loot.run, "victim") == {}
        loot.run.finish()


def test_tokens_of_several_outputs_do_not_mix() -> None:
    with stolen(workers=2) as loot, pytest.raises(TokenError, match="cannot join"):
        jt.state.TokenSet(loot.tokens)


def test_inserting_a_token_twice_does_not_lose_it() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        five = at(token, 5)
        tokens = jt.state.TokenSet([five])
        with suppress(TokenError):
            tokens.insert(five)
        assert [held.dropped for held in tokens] == [False]
        with output.session(tokens.token_for(5)) as session:
            session.give(n=1)
        tokens.drop()

    assert stamped(with_token(act)["out"]) == [(5, 1)]
