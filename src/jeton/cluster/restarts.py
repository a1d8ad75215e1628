"""Restarts: whether a query that failed is started again, and when."""

from __future__ import annotations

import re
from typing import Final

FIRST_WAIT: Final = 0.1
LONGEST_WAIT: Final = 30.0

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

    A query is started again up to ``most`` times in a row without a new version of the checkpoint.
    An error that a worker reports may be transient; but if the same one comes again at the same
    place, with no new version in between, it is taken for lasting. A new version sets both counts
    back: an error that comes once a week never ends a query.

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
    >>> [restarts.wait("TimeoutError: the lookup service", version) for version in range(2, 6)]
    [0.1, 0.1, 0.1, 0.1]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._version: int | None = None
        self._in_a_row = 0
        self._recent: set[str] = set()

    def wait(self, cause: str | None, version: int | None) -> float | None:
        """Seconds to wait before the next attempt, or nothing if there shall be none.

        ``cause`` is what a worker said went wrong, if any could say so.
        """
        if (version or 0) > (self._version or 0):
            self._version = version
            self._in_a_row = 0
            self._recent.clear()
        if cause is not None:
            place = _ONE_TIME.sub("…", gist(cause))
            if place in self._recent:
                return None
            self._recent.add(place)
        if self._in_a_row >= self._most:
            return None
        self._in_a_row += 1
        return min(FIRST_WAIT * 2.0 ** (self._in_a_row - 1), LONGEST_WAIT)
