"""The paper's claims and our own goals, each with the rule that judges it on the runs of a sweep.

No verdict is given by hand. A claim whose runs are missing is not measured; a claim about more
cores than the machine has could not be tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, isinf
from statistics import median
from typing import Any

from jeton_evaluation.bench.plan import COARSE, FINE, HIGH, LONGEST, PAPER, STRONG, VERY_HIGH, WEAK
from jeton_evaluation.bench.plan import MANY_TIMES as MANY
from jeton_evaluation.bench.plan import MODERATE_TIMES as MODERATE
from jeton_evaluation.bench.runs import NAMES, NotMeasuredError, Runs, power, short
from jeton_evaluation.programs.mechanisms import Mechanism

HOLDS, FAILS = "holds", "does not hold"
UNTESTED, UNMEASURED = "could not be tested at 2 cores", "not measured"
ALIKE = 2.0
"""Latencies within this factor count as alike, on a noisy machine."""
NEARLY = 4.0
"""Growth within this factor of proportional counts as proportional; quadratic growth does not."""
SHORTEST = 8
UNHURT: tuple[Mechanism, ...] = ("tokens", "notifications", "watermarks-p")
"""The mechanisms that carry a long idle chain in the paper."""
HAND_PACKED = "bytewax batches"
"""The peer whose program packs records into arrays by hand."""

Seen = tuple[bool, str]
Rule = Callable[[Runs], Seen]
"""Returns whether it holds, and the figures; raises if it cannot be judged."""


class UntestableError(LookupError):
    """The machine, or the outcome of the runs, cannot decide the claim."""


@dataclass(frozen=True)
class Claim:
    """A statement, its origin, and the rule that judges it.

    >>> claim = Claim("It is fast.", "§1", lambda runs: (runs.one("a")["ms"] < 1, "ms"))
    >>> [claim.judge(Runs(lines))[0] for lines in ([{"experiment": "a", "ms": 2}], [])]
    ['does not hold', 'not measured']
    """

    text: str
    where: str
    rule: Rule

    def judge(self, runs: Runs) -> tuple[str, str]:
        """The verdict on these runs, and the figures behind it."""
        try:
            holds, seen = self.rule(runs)
        except NotMeasuredError as missing:
            return UNMEASURED, str(missing)
        except UntestableError as why:
            return UNTESTED, str(why)
        return (HOLDS if holds else FAILS), seen


CLAIMS: list[Claim] = []
"""The paper's claims, in its order."""
GOALS: list[Claim] = []
"""Jeton's goals on a machine with two cores; `where` names the subject."""


def paper(where: str, to: list[Claim] = CLAIMS) -> Callable[[Rule], Rule]:
    """Add a claim of the paper: the doc string of the rule that judges it."""

    def add(rule: Rule) -> Rule:
        to.append(Claim(rule.__doc__ or "", where, rule))
        return rule

    return add


def goal(about: str) -> Callable[[Rule], Rule]:
    """Add a goal: the doc string of the rule that judges it."""
    return paper(about, GOALS)


# Lookups and wording that several rules share


def words(
    runs: Runs, mechanism: str, quantum: int, rate: float, workers: int = 2, field: str = "p50_ms"
) -> float:
    """Median latency of a word count, or another field."""
    load = {"quantum_log2": quantum, "rate_per_worker": rate, "workers": workers}
    return float(runs.one("wordcount", mechanism=mechanism, **load)[field])


def links(runs: Runs, mechanism: str, length: int, rate: float, workers: int = 2) -> float:
    """Median latency of a chain."""
    load = {"length": length, "rate_per_worker": rate, "workers": workers}
    return float(runs.one("chain", mechanism=mechanism, **load)["p50_ms"])


def lengthened(runs: Runs, mechanism: str, rate: float) -> float:
    """Factor by which the longest chain's median exceeds the shortest's."""
    return ratio(*(links(runs, mechanism, length, rate) for length in (LONGEST, SHORTEST)))


