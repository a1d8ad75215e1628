"""The limit of open files: each connection of this process takes one."""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

log = logging.getLogger(__name__)

_MARGIN: Final = 128
"""Files that a process may open later, beside its connections to peers."""


def limit_of_files() -> int:
    """How many files this process may have open."""
    if sys.platform == "win32":
        return 8192
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit


def make_room_for(connections: int) -> None:
    """Raise this process' limit of open files, if more connections than it allows are to come.

    The usual limit of 1,024 is one that any process may raise itself, up to the system's own.

    >>> make_room_for(10)
    >>> limit_of_files() > 10
    True
    """
    if sys.platform == "win32":
        return
    import resource

    needed = len(os.listdir("/dev/fd")) + connections + _MARGIN
    if needed <= limit_of_files():
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < needed:
        log.warning(
            "%s connections need more open files than this process may have (%s): "
            "raise the hard limit (ulimit -Hn)",
            connections,
            most,
        )
        needed = most
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
