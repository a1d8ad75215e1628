"""Synthetic runs, shaped like the lines that a sweep writes."""

from collections.abc import Callable, Iterator
from typing import Any

from jeton_evaluation.bench import plan
from jeton_evaluation.programs.mechanisms import MECHANISMS

Line = dict[str, Any]


def open_loop(about: Line, rate: float, workers: int, p50: float, dnf: bool = False) -> Line:
    return {
        **about,
        "host": "spark",
        "workers": workers,
        "rate_per_worker": rate,
        "p50_ms": p50,
        "p99_ms": 2 * p50,
        "p999_ms": 3 * p50,
        "max_ms": 10 * p50,
        "dnf": dnf,
        "noise_p999_ms": 0.4,
        "noise_max_ms": 3.0,
    }


def words(mechanism: str, quantum: int, rate: float, workers: int = 2) -> Line:
    """As in the paper, except that tokens carry the finest quantum at any load."""
    about = {"experiment": "wordcount", "mechanism": mechanism, "quantum_log2": quantum}
    bound = {"notifications": 13, "watermarks-x": 11 if rate > 4e6 else 8}.get(mechanism, 0)
    return open_loop(about, rate, workers, 0.2, quantum < bound)


def links(mechanism: str, length: int, rate: float, workers: int = 2) -> Line:
    about = {"experiment": "chain", "mechanism": mechanism, "length": length}
    p50 = 0.1 * length if mechanism == "watermarks-x" else 0.2 + length / 10_000
    return open_loop(about, rate, workers, p50, mechanism == "watermarks-x" and rate > 1e5)


def everything() -> list[Line]:
    lines = list(_unnumbered())
    return [{"run": f"run {number}", **line} for number, line in enumerate(lines)]


def _unnumbered() -> Iterator[Line]:
    scale = plan.FULL
    yield {"experiment": "machine", "cpu": "a slow <one>", "cores": 2, "commit": "abc"}
    for mechanism in plan.PAPER:
        for rate in scale.rates:
            yield from (words(mechanism, quantum, rate) for quantum in scale.quanta)
        for workers in (1, 2):
            for quantum in (plan.COARSE, plan.FINE):
                for rate in (plan.WEAK, plan.STRONG / workers):
                    yield words(mechanism, quantum, rate, workers)
        for quantum in (8, 12, 16):
            best = 21e6 if mechanism == "tokens" else 5e4 * 2**quantum / 256
            yield {**words("tokens", quantum, best), "mechanism": mechanism, "sustained": True}
        for query in plan.QUERIES:
            about = {"experiment": "nexmark", "query": query, "mechanism": mechanism}
            dnf = query == "q4" and mechanism == "notifications"
            p50 = 0.3 if (query == "q4") == (mechanism == "watermarks-x") else 0.5
            for workers in (1, 2):
                for total in scale.nexmark_totals:
                    yield open_loop(about, total / workers, workers, p50, dnf)
    for mechanism in MECHANISMS:
        for rate in (plan.MODERATE_TIMES, plan.MANY_TIMES):
            for length in scale.lengths:
                yield links(mechanism, length, rate)
            yield links(mechanism, plan.LONGEST, rate, 1)
    for workers in (8, 64):
        pairs = workers * (workers - 1)
        for mechanism, marks in (("tokens", 0), ("tokens-relayed", 0), ("watermarks-x", 8 * pairs)):
            for program in ("wordcount", "chain"):
                yield {
                    "experiment": "traffic",
                    "program": program,
                    "mechanism": mechanism,
                    "workers": workers,
                    "length": 8 if program == "chain" else 1,
                    "progress_batches": pairs,
                    "marks": marks,
                    "bytes": 96 * pairs + 72 * marks,
                    "simulated": workers < 64,
                }
    yield {"experiment": "idle", "workers": 2, "cpu_most": 0.011, "cpu_per_worker": 0.01}
    yield {"experiment": "memory", "flow_control": "with", "records": 10**6, "peak_mb": 12.0}
    for how, most in (("all at once", 900.0), ("batched", 200.0), ("fluid", 50.0)):
        load = {"keys": 10**7, "workers": 2, "rate_per_worker": plan.HIGH}
        curve = [[tenth / 10, most / (1 + tenth)] for tenth in range(40)]
        yield {"experiment": "migration", "plan": how, **load, "max_ms": most, "over_time": curve}
    for system, rate in (
        ("jeton", 20e6),
        ("bytewax batches", 8e6),
        ("slow", 1e6),
        ("slower", 2e5),
    ):
        yield {
            "experiment": "peers",
            "system": system,
            "program": "word count",
            "workers": 2,
            "records_per_s": rate,
            "correct": True,
        }


def changed(change: Callable[[Line], Line | None]) -> list[Line]:
    """All lines after a change, without those for which it returns ``None``."""
    return [new for line in everything() if (new := change(dict(line))) is not None]
