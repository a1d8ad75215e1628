"""HeldTokens: the least tokens for everything that an operator has not emitted yet."""

from __future__ import annotations

from collections.abc import Iterable

from jeton.core.antichain import Antichain
from jeton.core.times import Time
from jeton.core.token_set import TokenSet
from jeton.core.tokens import TimestampToken, TokenRef


class HeldTokens:
    """One token for many pending times, where times are totally ordered; else the least ones.

    `hold` before something is put aside, `right_for` to emit it, `settle` afterwards.
    """

    __slots__ = ("_tokens", "output")

    def __init__(self, output: int = 0) -> None:
        self._tokens = TokenSet()
        self.output = output

    def hold(self, right: TokenRef | TimestampToken, time: Time) -> None:
        """Be able to send at ``time``: retains a token only if none that is held allows it."""
        if not self._tokens.covers(time):
            if isinstance(right, TokenRef):
                token = right.retain(time, output=self.output)
            else:
                token = right.clone()
                token.downgrade(time)
            self._tokens.insert(token)

    def right_for(self, time: Time) -> TimestampToken:
        """The held token with which to send at ``time``."""
        return self._tokens.token_for(time)

    def settle_at(self, least: int | None) -> None:
        """The same where times are integers, and the least of them is known."""
        if least is None:
            self._tokens.drop()
        elif (least,) != self._tokens.times:
            self._tokens.downgrade((least,))

    def settle(self, pending: Iterable[Time]) -> None:
        """Hold no more than is needed for what is still pending."""
        least = tuple(Antichain(pending))
        if least != self._tokens.times:
            self._tokens.downgrade(least)

    @property
    def times(self) -> tuple[Time, ...]:
        """The times of the held tokens."""
        return self._tokens.times
