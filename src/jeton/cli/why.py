"""`jeton why`: what holds an output of a query that runs in another process."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from jeton.cli.command import FINE, BuiltIn, UsageError, add_json, print_json
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
    from jeton.core.errors import JetonError
    from jeton.inspector.actions import time_given

    try:
        at = time_given(options.at)
    except JetonError as error:
        raise UsageError(f"--at {error}") from error
    page = find_page(options.query)
    query = f"{page.name}@{page.pid}"
    if options.output is not None:
        _require_place(options.output, ask(page.url, "graph", query))
    if at is not None:
        _require_kind(at, ask(page.url, "snapshot", query)["unit"])
    arguments = {"name": options.output, "at": options.at}
    answer = ask(page.url, "act", query, {"act": "why", "arguments": arguments})
    if options.json:
        print_json(answer)
    else:
        print(answer["text"])
    return FINE


def _require_place(name: str, graph: dict[str, Any]) -> None:
    from jeton.core.checks import suggestion

    known = [*graph["outputs"], *(each["name"] for each in graph["operators"])]
    if name not in known:
        raise UsageError(
            f"flow {graph['name']!r} has no output, probe or operator {name!r}"
            f"{suggestion(name, known)} (there are: {', '.join(map(repr, dict.fromkeys(known)))})"
        )


def _require_kind(at: Any, unit: str | None) -> None:
    """Refuse an integer where times are timestamps, and the other way round."""
    if unit is not None and isinstance(at, int) is not (unit == "integer"):
        kind = "integers" if unit == "integer" else "timestamps, such as '2026-01-31 12:00'"
        raise UsageError(f"--at {at}: the times of this query are {kind}")


def ask(url: str, path: str, query: str, body: Any = None) -> Any:
    """Ask the page of a query for something; returns the answer."""
    from urllib.error import HTTPError, URLError
    from urllib.request import ProxyHandler, Request, build_opener

    from jeton.core.errors import JetonError

    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{url}{path}", data, {"content-type": "application/json"})
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
    except TimeoutError as error:
        raise JetonError(
            f"{query} does not answer within {PATIENCE:g} seconds: its process may be stopped, or "
            "in a call that holds Python's interpreter"
        ) from error
    except (URLError, OSError) as error:
        raise JetonError(f"{query} does not answer: {error}") from error


COMMAND: Final = BuiltIn(
    "why",
    "name what holds an output of a query that runs",
    "Name what holds the frontier of an output of a query that runs on this machine: a token and "
    "the line that retained it, an input, a worker that is busy, and so on.",
    "jeton why rooms means\njeton why rooms@4711 means --at '2026-01-31 12:00'",
    _add_arguments,
    _run,
)
