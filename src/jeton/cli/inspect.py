"""`jeton inspect`: the live pages of the queries that run on this machine."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from jeton.cli.command import FAILED, FINE, BuiltIn, UsageError, add_json, print_json, say

if TYPE_CHECKING:
    from jeton.inspector.running import Published


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_query(parser, nargs="?")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    add_json(parser, "all that is known")


def add_query(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the argument that names a query."""
    parser.add_argument(
        "query",
        nargs=nargs,
        metavar="QUERY",
        help="its name, the number of its process, or both: NAME@PROCESS",
    )


def find_page(query: str) -> Published:
    """The page of a query that runs."""
    from jeton.core.errors import JetonError
    from jeton.inspector.running import find

    try:
        return find(query)
    except JetonError as error:
        raise UsageError(str(error)) from error


def _run(options: argparse.Namespace) -> int:
    if options.query is None:
        if options.open:
            raise UsageError("--open needs the name of a query")
        return _list(options.json)
    page = find_page(options.query)
    if options.json:
        print_json(asdict(page))
    else:
        print(page.url)
    if options.open:
        import webbrowser

        if not webbrowser.open(page.url):
            say("jeton inspect: error: there is no browser to open it with")
            return FAILED
    return FINE


def _list(as_json: bool) -> int:
    from jeton.inspector.running import HAVE_PAGES, names_of, pages

    found = pages()
    if as_json:
        print_json({"queries": [asdict(page) for page in found]})
    elif not found:
        say(f"no query with a page runs on this machine: {HAVE_PAGES}")
    else:
        names = names_of(found)
        rows = [(n, f"for {_age(p)}", p.url) for n, p in zip(names, found, strict=True)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = zip(row, widths, strict=True)
            print("  ".join(text.ljust(width) for text, width in cells).rstrip())
    return FINE


def _age(page: Published) -> str:
    seconds = int(time.time() - page.since)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"


COMMAND: Final = BuiltIn(
    "inspect",
    "list the queries that run, and their live pages",
    "List the queries of this user that run on this machine, or print the address of the live "
    "page of one of them.",
    "jeton inspect\njeton inspect rooms --open",
    _add_arguments,
    _run,
)
