"""Restarts: whether a query that failed is started again, and when."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

FIRST_WAIT: Final = 0.1
LONGEST_WAIT: Final = 30.0
OFTEN: Final = 3
"""How many times the same error of a worker's may come in all before it is taken for lasting."""


_ONE_TIME: Final = re.compile(r"(?<=worker )\d+|(?<=/)[^/\s]*\d[^/\s]*")
"""What differs when the same error comes again: who hits on it, and names of files."""


def gist(cause: str) -> str:
    r"""The error itself, with operator and time, in one line and without the traceback.

    >>> gist("ValueError: they differ:\na\n  b [worker 1]\n\nTraceback of worker 1:\n  File 'a'")
    'ValueError: they differ: a b [worker 1]'
    """
    return " ".join(cause.split("\n\nTraceback of ")[0].split())


class Restarts:
    """Judges failures, one after the other.

    A worker that was lost is worth another attempt, up to ``most`` in a row without a new version
    of the checkpoint. An error that a worker tells may pass as well; but if the same one comes
    again at the same place, with no new version in between or for the third time in all, it will
    come for ever.

    >>> restarts = Restarts(most=2)
    >>> (
    ...     restarts.wait(None, version=1),
    ...     restarts.wait(None, version=1),
    ...     restarts.wait(None, version=1),
    ... )
    (0.1, 0.2, None)
    >>> restarts = Restarts(most=5)
    >>> restarts.wait("ValueError: no (worker 1)", 1), restarts.wait("ValueError: no (worker 0)", 1)
    (0.1, None)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._version: int | None = None
        self._in_a_row = 0
        self._recent: set[str] = set()
        self._causes: Counter[str] = Counter()
        self.count = 0
        """How many times the query was started again."""

    def wait(self, cause: str | None, version: int | None) -> float | None:
        """Seconds to wait before the next attempt, or nothing if there shall be none.

        ``cause`` is what a worker said went wrong, if any could say so.
        """
        if version != self._version:
            self._version = version
            self._in_a_row = 0
            self._recent.clear()
        if cause is not None:
            place = _ONE_TIME.sub("…", gist(cause))
            self._causes[place] += 1
            if place in self._recent or self._causes[place] >= OFTEN:
                return None
            self._recent.add(place)
        if self._in_a_row >= self._most:
            return None
        self._in_a_row += 1
        self.count += 1
        return min(FIRST_WAIT * 2.0 ** (self._in_a_row - 1), LONGEST_WAIT)
