"""Claims: what the paper says of its evaluation, beside what the lines of a sweep say here.

Each is in our own words, with where the paper says it, and stands over the rule that judges it.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from jeton_evaluation.bench.experiment import Line
from jeton_evaluation.bench.lines import Lines, NotMeasuredError
from jeton_evaluation.bench.panels import NAMES, power, short
from jeton_evaluation.bench.plan import (
    COARSE,
    FINE,
    HIGH,
    LONGEST,
    MANY_TIMES,
    MODERATE_TIMES,
    PAPER,
    STRONG,
    VERY_HIGH,
    WEAK,
)
from jeton_evaluation.bench.verdicts import (
    ALIKE,
    Claim,
    Rule,
    UntestableError,
    alike,
    finest,
    finishes,
    latencies,
    links,
    over_quanta,
    p50,
    ratio,
    told,
    words,
)
from jeton_evaluation.programs.mechanisms import Mechanism

SHORTEST = 8
UNHURT: tuple[Mechanism, ...] = ("tokens", "notifications", "watermarks-p")
"""What the paper saw carry a long idle chain."""
CLAIMS: list[Claim] = []
"""The paper's claims, in its order."""


def claim(text: str, where: str) -> Callable[[Rule], Rule]:
    """Add a claim that the decorated rule judges."""

    def add(rule: Rule) -> Rule:
        CLAIMS.append(Claim(text, where, rule))
        return rule

    return add


@claim(
    "Where any mechanism avoids collapse, tokens do, and they are never much worse than the best.",
    "§7, introduction",
)
def _tokens_wherever_any(lines: Lines) -> tuple[bool, str]:
    points: dict[tuple[object, ...], dict[str, Line]] = {}
    for line in lines.where(sustained=None):
        if line["experiment"] in ("wordcount", "chain", "nexmark"):
            names = ("experiment", "query", "quantum_log2", "length", "rate_per_worker", "workers")
            points.setdefault(tuple(line.get(each) for each in names), {})[line["mechanism"]] = line
    shared = [each for each in points.values() if "tokens" in each and len(each) > 1]
    some = [each for each in shared if not all(line["dnf"] for line in each.values())]
    if not some:
        raise NotMeasuredError("no load that tokens and another mechanism were offered")
    collapsed = sum(each["tokens"]["dnf"] for each in some)
    factors = [p50(each["tokens"]) / min(map(p50, each.values())) for each in some]
    worse = sum(factor > ALIKE for factor in factors)
    seen = (
        f"of {len(some)} loads that some mechanism carries, tokens collapse at {collapsed} and are "
        f"more than {ALIKE:g}× the best p50 at {worse} (median ×{median(factors):.2f})"
    )
    return collapsed == 0 and worse <= len(some) // 10, seen


# Word count


@claim(
    "At 4M records/s per worker, tokens and watermarks cope with any quantum.",
    "§7.2, figure of quanta, left",
)
def _any_quantum(lines: Lines) -> tuple[bool, str]:
    limits = {each: finest(over_quanta(lines, each, HIGH)) for each in ("tokens", "watermarks-x")}
    seen = "; ".join(f"{NAMES[each]} {finishes(limit)}" for each, limit in limits.items())
    return all(limit == FINE for limit in limits.values()), seen


@claim(
    "At that load notifications collapse for fine quanta, since every timestamp is an interaction.",
    "§7.2, figure of quanta, left",
)
def _notifications_need_coarse(lines: Lines) -> tuple[bool, str]:
    limit = finest(over_quanta(lines, "notifications", HIGH))
    tokens = words(lines, "tokens", FINE, HIGH)
    fine = words(lines, "notifications", FINE, HIGH)
    seen = f"notifications: {finishes(limit)} (paper: {power(13)}); tokens: {told(tokens)}"
    return fine["dnf"] and not tokens["dnf"], seen


