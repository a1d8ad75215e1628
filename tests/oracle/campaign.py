"""A campaign: many cases by seed, counted by pipeline shape, host and outcome.

python -m tests.oracle --cases 100000 --minutes 30      random seeds, a progress bar, a table
python -m tests.oracle --replay 380                     one case again, made as small as it fails
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

import pyarrow as pa
from tqdm import tqdm

import jeton as jt
from tests.oracle.case import Case
from tests.oracle.compare import difference
from tests.oracle.duck import Oracle, Refused
from tests.oracle.hosts import in_process
from tests.oracle.pipelines import seeded

RIGHT, REFUSED, WRONG = "right", "rightly refused", "WRONG"

Host = Callable[[Case], list[pa.Table]]


@dataclass(frozen=True)
class Verdict:
    """What came of a case."""

    outcome: str
    why: str = ""


@dataclass
class Counts:
    """The outcomes of a campaign, and how to see its failures again."""

    by: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Cases by pipeline shape, host and outcome."""
    failures: list[tuple[str, int, str]] = field(default_factory=list)
    """The host, the seed and what was wrong."""

    @property
    def cases(self) -> int:
        """How many cases were run."""
        return sum(self.by.values())

    def add(self, case: Case, host: str, seed: int, verdict: Verdict) -> None:
        """Count a case."""
        self.by[case.shape, host, verdict.outcome] += 1
        if verdict.outcome == WRONG:
            self.failures.append((host, seed, f"{case.shape}: {verdict.why}"))

    def __str__(self) -> str:
        outcomes = (RIGHT, REFUSED, WRONG)
        rows = sorted({(shape, host) for shape, host, _ in self.by})
        lines = [f"{'pipeline':16} {'host':14}" + "".join(f"{name:>17}" for name in outcomes)]
        for shape, host in rows:
            counts = (self.by[shape, host, outcome] for outcome in outcomes)
            lines.append(f"{shape:16} {host:14}" + "".join(f"{count:17,}" for count in counts))
        totals = (sum(n for key, n in self.by.items() if key[2] == name) for name in outcomes)
        lines.append(f"{'all':31}" + "".join(f"{count:17,}" for count in totals))
        lines += [f"{host} {seed}: {why[:300]}" for host, seed, why in self.failures[:50]]
        return "\n".join(lines)


def judge(case: Case, oracle: Oracle, host: Host = in_process) -> Verdict:
    """Run a case and compare its outputs with DuckDB's."""
    refused: Refused | None = None
    expected: list[pa.Table] = []
    try:
        expected = case.expected(oracle)
    except Refused as reason:
        refused = reason
    try:
        found = host(case)
    except jt.JetonError as error:
        if refused is not None and not isinstance(error, jt.OperatorFailed):
            return Verdict(REFUSED, str(refused))
        return Verdict(WRONG, f"{type(error).__name__}: {error}")
    except Exception as error:
        return Verdict(WRONG, f"{type(error).__name__}: {error}")
    if refused is not None:
        return Verdict(WRONG, f"it should be an error: {refused}")
    return compared(case, found, expected)


def compared(
    case: Case, found: Iterable[pa.Table], expected: Iterable[pa.Table], *, typed: bool = True
) -> Verdict:
    """Whether outputs are what was expected."""
    shapes = case.shapes()
    for number, have, want in zip(case.ends, found, expected, strict=True):
        wrong = difference(
            have, want, shapes[number], scale=case.scale, unit=case.unit, typed=typed
        )
        if wrong is not None:
            return Verdict(WRONG, f"output {number}: {wrong}")
    return Verdict(RIGHT)


def host_of(case: Case) -> str:
    """Which of the ways to run in this process a case takes."""
    return "in process" if case.schedule.restart is None else "restarted"


def campaign(
    cases: int, seed: int, budget_seconds: float | None = None, *, progress: bool = False
) -> Counts:
    """Run cases in this process until there are enough or the time is up.

    The case of a campaign's n-th place is that of the seed ``seed + n``.
    """
    counts, oracle = Counts(), Oracle()
    until = None if budget_seconds is None else time.monotonic() + budget_seconds
    for number in tqdm(range(seed, seed + cases), disable=not progress, unit="case"):
        if until is not None and time.monotonic() > until:
            break
        case = seeded(number)
        counts.add(case, host_of(case), number, judge(case, oracle))
    return counts


def smallest(case: Case, oracle: Oracle) -> Case:
    """A case with as few rows as it takes to fail in the same way."""
    seconds = time.monotonic() + 60
    tried = True
    while tried and time.monotonic() < seconds:
        tried = False
        for other in _smaller(case):
            if judge(other, oracle).outcome == WRONG:
                case, tried = other, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    plain = replace(case.schedule, workers=1, seed=None, restart=None, form="table")
    if case.schedule != plain:
        yield replace(case, schedule=plain)
        yield replace(case, schedule=replace(case.schedule, restart=None))
    for number, table in enumerate(case.tables):
        size = table.num_rows
        for step in (max(size // 2, 1), 1):
            for start in range(0, size, step):
                rows = [row for row in range(size) if not start <= row < start + step]
                fewer = (*case.tables[:number], table.take(rows), *case.tables[number + 1 :])
                yield replace(case, tables=fewer)
    *rest, last = case.nodes
    if rest and len(last.step.shapes(*(case.shapes()[n] for n in last.inputs))) == 1:
        yield replace(case, nodes=tuple(rest))


def any_seed() -> int:
    """A seed for a campaign that has none."""
    return Random().randrange(10**12)
