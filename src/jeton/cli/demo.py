"""`jeton demo`: a small flow in this process, then a batch and a query on a local Spark."""

from __future__ import annotations

import argparse
import platform
import sys
from contextlib import redirect_stdout
from typing import Any, Final

from jeton.cli.command import FAILED, FINE, BuiltIn, add_json, print_json, say, whole_number

_JAVA_VERSION: Final = "SELECT java_method('java.lang.System', 'getProperty', 'java.version')"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=whole_number("a number of workers"),
        default=2,
        metavar="N",
        help="number of workers (default: 2)",
    )
    add_json(parser, "versions and whether the rows are right")


def _run(options: argparse.Namespace) -> int:
    if not options.json:
        return FINE if _shown(options.workers)["right"] else FAILED
    with redirect_stdout(sys.stderr):
        record = _shown(options.workers)
    print_json(record)
    return FINE if record["right"] else FAILED


def _shown(workers: int) -> dict[str, Any]:
    """Run the demonstration; returns what there is to say about it."""
    from jeton import demo
    from jeton.errors import JavaNotFoundError

    record: dict[str, Any] = {"workers": workers, "python": platform.python_version()}
    demo.run_in_process()
    # Not before: flows in this process need no Spark.
    from jeton.spark import local_session

    print("Starting a local Spark session ...", flush=True)
    try:
        spark = local_session(workers)
    except JavaNotFoundError as error:
        say(f"jeton demo: error: {error}")
        return {**record, "right": False}
    try:
        [(java,)] = spark.sql(_JAVA_VERSION).collect()
        print(f"  Spark {spark.version}, Java {java}, Python {platform.python_version()}")
        right = demo.run_on_spark(spark, workers)
        demo.run_live(spark, workers)
        return {**record, "spark": spark.version, "java": java, "right": right}
    finally:
        spark.stop()


COMMAND: Final = BuiltIn(
    "demo",
    "run a flow in this process and on Spark",
    "Run a small dataflow in this process, then a batch and a long-lived query on a local Spark.",
    "jeton demo --workers 4",
    _add_arguments,
    _run,
)
