"""Bookkeeping that tokens share with the system: net counts for one output of one operator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias

from jeton.core.summaries import IDENTITY, Summary
from jeton.core.times import END_OF_TIME, Time, TimeKind

Changes: TypeAlias = tuple[tuple[Time, int], ...]


class Owner(Protocol):
    """The worker as its tokens see it."""

    index: int
    dirty: list[Bookkeeping]
    """Books that have changed since the worker last drained them."""
    step_began: float
    """When the worker's present step began, or else its last one, by its clock."""

    @property
    def present(self) -> bool:
        """Whether this worker is the one that is running here and now."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the run has ended, so that tokens no longer mean anything."""
        ...

    def from_outside(self, book: Bookkeeping, changes: Changes) -> None:
        """Take changes made outside the worker's step, as one act, and wake the worker."""
        ...

    def in_words(self, time: Time) -> str:
        """A time for people, as the records of the flow have it."""
        ...

    def leaked(self, book: Bookkeeping, time: Time, origin: str) -> None:
        """Report that Python freed a token that was not dropped."""
        ...


class Bookkeeping:
    """Net token changes at one output of one operator on one worker.

    Tokens add ±1 here and nothing else happens; the worker drains it after the operator yields.
    """

    __slots__ = ("changes", "held", "kind", "location", "operator", "output", "owner")

    def __init__(
        self, owner: Owner, operator: str, output: int, location: int, kind: TimeKind
    ) -> None:
        self.owner = owner
        self.operator = operator
        self.output = output
        self.location = location
        self.kind = kind
        self.changes: dict[Time, int] = {}
        self.held = 0

    def record(self, time: Time, delta: int) -> None:
        """Add to the number of tokens held at ``time``."""
        # The same as ChangeBatch.update, in line: every act of a token comes here.
        changes = self.changes
        if not changes:
            self.owner.dirty.append(self)
        self.held += delta
        total = changes.get(time, 0) + delta
        if total:
            changes[time] = total
        else:
            del changes[time]

    def record_all(self, changes: Iterable[tuple[Time, int]]) -> None:
        """Add several changes."""
        for time, delta in changes:
            self.record(time, delta)

    def in_words(self, time: Time) -> str:
        """A time for people, as the records of the flow have it."""
        return self.owner.in_words(time)

    def is_plain(self, time: int) -> bool:
        """Whether an integer is a time here, without any further check."""
        return self.kind.integers and time <= END_OF_TIME

    def drain(self) -> dict[Time, int]:
        """Take the net changes out."""
        changes, self.changes = self.changes, {}
        return changes

    def __repr__(self) -> str:
        return f"output {self.output} of operator {self.operator!r} on worker {self.owner.index}"


class Connection:
    """How an operator's input leads to one of its outputs: a book and the path's summaries."""

    __slots__ = ("book", "identity", "summaries")

    def __init__(self, book: Bookkeeping, summaries: tuple[Summary, ...]) -> None:
        self.book = book
        self.summaries = summaries
        self.identity = any(s is IDENTITY for s in summaries)

    def allows(self, arrived: Time, time: Time) -> bool:
        """Whether a message at ``arrived`` gives the right to send at ``time`` here."""
        if self.identity and arrived <= time:
            return True
        for summary in self.summaries:
            least = summary.apply(arrived)
            if least is not None and least <= time:
                return True
        return False

    def least(self, arrived: Time) -> Time | None:
        """The least time that a message at ``arrived`` gives a right to, if there is one."""
        if self.identity:
            return arrived
        return self.summaries[0].apply(arrived) if len(self.summaries) == 1 else None
