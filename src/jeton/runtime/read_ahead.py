"""Reading in step: how much a worker has read beyond the slowest one.

A frontier is the least of all workers', so what a worker reads beyond the slowest time waits in its
state: a worker that reads faster than the others only piles up windows that it cannot close. The
*slowest* time is the least one that an input of any worker is at. A reader waits once it has read a
number of bytes beyond it. That cannot block all readers: the slowest one has read nothing beyond
its own time, and learns that it is the slowest from the progress of the others.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

from jeton.core.times import Time
from jeton.progress.tracker import Tracker


class ReadAhead:
    """The bytes that one reader has read beyond the slowest time, of which ``most`` are enough.

    ``locations`` are the outputs of the inputs, of which the least time is the slowest. A reader
    does not wait for one that stands still: it goes on when the slowest time has not moved for
    ``patience`` seconds, by ``clock``, and waits again once that has moved.
    """

    def __init__(
        self,
        tracker: Tracker,
        locations: Sequence[int],
        *,
        most: int,
        patience: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracker = tracker
        self._locations = tuple(locations)
        self._most = most
        self._patience = patience
        self._clock = clock
        self._read: deque[tuple[Time, int]] = deque()
        """The reader's time after each read that the slowest has not come to, and its bytes."""
        self._bytes = 0
        self._slowest: Time | None = None
        self._moved_at = -math.inf
        self._waits = False

    def took(self, at: Time, size: int) -> None:
        """Note that the reader has read so many bytes, and is at a time now."""
        self._read.append((at, size))
        self._bytes += size

    def is_enough(self) -> bool:
        """Whether the reader should wait for the slowest."""
        if self._bytes < self._most:
            self._waits = False
            return False
        slowest = self._least()
        read = self._read
        while read and (slowest is None or not slowest < read[0][0]):
            self._bytes -= read.popleft()[1]
        if self._bytes < self._most:
            self._waits = False
            return False
        now = self._clock()
        if not self._waits or slowest != self._slowest:
            self._waits, self._slowest, self._moved_at = True, slowest, now
        return now - self._moved_at < self._patience

    def _least(self) -> Time | None:
        """The slowest time; ``None`` if all inputs have ended."""
        least: Time | None = None
        for location in self._locations:
            for at in self._tracker.least_anywhere(location):
                if least is None or at < least:
                    least = at
        return least
