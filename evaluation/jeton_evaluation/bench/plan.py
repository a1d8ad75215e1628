"""The runs of the evaluation: the paper's experiments as far as two cores go, and our own goals'.

Each part is a function that reads like the paper's text: which mechanisms, loads and sizes. A
`Scale` says how many of them, and for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from jeton_evaluation.bench import chain, idle, memory, nexmark, traffic, wordcount
from jeton_evaluation.bench.experiment import Host, Program, search, trial
from jeton_evaluation.bench.harness import Line
from jeton_evaluation.bench.open_loop import Load
from jeton_evaluation.programs.mechanisms import MECHANISMS, Mechanism

PAPER: tuple[Mechanism, ...] = ("tokens", "notifications", "watermarks-x")
"""The mechanisms that the paper compares on an exchange, where it broadcasts watermarks."""
FINE, COARSE = 8, 16
"""The finest and the coarsest quantum, as powers of two of nanoseconds."""
HIGH = 4e6
"""Records a second in each worker: 32 million in the paper's eight."""
VERY_HIGH = 8e6
"""64 million in eight."""
WEAK = 2e6
"""Records a second in each worker, for any number of workers."""
STRONG = 16e6
"""Records a second in all workers together."""
MODERATE_TIMES, MANY_TIMES = 15_258.0, 244_140.0
"""Timestamps a second in each worker: one each 2**16 and each 2**12 ns."""
LONGEST = 256
QUERIES = ("q4", "q7")


@dataclass(frozen=True)
class Scale:
    """The extent of the experiments."""

    seconds: float
    warm_up: float
    quanta: Sequence[int]
    rates: Sequence[float]
    workers: Sequence[int]
    lengths: Sequence[int]
    sustained: Sequence[tuple[Mechanism, int, int]]
    """Mechanism, quantum and workers of each search for the highest rate."""
    nexmark_totals: Sequence[float]
    """Records a second in all workers together."""
    idle_seconds: float
    memory_records: int
    traffic_sizes: Sequence[int]
    traffic_lengths: Sequence[int]


FULL = Scale(
    seconds=5.0,
    warm_up=2.0,
    quanta=range(FINE, COARSE + 1),
    rates=(1e6, HIGH, VERY_HIGH),
    workers=(1, 2),
    lengths=(8, 16, 32, 64, 128, LONGEST),
    sustained=(
        *((mechanism, quantum, 2) for mechanism in PAPER for quantum in (FINE, 12, COARSE)),
        ("tokens", FINE, 1),
    ),
    nexmark_totals=(1e6, 2e6, 4e6),
    idle_seconds=20.0,
    memory_records=100_000_000,
    traffic_sizes=traffic.SIZES,
    traffic_lengths=traffic.LENGTHS,
)
QUICK = Scale(
    seconds=1.0,
    warm_up=1.0,
    quanta=(FINE, 12, COARSE),
    rates=(HIGH,),
    workers=(2,),
    lengths=(8, LONGEST),
    sustained=(("tokens", FINE, 2),),
    nexmark_totals=(1e6,),
    idle_seconds=5.0,
    memory_records=1_000_000,
    traffic_sizes=(8, 64),
    traffic_lengths=(8, 64),
)


@dataclass(frozen=True)
class Run:
    """One line of the evaluation, and how to measure it."""

    id: str
    workers: int
    """Workers of the host that it needs; 0 if it needs none."""
    seconds: float
    """About how long it takes."""
    measure: Callable[[Host], Line]
    needs_spark: bool = False


def plan(scale: Scale, parts: Sequence[str] | None = None) -> list[Run]:
    """The runs of some parts, or of all; a run that several parts share appears once.

    >>> [run.id for run in plan(QUICK, ["chain"])][:2]
    ['chain/tokens/8/15258/w2/1s', 'chain/tokens/256/15258/w2/1s']
    """
    runs: dict[str, Run] = {}
    for part in PARTS if parts is None else parts:
        for run in PARTS[part](scale):
            runs.setdefault(run.id, run)
    return list(runs.values())


def _word_count(scale: Scale) -> Iterator[Run]:
    """Latency over the quantum at each load, and the highest sustained rate."""
    for rate, mechanism, quantum in product(scale.rates, PAPER, scale.quanta):
        yield _words(scale, mechanism, quantum, rate, max(scale.workers))
    for mechanism, quantum, workers in scale.sustained:
        yield _words(scale, mechanism, quantum, HIGH, workers, most=True)


