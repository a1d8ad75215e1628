"""`jeton compile`: the loops of the usual operators, compiled before the first flow needs them."""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Final

from jeton.cli.command import FINE, BuiltIn, add_json, print_json, say


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser, "the seconds that it took")


def _run(options: argparse.Namespace) -> int:
    from jeton.runtime.warm_up import warm_up

    start = perf_counter()
    warm_up()
    seconds = round(perf_counter() - start, 2)
    if options.json:
        print_json({"seconds": seconds})
    else:
        say(f"compiled loops are on disk, after {seconds} s")
    return FINE


COMMAND: Final = BuiltIn(
    "compile",
    "compile the loops of operators in advance",
    "Compile the loops of the usual operators and keep them on disk, as when an image is built, so "
    "that the first flow does not wait for it. The code is for processors like this one.",
    "jeton compile",
    _add_arguments,
    _run,
)
