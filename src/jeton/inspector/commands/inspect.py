"""`jeton inspect`: the live pages of the queries that run on this machine."""

from __future__ import annotations

import argparse
import json
import sys
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict

from jeton.core.errors import JetonError
from jeton.inspector.running import Published, find, pages


def main(argv: Sequence[str]) -> int:
    """List the queries that run, or print the address of one's page; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="jeton inspect",
        description="List the queries of this user that run on this machine, or print the address "
        "of the live page of one of them.",
    )
    parser.add_argument(
        "query", nargs="?", metavar="QUERY", help="its name, the number of its process, or both"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    if options.open and options.query is None:
        parser.error("--open needs the name of a query")
    try:
        return _list(options.json) if options.query is None else _one(options)
    except JetonError as error:
        print(f"jeton inspect: {error}", file=sys.stderr)
        return 1


def _list(as_json: bool) -> int:
    found = pages()
    if as_json:
        print(json.dumps([asdict(page) for page in found], indent=2))
    elif not found:
        print(
            "No query with a page runs on this machine. Queries have one where jeton[inspect] is "
            "installed, runs once they call run.inspect()."
        )
    for page in () if as_json else found:
        print(f"{page.name}@{page.pid}  for {_age(page)}  {page.url}")
    return 0


def _one(options: argparse.Namespace) -> int:
    page = find(options.query)
    print(json.dumps(asdict(page), indent=2) if options.json else page.url)
    if options.open and not webbrowser.open(page.url):
        print("jeton inspect: there is no browser to open it with", file=sys.stderr)
        return 1
    return 0


def _age(page: Published) -> str:
    seconds = int(time.time() - page.since)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"
