"""The commands that the evaluation adds to `jeton`: `bench` and `nexmark`.

Their modules are imported when a command runs, so that `jeton --help` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from jeton.cli import Command

BENCHMARKS = {
    "operators": "what operators cost, beside plain scripts that do the bare computation",
    "spark": "what the Spark host costs: a stage, a row, a message, a long-lived query",
    "streaming": "micro-batches: a flow beside Spark's own operators and Python state",
    "progress": "what one advance of a frontier costs over a chain of idle operators",
    "wordcount": "word count under an open-loop load: latency and sustained rate",
    "chain": "a chain of idle operators under an open-loop load of timestamps",
    "nexmark": "NEXMark queries under an open-loop load: latency and sustained rate",
    "memory": "what flow control saves when one record makes very many",
    "priority": "what a pending time costs: in columns, in a heap, with a token for each",
    "async_calls": "what slow calls do to the latency of a neighbour",
    "idle": "how much of a core an idle long-lived query takes on Spark",
    "peers": "Bytewax, Pathway, PyFlink and Spark Structured Streaming beside Jeton",
    "traffic": "progress traffic of 8 to 1024 simulated workers, tokens beside watermarks",
    "sweep": "the whole evaluation, run by run, into one file of JSON lines",
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
nexmark = Command("run NEXMark's queries on Spark, beside Spark's own", _nexmark)
