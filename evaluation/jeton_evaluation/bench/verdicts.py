"""Verdicts: what was claimed or aimed at, and what the lines of a sweep say of it.

Nothing is judged by hand: each claim has a rule that looks up lines. If they are missing, the claim
is not measured; if it is about more cores than there are, that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jeton_evaluation.bench.experiment import Line
from jeton_evaluation.bench.lines import Lines, NotMeasuredError
from jeton_evaluation.bench.panels import NAMES, power

HOLDS, FAILS = "holds", "does not hold"
UNTESTED, UNMEASURED = "could not be tested at 2 cores", "not measured"
ALIKE = 2.0
"""Latencies that differ by no more than this factor are called alike, on a noisy machine."""

Rule = Callable[[Lines], tuple[bool, str]]
"""Whether it holds, and the figures; raises `NotMeasuredError` if lines are missing."""


class UntestableError(LookupError):
    """The lines are there, but what they say does not bear on the claim."""


@dataclass(frozen=True)
class Verdict:
    """What came out: one of the four words, and the figures that it rests on."""

    word: str
    seen: str


@dataclass(frozen=True)
class Claim:
    """Something that was said, where, and how to tell whether it holds here.

    >>> claim = Claim("It is fast.", "§1", lambda lines: (lines.one(run="a")["ms"] < 1, "ms"))
    >>> [claim.judge(Lines(each)).word for each in ([{"run": "a", "ms": 2}], [])]
    ['does not hold', 'not measured']
    """

    text: str
    where: str
    rule: Rule | str
    """A text instead says why it cannot be tested at two cores."""

    def judge(self, lines: Lines) -> Verdict:
        """The verdict on these lines."""
        if isinstance(self.rule, str):
            return Verdict(UNTESTED, self.rule)
        try:
            holds, seen = self.rule(lines)
        except NotMeasuredError as missing:
            return Verdict(UNMEASURED, str(missing))
        except UntestableError as why:
            return Verdict(UNTESTED, str(why))
        return Verdict(HOLDS if holds else FAILS, seen)


def words(lines: Lines, mechanism: str, quantum: int, rate: float, workers: int = 2) -> Line:
    """The line of a word count."""
    return lines.one(
        experiment="wordcount",
        mechanism=mechanism,
        quantum_log2=quantum,
        rate_per_worker=rate,
        workers=workers,
        sustained=None,
    )


def links(lines: Lines, mechanism: str, length: int, rate: float, workers: int = 2) -> Line:
    """The line of a chain."""
    return lines.one(
        experiment="chain",
        mechanism=mechanism,
        length=length,
        rate_per_worker=rate,
        workers=workers,
        sustained=None,
    )


def over_quanta(lines: Lines, mechanism: str, rate: float) -> list[Line]:
    """Word counts on two workers at this load, from the finest quantum to the coarsest."""
    found = lines.some(
        experiment="wordcount",
        mechanism=mechanism,
        rate_per_worker=rate,
        workers=2,
        sustained=None,
    )
    return sorted(found, key=lambda line: int(line["quantum_log2"]))


def finest(lines: Iterable[Line]) -> int | None:
    """The finest quantum from which on all coarser ones finish too.

    >>> finest({"quantum_log2": q, "dnf": q in (8, 10)} for q in range(8, 17))
    11
    """
    found = None
    for line in reversed(list(lines)):
        if line["dnf"]:
            break
        found = int(line["quantum_log2"])
    return found


def finishes(quantum: int | None) -> str:
    """A finest quantum for people."""
    return "never finishes" if quantum is None else f"finishes from {power(quantum)} ns on"


def p50(line: Line) -> float:
    """The median; beyond all bounds if it did not finish."""
    return float("inf") if line["dnf"] else float(line["p50_ms"])


def told(line: Line, field: str = "p50_ms") -> str:
    """A latency for people."""
    return "DNF" if line["dnf"] else f"{line[field]:.3g} ms"


def ratio(one: Line, other: Line) -> float:
    """How many times the one's median is the other's; beyond all bounds if one did not finish."""
    return float("inf") if other["dnf"] else p50(one) / p50(other)


def alike(lines: Iterable[Line]) -> bool:
    """Whether all finish, with about the same median."""
    values = [p50(line) for line in lines]
    return max(values) <= ALIKE * min(values) < float("inf")


def latencies(lines: Iterable[Line]) -> str:
    """Medians of several mechanisms for people."""
    return "p50: " + ", ".join(f"{NAMES[line['mechanism']]} {told(line)}" for line in lines)
