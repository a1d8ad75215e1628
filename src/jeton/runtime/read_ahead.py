"""Reading in step: how much a reader has read beyond the slowest one of its input.

A frontier is the least of all workers', so what is read beyond the slowest time waits in the state
of operators: a reader that is faster than the others only piles up windows that cannot close. The
*slowest* time is the least one at which an input is on any worker. A reader waits once it has read
a number of bytes beyond it. That cannot block all readers: the slowest one has read nothing beyond
its own time, and learns that it is the slowest from the progress of the others.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from jeton.core.times import Time
from jeton.progress.tracker import Tracker


class ReadAhead:
    """The bytes that one reader has read beyond the slowest time, of which ``most`` are enough.

    They are enough only if they were read in ``reads`` parts or more. ``location`` is the output of
    the input. A reader does not wait for long for one that is slow or stands still: it goes on
    after ``patience`` seconds, by ``clock``. Twice as many bytes are enough then; fewer again,
    little by little, once it is not ahead any more.
    """

    def __init__(
        self,
        tracker: Tracker,
        location: int,
        *,
        most: int,
        reads: int = 1,
        patience: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracker = tracker
        self._location = location
        self._base = self._most = most
        self._reads = reads
        self._patience = patience
        self._clock = clock
        self._read: deque[tuple[Time, int]] = deque()
        """The reader's time after each read that the slowest has not come to, and its bytes."""
        self._bytes = 0
        self._until = -math.inf
        """When the reader goes on although the slowest has not caught up."""
        self._waits = False
        self._looked = -math.inf

    def took(self, at: Time, size: int) -> None:
        """Note that the reader has read so many bytes, and is at a time now."""
        if not size:
            return
        self._bytes += size
        read = self._read
        if len(read) > self._reads and read[-1][1] + size <= self._bytes // 64:
            # Few reads are noted one by one, however small they are.
            read[-1] = at, read[-1][1] + size
        else:
            read.append((at, size))

    @property
    def until(self) -> float | None:
        """When a reader that waits goes on in any case."""
        return self._until if self._waits else None

    def is_enough(self) -> bool:
        """Whether the reader should wait for the slowest."""
        self._waits = self._is_enough()
        return self._waits

    def _is_enough(self) -> bool:
        if self._bytes < self._base or len(self._read) < self._reads:
            return False
        now = self._clock()
        if self._bytes < self._most and now - self._looked < self._patience:
            return False
        self._looked = now
        slowest = self._least()
        read = self._read
        while read and (slowest is None or not slowest < read[0][0]):
            self._bytes -= read.popleft()[1]
        if self._bytes < self._base:
            self._most = max(self._base, self._most - self._most // 16)
        if self._bytes < self._most or len(read) < self._reads:
            return False
        if not self._waits:
            self._until = now + self._patience
        if now < self._until:
            return True
        self._most *= 2
        return False

    def _least(self) -> Time | None:
        """The slowest time; ``None`` if the input has ended on all workers."""
        # Times of inputs are in one order.
        return next(iter(self._tracker.least_anywhere(self._location)), None)
