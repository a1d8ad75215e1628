"""The commands that the evaluation adds to `jeton`: `bench` and `nexmark`.

Their modules are imported when a command runs, so that `jeton --help` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from jeton.cli import Command

BENCHMARKS = {
    "operators": "operators, compared with plain scripts of the same computation",
    "history": "the costs of operators, commit by commit: names what became slower",
    "spark": "the Spark host: cost of a stage, a row, a message, a long-lived query",
    "checkpoints": "the pause, duration and bytes of checkpoints",
    "start_up": "seconds from a new process to the first rows, loops compiled or loaded",
    "streaming": "micro-batches, compared with Spark's own operators and Python state",
    "skew": "windows of a key with half of all records, before and after rebalance and spread",
    "progress": "cost of one advance of a frontier over a chain of idle operators",
    "wordcount": "word count under an open-loop load: latency and sustained rate",
    "chain": "a chain of idle operators under an open-loop load of timestamps",
    "nexmark": "NEXMark queries under an open-loop load: latency and sustained rate",
    "verbs": "NEXMark queries in the library's verbs, compared with those written by hand",
    "dataframes": "NEXMark queries over DataFrames, compared with a plain mapInArrow",
    "memory": "memory with and without flow control when one record makes very many",
    "large_batches": "batches several times as large as the memory of the workers",
    "priority": "cost of a pending time: in columns, in a heap, with a token for each",
    "async_calls": "effect of slow calls on the latency of another operator",
    "spill": "counts of more keys than fit into memory, and the stores that could hold them",
    "migrate": "latency while half of the state moves: all at once, in batches, bin by bin",
    "kafka": "records from and to Kafka, compared with confluent-kafka alone",
    "inspect": "cost of an open page and of a full event log",
    "idle": "CPU time of an idle long-lived query on Spark",
    "peers": "Jeton, compared with Bytewax, Pathway, PyFlink and Structured Streaming",
    "traffic": "progress traffic of 8 to 4096 simulated workers: tokens, relays, watermarks",
    "sweep": "the whole evaluation, run by run, written to one file of JSON lines",
    "figures": "the evaluation's figures, tables and verdicts, from that file",
}
"""The benchmarks, each a module `jeton_evaluation.bench.NAME` with a `main(argv)`."""


def _bench(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="jeton bench",
        description="Measure Jeton on this machine. `jeton bench NAME --help` lists its options.",
    )
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="NAME")
    for name, help in BENCHMARKS.items():
        # The benchmark reads its own options, --help among them.
        benchmarks.add_parser(name, help=help, add_help=False)
    options, rest = parser.parse_known_args(argv)
    module = importlib.import_module(f"jeton_evaluation.bench.{options.benchmark}")
    return module.main(rest) or 0


def _nexmark(argv: Sequence[str]) -> int:
    from jeton_evaluation.nexmark import command

    return command.main(argv)


bench = Command("measure Jeton on this machine", _bench)
nexmark = Command("run NEXMark's queries on Spark, and compare them with Spark SQL", _nexmark)
