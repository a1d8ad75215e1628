"""`jeton version`: the version of Jeton, how it was installed, and what it runs on."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import version
from importlib.util import find_spec
from typing import Final

from jeton.cli.command import FINE, BuiltIn, add_json, print_json

_SHOWN: Final = ("jeton", "pyspark", "pyarrow", "numpy", "numba", "pandas")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser, "also the versions of Python and of the packages that Jeton runs on")


def modules() -> str:
    """Whether the modules on the path of a batch are ``python`` or ``compiled``."""
    # Found, not imported: printing a version has to be quick.
    worker = find_spec("jeton.runtime.worker")
    assert worker is not None
    assert worker.origin is not None
    return "python" if worker.origin.endswith(".py") else "compiled"


def _run(options: argparse.Namespace) -> int:
    if options.json:
        versions = {name: version(name) for name in _SHOWN}
        print_json(versions | {"python": platform.python_version(), "modules": modules()})
    else:
        print(f"jeton {version('jeton')}")
        print(f"modules: {'Python' if modules() == 'python' else 'compiled'}")
    return FINE


COMMAND: Final = BuiltIn(
    "version",
    "print the version",
    "Print the version of Jeton, and whether its modules are compiled.",
    "jeton version --json",
    _add_arguments,
    _run,
)
