"""`jeton why`: what holds an output of a query that runs in another process."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from jeton.core.errors import JetonError
from jeton.inspector.running import find

PATIENCE: Final = 30.0
"""Seconds that a query has to answer."""


def main(argv: Sequence[str]) -> int:
    """Ask a query, and print its answer; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="jeton why",
        description="Name what holds the frontier of an output of a query that runs on this "
        "machine: a token and the line that keeps it, an input, a worker that is busy, and so on.",
    )
    parser.add_argument(
        "query", metavar="QUERY", help="its name, the number of its process, or both"
    )
    parser.add_argument(
        "output", nargs="?", metavar="OUTPUT", help="an output, a probe or an operator; else all"
    )
    parser.add_argument("--at", metavar="T", help="an integer or a timestamp; else the frontier")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    try:
        answer = ask(find(options.query).url, "why", name=options.output, at=options.at)
    except JetonError as error:
        print(f"jeton why: {error}", file=sys.stderr)
        return 1
    print(json.dumps(answer, indent=2) if options.json else answer["text"])
    return 0


def ask(url: str, button: str, **arguments: Any) -> Any:
    """Press a button of a page; returns the answer."""
    body = json.dumps({"act": button, "arguments": arguments}).encode()
    request = Request(f"{url}act", body, {"content-type": "application/json"})
    try:
        # The page is on this machine, whatever proxies there are.
        with build_opener(ProxyHandler({})).open(request, timeout=PATIENCE) as answer:
            return json.load(answer)
    except HTTPError as error:
        try:
            text = json.load(error)["error"]
        except (ValueError, KeyError):
            text = str(error)
        raise JetonError(text) from None
    except (URLError, OSError) as error:
        raise JetonError(f"the query does not answer: {error}") from error
