"""`jeton log`: a summary of an event log, or how its frontiers moved."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from jeton.cli.command import FINE, BuiltIn, UsageError, add_json, print_json


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="the folder of the log")
    parser.add_argument("--replay", action="store_true", help="print each move of a frontier")
    add_json(parser, "the summary or the moves")


def _run(options: argparse.Namespace) -> int:
    path = Path(options.path)
    if not any(path.glob("*.arrow")):
        raise UsageError(f"there is no event log in {path}")
    return (_replay if options.replay else _summary)(path, options.json)


def _summary(path: Path, as_json: bool) -> int:
    from jeton.inspector.events import summarise

    rows = summarise(path)
    if as_json:
        print_json({"path": str(path), "operators": rows})
        return FINE
    head = ("operator", "events", "seconds", "longest ms", "records in", "records out", "frontier")
    lines = [
        (
            row["operator"],
            f"{row['events']:,}",
            f"{row['seconds']:.3f}",
            f"{row['longest'] * 1e3:.2f}" if row["invocations"] else "",
            f"{row['records_in']:,}",
            f"{row['records_out']:,}",
            _times(json.loads(row["frontier"]), row["unit"]),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    for line in (head, *lines):
        first, *rest = zip(line, widths, strict=True)
        print("  ".join([first[0].ljust(first[1]), *(text.rjust(w) for text, w in rest)]))
    if rows:
        print(f"from {min(r['first'] for r in rows)} to {max(r['last'] for r in rows)}")
    return FINE


def _replay(path: Path, as_json: bool) -> int:
    from jeton.inspector.events import read_events, replay_frontiers

    units = read_events(path)["unit"].unique().drop_null().to_pylist()
    unit = units[-1] if units else None
    moves: list[dict[str, Any]] = []
    before: dict[str, object] = {}
    for clock, frontiers in replay_frontiers(path):
        for name, times in frontiers.items():
            if before.get(name) == times:
                continue
            if as_json:
                moves.append({"clock": clock.isoformat(), "operator": name, "frontier": times})
            else:
                print(f"{clock:%H:%M:%S.%f}  {name}  {_times(times, unit)}")
        before = dict(frontiers)
    if as_json:
        print_json({"path": str(path), "unit": unit, "moves": moves})
    return FINE


def _times(times: Sequence[object], unit: str | None) -> str:
    from jeton.inspector.view import antichain

    text: str = antichain(times, unit)["text"]
    return text


COMMAND: Final = BuiltIn(
    "log",
    "summarise an event log",
    "Summarise an event log, as query.log_events(PATH) writes it: for each operator its "
    "invocations, the time spent, and the records in and out.",
    "jeton log /data/logs/rooms\njeton log /data/logs/rooms --replay",
    _add_arguments,
    _run,
)
