"""Outcomes: what the runs of a campaign have met, added up for the table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """The results of all runs of one campaign.

    >>> outcome = Outcome("kills")
    >>> outcome.add({"hits": {"step": 2, "emit": 1}, "rows": 50, "lost": 0, "doubled": 0})
    >>> outcome.hit, outcome.problems()
    (3, [])
    >>> outcome.add({"hits": {}, "rows": 50, "lost": 1, "doubled": 0, "run": "seed 7"})
    >>> outcome.problems()
    ['1 rows lost, 0 doubled (seed 7)']
    """

    name: str
    runs: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    restarts: int = 0
    """How many times a query had to be started again after Spark gave it up."""
    failed: list[str] = field(default_factory=list)

    @property
    def hit(self) -> int:
        """How many hits there were in all."""
        return self.hits.total()

    def add(self, seen: Mapping[str, Any]) -> None:
        """Add what one run has seen."""
        self.runs += 1
        self.hits.update(seen["hits"])
        self.rows += int(seen["rows"])
        self.lost += int(seen["lost"])
        self.doubled += int(seen["doubled"])
        self.restarts += len(seen.get("failures", ()))
        if seen["lost"] or seen["doubled"]:
            where = seen.get("run", "")
            self.failed.append(f"{seen['lost']} rows lost, {seen['doubled']} doubled ({where})")
        self.failed.extend(seen.get("wrong", ()))

    def problems(self) -> list[str]:
        """Why the campaign has failed, if it has."""
        none = [] if self.hit else ["nothing was hit"]
        return [*none, *self.failed]


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes for people.

    >>> one = Outcome("kills", hits=Counter(step=2), runs=1, rows=60)
    >>> print(table([one]))
    campaign  runs  hits  rows checked  lost  doubled  restarted  failed
    kills        1     2            60     0        0          0       0
              step 2
    """
    head = ("campaign", "runs", "hits", "rows checked", "lost", "doubled", "restarted", "failed")
    rows = [
        (
            one.name,
            *(f"{n:,}" for n in (one.runs, one.hit, one.rows, one.lost, one.doubled, one.restarts)),
            str(len(one.problems())),
        )
        for one in outcomes
    ]
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]

    def line(row: Sequence[str]) -> str:
        first = row[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        return "  ".join([first, *rest])

    lines = [line(head)]
    for one, row in zip(outcomes, rows, strict=True):
        lines.append(line(row))
        where = ", ".join(f"{point} {count}" for point, count in sorted(one.hits.items()))
        if where:
            lines.append(" " * (widths[0] + 2) + where)
    return "\n".join(lines)
