"""DESIGN §4, rule 1: what a session and the token that it was made from do to each other."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.core.uses import USES, TokenAct
from tests.helpers import stamped, with_token

import jeton as jt
from jeton.errors import TokenError


@pytest.mark.parametrize("use", [USES["downgrade"], USES["drop"], USES["activating"]])
def test_open_session_locks_its_token(use: TokenAct) -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        with output.session(token) as outer:
            with output.session(token) as inner:
                inner.give(n=1)
            with pytest.raises(TokenError, match="while a session made from it is open"):
                use(token)
            outer.give(n=2)
        assert token.time == 0
        assert not token.dropped
        token.downgrade(3)

    assert stamped(with_token(act)["out"]) == [(0, 1), (0, 2)]


def test_open_session_leaves_clones_alone() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        with output.session(token):
            clone = token.clone()
            clone.downgrade(3)
            clone.drop()

    with_token(act)


def test_session_is_closed_at_the_end_of_with() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        with output.session(token) as session:
            pass
        with pytest.raises(TokenError, match="closed"):
            session.give(n=1)

    with_token(act)


@pytest.mark.parametrize("give_up", [lambda token: token.drop(), lambda token: token.downgrade(5)])
def test_session_without_with_notices_that_its_right_is_gone(give_up: TokenAct) -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        session = output.session(token)
        session.give(n=1)
        give_up(token)
        with pytest.raises(TokenError):
            session.give(n=2)

    assert stamped(with_token(act)["out"]) == [(0, 1)]


@pytest.mark.parametrize("give_up", [lambda token: token.drop(), lambda token: token.downgrade(5)])
def test_entering_a_session_whose_right_is_gone_raises(give_up: TokenAct) -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        session = output.session(token)
        give_up(token)
        was_dropped = token.dropped
        with pytest.raises(TokenError), session:
            session.give(n=2)
        assert token.dropped == was_dropped

    with_token(act)


def test_entering_a_session_never_brings_a_dropped_token_back() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        session = output.session(token)
        token.drop()
        with suppress(TokenError), session:
            assert token.dropped
        assert token.dropped

    with_token(act)
