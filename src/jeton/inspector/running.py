"""The pages that are served on this machine: how another terminal finds a query that runs.

Each page has a file in a folder that only the user can read, since the page's address has a secret.
It is removed when the query ends. Files of processes that are gone are ignored, and removed.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from jeton.core.errors import JetonError

HAVE_PAGES: Final = (
    "queries have one where jeton[inspect] is installed, runs once they call run.inspect()"
)
"""Which queries have a page: for errors that name none."""
_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A page that is served."""

    name: str
    """The name of the query."""
    url: str
    pid: int
    began: str
    """Tells a process from a later one with the same number."""
    since: float
    """Seconds since 1970."""
    number: int = 1
    """Tells pages of one process apart."""

    @property
    def whole_name(self) -> str:
        """A name that no other page on this machine has."""
        return f"{self.name}@{self.pid}.{self.number}"


def runtime_folder() -> Path:
    """The folder of the files; it belongs to the user, and no one else can read it."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base) / "jeton" if base else Path(tempfile.gettempdir()) / f"jeton-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise JetonError(
            f"{path} is not a folder that only this user can read: addresses of pages are not "
            "written there. Remove it, or set XDG_RUNTIME_DIR"
        )
    return path


def publish(name: str, url: str) -> Path:
    """Write the file of a page; returns its path.

    >>> file = publish("counts", "http://127.0.0.1:1234/secret/")
    >>> [page.name for page in pages() if page.url == "http://127.0.0.1:1234/secret/"]
    ['counts']
    >>> file.unlink()
    """
    pid, number = os.getpid(), next(_NUMBERS)
    page = Published(
        name=name, url=url, pid=pid, began=_began(pid), since=time.time(), number=number
    )
    path = runtime_folder() / f"{pid}-{number}.json"
    path.unlink(missing_ok=True)  # of an earlier process with this number
    # Under another name at first, so that no reader finds half of it.
    whole = path.with_suffix(".new")
    whole.unlink(missing_ok=True)
    with os.fdopen(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(asdict(page), file)
    whole.rename(path)
    return path


def pages() -> list[Published]:
    """The pages of processes that are alive, the oldest first."""
    found = []
    for path in runtime_folder().glob("*.json"):
        try:
            page = Published(**json.loads(path.read_text()))
            alive = _began(page.pid) == page.began != ""
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError):
            alive = False
        if alive:
            found.append(page)
        else:
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda page: page.since)


def find(query: str, among: Sequence[Published] | None = None) -> Published:
    """The page of a query, by its name, by the number of its process, or by ``name@number``.

    Queries of one name in one process are distinguished by ``name@process.number``.

    >>> one, other = (
    ...     Published(name="counts", url="", pid=pid, began="", since=0.0) for pid in (7, 8)
    ... )
    >>> find("counts@8", [one, other]) is other
    True
    >>> find("counts", [one, other])
    Traceback (most recent call last):
        ...
    jeton.core.errors.JetonError: several queries are called 'counts': counts@7, counts@8
    """
    known = pages() if among is None else among
    matching = [
        page
        for page in known
        if query in (page.name, str(page.pid), f"{page.name}@{page.pid}", page.whole_name)
    ]
    names = ", ".join(names_of(matching or known))
    if len(matching) > 1:
        raise JetonError(f"several queries are called {query!r}: {names}")
    if not matching:
        raise JetonError(
            f"no query {query!r} with a page runs on this machine (there are: {names or 'none'}): "
            f"{HAVE_PAGES}"
        )
    return matching[0]


def names_of(known: Sequence[Published]) -> list[str]:
    """A name for each page by which `find` finds it, as short as it can be with a process in it.

    >>> one, other = (
    ...     Published(name="counts", url="", pid=7, began="", since=0.0, number=n) for n in (1, 2)
    ... )
    >>> names_of([one]), names_of([one, other])
    (['counts@7'], ['counts@7.1', 'counts@7.2'])
    """
    short = [f"{page.name}@{page.pid}" for page in known]
    return [
        name if short.count(name) == 1 else page.whole_name
        for name, page in zip(short, known, strict=True)
    ]


def _began(pid: int) -> str:
    """When a process began, empty if there is none with this number."""
    try:
        # The 22nd field; the second, a name in parentheses, may have spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
    except OSError:
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "unknown"