def over_quanta(runs: Runs, mechanism: str, rate: float) -> Any:
    """Word counts on two workers at this load, by quantum."""
    found = runs.some("wordcount", mechanism=mechanism, rate_per_worker=rate, workers=2)
    return found.drop_duplicates("quantum_log2", keep="last").set_index("quantum_log2").sort_index()


def finest(runs: Runs, mechanism: str, rate: float) -> int | None:
    """The finest quantum from which on all coarser ones finish too."""
    found = over_quanta(runs, mechanism, rate)["p50_ms"]
    failed = found.index[found == inf]
    return min(found.index[found.index > max(failed, default=0)], default=None)


def limits(runs: Runs, mechanisms: Iterable[str], rate: float) -> tuple[dict[str, int | None], str]:
    """The finest quantum of each mechanism, and the same in words."""
    found = {each: finest(runs, each, rate) for each in mechanisms}
    return found, "; ".join(f"{NAMES[each]} {finishes(limit)}" for each, limit in found.items())


def finishes(quantum: int | None) -> str:
    """A finest quantum in words."""
    return "never finish" if quantum is None else f"finish from {power(quantum)} ns on"


def in_ms(latency: float) -> str:
    """A latency in words."""
    return "DNF" if isinf(latency) else f"{latency:.3g} ms"


def latencies(p50: dict[Mechanism, float]) -> str:
    """The medians of several mechanisms in words."""
    return "p50: " + ", ".join(f"{NAMES[each]} {in_ms(ms)}" for each, ms in p50.items())


def ratio(one: float, other: float) -> float:
    """One latency over another; infinite if either did not finish."""
    return inf if isinf(other) else one / other


def alike(p50: Iterable[float]) -> bool:
    """Whether all finish, with about the same median."""
    values = list(p50)
    return max(values) <= ALIKE * min(values) < inf


def by_load(runs: Runs, experiment: str, varied: str) -> Any:
    """Medians with a row for each load and a column for each mechanism."""
    found = runs.where(experiment)
    if found.empty:
        return found
    load = [varied, "rate_per_worker", "workers"]
    return found.pivot_table("p50_ms", load, "mechanism", aggfunc="last")


# The paper's claims


@paper("§7, introduction")
def _tokens_wherever_any(runs: Runs) -> Seen:
    """Tokens avoid collapse wherever any mechanism does, and are never much worse than the best."""
    factors: list[float] = []
    varied = {"wordcount": "quantum_log2", "chain": "length", "nexmark": "query"}
    for experiment, what in varied.items():
        table = by_load(runs, experiment, what)
        if "tokens" in table:
            shared = table[table["tokens"].notna() & (table.count(axis=1) > 1)]
            best = shared.min(axis=1)
            factors += (shared["tokens"] / best)[best < inf].to_list()
    if not factors:
        raise NotMeasuredError("no load that tokens and another mechanism were offered")
    collapsed = sum(map(isinf, factors))
    worse = sum(factor > ALIKE for factor in factors)
    seen = (
        f"of {len(factors)} loads that some mechanism carries, tokens collapse at {collapsed} and "
        f"are more than {ALIKE:g}× the best p50 at {worse} (median ×{median(factors):.2f})"
    )
    return collapsed == 0 and worse <= len(factors) // 10, seen


@paper("§7.2, figure of quanta, left")
def _any_quantum(runs: Runs) -> Seen:
    """At 4M records/s per worker, tokens and watermarks cope with any quantum."""
    found, seen = limits(runs, ("tokens", "watermarks-x"), HIGH)
    return set(found.values()) == {FINE}, seen


@paper("§7.2, figure of quanta, left")
def _notifications_need_coarse(runs: Runs) -> Seen:
    """At that load notifications collapse for fine quanta: every timestamp is an interaction."""
    limit = finest(runs, "notifications", HIGH)
    theirs, ours = (words(runs, each, FINE, HIGH) for each in ("notifications", "tokens"))
    seen = f"notifications {finishes(limit)} (paper: {power(13)}); tokens: {in_ms(ours)}"
    return isinf(theirs) and not isinf(ours), seen


