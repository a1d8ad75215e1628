"""The `jeton` command.

Other packages add commands by entry points of the group `jeton.commands`, each a `Command`. What a
command needs is imported when it runs, so that `jeton --help` answers at once.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points, version

_JAVA_VERSION = "SELECT java_method('java.lang.System', 'getProperty', 'java.version')"
_IN_EVALUATION = ("bench", "nexmark")
_NO_EVALUATION = (
    "`jeton bench` and `jeton nexmark` come with the package jeton-evaluation, which is not "
    "installed: run `pip install ./evaluation` in a checkout of Jeton's repository."
)


@dataclass(frozen=True)
class Command:
    """A command of another package. It reads all of its options itself, ``--help`` included."""

    help: str
    main: Callable[[Sequence[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    >>> main(["version"])
    jeton ...
    0
    """
    added = {point.name: point.load() for point in entry_points(group="jeton.commands")}
    parser = _parser(added)
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in _IN_EVALUATION and argv[0] not in added:
        parser.error(_NO_EVALUATION)
    options, rest = parser.parse_known_args(argv)
    if options.command in added:
        command: Command = added[options.command]
        return command.main(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return _demo(options.workers) if options.command == "demo" else _version()


def _parser(added: dict[str, Command]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jeton",
        description="Dataflow programs coordinated by timestamp tokens, here and on Apache Spark.",
        epilog=None if added else _NO_EVALUATION,
    )
    parser.add_argument("--version", action="version", version=f"jeton {version('jeton')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    commands.add_parser("version", help="print the version")

    demo = commands.add_parser(
        "demo",
        help="run a flow in this process and on Spark",
        description="Run a small dataflow in this process, then a query on a local Spark.",
    )
    demo.add_argument(
        "--workers", type=_workers, default=2, metavar="N", help="number of workers (default: 2)"
    )
    for name, command in sorted(added.items()):
        commands.add_parser(name, help=command.help, add_help=False)
    return parser


def _workers(text: str) -> int:
    try:
        workers = int(text)
    except ValueError:
        workers = 0
    if workers < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers: 1 or more")
    return workers


def _version() -> int:
    print(f"jeton {version('jeton')}")
    return 0


def _demo(workers: int) -> int:
    from jeton import demo
    from jeton.errors import JavaNotFoundError
    from jeton.spark import local_session

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


if __name__ == "__main__":
    sys.exit(main())
