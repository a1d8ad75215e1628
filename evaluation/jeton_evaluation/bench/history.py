"""The history of the operators' costs: adds a line for this commit, and names what became slower.

A cost is a ratio to a plain script of the same computation, measured in the same run. So lines of
different machines can be compared, and a noisy machine moves both sides.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from jeton_evaluation.bench import operators
from jeton_evaluation.bench.harness import Line, Rounds, Say, command

HISTORY = "docs/evaluation/history.jsonl"
COMPARED = 5
"""The latest lines, whose median a new one is compared with."""


def run(
    say: Say,
    file: Annotated[str, "the file of JSON lines"] = HISTORY,
    batch: Annotated[int, "records a batch"] = 4096,
    batches: Annotated[int, "batches a round"] = 200,
    rounds: Rounds = 7,
    tolerance: Annotated[float, "how much slower counts as slower"] = 1.25,
    dry_run: Annotated[bool, "compare, but write nothing"] = False,
) -> Generator[Line, None, int]:
    """Measure, compare with the lines before, and add a line; 1 if something became slower."""
    path = Path(file)
    before = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rows = operators.run(say, batch=batch, batches=batches, rounds=rounds)
    costs = {row["name"]: row["ratio_to_bare"] for row in rows}
    slow = slower(costs, [line["costs"] for line in before], tolerance)
    for name, (usual, now) in slow.items():
        say(f"{name}: {now:.2f} times the bare script, {usual:.2f} before")
    line = {"commit": _commit(), "batch": batch, "costs": costs}
    yield line | {"slower": [*slow]}
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        say(f"added a line to {path}")
    return 1 if slow else 0


def slower(
    costs: Mapping[str, float], before: Sequence[Mapping[str, float]], tolerance: float
) -> dict[str, tuple[float, float]]:
    """The operators that cost more than the median of the latest lines: their cost before and now.

    >>> slower({"count": 6.1, "join": 3.0}, [{"count": 4.0}, {"count": 4.2, "join": 2.9}], 1.25)
    {'count': (4.1, 6.1)}
    """
    found = {}
    for name, now in costs.items():
        known = [line[name] for line in before if name in line][-COMPARED:]
        if known and now > median(known) * tolerance:
            found[name] = (median(known), now)
    return found


def _commit() -> Any:
    """The commit that is measured, or nothing outside of a clone."""
    asked = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


main = command(run)
