"""Rest: how workers in processes of their own find out that none of them will act again.

No worker can see that alone, since a message may be on its way to another that seems to rest. So
workers that rest exchange how much they have sent and received. If the sums agree, and
everybody says the same again after having heard that, then nothing was on its way in between:
Mattern's method of four counters.

It serves twice. A flow that is not complete although all workers rest for good has *stalled*: an
operator holds a token for which it will not be invoked. And workers that pause their sources come
to rest together in numbered *rounds*, as often as they like, to take a snapshot.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

from jeton.core.errors import ProtocolError


class Word(NamedTuple):
    """The message of a worker at rest."""

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
    """One worker's view of whether all workers rest.

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
        """Whether it is certain that no worker will act again."""

    @property
    def seems_of_all(self) -> bool:
        """Whether everybody said that it rests, and what was sent has been received."""
        return self._first is not None

    @property
    def heard(self) -> tuple[int, ...]:
        """The number of the latest word of each worker."""
        return tuple(0 if word is None else word.number for word in self._words)

    def say(self, *, sent: int, received: int) -> Word:
        """This worker rests now: the message to all others."""
        word = Word(self.heard[self._worker] + 1, sent, received, self.heard)
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


class Saying(IntEnum):
    """A worker's message to the others about a round."""

    BEGIN = 0
    """The round has begun: pause, and come to rest."""
    REST = 1
    """It rests for now: a word follows."""
    ALL = 2
    """It is certain that all rest."""
    READY = 3
    """It has done what it wanted rest for, or gives up: as far as it goes, others may act."""


_HEAD: Final = struct.Struct("<qB")
STALL: Final = 0
"""The number of the round that no command begins: that of workers which rest for good."""


class Round:
    """One worker's view of one round."""

    def __init__(self, worker: int, workers: int) -> None:
        self.rest = Rest(worker, workers)
        self.all_rest = False
        self.ready: set[int] = set()
        self.said: tuple[int, ...] = ()
        """The latest message: none is sent twice."""


class Rounds:
    """One worker's part in coming to rest together: its messages to the others, and theirs.

    >>> sent = [], []
    >>> here, there = (Rounds(index, 2, own.append) for index, own in enumerate(sent))
    >>> here.begin(1)
    >>> while not here.all_rest(1):
    ...     for worker, (mine, other) in enumerate([(here, there), (there, here)]):
    ...         mine.say(1, sent=7, received=7)
    ...         while sent[worker]:
    ...             other.hear(worker, sent[worker].pop(0))
    >>> there.begun, there.all_rest(1)
    (1, True)
    >>> here.say_ready(1)
    >>> there.hear(0, sent[0].pop())
    >>> there.all_ready(1)
    False
    >>> there.say_ready(1)
    >>> there.all_ready(1)
    True
    """

    def __init__(self, worker: int, workers: int, send: Callable[[bytes], None]) -> None:
        self._worker = worker
        self._workers = workers
        self._send = send
        self._rounds = {STALL: Round(worker, workers)}
        self._over = STALL
        self.begun = STALL
        """The number of the latest round that anybody has begun."""

    def begin(self, number: int) -> None:
        """Take part in a round, and inform the others of it."""
        if number <= self._over:
            raise ProtocolError(f"round {number} cannot begin after round {self._over}")
        if number > self.begun:
            self.begun = number
            self._send(_HEAD.pack(number, Saying.BEGIN))

    def say(self, number: int, *, sent: int, received: int) -> None:
        """This worker rests: inform the others, if that is news for them."""
        round_ = self._of(number)
        rest, said = round_.rest, round_.said
        # A message of others is worth an answer only if it may be the last one.
        news = (sent, received) != said[:2] or (rest.seems_of_all and rest.heard != said[2:])
        # A worker that rests for good says so from time to time; in a round, once for each news.
        if news or number == STALL:
            word = rest.say(sent=sent, received=received)
            round_.said = (sent, received, *rest.heard)
            self._send(_HEAD.pack(number, Saying.REST) + word.pack())
            self._conclude(number, round_)

    def say_ready(self, number: int) -> None:
        """This worker has done what it wanted rest for, or gives up."""
        self._of(number).ready.add(self._worker)
        self._send(_HEAD.pack(number, Saying.READY))

    def all_rest(self, number: int) -> bool:
        """Whether it is certain that no worker acts before all are ready."""
        return self._of(number).all_rest

    def all_ready(self, number: int) -> bool:
        """Whether everybody is ready; the round is over then."""
        if len(self._of(number).ready) < self._workers:
            return False
        for each in [each for each in self._rounds if STALL < each <= number]:
            del self._rounds[each]
        self._over = number
        return True

    def hear(self, worker: int, payload: bytes | bytearray | memoryview) -> None:
        """Receive a message of another worker."""
        try:
            number, what = _HEAD.unpack_from(payload)
            saying = Saying(what)
        except (struct.error, ValueError) as error:
            raise ProtocolError(f"something about rest that cannot be read: {error}") from error
        if STALL < number <= self._over:
            return
        self.begun = max(self.begun, number)
        round_ = self._of(number)
        if saying is Saying.REST:
            word = Word.unpack(memoryview(payload)[_HEAD.size :], self._workers)
            round_.rest.hear(worker, word)
            self._conclude(number, round_)
        elif saying is Saying.ALL:
            round_.all_rest = True
        elif saying is Saying.READY:
            round_.ready.add(worker)

    def _conclude(self, number: int, round_: Round) -> None:
        """The first worker to find out informs all, so that none waits for another message."""
        if (round_.rest.of_all or self._workers == 1) and not round_.all_rest:
            round_.all_rest = True
            if number != STALL:
                self._send(_HEAD.pack(number, Saying.ALL))

    def _of(self, number: int) -> Round:
        if number not in self._rounds:
            self._rounds[number] = Round(self._worker, self._workers)
        return self._rounds[number]
