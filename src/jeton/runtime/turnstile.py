"""A turnstile: one thread at a time, in the order in which they came."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from time import monotonic
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

    @contextmanager
    def within(self, seconds: float) -> Iterator[bool]:
        """Go in if that is possible within some seconds; gives whether it was.

        >>> turnstile = Turnstile()
        >>> with turnstile.within(1.0) as inside:
        ...     inside
        True
        """
        came = self._came_in(seconds)
        try:
            yield came
        finally:
            if came:
                self.__exit__()

    def _came_in(self, seconds: float) -> bool:
        me, deadline = get_ident(), monotonic() + seconds
        if self._owner != me:
            if not self._next.acquire(timeout=seconds):
                return False
            try:
                if not self._inside.acquire(timeout=max(0.0, deadline - monotonic())):
                    return False
            finally:
                self._next.release()
            self._owner = me
        self._depth += 1
        return True
