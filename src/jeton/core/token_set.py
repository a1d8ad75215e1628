"""A set of tokens that keeps only the least ones, and follows a frontier."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from jeton.core.antichain import Antichain
from jeton.core.errors import SnapshotError, TokenError
from jeton.core.times import Time
from jeton.core.tokens import TimestampToken, TokenRef


class TokenSet:
    """Tokens at mutually incomparable times, all for one output.

    An operator that holds many un-sent records needs only the least of their tokens: `hold` the
    right to each before it is put aside, send it with `token_for` its time, and `settle` with the
    times that are still pending.
    """

    __slots__ = ("_tokens", "output")

    def __init__(self, tokens: Iterable[TimestampToken] = (), *, output: int = 0) -> None:
        self._tokens: list[TimestampToken] = []
        self.output = output
        """The output for which `hold` retains tokens."""
        for token in tokens:
            self.insert(token)

    def hold(self, right: TokenRef | TimestampToken, time: Time) -> None:
        """Be able to send at ``time``: retains a token only if none that is held allows it."""
        if not self.covers(time):
            if isinstance(right, TokenRef):
                token = right.retain(time, output=self.output)
            else:
                token = right.clone()
                token.downgrade(time)
            self.insert(token)

    def insert(self, token: TimestampToken) -> bool:
        """Take ``token`` over: keep it if it adds a right, else drop it. Returns whether kept."""
        if token.dropped:
            raise TokenError(f"{token!r} cannot be inserted: it has been dropped")
        if any(held is token for held in self._tokens):
            return False
        for held in self._tokens:
            if held._book is not token._book:
                raise TokenError(f"{token!r} cannot join tokens for {held._book!r}")
        if any(held.time <= token.time for held in self._tokens):
            token.drop()
            return False
        later = [held for held in self._tokens if token.time <= held.time]
        self._tokens = [held for held in self._tokens if not token.time <= held.time]
        self._tokens.append(token)
        for held in later:
            held.drop()
        return True

    def covers(self, time: Time) -> bool:
        """Whether some held token allows to send at ``time``."""
        return any(token.time <= time for token in self._tokens)

    def token_for(self, time: Time) -> TimestampToken:
        """The held token that allows to send at ``time``; it stays in the set."""
        for token in self._tokens:
            if token.time <= time:
                return token
        raise TokenError(f"no token of this set (at {self.times}) allows to send at {time}")

    def settle(self, pending: Iterable[Time]) -> None:
        """Hold no more than is needed for the times that are still pending."""
        least = tuple(pending)
        if len(least) > 1:
            least = tuple(Antichain(least))
        if least != self.times:
            self.downgrade(least)

    def downgrade(self, frontier: Iterable[Time]) -> None:
        """Hold exactly the times of ``frontier`` from now on; an empty one releases all."""
        times = list(frontier)
        if len(times) == len(self._tokens) == 1:
            if times[0] != self._tokens[0].time:
                self._tokens[0].downgrade(times[0])
            return
        caller = sys._getframe(1)
        new: list[TimestampToken] = []
        try:
            for time in times:
                token = self.token_for(time)._clone(caller)
                new.append(token)
                token.downgrade(time)
        except TokenError:
            for token in new:
                token.drop()
            raise
        old, self._tokens = self._tokens, new
        for token in old:
            token.drop()

    def require_initial(self, tokens: Sequence[TimestampToken]) -> None:
        """An error if an operator's initial token for this set's output is not among these."""
        if len(tokens) <= self.output:
            raise missing_token(self.output)

    def drop(self) -> None:
        """Release all tokens."""
        self.downgrade(())

    @property
    def times(self) -> tuple[Time, ...]:
        """The times of the held tokens."""
        return tuple([token.time for token in self._tokens])

    def __iter__(self) -> Iterator[TimestampToken]:
        return iter(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"TokenSet({list(self.times)!r})"


def missing_token(output: int) -> SnapshotError:
    """The error of state that was kept without a token that it needs when it is restored."""
    return SnapshotError(
        f"this state needs the operator's initial token for output {output} to hold its rights "
        "again after a restore: pass the initial tokens, info.keep(state, token), before they are "
        "dropped"
    )
