"""Timestamp tokens: the right to send at a time, or later, on one output of one operator.

A token is made by the system, and its holder may `clone`, `downgrade` and `drop` it. Each of
those acts only adds ±1 to the books that the operator shares with its worker.

What an operator's input hands out beside a message is a `TokenRef`: it can open sessions for
nothing, or be retained, which makes a token of it.
"""

from __future__ import annotations

import gc
import sys
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self, TypeVar, final

from jeton.core.bookkeeping import Bookkeeping, Connection
from jeton.core.errors import ExpiredReference, TokenError
from jeton.core.source_lines import SourceLine
from jeton.core.times import Time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_DROPPED: Final = -1


class TimestampToken:
    """The right to send messages at `time`, or later, on one output.

    Tokens come from the system only: the initial one of each output, and `TokenRef.retain`.
    A token can be used as a context manager, which drops it at the end.
    """

    __slots__ = ("__weakref__", "_book", "_made", "_origin", "_sessions", "_time")

    _book: Bookkeeping
    _time: Time
    _sessions: int
    _origin: tuple[CodeType, int] | None
    _made: float

    def __new__(cls, *_: object, **__: object) -> Self:
        """Refuse: only the system makes tokens."""
        raise TokenError(
            "tokens are made by the system only: retain the reference that came with a message, "
            "or clone a token that you hold"
        )

    @property
    def time(self) -> Time:
        """The time from which on this token allows to send."""
        return self._time

    @property
    def dropped(self) -> bool:
        """Whether the token has been given up."""
        return self._sessions == _DROPPED

    def clone(self) -> Self:
        """Another token at the same time on the same output."""
        return self._clone(sys._getframe(1))

    def _clone(self, frame: FrameType) -> Self:
        """A clone that is reported as made where ``frame`` is, should it leak."""
        self._require_usable("cloned")
        self._record(((self._time, +1),))
        return _make(type(self), self._book, self._time, frame)

    def downgrade(self, time: Time) -> None:
        """Move this token on to a later time, giving up the right to send before it."""
        if type(time) is not int or not self._book.is_plain(time):
            time = self._book.kind.check(time)
        self._require_unlocked("downgraded")
        old = self._time
        if not old <= time:
            later = self._book.in_words(time)
            raise self._misuse(f"cannot be downgraded to {later}, which is not ≥ its own time")
        if old != time:
            self._record(((old, -1), (time, +1)))
            self._time = time

    def drop(self) -> None:
        """Give the token up. Dropping twice is an error: it hides a mix-up."""
        self._require_unlocked("dropped")
        self._record(((self._time, -1),))
        self._sessions = _DROPPED

    def activating(self) -> ActivatingToken:
        """Turn this token into one that may be used outside its worker, which it then wakes.

        This token counts as given up; the new one stands in its place.
        """
        self._require_unlocked("made activating")
        self._require_present()
        made = _make(ActivatingToken, self._book, self._time, sys._getframe(1))
        self._sessions = _DROPPED
        return made

    def _record(self, changes: tuple[tuple[Time, int], ...]) -> None:
        self._require_present()
        for time, delta in changes:
            self._book.record(time, delta)

    def _admit(self, book: Bookkeeping, time: Time | None) -> Time:
        """The time of a session on ``book`` at ``time`` (default: the token's), or an error."""
        if self._sessions == _DROPPED:
            self._require_usable("used")
        self._require_present()
        if book is not self._book:
            raise self._misuse(f"was used on {book!r}: a token is good for its own output only")
        if time is None:
            return self._time
        if not self._time <= time:
            at = self._book.in_words(time)
            raise self._misuse(f"cannot open a session at {at}, which is not ≥ its own time")
        return time

    def _lock(self) -> None:
        self._sessions += 1

    def _unlock(self) -> None:
        self._sessions -= 1

    def _require_present(self) -> None:
        """Refuse use from outside the worker's step, except after the run."""
        owner = self._book.owner
        if not owner.present and not owner.closed:
            raise self._misuse(
                "was used outside its worker's step: use token.activating() for tokens that leave"
            )

    def _require_usable(self, act: str) -> None:
        if self._sessions == _DROPPED:
            raise self._misuse(f"was {act} after it had been dropped")

    def _require_unlocked(self, act: str) -> None:
        if self._sessions:
            if self._sessions == _DROPPED:
                raise self._misuse(f"was {act} after it had been dropped")
            raise self._misuse(f"cannot be {act} while a session made from it is open")

    def _misuse(self, what: str) -> TokenError:
        book = self._book
        moment = book.in_words(self._time)
        error = TokenError(f"token at {moment} for {book!r} {what}")
        return error.located(
            operator=book.operator, worker=book.owner.index, time=self._time, moment=moment
        )

    def __enter__(self) -> Self:
        self._require_usable("entered")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._sessions != _DROPPED:
            self.drop()

    def __del__(self) -> None:
        # A half-made token (refused by __new__) has no slots filled: nothing to report.
        if getattr(self, "_sessions", _DROPPED) != _DROPPED:
            line = _line(self._origin)
            origin = f"retained at {line.file}:{line.number}" if line else "given at the start"
            self._book.owner.leaked(self._book, self._time, origin)

    def __copy__(self) -> NoReturn:
        raise self._misuse("cannot be copied: use clone()")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise self._misuse("cannot be copied: use clone()")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise self._misuse("cannot be pickled: a token means something in its own worker only")

    def __repr__(self) -> str:
        state = " (dropped)" if self.dropped else ""
        at = self._book.in_words(self._time)
        return f"<{type(self).__name__} at {at} for {self._book!r}{state}>"


