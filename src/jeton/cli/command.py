"""Parts that all commands share: how a command is described, how it fails, how it prints JSON."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

FINE: Final = 0
FAILED: Final = 1
"""The command was understood, and what it did failed."""
WRONG_USAGE: Final = 2
"""The command line is wrong: nothing was run. `argparse` exits with the same code."""
INTERRUPTED: Final = 130
"""Ctrl-C: 128 plus the number of the signal, as shells report it."""


class UsageError(Exception):
    """A command line that cannot be carried out; the command ends with exit code 2."""


@dataclass(frozen=True)
class Command:
    """A command of another package. It reads all of its options itself, ``--help`` included."""

    help: str
    main: Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class BuiltIn:
    """A command of this package: a module of `jeton.cli` has one."""

    name: str
    help: str
    """One line for the list of commands."""
    description: str
    example: str
    """Command lines, shown at the end of ``--help``."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int] | None = None
    """Carries it out and returns the exit code; a command with commands of its own has none."""

    def add_to(self, commands: Commands) -> None:
        """Add the command to a parser.

        >>> parser = argparse.ArgumentParser(prog="jeton")
        >>> hello = BuiltIn("hello", "greet", "Greet.", "jeton hello", lambda _: None, lambda _: 7)
        >>> hello.add_to(parser.add_subparsers())
        >>> options = parser.parse_args(["hello"])
        >>> options.prog, options.run(options)
        ('jeton hello', 7)
        """
        examples = "\n".join(f"  {line}" for line in self.example.splitlines())
        parser = commands.add_parser(
            self.name,
            help=self.help,
            description=textwrap.fill(self.description, 78),
            epilog=f"example:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_arguments(parser)
        if self.run is not None:
            parser.set_defaults(run=self.run, prog=parser.prog)


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--json`` to a command; ``what`` is the record that it prints."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON to stdout")


def print_json(record: Mapping[str, Any]) -> None:
    """Print a record for programs, on one line.

    >>> print_json({"rows": 3, "flow": "counts"})
    {"rows": 3, "flow": "counts"}
    """
    print(json.dumps(record, ensure_ascii=False, default=str))


def say(text: str) -> None:
    """Print a line for people to stderr, which leaves stdout to results."""
    print(text, file=sys.stderr)


def whole_number(what: str, least: int = 1) -> Callable[[str], int]:
    """The type of an option that is a whole number.

    >>> whole_number("a number of workers")("0")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: '0' is not a number of workers: 1 or more
    """

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}: {least} or more")
        return number

    return read


def count(number: int, what: str) -> str:
    """A number of things, in words.

    >>> count(1, "row"), count(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{number:,} {what}" + ("" if number == 1 else "s")