@paper("§7.2, figure of quanta, left")
def _alike_below_saturation(runs: Runs) -> Seen:
    """Below saturation all mechanisms have about the same latency."""
    found = {each: words(runs, each, COARSE, HIGH) for each in PAPER}
    return alike(found.values()), latencies(found)


def _ratios(
    runs: Runs, field: str, above: str, below: str, rate: float, quanta: slice
) -> tuple[float, str]:
    """The median ratio of two mechanisms over quanta at which both finish."""
    over, under = (over_quanta(runs, each, rate)[field].loc[quanta] for each in (above, below))
    ratios = (over[over < inf] / under[under < inf].clip(lower=1e-6)).dropna()
    if ratios.empty:
        raise UntestableError(
            f"{NAMES[above]} and {NAMES[below]} finish together nowhere at {short(rate)}/s"
        )
    found = ratios.median()
    what = field.removesuffix("_ms")
    return found, (
        f"{NAMES[above]} / {NAMES[below]}, {what}: {found:.2f} (median over {len(ratios)} quanta)"
    )


@paper("§7.2, figure of quanta, left")
def _lower_tail(runs: Runs) -> Seen:
    """For this simplest of programs watermarks have the lower worst case at coarse quanta."""
    factor, seen = _ratios(runs, "max_ms", "tokens", "watermarks-x", HIGH, slice(14, None))
    return factor >= 1.5, f"{seen}; paper: 2"


@paper("§7.2, figure of quanta, right")
def _all_fail_when_overloaded(runs: Runs) -> Seen:
    """At 8M records/s per worker no mechanism copes with the finest quanta."""
    found = {each: words(runs, each, FINE, VERY_HIGH) for each in PAPER}
    return all(map(isinf, found.values())), latencies(found)


@paper("§7.2, figure of quanta, right")
def _finer_when_overloaded(runs: Runs) -> Seen:
    """At that load tokens and watermarks still cope with finer quanta than notifications."""
    found, seen = limits(runs, PAPER, VERY_HIGH)
    bound = found.pop("notifications")
    holds = all(each is not None and (bound is None or each < bound) for each in found.values())
    return holds, seen


@paper("§7.2, figure of quanta, right")
def _notifications_p999(runs: Runs) -> Seen:
    """Where notifications carry that load, their p999 is the better one."""
    factor, seen = _ratios(runs, "p999_ms", "notifications", "tokens", VERY_HIGH, slice(None))
    return factor < 1, seen


@paper("§7.2, figure of quanta, right")
def _watermarks_median(runs: Runs) -> Seen:
    """At that load watermarks have a slightly higher median."""
    factor, seen = _ratios(runs, "p50_ms", "watermarks-x", "tokens", VERY_HIGH, slice(None))
    return factor > 1, seen


@paper("§7.2, figure of scaling, weak")
def _scale_alike(runs: Runs) -> Seen:
    """With coarse quanta all mechanisms scale alike."""
    seen, holds = [], True
    for workers in (1, 2):
        found = {each: words(runs, each, COARSE, WEAK, workers) for each in PAPER}
        holds &= alike(found.values())
        seen.append(f"{workers} worker{'s'[: workers - 1]}: {latencies(found)}")
    return holds, "; ".join(seen)


def _finest_on(
    runs: Runs, rate: Callable[[int], float]
) -> tuple[dict[tuple[Mechanism, int], float], str]:
    """Medians at the finest quantum by mechanism and workers, and the same in words."""
    found = {(m, n): words(runs, m, FINE, rate(n), n) for m in PAPER for n in (1, 2)}
    return found, ", ".join(f"{NAMES[m]} on {n}: {in_ms(ms)}" for (m, n), ms in found.items())


@paper("§7.2, figure of scaling, weak")
def _notifications_at_no_scale(runs: Runs) -> Seen:
    """With the finest quantum notifications keep up at no scale; the others do."""
    found, seen = _finest_on(runs, lambda workers: WEAK)
    return all(isinf(ms) == (m == "notifications") for (m, _), ms in found.items()), seen


@paper("§7.2, figure of scaling, strong")
def _strong_needs_three(runs: Runs) -> Seen:
    """With the finest quantum, the fixed load of all workers together needs three of them."""
    found, seen = _finest_on(runs, lambda workers: STRONG / workers)
    return all(map(isinf, found.values())), seen


