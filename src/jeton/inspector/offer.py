"""The link to a query's live page, which is printed when the query starts."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

from jeton.core.errors import JetonError

log = logging.getLogger(__name__)

SETTING: Final = "JETON_INSPECT"
"""The environment variable that turns pages off: with 0, no, off or false."""
_PACKAGES: Final = ("starlette", "uvicorn")
_printed: set[str] = set()


def is_wanted() -> bool:
    """Whether queries are to have a page by themselves.

    >>> os.environ.get("JETON_INSPECT"), is_wanted()
    ('0', False)
    """
    return os.environ.get(SETTING, "").strip().lower() not in ("0", "no", "off", "false")


def offer(
    name: str, inspect: Callable[[], str], elsewhere: Callable[[str], str | None] = lambda _: None
) -> None:
    """Print the address of a query's page to standard error, or once how to get pages.

    ``elsewhere`` returns another address where there is one, such as that through Spark's UI.
    """
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        text = "pip install 'jeton[inspect]' for a live page of each query"
        if text not in _printed:
            _printed.add(text)
            print(f"jeton: {text}", file=sys.stderr, flush=True)
        return
    try:
        url = inspect()
    except (JetonError, OSError) as error:
        # The query itself does not depend on it.
        log.warning("query %r has no live page: %s", name, error)
        return
    print(f"jeton: query {name!r} is at {url}", file=sys.stderr, flush=True)
    other = elsewhere(url)
    if other is not None:
        print(f"jeton: and through Spark's UI at {other}", file=sys.stderr, flush=True)
