"""Inputs whose tokens are in user hands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jeton.core.times import Time
from jeton.core.tokens import ActivatingToken, TimestampToken, TokenRef
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Session
from jeton.dataflow.posted import PostedOutput

if TYPE_CHECKING:
    from jeton.dataflow.scope import Scope
    from jeton.dataflow.stream import Stream


def add_unordered_input(scope: Scope, name: str, time: str) -> Stream:
    """Add an input whose tokens are in user hands."""
    builder = scope.operator(name, time=time)
    builder.output()

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> None:
        info.publish(UnorderedInputHandle(tokens.pop(), info))

    return builder.build(build)[0]


class UnorderedInputHandle:
    """One worker's end of an input whose tokens are in user hands.

    `token` is the first one. Clone and downgrade tokens as you like, send with `session`, and
    drop every token to end the input.

    >>> import jeton as jt
    >>> flow = jt.Flow("unordered")
    >>> flow.output("seen", flow.unordered_input("n"))
    >>> with flow.open() as run:
    ...     numbers = run.input("n")
    ...     with numbers.token as token:
    ...         for time in (3, 1, 2):
    ...             numbers.session(token, time).give(n=time * 10)
    ...     run.finish()["seen"].to_pylist()
    [{'time': 1, 'n': 10}, {'time': 2, 'n': 20}, {'time': 3, 'n': 30}]
    """

    def __init__(self, token: TimestampToken, info: OperatorInfo) -> None:
        self.token: ActivatingToken = token.activating()
        self._output = PostedOutput(info.outputs[0], info.post)

    def session(self, token: TimestampToken | TokenRef, time: Time | None = None) -> Session:
        """A session at the token's time, or at a later ``time``."""
        return self._output.session(token, time)

    @property
    def closed(self) -> bool:
        """Never for certain: clones of the token may be anywhere."""
        return False

    def close(self) -> None:
        """Drop the first token if it is still held; clones are the user's own."""
        if not self.token.dropped:
            self.token.drop()
