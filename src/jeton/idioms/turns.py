"""How soon threads take turns: a worker that is busy must not keep an event loop waiting.

A thread that wants Python's interpreter gets it at once from one that waits for something, but from
one that is busy only after a while, which is 5 ms unless told otherwise. An event loop wants it
back after each of its system calls, some eight of them for a call to a service: beside a busy
worker it would make hardly more than 100 calls a second.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

TURN: Final = 0.0002
"""Seconds after which a busy thread has to let another one go on."""

_lock = Lock()
_before: list[float] = []
"""How it was before, once for each who has asked for short turns and still needs them."""


@contextmanager
def short_turns() -> Iterator[None]:
    """Have all threads of this process take turns soon, until nobody needs it any more.

    >>> import sys
    >>> with short_turns():
    ...     sys.getswitchinterval() <= TURN
    True
    """
    with _lock:
        _before.append(_before[0] if _before else sys.getswitchinterval())
        if sys.getswitchinterval() > TURN:
            sys.setswitchinterval(TURN)
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:
                sys.setswitchinterval(before)
