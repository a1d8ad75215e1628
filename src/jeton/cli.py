"""The `jeton` command.

Each subcommand is a function here that imports what it needs when it runs, so that `jeton --help`
answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version

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
"""The benchmarks, each a module `jeton.bench.NAME` with a `main(argv)`. Register new ones here."""

_JAVA_VERSION = "SELECT java_method('java.lang.System', 'getProperty', 'java.version')"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    >>> main(["version"])
    jeton ...
    0
    """
    parser = _parser()
    options, rest = parser.parse_known_args(argv)
    if rest and options.command not in ("bench", "nexmark"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    match options.command:
        case "version":
            return _version()
        case "demo":
            return _demo(options.workers)
        case "nexmark":
            return _nexmark(rest)
        case _:
            return _bench(options.benchmark, rest)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jeton",
        description="Dataflow programs coordinated by timestamp tokens, here and on Apache Spark.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    commands.add_parser("version", help="say which version this is")

    demo = commands.add_parser(
        "demo",
        help="show a flow in this process and on Spark",
        description="Run a small dataflow in this process, then a NEXMark query on a local Spark.",
    )
    demo.add_argument(
        "--workers", type=int, default=2, metavar="N", help="how many run at a time (default: 2)"
    )

    # It reads its own options, --help among them.
    commands.add_parser(
        "nexmark", help="run NEXMark's queries on Spark, beside Spark's own", add_help=False
    )

    bench = commands.add_parser(
        "bench",
        help="measure Jeton on this machine",
        description="Measure Jeton on this machine. `jeton bench NAME --help` tells the options.",
    )
    benchmarks = bench.add_subparsers(dest="benchmark", required=True, metavar="NAME")
    for name, what in BENCHMARKS.items():
        # The benchmark reads its own options, --help among them.
        benchmarks.add_parser(name, help=what, add_help=False)
    return parser


def _version() -> int:
    print(f"jeton {version('jeton')}")
    return 0


def _demo(workers: int) -> int:
    from jeton import demo
    from jeton.spark.java import JavaNotFoundError
    from jeton.spark.session import local_session

    demo.run_in_process()
    print("Starting a local Spark session ...", flush=True)
    try:
        spark = local_session(workers)
    except JavaNotFoundError as error:
        print(f"jeton: {error}", file=sys.stderr)
        return 1
    try:
        [(java,)] = spark.sql(_JAVA_VERSION).collect()
        print(f"  Spark {spark.version}, Java {java}, Python {platform.python_version()}")
        return 0 if demo.run_on_spark(spark, workers) else 1
    finally:
        spark.stop()


def _nexmark(argv: Sequence[str]) -> int:
    from jeton.nexmark import command

    return command.main(argv)


def _bench(name: str, argv: Sequence[str]) -> int:
    return importlib.import_module(f"jeton.bench.{name}").main(argv) or 0