@paper("§7.2, scaling")
def _above_six_workers(runs: Runs) -> Seen:
    """Small inefficiencies begin to show above six workers."""
    raise UntestableError("Needs more than six cores.")


@paper("§7.3, figure of the chain, (a)")
def _length_hardly_matters(runs: Runs) -> Seen:
    """With tokens, notifications and watermarks-P, the length of an idle chain hardly matters."""
    rates = (MODERATE, MANY)
    found = {(each, rate): lengthened(runs, each, rate) for each in UNHURT for rate in rates}
    seen = ", ".join(f"{NAMES[m]} at {short(rate)}: ×{by:.2f}" for (m, rate), by in found.items())
    return max(found.values()) <= ALIKE, f"p50 of {LONGEST} / {SHORTEST} operators: {seen}"


@paper("§7.3, figure of the chain, (a)")
def _chains_alike(runs: Runs) -> Seen:
    """Those three are almost the same on an idle chain."""
    found = {each: links(runs, each, LONGEST, MODERATE) for each in UNHURT}
    return alike(found.values()), latencies(found)


@paper("§7.3, figure of the chain, (a)")
def _marks_are_linear(runs: Runs) -> Seen:
    """With watermarks-X, latency grows in proportion to the length of the chain."""
    found = {n: links(runs, "watermarks-x", n, MODERATE) for n in (SHORTEST, LONGEST)}
    factor = lengthened(runs, "watermarks-x", MODERATE)
    seen = ", ".join(f"{length} operators {in_ms(ms)}" for length, ms in found.items())
    # Not exactly: the cost that does not depend on the length weighs in the shorter chain.
    expected = LONGEST / SHORTEST
    holds = expected / NEARLY <= factor <= expected * NEARLY
    return holds, (
        f"{seen}: ×{factor:.3g}; in proportion is ×{expected:g}, within a factor of {NEARLY:g}"
    )


@paper("§7.3, figure of the chain, (b)")
def _marks_collapse(runs: Runs) -> Seen:
    """On 5 workers, 250K timestamps/s each, watermarks-X collapse on long chains; tokens do not."""
    theirs, ours = (links(runs, m, LONGEST, MANY) for m in ("watermarks-x", "tokens"))
    seen = f"{LONGEST} operators on 2 workers: watermarks-X {in_ms(theirs)}, tokens {in_ms(ours)}"
    if not isinf(theirs) and not isinf(ours):
        raise UntestableError(f"{seen}; needs 5 workers")
    return not isinf(ours), seen


@paper("§7.3, figure of the chain, (b)")
def _workers_hardly_matter(runs: Runs) -> Seen:
    """The number of workers hardly matters to the others."""
    found = {
        each: ratio(*(links(runs, each, LONGEST, MODERATE, n) for n in (2, 1))) for each in UNHURT
    }
    seen = ", ".join(f"{NAMES[each]} ×{factor:.2f}" for each, factor in found.items())
    return max(found.values()) <= ALIKE, f"p50 of 2 workers / 1: {seen}"


@paper("§7.3")
def _marks_times_workers(runs: Runs) -> Seen:
    """Work for watermarks-X grows with the length times the number of workers."""
    marked, plain = (
        runs.some("traffic", program="chain", mechanism=each) for each in ("watermarks-x", "tokens")
    )
    marks, batches = (
        (frame[what] / per / frame["workers"] / (frame["workers"] - 1)).unique()
        for frame, what, per in (
            (marked, "marks", marked["length"]),
            (plain, "progress_batches", 1),
        )
    )
    seen = (
        f"counted, to {marked['workers'].max()} workers: for each time, a worker reads "
        f"{', '.join(f'{each:g}' for each in marks)} mark(s) per peer and operator; with tokens "
        f"{', '.join(f'{each:g}' for each in batches)} batch(es) per peer, for any length"
    )
    return set(marks) == {1.0} and len(batches) == 1, seen