@claim(
    "Below saturation all mechanisms have about the same latency.",
    "§7.2, figure of quanta, left",
)
def _alike_below_saturation(lines: Lines) -> tuple[bool, str]:
    found = [words(lines, each, COARSE, HIGH) for each in PAPER]
    return alike(found), latencies(found)


def _ratios(
    lines: Lines, field: str, above: str, below: str, rate: float, from_: int
) -> tuple[float, str]:
    """The median ratio of two mechanisms over quanta at which both finish."""
    under = {line["quantum_log2"]: line for line in over_quanta(lines, below, rate)}
    ratios = [
        line[field] / max(under[line["quantum_log2"]][field], 1e-6)
        for line in over_quanta(lines, above, rate)
        if line["quantum_log2"] >= from_
        and not line["dnf"]
        and not under.get(line["quantum_log2"], {"dnf": True})["dnf"]
    ]
    if not ratios:
        raise UntestableError(
            f"{NAMES[above]} and {NAMES[below]} finish together nowhere at {short(rate)}/s"
        )
    found = median(ratios)
    what = field.removesuffix("_ms")
    return found, (
        f"{NAMES[above]} / {NAMES[below]}, {what}: {found:.2f} (median over {len(ratios)} quanta)"
    )


@claim(
    "For this simplest of programs watermarks have the lower worst case at coarse quanta.",
    "§7.2, figure of quanta, left",
)
def _lower_tail(lines: Lines) -> tuple[bool, str]:
    factor, seen = _ratios(lines, "max_ms", "tokens", "watermarks-x", HIGH, 14)
    return factor >= 1.5, f"{seen}; paper: 2"


@claim(
    "At 8M records/s per worker no mechanism copes with the finest quanta.",
    "§7.2, figure of quanta, right",
)
def _all_fail_when_overloaded(lines: Lines) -> tuple[bool, str]:
    found = [words(lines, each, FINE, VERY_HIGH) for each in PAPER]
    return all(line["dnf"] for line in found), latencies(found)


@claim(
    "At that load tokens and watermarks still cope with finer quanta than notifications.",
    "§7.2, figure of quanta, right",
)
def _finer_when_overloaded(lines: Lines) -> tuple[bool, str]:
    limits = {each: finest(over_quanta(lines, each, VERY_HIGH)) for each in PAPER}
    seen = "; ".join(f"{NAMES[each]} {finishes(limit)}" for each, limit in limits.items())
    bound = limits["notifications"]
    others = [limits["tokens"], limits["watermarks-x"]]
    return all(each is not None and (bound is None or each < bound) for each in others), seen


@claim(
    "Where notifications carry that load, their p999 is the better one.",
    "§7.2, figure of quanta, right",
)
def _notifications_p999(lines: Lines) -> tuple[bool, str]:
    factor, seen = _ratios(lines, "p999_ms", "notifications", "tokens", VERY_HIGH, FINE)
    return factor < 1, seen


@claim(
    "At that load watermarks have a slightly higher median.",
    "§7.2, figure of quanta, right",
)
def _watermarks_median(lines: Lines) -> tuple[bool, str]:
    factor, seen = _ratios(lines, "p50_ms", "watermarks-x", "tokens", VERY_HIGH, FINE)
    return factor > 1, seen


@claim(
    "With coarse quanta all mechanisms scale alike.",
    "§7.2, figure of scaling, weak",
)
def _scale_alike(lines: Lines) -> tuple[bool, str]:
    seen, holds = [], True
    for workers in (1, 2):
        found = [words(lines, each, COARSE, WEAK, workers) for each in PAPER]
        holds &= alike(found)
        seen.append(f"{workers} worker{'s'[: workers - 1]}: {latencies(found)}")
    return holds, "; ".join(seen)


