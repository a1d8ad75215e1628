"""`jeton demo`: a small flow in this process, then a batch and a query on a local Spark."""

from __future__ import annotations

import argparse
import platform
from typing import Final

from jeton.cli.command import FAILED, FINE, BuiltIn, say, whole_number

_JAVA_VERSION: Final = "SELECT java_method('java.lang.System', 'getProperty', 'java.version')"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=whole_number("a number of workers"),
        default=2,
        metavar="N",
        help="number of workers (default: 2)",
    )


def _run(options: argparse.Namespace) -> int:
    from jeton import demo
    from jeton.errors import JavaNotFoundError
    from jeton.spark import local_session

    workers: int = options.workers
    demo.run_in_process()
    print("Starting a local Spark session ...", flush=True)
    try:
        spark = local_session(workers)
    except JavaNotFoundError as error:
        say(f"jeton demo: error: {error}")
        return FAILED
    try:
        [(java,)] = spark.sql(_JAVA_VERSION).collect()
        print(f"  Spark {spark.version}, Java {java}, Python {platform.python_version()}")
        right = demo.run_on_spark(spark, workers)
        demo.run_live(spark, workers)
        return FINE if right else FAILED
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
