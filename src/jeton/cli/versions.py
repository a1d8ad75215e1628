"""`jeton version`: the version of Jeton, and of what it runs on."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import version
from typing import Final

from jeton.cli.command import FINE, BuiltIn, add_json, print_json

_SHOWN: Final = ("jeton", "pyspark", "pyarrow", "numpy", "numba", "pandas")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser, "the versions of Jeton, Python and the packages that Jeton runs on")


def _run(options: argparse.Namespace) -> int:
    if options.json:
        print_json({name: version(name) for name in _SHOWN} | {"python": platform.python_version()})
    else:
        print(f"jeton {version('jeton')}")
    return FINE


COMMAND: Final = BuiltIn(
    "version",
    "print the version",
    "Print the version of Jeton.",
    "jeton version --json",
    _add_arguments,
    _run,
)