@final
class ActivatingToken(TimestampToken):
    """A token for use outside operators: each change reaches the worker and wakes it.

    Inputs in user hands, breakpoints and other outside agents hold these. They may be used from
    any thread, one thread at a time.
    """

    __slots__ = ()

    def _record(self, changes: tuple[tuple[Time, int], ...]) -> None:
        self._book.owner.from_outside(self._book, changes)

    def _require_present(self) -> None:
        """May be used anywhere."""


class TokenRef:
    """The right to send that comes with a message, valid for this step of the loop only.

    Pass it to ``output.session`` to answer at once, or `retain` it to answer later.
    """

    __slots__ = ("_connections", "_live", "_time")

    def __init__(self, connections: Sequence[Connection | None], time: Time) -> None:
        self._connections = connections
        self._time = time
        self._live = True

    @property
    def time(self) -> Time:
        """A lower bound of the times of the records that came with this reference."""
        self._require_live()
        return self._time

    def retain(self, time: Time | None = None, *, output: int = 0) -> TimestampToken:
        """A token for ``output`` at ``time`` (default: the reference's own time)."""
        connection = self._connection(output)
        self._require_present(connection.book)
        if time is None:
            time = self._time
        elif type(time) is not int or not connection.book.is_plain(time):
            time = connection.book.kind.check(time)
        if not connection.allows(self._time, time):
            raise self._misuse(
                connection.book,
                f"cannot be retained at {connection.book.in_words(time)}: the path to this output "
                f"allows {self._least(connection)} at the earliest",
            )
        connection.book.record(time, +1)
        return _make(TimestampToken, connection.book, time, sys._getframe(1))

    def expire(self) -> None:
        """End of this step: the system calls this."""
        self._live = False

    def _admit(self, book: Bookkeeping, time: Time | None) -> Time:
        """The time of a session on ``book`` at ``time`` (default: the least allowed)."""
        # With as few calls as possible, since every batch comes here twice.
        if not self._live:
            self._require_live()
        for connection in self._connections:
            if connection is not None and connection.book is book:
                break
        else:
            raise self._misuse(book, f"gives no right to {book!r}: its input does not lead there")
        if not book.owner.present:
            self._require_present(book)
        if connection.identity and (time is None or self._time <= time):
            return self._time if time is None else time
        if time is None:
            time = connection.least(self._time)
            if time is None:
                raise self._misuse(book, "has no single least time here: pass session(…, time=…)")
        elif not connection.allows(self._time, time):
            at = book.in_words(time)
            raise self._misuse(book, f"cannot open a session at {at}: that is too early")
        return time

    def _lock(self) -> None:
        """Nothing to lock: a reference cannot be downgraded or dropped."""

    def _unlock(self) -> None:
        """Nothing to unlock."""

    def _connection(self, output: int) -> Connection:
        self._require_live()
        if not 0 <= output < len(self._connections):
            raise TokenError(
                f"there is no output {output}: the operator has {len(self._connections)}"
            )
        connection = self._connections[output]
        if connection is None:
            raise TokenError(
                f"this input is not connected to output {output}: "
                "a message here gives no right to speak there"
            )
        return connection

    def _require_present(self, book: Bookkeeping) -> None:
        if not book.owner.present:
            raise self._misuse(book, "was used outside its worker's step: retain it there")

    def _require_live(self) -> None:
        if not self._live:
            raise ExpiredReference(
                f"this token reference (time {self._in_words()}) has expired: it is valid for its "
                "own step of the loop only. To answer later, retain it: token = ref.retain()"
            )

    def _misuse(self, book: Bookkeeping, what: str) -> TokenError:
        moment = book.in_words(self._time)
        error = TokenError(f"token reference at {moment} {what}")
        return error.located(
            operator=book.operator, worker=book.owner.index, time=self._time, moment=moment
        )

    def _least(self, connection: Connection) -> str:
        least = connection.least(self._time)
        return str(least) if least is None else connection.book.in_words(least)

    def _in_words(self) -> str:
        books = [connection.book for connection in self._connections if connection is not None]
        return books[0].in_words(self._time) if books else str(self._time)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TokenError("token references cannot be copied or pickled: retain() them instead")

    def __repr__(self) -> str:
        return f"<TokenRef at {self._in_words()}{'' if self._live else ' (expired)'}>"


