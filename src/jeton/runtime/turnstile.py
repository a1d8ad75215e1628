"""A turnstile: one thread at a time, in the order in which they came."""

from __future__ import annotations

from threading import Lock, get_ident
from typing import Any


class Turnstile:
    """A lock that threads get in turn, though one of them takes it again and again.

    The thread that drives a run holds it for each step. Another one that looks at the run gets it
    after the present step, also if the next step would come at once. A thread that is inside may
    enter again.

    >>> turnstile = Turnstile()
    >>> with turnstile, turnstile:
    ...     "inside"
    'inside'
    """

    def __init__(self) -> None:
        self._next = Lock()
        self._inside = Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = get_ident()
        if self._owner != me:
            # A thread that waits to go in keeps the others from overtaking it.
            with self._next:
                self._inside.acquire()
            self._owner = me
        self._depth += 1

    def __exit__(self, *_: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._inside.release()
