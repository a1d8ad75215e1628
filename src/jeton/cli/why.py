"""`jeton why`: what holds an output of a query that runs in another process."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from jeton.cli.command import FINE, BuiltIn, add_json, print_json
from jeton.cli.inspect import add_query, find_page

PATIENCE: Final = 30.0
"""Seconds that a query has to answer."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_query(parser)
    parser.add_argument(
        "output", nargs="?", metavar="OUTPUT", help="an output, a probe or an operator; else all"
    )
    parser.add_argument("--at", metavar="T", help="an integer or a timestamp; else the frontier")
    add_json(parser, "the answer")


def _run(options: argparse.Namespace) -> int:
    answer = ask(find_page(options.query).url, "why", name=options.output, at=options.at)
    if options.json:
        print_json(answer)
    else:
        print(answer["text"])
    return FINE


def ask(url: str, button: str, **arguments: Any) -> Any:
    """Press a button of a page; returns the answer."""
    from urllib.error import HTTPError, URLError
    from urllib.request import ProxyHandler, Request, build_opener

    from jeton.core.errors import JetonError

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


COMMAND: Final = BuiltIn(
    "why",
    "name what holds an output of a query that runs",
    "Name what holds the frontier of an output of a query that runs on this machine: a token and "
    "the line that retained it, an input, a worker that is busy, and so on.",
    "jeton why rooms means\njeton why rooms@4711 means --at '2026-01-31 12:00'",
    _add_arguments,
    _run,
)
