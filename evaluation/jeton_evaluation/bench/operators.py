"""The cost of operators, compared with plain scripts of the same computation.

Each operator runs in one worker in this process, fed by a source operator and drained by a sink,
on batches of records with a time each. The bare script loops over the same arrays. Both alternate
in one run; compare the ratios, since the machine is noisy. The operator *alone* is the whole less a
flow without it: source, sink and progress cost the same for each batch, whatever is between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import thread_time
from typing import Annotated, Any

import jeton as jt
from jeton_evaluation.bench import bare
from jeton_evaluation.bench.bare import Columns
from jeton_evaluation.bench.harness import Line, Rounds, Say, Table, command

SMALL = 256
"""Small batches show the fixed cost of an invocation."""


@dataclass(frozen=True)
class Case:
    """One operator, and the script that it is compared with."""

    name: str
    attach: Callable[[jt.Stream, jt.Stream], jt.Stream]
    bare: Callable[[], Callable[[Columns], Any]]
    keys: int = 65_536
    workers: int = 1
    inputs: int = 1


CASES = [
    Case(
        "rolling word count",
        lambda words, _: words.key_by("key").running().count(),
        bare.rolling_count,
    ),
    Case(
        "filter + map",
        lambda rows, _: rows.filter(lambda batch: batch["value"] > 0.5).with_columns(
            value=lambda batch: batch["value"] * 2.0
        ),
        bare.filter_map,
    ),
    Case(
        "tumbling mean by key",
        lambda rows, _: rows.key_by("key").tumbling(bare.WINDOW).mean("value"),
        bare.tumbling_mean,
        keys=1024,
    ),
    Case(
        "hash exchange to 2 workers",
        lambda rows, _: rows.exchange("key"),
        bare.hash_partition,
        workers=2,
    ),
    Case(
        "interval join by key",
        lambda left, right: left.key_by("key").interval_join(
            right.key_by("key"), -bare.INTERVAL, bare.INTERVAL
        ),
        bare.interval_join,
        inputs=2,
    ),
]


TABLE = Table(
    {
        "operator": "name:<28",
        "records/s": "records_per_s:>12,.0f",
        "ns/record": "ns_per_record:>11.1f",
        "bare ns": "bare_ns_per_record:>9.1f",
        "× bare": "ratio_to_bare:>8.2f",
        "× alone": "ratio_alone:>9.2f",
        f"µs at {SMALL}": "us_per_invocation:>11.1f",
    }
)


def run(
    say: Say,
    batch: Annotated[int, "records a batch"] = 4096,
    batches: Annotated[int, "batches a round"] = 200,
    rounds: Rounds = 7,
) -> list[Line]:
    """Measure all operators, one row each."""
    say(f"batches of {batch}; an empty Python call: {empty_call() * 1e6:.3f} µs\n\n{TABLE.head}")
    rows = []
    for case in CASES:
        rows.append(measure(case, batch, batches, rounds))
        say(TABLE.row(rows[-1]))
    return rows


main = command(run)


def measure(case: Case, batch: int, batches: int, rounds: int) -> Line:
    """One operator's figures: at ``batch`` records, and its fixed cost at `SMALL`."""
    flow_time, empty_time, bare_time = [], [], []
    data = bare.make(batch, batches, case.keys, case.inputs)
    script = case.bare()
    for part in data:
        script(part)
    run_case(case, data)
    none = Case("nothing", lambda rows, _: rows, case.bare, case.keys, case.workers, case.inputs)
    for _ in range(rounds):
        script = case.bare()
        start = thread_time()
        for part in data:
            script(part)
        bare_time.append(thread_time() - start)
        flow_time.append(run_case(case, data))
        empty_time.append(run_case(none, data))
    records = batch * batches * case.inputs
    seconds, least = median(flow_time), median(bare_time)
    small = bare.make(SMALL, batches * 4, case.keys, case.inputs)
    pairs = [(run_case(case, small), run_case(none, small)) for _ in range(rounds)]
    with_it, without = (median(times) for times in zip(*pairs, strict=True))
    return {
        "name": case.name,
        "batch": batch,
        "records_per_s": round(records / seconds),
        "ns_per_record": round(seconds / records * 1e9, 2),
        "bare_ns_per_record": round(least / records * 1e9, 2),
        "ratio_to_bare": round(seconds / least, 3),
        "ratio_alone": round((seconds - median(empty_time)) / least, 3),
        "us_per_invocation": round((with_it - without) / (batches * 4 * case.inputs) * 1e6, 2),
    }


def run_case(case: Case, data: Sequence[Columns]) -> float:
    """Seconds of this thread to take all batches through, after everything is built.

    The thread's own time, not the wall clock's: other load on the machine does not count.
    """
    flow = jt.Flow("bench")
    streams = [
        flow.source(_source(data[number :: case.inputs], case.workers))
        for number in range(case.inputs)
    ]
    case.attach(streams[0], streams[-1]).unary(_sink, name="sink")
    with flow.open(workers=case.workers) as run:
        start = thread_time()
        run.run_to_rest()
        return thread_time() - start


def _source(data: Sequence[Columns], workers: int) -> Callable[..., Any]:
    """A source that sends each batch at its own times, its share of them on each worker."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
        batches: Iterator[jt.Batch] = iter([part.batch() for part in data[info.worker :: workers]])

        def step(output: jt.Output) -> None:
            batch = next(batches, None)
            if batch is None:
                token.drop()
                return
            token.downgrade(int(batch.times[0]))
            output.session(token).give(batch)
            info.activator.activate()

        return step

    return build


def _sink(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for _ in input:
            pass

    return step


def empty_call(calls: int = 100_000) -> float:
    """Seconds for one call of a Python function that does nothing."""

    def nothing() -> None:
        pass

    start = thread_time()
    for _ in range(calls):
        nothing()
    return (thread_time() - start) / calls
