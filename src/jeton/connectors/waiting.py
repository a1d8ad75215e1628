"""Waiting: the tables that a sink at the driver has not taken yet, and for how long they wait."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident


@dataclass(frozen=True, slots=True)
class Delay:
    """A sink at the driver that has not taken rows for some time."""

    output: str
    seconds: float
    """Since the oldest of these rows came to the driver."""
    tables: int
    """The tables that wait, with the one that is being taken."""
    rows: int
    taking: float | None
    """For how many seconds it has been taking a table."""
    error: str
    """The error with which it has refused that table, if it has."""
    thread: int | None
    """The thread that calls it."""

    def __str__(self) -> str:
        """It as a sentence.

        >>> print(Delay("out", 12.34, 3, 900, 4.0, "", None))
        the sink of output 'out' has not taken 3 tables with 900 rows, the oldest for 12.3 s: it \
has been taking one of them for 4.0 s
        """
        tables = "a table" if self.tables == 1 else f"{self.tables:,} tables"
        oldest = "" if self.tables == 1 else ", the oldest"
        rows = f"{self.rows:,} row{'s' if self.rows != 1 else ''}"
        text = (
            f"the sink of output {self.output!r} has not taken {tables} with {rows}{oldest} for "
            f"{self.seconds:.1f} s"
        )
        if self.error:
            return f"{text}: it has failed, and is called again with the same rows: {self.error}"
        if self.taking is None:
            return text
        one = "it" if self.tables == 1 else "one of them"
        return f"{text}: it has been taking {one} for {self.taking:.1f} s"


class Waiting:
    """The tables that wait for a sink at the driver, in the order in which they came.

    >>> waiting = Waiting("out")
    >>> waiting.add(5)
    >>> waiting.delay(at_least=1.0)
    >>> waiting.delay(at_least=0.0).tables
    1
    >>> with waiting.taking():
    ...     pass
    >>> waiting.delay(at_least=0.0)
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self._tables: deque[tuple[float, int]] = deque()
        """For each table when it came, and its rows."""
        self._began: float | None = None
        self._thread: int | None = None
        self.error = ""
        """The error with which the sink has refused the first of them."""

    def clear(self) -> None:
        """Nothing waits any more."""
        self._tables.clear()

    def add(self, rows: int) -> None:
        """A table has come."""
        self._tables.append((time.monotonic(), rows))

    @contextmanager
    def taking(self) -> Iterator[None]:
        """The sink takes the first of them here."""
        self._began, self._thread = time.monotonic(), get_ident()
        try:
            yield
        finally:
            self._began = self._thread = None
            self.error = ""
            self._tables.popleft()

    def delay(self, at_least: float) -> Delay | None:
        """How far the sink is behind, if a table has waited for at least some seconds."""
        tables, began, now = list(self._tables), self._began, time.monotonic()
        if not tables or now - tables[0][0] < at_least:
            return None
        return Delay(
            self._output,
            now - tables[0][0],
            len(tables),
            sum(rows for _, rows in tables),
            None if began is None else now - began,
            self.error,
            self._thread,
        )
