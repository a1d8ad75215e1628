"""Restarts: whether a query that failed is started again, and when."""

from __future__ import annotations

from typing import Final

from jeton.cluster.failures import Failure

FIRST_WAIT: Final = 0.1
LONGEST_WAIT: Final = 30.0


class Restarts:
    """Judges failures, one after the other.

    A query is started again up to ``most`` times in a row without a new version of the checkpoint.
    A failure may be transient; but if an error of the same class comes again from the same operator
    and line, with no new version in between, it is taken for lasting; but not if files could not be
    read. A new version sets both counts back: an error that comes once a week never ends a query.

    >>> restarts = Restarts(most=2)
    >>> [restarts.wait(None, version=1) for _ in range(3)]
    [0.1, 0.2, None]
    >>> restarts, failure = Restarts(most=5), Failure.of(ValueError("no"), worker=1)
    >>> [restarts.wait(failure, version=1) for _ in range(2)]
    [0.1, None]
    >>> [restarts.wait(failure, version) for version in range(2, 6)]
    [0.1, 0.1, 0.1, 0.1]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._version: int | None = None
        self._in_a_row = 0
        self._recent: set[tuple[str, str | None, str | None]] = set()

    def wait(self, failure: Failure | None, version: int | None) -> float | None:
        """Seconds to wait before the next attempt, or nothing if there shall be none.

        ``failure`` is that of a worker or of the driver, if there is one beside Spark's own.
        """
        if (version or 0) > (self._version or 0):
            self._version = version
            self._in_a_row = 0
            self._recent.clear()
        if failure is not None and not failure.transient:
            if failure.place in self._recent:
                return None
            self._recent.add(failure.place)
        if self._in_a_row >= self._most:
            return None
        self._in_a_row += 1
        return min(FIRST_WAIT * 2.0 ** (self._in_a_row - 1), LONGEST_WAIT)
