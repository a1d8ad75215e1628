"""Cost of being looked at: the same flow without a page, with its page open, and with an event log.

Each variant has a process of its own, and they take turns at each round. A program in a further
process reads the stream of the open page, as a browser does. The log has a row for each invocation
of an operator. Both cost something for each batch and nothing for each record, so that they cost
more where batches are small.

With a rate, it is the word count under an open loop instead, as a query on Spark, at that rate: the
rate that it keeps, its latencies, and its share of a core, with the median of all rounds at the
end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from statistics import median
from subprocess import PIPE
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Annotated

import numpy as np

import jeton as jt
from jeton_evaluation.bench import experiment, wordcount
from jeton_evaluation.bench.harness import Line, Say, Table, command, numbers
from jeton_evaluation.bench.open_loop import Load

if TYPE_CHECKING:
    from jeton.spark.query import Query

VARIANTS = ("no page", "page open", "event log")
KEYS = 1000
_READER = """
import http.client, sys, urllib.parse
url = urllib.parse.urlsplit(sys.argv[1])
connection = http.client.HTTPConnection(url.netloc)
connection.request("GET", url.path)
connection.getresponse().read()
connection.request("GET", url.path + "events")
answer = connection.getresponse()
while answer.readline():
    print(end="", flush=True)
"""

TABLE = Table(
    {
        "variant": "variant:<12",
        "records/batch": "batch:>14,",
        "M records/s per worker": "rate:>24.1f",
        "time, by no page": "ratio:>18.3f",
        "processor time": "cpu_ratio:>16.3f",
        "more for a batch, us": "more_us:>22.1f",
    }
)

ROUNDS = 101
PACED_ROUNDS = 5
"""Rounds at a rate: all of them take about three minutes."""
PACED = Table(
    {
        "variant": "variant:<12",
        "round": "round:>8",
        "M records/s per worker": "rate:>24.1f",
        "p50, ms": "p50_ms:>10.3f",
        "p99, ms": "p99_ms:>10.3f",
        "core a worker": "cpu_per_worker:>15.0%",
    }
)


def run(
    say: Say,
    rounds: Annotated[
        int | None,
        f"rounds, of which the median counts (default: {ROUNDS}, at a rate {PACED_ROUNDS})",
    ] = None,
    batches: Annotated[int, "batches in a round, for each worker"] = 50,
    batch: Annotated[str, "N,N,… records in a batch"] = "65536,4096",
    workers: Annotated[int, "workers in one process, or on Spark"] = 1,
    rate: Annotated[float | None, "records a second in each worker, on Spark"] = None,
    seconds: Annotated[float, "seconds of a round at a rate"] = 4.0,
    one: Annotated[str | None, argparse.SUPPRESS] = None,
) -> list[Line]:
    """Measure the variants in turn; ``one`` is the process of one of them."""
    if one:
        with suppress(BrokenPipeError):  # whoever asked has gone
            for taken in measure(one, batches, int(batch), workers):
                print(json.dumps(taken), flush=True)
        return []
    lines = []
    if rate is not None:
        say(PACED.head)
        for line in at_rate(Load(rate=rate, seconds=seconds), workers, rounds or PACED_ROUNDS):
            say(PACED.row(line))
            lines.append(line)
        for line in medians(lines):
            say(PACED.row(line))
            lines.append(line)
        return lines
    sizes = numbers(batch)
    say(TABLE.head)
    for size in sizes:
        for line in compare(rounds or ROUNDS, batches, size, workers):
            say(TABLE.row(line))
            lines.append(line)
    return lines


main = command(run)


def flow() -> jt.Flow:
    """Filters records, and counts them for each key and window."""
    made = jt.Flow("inspected")
    records = made.input("records", lateness=0)
    counts = records.filter(jt.col("n") >= 0).key_by("k").tumbling(1 << 20).count()
    counts.probe("done")
    return made


def compare(rounds: int, batches: int, batch: int, workers: int) -> Iterator[Line]:
    """Times of each variant, and their ratios to the first, paired by round."""
    options = ["--batches", str(batches), "--batch", str(batch), "--workers", str(workers)]
    taken: dict[str, list[tuple[float, float]]] = {variant: [] for variant in VARIANTS}
    with ExitStack() as stack:
        children = {}
        for variant in VARIANTS:
            command = [sys.executable, "-m", __name__, "--one", variant, *options]
            # In a session of its own, which Ctrl-C does not reach: it ends with its input.
            child = subprocess.Popen(
                command, stdin=PIPE, stdout=PIPE, text=True, bufsize=1, start_new_session=True
            )
            children[variant] = stack.enter_context(child)
            assert child.stdin is not None
            stack.callback(child.stdin.close)
        for number in range(rounds + 1):
            # Whoever comes first in one round comes last in the next.
            for variant in VARIANTS if number % 2 else reversed(VARIANTS):
                stdin, stdout = children[variant].stdin, children[variant].stdout
                assert stdin is not None
                assert stdout is not None
                stdin.write("go\n")
                seconds, cpu_seconds = json.loads(stdout.readline())
                if number:  # the first round compiles
                    taken[variant].append((seconds, cpu_seconds))
    plain_cpu = median(cpu for _, cpu in taken["no page"])
    for variant, times in taken.items():
        pairs = list(zip(times, taken["no page"], strict=True))
        yield {
            "experiment": "inspect",
            "variant": variant,
            "batch": batch,
            "workers": workers,
            "rate": batches * batch / median(seconds for seconds, _ in times) / 1e6,
            "ratio": median(mine[0] / plain[0] for mine, plain in pairs),
            "cpu_ratio": median(mine[1] / plain[1] for mine, plain in pairs),
            "more_us": (median(cpu for _, cpu in times) - plain_cpu) / batches / workers * 1e6,
        }


def measure(variant: str, batches: int, batch: int, workers: int) -> Iterator[tuple[float, float]]:
    """The seconds of a round, and those of the processor, for each line of standard input."""
    random = np.random.default_rng(7)
    keys, values = random.integers(0, KEYS, batch), random.integers(0, 100, batch)
    at = itertools.count()
    with looked_at(variant, workers) as run:
        for _ in sys.stdin:
            start, cpu_start = perf_counter(), process_time()
            for _ in range(batches):
                rows = {"time": np.full(batch, next(at)), "k": keys, "n": values}
                for worker in range(workers):
                    run.input("records", worker=worker).send(rows)
                run.run_to_rest()
            yield perf_counter() - start, process_time() - cpu_start


def at_rate(load: Load, workers: int, rounds: int) -> Iterator[Line]:
    """The word count at a rate in each round and variant, on one session of Spark's."""
    program = partial(wordcount.program, mechanism="tokens")
    # Those that are looked at have a page or a log of their own.
    os.environ["JETON_INSPECT"] = "0"
    with experiment.open_host("spark", workers) as host:
        experiment.trial(program, replace(load, seconds=1.0), host, {})  # compiles
        for number in range(rounds):
            for variant in VARIANTS if number % 2 else reversed(VARIANTS):
                about = {"experiment": "inspect", "variant": variant, "round": number}
                watched = partial(looking_at, variant)
                line = experiment.trial(program, load, replace(host, watched=watched), about)
                yield {**line, "rate": line["achieved_per_worker"] / 1e6}


def medians(lines: list[Line]) -> list[Line]:
    """The median of the rounds, for each variant."""
    found = []
    for variant in VARIANTS:
        rounds = [line for line in lines if line["variant"] == variant]
        fields = ("rate", "achieved_per_worker", "p50_ms", "p99_ms", "cpu_per_worker")
        middle = {name: median(line[name] for line in rounds) for name in fields}
        found.append({**rounds[0], **middle, "round": "median"})
    return found


@contextmanager
def looked_at(variant: str, workers: int) -> Iterator[jt.Run]:
    """A run, and what looks at it."""
    with flow().open(workers=workers) as run, looking_at(variant, run):
        yield run


@contextmanager
def looking_at(variant: str, run: jt.Run | Query) -> Iterator[None]:
    """Look at a run or a query."""
    with ExitStack() as stack:
        if variant == "page open":
            command = [sys.executable, "-c", _READER, run.inspect()]
            reader = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            stack.callback(reader.terminate)
        elif variant == "event log":
            run.log_events(stack.enter_context(tempfile.TemporaryDirectory()), full=True)
        yield


if __name__ == "__main__":
    sys.exit(main())