@claim(
    "With the finest quantum notifications keep up at no scale, the others do.",
    "§7.2, figure of scaling, weak",
)
def _notifications_at_no_scale(lines: Lines) -> tuple[bool, str]:
    runs = {
        f"{NAMES[each]} on {workers}": words(lines, each, FINE, WEAK, workers)
        for each in PAPER
        for workers in (1, 2)
    }
    holds = all(line["dnf"] == (line["mechanism"] == "notifications") for line in runs.values())
    return holds, ", ".join(f"{name}: {told(line)}" for name, line in runs.items())


@claim(
    "With the finest quantum, the fixed load of all workers together needs three of them.",
    "§7.2, figure of scaling, strong",
)
def _strong_needs_three(lines: Lines) -> tuple[bool, str]:
    runs = {
        f"{NAMES[each]} on {workers}": words(lines, each, FINE, STRONG / workers, workers)
        for each in PAPER
        for workers in (1, 2)
    }
    holds = all(line["dnf"] for line in runs.values())
    return holds, ", ".join(f"{name}: {told(line)}" for name, line in runs.items())


CLAIMS.append(
    Claim(
        "Small inefficiencies begin to show above six workers.",
        "§7.2, scaling",
        "It takes more than six cores.",
    )
)


# The chain


@claim(
    "With tokens, notifications and watermarks-P, the length of an idle chain hardly matters.",
    "§7.3, figure of the chain, (a)",
)
def _length_hardly_matters(lines: Lines) -> tuple[bool, str]:
    seen, holds = [], True
    for mechanism in UNHURT:
        for rate in (MODERATE_TIMES, MANY_TIMES):
            short_, long = (links(lines, mechanism, n, rate) for n in (SHORTEST, LONGEST))
            factor = ratio(long, short_)
            holds &= factor <= ALIKE
            seen.append(f"{NAMES[mechanism]} at {short(rate)}: ×{factor:.2f}")
    return holds, f"p50 of {LONGEST} / {SHORTEST} operators: " + ", ".join(seen)


@claim(
    "Those three are almost the same on an idle chain.",
    "§7.3, figure of the chain, (a)",
)
def _chains_alike(lines: Lines) -> tuple[bool, str]:
    found = [links(lines, each, LONGEST, MODERATE_TIMES) for each in UNHURT]
    return alike(found), latencies(found)


@claim(
    "With watermarks-X, latency grows in proportion to the length of the chain.",
    "§7.3, figure of the chain, (a)",
)
def _marks_are_linear(lines: Lines) -> tuple[bool, str]:
    short_, long = (links(lines, "watermarks-x", n, MODERATE_TIMES) for n in (SHORTEST, LONGEST))
    factor = ratio(long, short_)
    seen = f"{SHORTEST} operators {told(short_)}, {LONGEST} operators {told(long)}"
    # Not 32: what does not depend on the length weighs in the shorter chain.
    return factor >= LONGEST / SHORTEST / 4, f"{seen}: ×{factor:.3g}"


@claim(
    "With watermarks-X, a long chain collapses at 250K timestamps/s per worker (on 5 workers "
    "and more), with tokens it does not.",
    "§7.3, figure of the chain, (b)",
)
def _marks_collapse(lines: Lines) -> tuple[bool, str]:
    marked, tokens = (
        links(lines, each, LONGEST, MANY_TIMES) for each in ("watermarks-x", "tokens")
    )
    seen = f"{LONGEST} operators on 2 workers: watermarks-X {told(marked)}, tokens {told(tokens)}"
    if not marked["dnf"] and not tokens["dnf"]:
        raise UntestableError(f"{seen}; it takes 5 workers")
    return not tokens["dnf"], seen


@claim(
    "The number of workers hardly matters to the others.",
    "§7.3, figure of the chain, (b)",
)
def _workers_hardly_matter(lines: Lines) -> tuple[bool, str]:
    seen, holds = [], True
    for mechanism in UNHURT:
        one, two = (links(lines, mechanism, LONGEST, MODERATE_TIMES, n) for n in (1, 2))
        factor = ratio(two, one)
        holds &= factor <= ALIKE
        seen.append(f"{NAMES[mechanism]} ×{factor:.2f}")
    return holds, "p50 of 2 workers / 1: " + ", ".join(seen)


