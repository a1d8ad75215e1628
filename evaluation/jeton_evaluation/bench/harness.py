"""The frame of a benchmark: options from a signature, rounds in turn, output as text or JSON.

A benchmark is a function ``run(say, ...)`` whose annotated parameters are its options. It passes
text to ``say`` and returns its results: a line, a list of lines, or an iterator of both. What a
generator returns at its end is the exit code. In JSON, each line also says whether Jeton's modules
were ``python`` or ``compiled``.

Numbers are above zero unless an option is annotated with `OR_ZERO` too.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from statistics import median
from time import perf_counter
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

Line: TypeAlias = dict[str, Any]
"""One row of results, as it is written in JSON."""
Say: TypeAlias = Callable[[str], None]

OR_ZERO: Final = "or zero"
"""The third argument of `Annotated`, for a number that may be zero."""

Rounds = Annotated[int, "rounds, of which the median counts"]
Workers = Annotated[int, "workers"]
Seconds = Annotated[float, "seconds that are measured"]


class OptionError(ValueError):
    """Options that make no sense: the command prints the message and ends."""


def command(
    run: Callable[..., Any], shared: Callable[..., Any] | None = None, **defaults: Any
) -> Callable[..., int]:
    """The ``main(argv)`` of a benchmark, which returns 0, or the exit code that ``run`` returns.

    The options are the annotated parameters of ``run``, and of ``shared`` which it calls with them.
    Their description is the doc string of the module of ``run``.

    >>> def run(say: Say, rounds: Rounds = 3, slow: Annotated[bool, "wait"] = False) -> Line:
    ...     say(f"{rounds} rounds")
    ...     return {"rounds": rounds, "slow": slow}
    >>> command(run)(["--rounds", "1e3"])
    1000 rounds
    0
    >>> command(run, rounds=5)(["--slow", "--json"])
    {"rounds": 5, "slow": true, "modules": ...}
    0
    """

    def main(argv: Sequence[str] | None = None) -> int:
        about = sys.modules[run.__module__].__doc__ or ""
        name = run.__module__.rpartition(".")[2]
        functions = (run, shared) if shared else (run,)
        parser = parser_of(f"jeton bench {name}", about, *functions, **defaults)
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")
        options = vars(parser.parse_args(argv))
        as_json = options.pop("json")
        try:
            result = run((lambda _: None) if as_json else _say, **options)
            return _shown(result, as_json)
        except OptionError as error:
            parser.error(str(error))

    return main


def _say(text: str) -> None:
    print(text, flush=True)


def _shown(result: Any, as_json: bool) -> int:
    """Run a benchmark to its end, and print each line as JSON when it is there."""
    lines = result if isinstance(result, Iterator) else iter([result])
    while True:
        try:
            line = next(lines)
        except StopIteration as end:
            return int(end.value or 0)
        if as_json:
            print(json.dumps(_with_modules(line)), flush=True)


def _with_modules(result: Line | list[Line]) -> Line | list[Line]:
    # Imported late: the processes of peers and of start-up import this module.
    from jeton.cli.versions import modules

    if isinstance(result, list):
        return [{**line, "modules": modules()} for line in result]
    return {**result, "modules": modules()}


def parser_of(
    prog: str, about: str, *functions: Callable[..., Any], **defaults: Any
) -> argparse.ArgumentParser:
    """A parser with an option for each annotated parameter of functions, or field of a class."""
    parser = argparse.ArgumentParser(
        prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for function in functions:
        hints = get_type_hints(function, include_extras=True)
        for option, parameter in inspect.signature(function).parameters.items():
            if get_origin(hints.get(option)) is Annotated:
                kind, help, *zero = get_args(hints[option])
                default = defaults.get(option, parameter.default)
                if default not in (None, False, "", ()) and help != argparse.SUPPRESS:
                    several = isinstance(default, list | tuple)
                    shown = " ".join(map(str, default)) if several else default
                    help += f" (default: {shown})"
                flag = f"--{option.replace('_', '-')}"
                parser.add_argument(flag, default=default, help=help, **_kind(kind, zero))
    return parser


def _kind(kind: Any, zero: Sequence[str] = ()) -> dict[str, Any]:
    """How `argparse` reads an option of a type."""
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if get_origin(kind) in (list, Sequence):
        return {**_kind(get_args(kind)[0], zero), "nargs": "+"}
    if get_origin(kind) in (Union, UnionType):  # or None
        return _kind(get_args(kind)[0], zero)
    if kind not in (int, float):
        return {"type": kind}

    def number(text: str) -> Any:
        try:
            return _number(kind, text, OR_ZERO in zero)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return {"type": number}


def _number(kind: type, text: str, or_zero: bool = False) -> Any:
    """A number above zero, or also zero; whole ones also as 1e6."""
    whole = "whole " if kind is int else ""
    wanted = f"a {whole}number, zero or more" if or_zero else f"a {whole}number above zero"
    try:
        number = float(text)
        fits = isfinite(number) and number >= 0 and (or_zero or number > 0)
        if fits and number == kind(number):
            return kind(number)
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not {wanted}")


def numbers(text: str) -> list[int]:
    """Whole numbers, separated by commas.

    >>> numbers("8,1e3"), numbers("")
    ([8, 1000], [])
    >>> numbers("8,many")
    Traceback (most recent call last):
        ...
    jeton_evaluation.bench.harness.OptionError: 'many' is not a whole number above zero
    """
    try:
        return [_number(int, part) for part in text.split(",") if part]
    except ValueError as error:
        raise OptionError(str(error)) from None


class Table:
    r"""Lines as rows of text: for each column its heading, and the field and format of its cells.

    >>> table = Table({"system": "name:<8", "records/s": "rate:>12,.0f"})
    >>> print(table.head + "\n" + table.row({"name": "jeton", "rate": 2e6}))
    system     records/s
    jeton      2,000,000
    """

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._row = "".join(f"{{{column}}}" for column in columns.values())
        self.head = ""
        for name, column in columns.items():
            shape = column.partition(":")[2]
            width = shape[1:].partition(",")[0].partition(".")[0]
            self.head += f"{name:{shape[0]}{width}}"

    def row(self, line: Line) -> str:
        """A line as a row."""
        return self._row.format(**line).rstrip()


def grid(rows: Sequence[Sequence[str]], markdown: bool = False) -> list[str]:
    """The lines of a table of text, whose first row is its head.

    >>> grid([["query", "rows"], ["q4", "7"]])
    ['query  rows', 'q4        7']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # The first column to the left, all others to the right.
    cells = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    if not markdown:
        return ["  ".join(row).rstrip() for row in cells]
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return [f"| {' | '.join(row)} |" for row in [cells[0], rule, *cells[1:]]]


def child_line(module: str, *argv: object, **environment: str) -> Line:
    """The line of JSON that ends the output of a module, run in a process of its own.

    So its peak of memory is its own. Raises `JetonError` with the last line of what it said if it
    fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, argv)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        # Imported late: start-up, which this module must not change, is measured too.
        from jeton.errors import JetonError

        said = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        raise JetonError(f"{module} {' '.join(map(str, argv))}: {said[-1]}")
    found: Line = json.loads(done.stdout.splitlines()[-1])
    return found


def in_turn(rounds: int, *acts: Callable[[], Any]) -> list[float]:
    """The median seconds of each act, or of the floats that it returns; the first round warms up.

    The acts take turns, so that a slow moment of the machine hits all of them.
    """
    times: list[list[float]] = [[] for _ in acts]
    for _ in range(rounds + 1):
        for act, measured in zip(acts, times, strict=True):
            start = perf_counter()
            own = act()
            measured.append(own if isinstance(own, float) else perf_counter() - start)
    return [median(measured[1:]) for measured in times]
