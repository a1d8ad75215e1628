"""Verdicts: what came of a case, and how many cases had which outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from jeton.errors import JetonError, OperatorFailed
from tests.oracle.case import Case
from tests.oracle.compare import difference
from tests.oracle.duck import Oracle, Refused
from tests.oracle.hosts import in_process

RIGHT, REFUSED, WRONG = "right", "rightly refused", "WRONG"

Host = Callable[[Case], list[pa.Table]]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a case."""

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
        if verdict.outcome == WRONG:
            self.add_failure(case.shape, host, seed, verdict.why)
        else:
            self.by[case.shape, host, verdict.outcome] += 1

    def add_failure(self, shape: str, host: str, seed: int, why: str) -> None:
        """Count a case that went wrong."""
        self.by[shape, host, WRONG] += 1
        self.failures.append((host, seed, f"{shape}: {why}"))

    def __str__(self) -> str:
        outcomes = (RIGHT, REFUSED, WRONG)
        rows = sorted({(shape, host) for shape, host, _ in self.by})
        lines = [f"{'pipeline':20}{'host':14}" + "".join(f"{name:>17}" for name in outcomes)]
        for shape, host in rows:
            counts = (self.by[shape, host, outcome] for outcome in outcomes)
            lines.append(f"{shape:20}{host:14}" + "".join(f"{count:17,}" for count in counts))
        totals = (sum(n for key, n in self.by.items() if key[2] == name) for name in outcomes)
        lines.append(f"{'all':34}" + "".join(f"{count:17,}" for count in totals))
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
    except JetonError as error:
        if refused is not None and not isinstance(error, OperatorFailed):
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
