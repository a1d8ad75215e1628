"""The `jeton` command.

Each command is a module here that describes itself with a `BuiltIn`. Other packages add commands by
entry points of the group `jeton.commands`, each a `Command`. A command imports what it needs when
it runs, so that `jeton --help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from typing import Final

from jeton.cli import (
    checkpoint,
    compiling,
    completion,
    demo,
    inspect,
    log,
    package,
    run,
    simulate,
    versions,
    why,
)
from jeton.cli.command import (
    FAILED,
    INTERRUPTED,
    WRONG_USAGE,
    BuiltIn,
    Command,
    UsageError,
    say,
)
from jeton.core.errors import JetonError, summary

__all__ = ["Command", "main"]

BUILT_IN: Final[tuple[BuiltIn, ...]] = (
    run.COMMAND,
    simulate.COMMAND,
    checkpoint.COMMAND,
    inspect.COMMAND,
    why.COMMAND,
    log.COMMAND,
    package.COMMAND,
    demo.COMMAND,
    compiling.COMMAND,
    completion.COMMAND,
    versions.COMMAND,
)
_EXIT_CODES: Final = (
    "Exit codes: 0 all is well, 1 what was run failed, 2 wrong usage, 130 interrupted."
)
_IN_EVALUATION: Final = ("bench", "nexmark")
_NO_EVALUATION: Final = (
    "`jeton bench` and `jeton nexmark` come with the package jeton-evaluation, which is not "
    "installed: run `pip install ./evaluation` in a checkout of Jeton's repository."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    >>> main(["version"])
    jeton ...
    0
    """
    added = _added()
    parser = make_parser(added)
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in _IN_EVALUATION and argv[0] not in added:
        parser.error(_NO_EVALUATION)
    options, rest = parser.parse_known_args(argv)
    command = added.get(options.command)
    if rest and command is None:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    prog = f"jeton {options.command}" if command is not None else options.prog
    try:
        code: int = options.run(options) if command is None else command.main(rest)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _ended(prog, str(error), WRONG_USAGE)
    except BrokenPipeError:
        # The reader of the output has gone, as in `jeton … | head`: it needs no message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (JetonError, OSError) as error:
        return _ended(prog, str(error), FAILED)
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        return _ended(prog, str(error), FAILED)
    except KeyboardInterrupt:
        return _ended(prog, "interrupted", INTERRUPTED)


def make_parser(added: dict[str, Command] | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; those of other packages are ``added`` by name.

    >>> make_parser({}).parse_args(["demo", "--workers", "3"]).workers
    3
    """
    added = _added() if added is None else added
    epilog = _EXIT_CODES if added else f"{_EXIT_CODES} {_NO_EVALUATION}"
    parser = argparse.ArgumentParser(
        prog="jeton",
        description="Dataflow programs coordinated by timestamp tokens, here and on Apache Spark.",
        epilog=epilog,
    )
    parser.add_argument("--version", action="version", version=f"jeton {version('jeton')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in BUILT_IN:
        command.add_to(commands)
    for name, other in sorted(added.items()):
        commands.add_parser(name, help=other.help, add_help=False)
    return parser


def _added() -> dict[str, Command]:
    """The commands of other packages; those that cannot be imported are reported, and left out."""
    found: dict[str, Command] = {}
    for point in entry_points(group="jeton.commands"):
        try:
            found[point.name] = point.load()
        except Exception as error:
            say(f"jeton: warning: the command {point.name!r} is left out: {summary(error)}")
    return found


def _ended(prog: str, text: str, code: int) -> int:
    say(f"{prog}: {text if code == INTERRUPTED else f'error: {text}'}")
    return code