@paper("§7.4, table Q4")
def _q4_collapse(runs: Runs) -> Seen:
    """On NEXMark Q4 notifications collapse at every load, tokens and watermarks do not."""
    found = {each: runs.some("nexmark", query="q4", mechanism=each)["p50_ms"] for each in PAPER}
    done = {each: int((p50 < inf).sum()) for each, p50 in found.items()}
    seen = ", ".join(f"{NAMES[each]} finish {done[each]} of {len(found[each])}" for each in PAPER)
    return done["notifications"] == 0 and done["tokens"] > 0 and done["watermarks-x"] > 0, seen


def _beside_watermarks(runs: Runs, query: str) -> tuple[float, str]:
    """The median ratio of medians, tokens over watermarks, where both finish."""
    for each in ("tokens", "watermarks-x"):
        runs.some("nexmark", query=query, mechanism=each)
    table = by_load(runs, "nexmark", "query").loc[query, ["tokens", "watermarks-x"]]
    if table[table["tokens"].notna()].isna().any(axis=None):
        raise NotMeasuredError(f"loads of {query} that only tokens were offered")
    both = table[(table < inf).all(axis=1)]
    if both.empty:
        raise UntestableError(f"tokens and watermarks-X finish {query} together nowhere")
    found = (both["tokens"] / both["watermarks-x"]).median()
    return found, f"tokens / watermarks-X, p50: {found:.2f} (median over {len(both)} loads)"


@paper("§7.4, table Q4")
def _q4_competitive(runs: Runs) -> Seen:
    """On Q4 tokens are competitive with watermarks, whose median is about half."""
    factor, seen = _beside_watermarks(runs, "q4")
    return factor <= 2.5, f"{seen}; paper: 1.6 to 2.5"


@paper("§7.4, table Q7")
def _q7_better(runs: Runs) -> Seen:
    """On Q7 all finish, and tokens are slightly better than watermarks."""
    factor, seen = _beside_watermarks(runs, "q7")
    runs.some("nexmark", query="q7", mechanism="notifications")
    done = runs.some("nexmark", query="q7")["p50_ms"] < inf
    return factor <= 1 and bool(done.all()), f"{seen}; {done.sum()} of {len(done)} finish"


@paper("§7.4, table Q4")
def _q4_too_many(runs: Runs) -> Seen:
    """On Q4, 6M records/s are too many for 4 workers, and 8M for 8."""
    raise UntestableError("Needs 4 and 8 cores.")


# Our goals


def sustained(runs: Runs, quantum: int) -> float:
    """The highest rate per worker, with tokens on two workers."""
    line = runs.one("wordcount sustained", mechanism="tokens", quantum_log2=quantum, workers=2)
    return float(line["rate_per_worker"])


@goal("rate")
def _rate(runs: Runs) -> Seen:
    """Word count at 2⁸ ns on 2 workers sustains 20M records/s per worker."""
    rate = sustained(runs, FINE)
    return rate >= 20e6, f"{short(rate)} records/s per worker"


@goal("latency")
def _median(runs: Runs) -> Seen:
    """Its median at 4M records/s per worker is at most 0.3 ms."""
    p50 = words(runs, "tokens", FINE, HIGH)
    return p50 <= 0.3, in_ms(p50)


@goal("latency")
def _tail(runs: Runs) -> Seen:
    """Its p999 there is within twice the machine's noise."""
    fields = ("p999_ms", "noise_p999_ms")
    p999, noise = (words(runs, "tokens", FINE, HIGH, field=field) for field in fields)
    return p999 <= 2 * noise, f"p999 {in_ms(p999)}, noise {noise:.3g} ms"


@goal("rate")
def _no_finer_no_slower(runs: Runs) -> Seen:
    """At 2⁸ ns it sustains at least 0.9 of its rate at 2¹⁶ ns."""
    fine, coarse = sustained(runs, FINE), sustained(runs, COARSE)
    return fine >= 0.9 * coarse, f"{short(fine)} / {short(coarse)} = {fine / coarse:.2f}"


