"""Rest: how workers in processes of their own find out that none of them will ever act again.

A flow that is not complete although everybody rests has stalled: an operator holds a token for
which nobody will invoke it. No worker can see that alone, since a message may be on its way to
another that seems to rest. So workers that rest tell each other how much they have sent and
received. If the sums agree, and everybody says the same again after having heard that, then
nothing was on its way in between: Mattern's method of four counters.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from jeton.core.errors import ProtocolError


class Word(NamedTuple):
    """What a worker at rest says."""

    number: int
    """How many times it has said something, this time included."""
    sent: int
    """Messages and progress batches that it has sent, to all others together."""
    received: int
    heard: tuple[int, ...]
    """The number of the latest word that it has heard of each worker."""

    def pack(self) -> bytes:
        """The word as bytes."""
        return struct.pack(f"<{3 + len(self.heard)}q", *self[:3], *self.heard)

    @staticmethod
    def unpack(payload: bytes | bytearray | memoryview, workers: int) -> Word:
        """The word that some bytes stand for."""
        try:
            number, sent, received, *heard = struct.unpack(f"<{3 + workers}q", payload)
        except struct.error as error:
            raise ProtocolError(f"a word of rest that cannot be read: {error}") from error
        return Word(number, sent, received, tuple(heard))


class Rest:
    """What one worker knows of the rest of all.

    >>> here, there = Rest(0, 2), Rest(1, 2)
    >>> for _ in range(3):
    ...     there.hear(0, here.say(sent=4, received=2))
    ...     here.hear(1, there.say(sent=2, received=4))
    >>> here.of_all, there.of_all
    (True, True)
    """

    def __init__(self, worker: int, workers: int) -> None:
        self._worker = worker
        self._words: list[Word | None] = [None] * workers
        self._first: list[Word] | None = None
        self.of_all = False
        """Whether it is certain that nobody will act again."""

    def say(self, *, sent: int, received: int) -> Word:
        """This worker rests now: what to tell all others."""
        before = self._words[self._worker]
        number = 1 if before is None else before.number + 1
        heard = tuple(0 if word is None else word.number for word in self._words)
        word = Word(number, sent, received, heard)
        self.hear(self._worker, word)
        return word

    def hear(self, worker: int, word: Word) -> None:
        """A worker says that it rests."""
        self._words[worker] = word
        words = [word for word in self._words if word is not None]
        if len(words) < len(self._words):
            return
        first = self._first
        if first is None or any(a[1:3] != b[1:3] for a, b in zip(first, words, strict=True)):
            balanced = sum(w.sent for w in words) == sum(w.received for w in words)
            self._first = words if balanced else None
            return
        numbers = [word.number for word in first]
        self.of_all = all(
            heard >= number
            for word in words
            for heard, number in zip(word.heard, numbers, strict=True)
        )
