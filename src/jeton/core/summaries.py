"""Summaries: how a path through the graph changes the times of records and tokens.

A summary maps a time to the least time at which it may come out at the other end, or to
``None`` if that lies past the end of time. Summaries compose with `then`.

>>> Advance(5).then(Advance(3))
Advance(8)
>>> Advance(15).apply(Advance(5).apply(10))
30
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from jeton.core.errors import TimeError
from jeton.core.times import END_OF_TIME, START_OF_TIME, Product, Time


@runtime_checkable
class Summary(Protocol):
    """The interface of summaries; write your own for your own kind of time.

    A summary never takes a time backwards, and keeps order: ``a <= b`` implies
    ``apply(a) <= apply(b)``.
    """

    @property
    def advances(self) -> bool:
        """Whether every time becomes strictly later. Loops need one that does."""
        ...

    def apply(self, time: Time, /) -> Time | None:
        """The least time at the end of the path, or ``None`` past the end of time."""
        ...

    def then(self, following: Summary, /) -> Summary | None:
        """This path followed by another; ``None`` if no time survives both."""
        ...


class Identity:
    """Times pass unchanged. There is one instance, `IDENTITY`.

    >>> IDENTITY.apply(7), IDENTITY.then(Advance(2))
    (7, Advance(2))
    """

    advances = False

    def apply(self, time: Time, /) -> Time:
        """``time`` itself."""
        return time

    def then(self, following: Summary, /) -> Summary:
        """The following summary, alone."""
        return following

    def __repr__(self) -> str:
        return "IDENTITY"

    def __reduce__(self) -> str:
        return "IDENTITY"


IDENTITY: Final = Identity()


class Advance:
    """Times grow by given steps, one for each coordinate, outermost first.

    On an integer time there is one step. On a `Product` there is one for each coordinate;
    a single step is taken by the innermost, which is the loop's counter.

    >>> Advance(1).apply(17), Advance(0, 2).apply(Product(3, 4)), Advance(1).apply(Product(3, 4))
    (18, Product(3, 6), Product(3, 5))
    >>> print(Advance(1).apply(END_OF_TIME))
    None
    """

    __slots__ = ("advances", "steps")

    def __init__(self, *steps: int) -> None:
        if not steps or any(type(step) is not int or step < 0 for step in steps):
            raise TimeError(f"Advance takes steps of 0 or more, not {steps!r}")
        self.steps = steps
        self.advances = any(steps)

    def apply(self, time: Time, /) -> Time | None:
        """``time`` with each coordinate moved on by its step."""
        steps = self.steps
        if type(time) is int:
            if len(steps) != 1:
                raise TimeError(f"{self!r} does not fit the time {time!r}")
            moved = time + steps[0]
            return moved if moved <= END_OF_TIME else None
        if not isinstance(time, Product):
            raise TimeError(f"{self!r} does not fit the time {time!r}")
        if len(steps) == 1:
            inner = time[-1] + steps[0]
            return Product.of((*time[:-1], inner)) if inner <= END_OF_TIME else None
        if len(steps) != len(time):
            raise TimeError(f"{self!r} does not fit the time {time!r}")
        coordinates = tuple(t + step if step else t for t, step in zip(time, steps, strict=True))
        late = any(s and c > END_OF_TIME for c, s in zip(coordinates, steps, strict=True))
        return None if late else Product.of(coordinates)

    def then(self, following: Summary, /) -> Summary | None:
        """The sum of both advances, or a general composition."""
        if isinstance(following, Identity):
            return self
        if isinstance(following, Advance):
            mine, theirs = self.steps, following.steps
            width = max(len(mine), len(theirs))
            if min(len(mine), len(theirs)) not in (1, width):
                raise TimeError(f"{self!r} and {following!r} are of different kinds of time")
            mine = (0,) * (width - len(mine)) + mine
            theirs = (0,) * (width - len(theirs)) + theirs
            steps = tuple(a + b for a, b in zip(mine, theirs, strict=True))
            # From the start of time, steps of almost 2**64 lead to a time.
            return Advance(*steps) if max(steps) <= END_OF_TIME - START_OF_TIME else None
        return Chain(self, following)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Advance) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    def __repr__(self) -> str:
        return f"Advance({', '.join(map(str, self.steps))})"

    def __reduce__(self) -> Any:
        return (Advance, self.steps)


class Enter:
    """Into a loop: the outer time gets a round counter of 0.

    >>> Enter().apply(7)
    Product(7, 0)
    """

    advances = False

    def apply(self, time: Time, /) -> Product:
        """``time`` in round 0."""
        return Product(time, 0)

    def then(self, following: Summary, /) -> Summary | None:
        """This path followed by another."""
        return Chain(self, following)

    def __repr__(self) -> str:
        return "Enter()"


class Leave:
    """Out of a loop: the round counter is forgotten.

    >>> Leave().apply(Product(7, 3))
    7
    """

    advances = False

    def apply(self, time: Time, /) -> Time:
        """The time outside the loop."""
        outer: Time = time.outer
        return outer

    def then(self, following: Summary, /) -> Summary | None:
        """This path followed by another."""
        return Chain(self, following)

    def __repr__(self) -> str:
        return "Leave()"


class Chain:
    """Any two summaries, one after the other."""

    __slots__ = ("first", "second")

    def __init__(self, first: Summary, second: Summary) -> None:
        self.first = first
        self.second = second

    @property
    def advances(self) -> bool:
        """Whether some part does, in a coordinate that the time had and keeps.

        A round that is lost on the way out of a loop does not count, and a path that begins by
        leaving a loop makes no time later for certain: it may come back to an earlier round.
        """
        inside, advanced = 0, False
        for part in parts(self):
            inside += isinstance(part, Enter) - isinstance(part, Leave)
            if inside < 0:
                return False
            advanced |= inside == 0 and part.advances
        return advanced

    def apply(self, time: Time, /) -> Time | None:
        """The first, then the second."""
        between = self.first.apply(time)
        return None if between is None else self.second.apply(between)

    def then(self, following: Summary, /) -> Summary | None:
        """A longer chain."""
        return self if isinstance(following, Identity) else Chain(self, following)

    def __repr__(self) -> str:
        return f"{self.first!r}.then({self.second!r})"


def parts(summary: Summary) -> Iterator[Summary]:
    """The steps that a summary is a chain of, in order; itself if it is none.

    >>> list(parts(Enter().then(Advance(1)).then(Leave())))
    [Enter(), Advance(1), Leave()]
    """
    if isinstance(summary, Chain):
        yield from parts(summary.first)
        yield from parts(summary.second)
    else:
        yield summary


SummaryLike: TypeAlias = "Summary | int | tuple[int, ...] | None"


def summary(spec: SummaryLike) -> Summary | None:
    """A summary from a step, a tuple of steps, a summary, or ``None`` (not connected).

    >>> summary(0), summary(2), summary((0, 1))
    (IDENTITY, Advance(2), Advance(0, 1))
    """
    if spec is None or isinstance(spec, Summary):
        return spec
    steps = spec if isinstance(spec, tuple) else (spec,)
    advance = Advance(*steps)
    return advance if advance.advances else IDENTITY
