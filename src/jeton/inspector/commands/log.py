"""`jeton log`: a summary of an event log, or how its frontiers moved."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from jeton.inspector.events import replay_frontiers, summarise


def main(argv: Sequence[str]) -> int:
    """Read a log, and print what it says; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="jeton log",
        description="Summarise an event log, as query.log_events(PATH) writes it: for each "
        "operator its invocations, the time spent, and the records in and out.",
    )
    parser.add_argument("path", metavar="PATH", type=Path, help="the folder of the log")
    parser.add_argument("--replay", action="store_true", help="print each move of a frontier")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    if not any(options.path.glob("*.arrow")):
        print(f"jeton log: there is no event log in {options.path}", file=sys.stderr)
        return 1
    return (_replay if options.replay else _summary)(options.path, options.json)


def _summary(path: Path, as_json: bool) -> int:
    rows = summarise(path)
    if as_json:
        print(json.dumps(rows, indent=2, default=str))
        return 0
    head = ("operator", "events", "seconds", "longest ms", "records in", "records out", "frontier")
    lines = [
        (
            row["operator"],
            f"{row['events']:,}",
            f"{row['seconds']:.3f}",
            f"{row['longest'] * 1e3:.2f}" if row["invocations"] else "",
            f"{row['records_in']:,}",
            f"{row['records_out']:,}",
            _times(json.loads(row["frontier"])),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    for line in (head, *lines):
        first, *rest = zip(line, widths, strict=True)
        print("  ".join([first[0].ljust(first[1]), *(text.rjust(w) for text, w in rest)]))
    first_event, last_event = min(r["first"] for r in rows), max(r["last"] for r in rows)
    print(f"from {first_event} to {last_event}")
    return 0


def _replay(path: Path, as_json: bool) -> int:
    before: dict[str, object] = {}
    for clock, frontiers in replay_frontiers(path):
        if as_json:
            print(json.dumps({"clock": str(clock), "frontiers": frontiers}))
            continue
        for name, times in frontiers.items():
            if before.get(name) != times:
                print(f"{clock:%H:%M:%S.%f}  {name}  {_times(times)}")
        before = dict(frontiers)
    return 0


def _times(times: Sequence[object]) -> str:
    return " ".join(map(str, times)) or "complete"