def _scaling(scale: Scale) -> Iterator[Run]:
    """Word count on more workers, with a load that grows with them (weak) or does not (strong)."""
    for quantum, mechanism, workers in product((COARSE, FINE), PAPER, scale.workers):
        for rate in (WEAK, STRONG / workers):
            yield _words(scale, mechanism, quantum, rate, workers)


def _words(
    scale: Scale, mechanism: Mechanism, quantum: int, rate: float, workers: int, **more: Any
) -> Run:
    about = {"experiment": "wordcount", "mechanism": mechanism, "quantum_log2": quantum}
    name = f"wordcount/{mechanism}/2^{quantum}ns"
    flow = partial(wordcount.program, mechanism=mechanism)
    return _open_loop(name, scale, rate, workers, about, flow, quantum=1 << quantum, **more)


def _chain(scale: Scale) -> Iterator[Run]:
    """Latency over the length of a chain, and of the longest over the number of workers."""
    points = [(length, max(scale.workers)) for length in scale.lengths]
    points += [(LONGEST, workers) for workers in scale.workers]
    rates = (MODERATE_TIMES, MANY_TIMES)
    for rate, mechanism, (length, workers) in product(rates, MECHANISMS, points):
        about = {"experiment": "chain", "mechanism": mechanism, "length": length}
        flow = partial(chain.program, mechanism=mechanism, length=length)
        yield _open_loop(f"chain/{mechanism}/{length}", scale, rate, workers, about, flow)


def _nexmark(scale: Scale) -> Iterator[Run]:
    """Queries 4 and 7 at fixed loads of all workers together."""
    loads = product(QUERIES, scale.nexmark_totals, PAPER, scale.workers)
    for query, total, mechanism, workers in loads:
        about = {"experiment": "nexmark", "query": query, "mechanism": mechanism}
        flow = partial(nexmark.program, query=query, mechanism=mechanism)
        name = f"nexmark/{query}/{mechanism}"
        yield _open_loop(name, scale, total / workers, workers, about, flow)


def _idle(scale: Scale) -> Iterator[Run]:
    """The cost of a query in which nothing happens."""
    workers, seconds = max(scale.workers), scale.idle_seconds

    def measure(host: Host) -> Line:
        assert host.spark is not None
        return idle.measure(host.spark, host.workers, seconds)

    yield Run(f"idle/w{workers}/{seconds:g}s", workers, seconds + 6, measure, needs_spark=True)


def _memory(scale: Scale) -> Iterator[Run]:
    """Memory with flow control and, at sizes that it survives, without."""
    sizes = [scale.memory_records // 100, scale.memory_records // 10, scale.memory_records]
    for control, records in [*product(["without"], sizes[:2]), *product(["with"], sizes)]:

        def measure(_: Host, control: str = control, records: int = records) -> Line:
            found = memory.in_a_child(control, records, workers=1)
            return {"experiment": "memory", "flow_control": control, **found}

        yield Run(f"memory/{control}/{records}", 0, 4 + records / 1e7, measure)


def _traffic(scale: Scale) -> Iterator[Run]:
    """Messages between simulated workers."""
    for case in traffic.cases(scale.traffic_sizes, scale.traffic_lengths):
        name = f"traffic/{case.program}/{case.mechanism}/{case.length}/w{case.workers}"
        cost = 0.2 + 4e-5 * min(case.events, traffic.AFFORDABLE)
        yield Run(name, 0, cost, lambda _, case=case: case.line())  # type: ignore[misc]


def _open_loop(
    name: str,
    scale: Scale,
    rate: float,
    workers: int,
    about: Line,
    program: Program,
    *,
    quantum: int = 1 << FINE,
    most: bool = False,
) -> Run:
    load = Load(rate=rate, quantum=quantum, seconds=scale.seconds, warm_up=scale.warm_up)

    def measure(host: Host) -> Line:
        if most:
            return search(program, load, host, about, lambda line: None)
        return trial(program, load, host, about)

    # The job's start and end, the noise before, and the backlog after.
    seconds = (scale.seconds + scale.warm_up + 2.5) * (12 if most else 1)
    name += f"/{'most' if most else f'{rate:.0f}'}/w{workers}/{scale.seconds:g}s"
    return Run(name, workers, seconds, measure)


PARTS: dict[str, Callable[[Scale], Iterator[Run]]] = {
    "wordcount": _word_count,
    "chain": _chain,
    "scaling": _scaling,
    "nexmark": _nexmark,
    "idle": _idle,
    "memory": _memory,
    "traffic": _traffic,
}
