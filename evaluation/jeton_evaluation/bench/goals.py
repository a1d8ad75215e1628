"""Goals: what Jeton set out to reach on a machine with two cores, beside what was seen."""

from __future__ import annotations

from collections.abc import Callable

from jeton_evaluation.bench.lines import Lines, NotMeasuredError
from jeton_evaluation.bench.panels import power, short
from jeton_evaluation.bench.plan import COARSE, FINE, HIGH, LONGEST, MANY_TIMES, MODERATE_TIMES
from jeton_evaluation.bench.verdicts import Claim, links, p50, ratio, told, words

SHORTEST = 8


def sustained(lines: Lines, quantum: int) -> float:
    """The highest rate per worker, with tokens on two workers."""
    line = lines.one(
        experiment="wordcount",
        mechanism="tokens",
        quantum_log2=quantum,
        workers=2,
        sustained=True,
    )
    return float(line["rate_per_worker"])


def _rate(lines: Lines) -> tuple[bool, str]:
    rate = sustained(lines, FINE)
    return rate >= 20e6, f"{short(rate)} records/s per worker"


def _median(lines: Lines) -> tuple[bool, str]:
    line = words(lines, "tokens", FINE, HIGH)
    return p50(line) <= 0.3, told(line)


def _tail(lines: Lines) -> tuple[bool, str]:
    line = words(lines, "tokens", FINE, HIGH)
    floor = line["noise_p999_ms"]
    seen = f"p999 {told(line, 'p999_ms')}, noise {floor:.3g} ms"
    return not line["dnf"] and line["p999_ms"] <= 2 * floor, seen


def _any_quantum(lines: Lines) -> tuple[bool, str]:
    fine, coarse = sustained(lines, FINE), sustained(lines, COARSE)
    return fine >= 0.9 * coarse, f"{short(fine)} / {short(coarse)} = {fine / coarse:.2f}"


def _length(lines: Lines) -> tuple[bool, str]:
    factors = {
        rate: ratio(*(links(lines, "tokens", length, rate) for length in (LONGEST, SHORTEST)))
        for rate in (MODERATE_TIMES, MANY_TIMES)
    }
    seen = ", ".join(f"×{factor:.2f} at {short(rate)}/s" for rate, factor in factors.items())
    return max(factors.values()) <= 1.5, seen


def _many_times(lines: Lines) -> tuple[bool, str]:
    line = links(lines, "tokens", LONGEST, MANY_TIMES)
    return p50(line) <= 0.46, told(line)


def _notifications_collapse(lines: Lines) -> tuple[bool, str]:
    found = {
        quantum: [words(lines, each, quantum, HIGH) for each in ("notifications", "tokens")]
        for quantum in range(FINE, 13)
    }
    collapsed = [power(q) for q, (theirs, _) in found.items() if theirs["dnf"]]
    ours = [power(q) for q, (_, ours) in found.items() if ours["dnf"]]
    seen = (
        f"notifications DNF at {', '.join(collapsed) or 'none'} of {power(FINE)}…{power(12)} ns; "
        f"tokens at {', '.join(ours) or 'none'}"
    )
    return len(collapsed) == len(found) and not ours, seen


def _watermarks_collapse(lines: Lines) -> tuple[bool, str]:
    def factor(mechanism: str, rate: float) -> float:
        return ratio(*(links(lines, mechanism, length, rate) for length in (LONGEST, SHORTEST)))

    theirs, ours = factor("watermarks-x", MODERATE_TIMES), factor("tokens", MODERATE_TIMES)
    seen = (
        f"p50 of {LONGEST} / {SHORTEST} operators: watermarks-X ×{theirs:.3g}, tokens ×{ours:.2f}"
    )
    return theirs >= LONGEST / SHORTEST / 4 and ours <= 1.5, seen


def _idle(lines: Lines) -> tuple[bool, str]:
    line = lines.one(experiment="idle")
    return line["cpu_most"] < 0.02, f"{line['cpu_most']:.2%} of a core, the busier worker"


HAND_PACKED = "bytewax batches"
"""The peer whose program packs records into arrays by hand."""


def _peers(lines: Lines) -> tuple[bool, str]:
    return _times_as_fast(lines, 10, lambda system: system != HAND_PACKED)


def _hand_packed(lines: Lines) -> tuple[bool, str]:
    return _times_as_fast(lines, 2, lambda system: system == HAND_PACKED)


def _times_as_fast(lines: Lines, goal: float, counts: Callable[[str], bool]) -> tuple[bool, str]:
    """Whether Jeton is so many times as fast as the best of some peers, with as many workers."""
    found = lines.some(experiment="peers")
    workers = max(found.values("workers"))
    factors = {}
    for program in found.values("program"):
        fast = sorted(
            found.where(program=program, workers=workers),
            key=lambda line: -float(line["records_per_s"]),
        )
        ours = [line for line in fast if line["system"] == "jeton"]
        theirs = [line for line in fast if line["system"] != "jeton" and counts(line["system"])]
        if ours and theirs:
            by = ours[0]["records_per_s"] / theirs[0]["records_per_s"]
            factors[program] = (by, theirs[0]["system"])
    if not factors:
        raise NotMeasuredError("no program that Jeton and such a peer have both run")
    seen = ", ".join(f"{program}: ×{by:.1f} of {peer}" for program, (by, peer) in factors.items())
    return min(by for by, _ in factors.values()) >= goal, f"{seen}, on {workers} workers"


GOALS = (
    Claim("Word count at 2⁸ ns on 2 workers sustains 20M records/s per worker.", "rate", _rate),
    Claim("Its median at 4M records/s per worker is at most 0.3 ms.", "latency", _median),
    Claim("Its p999 there is within twice the machine's noise.", "latency", _tail),
    Claim("It sustains at 2⁸ ns at least 0.9 of what it does at 2¹⁶ ns.", "rate", _any_quantum),
    Claim("A chain of 256 has at most 1.5 times the median of 8.", "latency", _length),
    Claim(
        "A chain of 256 keeps up with 250K timestamps/s per worker, median at most 0.46 ms.",
        "latency",
        _many_times,
    ),
    Claim(
        "Notifications collapse at fine quanta, as in the paper, and tokens do not.",
        "collapse",
        _notifications_collapse,
    ),
    Claim(
        "Watermarks-X degrade with the length of a chain, as in the paper, and tokens do not.",
        "collapse",
        _watermarks_collapse,
    ),
    Claim("A worker of an idle query takes less than 2 % of a core.", "cost", _idle),
    Claim("Ten times the best peer that goes record by record.", "peers", _peers),
    Claim("Twice what NumPy packed by hand does in Bytewax.", "peers", _hand_packed),
)
"""What each is about stands in the place of where it was said."""
