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
    "progress": "what one advance of a frontier costs over a chain of idle operators",
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
    if rest and options.command != "bench":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    match options.command:
        case "version":
            return _version()
        case "demo":
            return _demo(options.workers)
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
        description="Run a small dataflow in this process, then a larger one on a local Spark.",
    )
    demo.add_argument(
        "--workers", type=int, default=2, metavar="N", help="how many run at a time (default: 2)"
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
        demo.run_on_spark(spark, workers)
    finally:
        spark.stop()
    return 0


def _bench(name: str, argv: Sequence[str]) -> int:
    return importlib.import_module(f"jeton.bench.{name}").main(argv) or 0