@claim(
    "Work for watermarks-X grows with the length times the number of workers.",
    "§7.3",
)
def _marks_times_workers(lines: Lines) -> tuple[bool, str]:
    counted = lines.some(experiment="traffic", program="chain")
    marked, plain = (counted.where(mechanism=each) for each in ("watermarks-x", "tokens"))
    per_worker_and_link = {
        line["marks"] / line["length"] / line["workers"] / (line["workers"] - 1) for line in marked
    }
    per_pair = {
        line["progress_batches"] / line["workers"] / (line["workers"] - 1) for line in plain
    }
    if not per_worker_and_link or not per_pair:
        raise NotMeasuredError("no traffic of watermarks-x and tokens on a chain")
    most = max(line["workers"] for line in marked)
    seen = (
        f"simulated, to {most} workers: every worker reads "
        f"{', '.join(f'{each:g}' for each in per_worker_and_link)} mark(s) of each other at each "
        f"operator for each time; with tokens {', '.join(f'{each:g}' for each in per_pair)} "
        "batch(es) of each other, whatever the length"
    )
    return per_worker_and_link == {1.0} and len(per_pair) == 1, seen


# NEXMark


def _nexmark(lines: Lines, query: str, mechanism: str) -> Lines:
    return lines.some(experiment="nexmark", query=query, mechanism=mechanism, sustained=None)


@claim(
    "On NEXMark Q4 notifications collapse at every load, tokens and watermarks do not.",
    "§7.4, table Q4",
)
def _q4_collapse(lines: Lines) -> tuple[bool, str]:
    found = {each: _nexmark(lines, "q4", each) for each in PAPER}
    done = {each: sum(not line["dnf"] for line in found[each]) for each in PAPER}
    seen = ", ".join(f"{NAMES[each]} finish {done[each]} of {len(found[each])}" for each in PAPER)
    return done["notifications"] == 0 and done["tokens"] > 0 and done["watermarks-x"] > 0, seen


def _beside_watermarks(lines: Lines, query: str) -> tuple[float, str]:
    """The median ratio of medians, tokens over watermarks, where both finish."""
    ratios = []
    for line in _nexmark(lines, query, "tokens"):
        other = lines.one(
            experiment="nexmark",
            query=query,
            mechanism="watermarks-x",
            rate_per_worker=line["rate_per_worker"],
            workers=line["workers"],
        )
        if not line["dnf"] and not other["dnf"]:
            ratios.append(p50(line) / p50(other))
    if not ratios:
        raise UntestableError(f"tokens and watermarks-X finish {query} together nowhere")
    found = median(ratios)
    return found, f"tokens / watermarks-X, p50: {found:.2f} (median over {len(ratios)} loads)"


@claim(
    "On Q4 tokens are competitive with watermarks, whose median is about half.",
    "§7.4, table Q4",
)
def _q4_competitive(lines: Lines) -> tuple[bool, str]:
    factor, seen = _beside_watermarks(lines, "q4")
    return factor <= 2.5, f"{seen}; paper: 1.6 to 2.5"


@claim(
    "On Q7 all finish, and tokens are slightly better than watermarks.",
    "§7.4, table Q7",
)
def _q7_better(lines: Lines) -> tuple[bool, str]:
    factor, seen = _beside_watermarks(lines, "q7")
    done = [not line["dnf"] for each in PAPER for line in _nexmark(lines, "q7", each)]
    return factor <= 1 and all(done), f"{seen}; {sum(done)} of {len(done)} finish"


CLAIMS.append(
    Claim(
        "On Q4, 6M records/s are too many for 4 workers, and 8M for 8.",
        "§7.4, table Q4",
        "It takes 4 and 8 cores.",
    )
)