def mint(book: Bookkeeping, time: Time) -> TimestampToken:
    """An initial token, already counted by every worker: for the system only."""
    book.held += 1
    return _make(TimestampToken, book, time, None)


_T = TypeVar("_T", bound=TimestampToken)


def _make(cls: type[_T], book: Bookkeeping, time: Time, frame: FrameType | None) -> _T:
    token = object.__new__(cls)
    token._book = book
    token._time = time
    token._sessions = 0
    # The line is worked out only if someone asks: reading it here would cost more than all the
    # rest.
    token._origin = None if frame is None else (frame.f_code, frame.f_lasti)
    token._made = book.owner.step_began
    return token


class HeldToken(NamedTuple):
    """A token that something refers to: for reports of what holds a frontier."""

    book: Bookkeeping
    """The output that it is for."""
    time: Time
    origin: tuple[CodeType, int] | None
    """The code that made it, and the instruction; none for an initial token."""
    made: float
    """When the step began in which it was made, by its worker's clock."""

    @property
    def line(self) -> SourceLine | None:
        """The line that made it; none for an initial token."""
        return _line(self.origin)


def held_tokens() -> list[HeldToken]:
    """All tokens of this process that have not been dropped.

    They are found through Python's garbage collector, so that tokens cost nothing for being found.
    """
    found = []
    for each in gc.get_objects():
        # Its type, not its class: asking a dead weak proxy for that is an error.
        if issubclass(type(each), TimestampToken):
            # Another thread may be about to make one: then its slots are not filled yet.
            token: TimestampToken = each
            if hasattr(token, "_made") and not token.dropped:
                found.append(HeldToken(token._book, token._time, token._origin, token._made))
    return found


def tokens_for(books: Iterable[Bookkeeping]) -> list[tuple[Bookkeeping, TimestampToken]]:
    """All tokens for some outputs, whoever holds them."""
    some = [book for book in books if book.held]
    if not some:
        return []
    return [
        (each._book, each)
        for each in gc.get_referrers(*some)
        if issubclass(type(each), TimestampToken) and not each.dropped
    ]


def output_of(token: TimestampToken) -> int:
    """The number of the output that a token is for."""
    return token._book.output


def revoke(token: TimestampToken) -> None:
    """Take a token away from its holder: for the system only. Its book does not change."""
    token._sessions = _DROPPED


def grant(book: Bookkeeping, time: Time) -> TimestampToken:
    """A token that is counted from now on: for the system only, which must have the right."""
    book.record(time, +1)
    return _make(TimestampToken, book, time, None)


def _line(origin: tuple[CodeType, int] | None) -> SourceLine | None:
    """The file and line of an origin."""
    if origin is None:
        return None
    code, instruction = origin
    line = code.co_firstlineno
    for number, (start, *_) in enumerate(code.co_positions()):
        if number * 2 > instruction:
            break
        line = start or line
    return SourceLine(code.co_filename, line)