@goal("latency")
def _length(runs: Runs) -> Seen:
    """A chain of 256 has at most 1.5 times the median of 8."""
    factors = {rate: lengthened(runs, "tokens", rate) for rate in (MODERATE, MANY)}
    seen = ", ".join(f"×{factor:.2f} at {short(rate)}/s" for rate, factor in factors.items())
    return max(factors.values()) <= 1.5, seen


@goal("latency")
def _many_times(runs: Runs) -> Seen:
    """A chain of 256 keeps up with 250K timestamps/s per worker, median at most 0.46 ms."""
    p50 = links(runs, "tokens", LONGEST, MANY)
    return p50 <= 0.46, in_ms(p50)


@goal("collapse")
def _notifications_collapse(runs: Runs) -> Seen:
    """Notifications collapse at fine quanta, as in the paper, and tokens do not."""
    quanta = range(FINE, 13)
    theirs, ours = (
        [power(each) for each in quanta if isinf(words(runs, mechanism, each, HIGH))]
        for mechanism in ("notifications", "tokens")
    )
    seen = (
        f"notifications DNF at {', '.join(theirs) or 'none'} of {power(FINE)}…{power(12)} ns; "
        f"tokens at {', '.join(ours) or 'none'}"
    )
    return len(theirs) == len(quanta) and not ours, seen


@goal("collapse")
def _watermarks_collapse(runs: Runs) -> Seen:
    """Watermarks-X degrade with the length of a chain, as in the paper, and tokens do not."""
    theirs, ours = (lengthened(runs, m, MODERATE) for m in ("watermarks-x", "tokens"))
    seen = (
        f"p50 of {LONGEST} / {SHORTEST} operators: watermarks-X ×{theirs:.3g}, tokens ×{ours:.2f}"
    )
    return theirs >= LONGEST / SHORTEST / 4 and ours <= 1.5, seen


@goal("cost")
def _idle(runs: Runs) -> Seen:
    """A worker of an idle query takes less than 2 % of a core."""
    most = runs.one("idle")["cpu_most"]
    return most < 0.02, f"{most:.2%} of a core, the busier worker"


@goal("migration")
def _fluid(runs: Runs) -> Seen:
    """While half of the bins of 10⁷ keys move, fluid's greatest latency is 5 times lower."""
    found = {
        plan: float(runs.one("migration", keys=10**7, workers=2, plan=plan)["max_ms"])
        for plan in ("all at once", "batched", "fluid")
    }
    seen = ", ".join(f"{plan} {in_ms(most)}" for plan, most in found.items())
    return found["all at once"] >= 5 * found["fluid"], f"at most: {seen}"


@goal("peers")
def _peers(runs: Runs) -> Seen:
    """Ten times the throughput of the best peer that works record by record."""
    return _times_as_fast(runs, 10, lambda system: system != HAND_PACKED)


@goal("peers")
def _hand_packed(runs: Runs) -> Seen:
    """Twice the throughput of Bytewax with records packed into arrays by hand."""
    return _times_as_fast(runs, 2, lambda system: system == HAND_PACKED)


def _times_as_fast(runs: Runs, goal: float, counts: Callable[[str], bool]) -> tuple[bool, str]:
    """Whether Jeton is `goal` times as fast as the best of some peers on as many workers."""
    workers = runs.some("peers")["workers"].max()
    found = runs.where("peers", workers=workers)
    factors = {}
    for program, rates in found.groupby("program"):
        best = rates.groupby("system")["records_per_s"].median()
        theirs = best[[each for each in best.index if each != "jeton" and counts(each)]]
        if "jeton" in best and len(theirs):
            peer = theirs.idxmax()
            wrong = (rates[rates["system"] == peer]["correct"] == False).any()  # noqa: E712
            name = f"{peer}, whose answer is wrong" if wrong else peer
            factors[program] = (best["jeton"] / theirs.max(), name)
    if not factors:
        raise NotMeasuredError("no program that both Jeton and such a peer have run")
    seen = ", ".join(f"{program}: ×{by:.1f} of {peer}" for program, (by, peer) in factors.items())
    return min(by for by, _ in factors.values()) >= goal, f"{seen}, on {workers} workers"
