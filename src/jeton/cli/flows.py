"""Flows named on a command line: ``module:flow`` or ``path/to/file.py:flow``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from jeton.cli.command import UsageError
from jeton.core.checks import described, suggestion
from jeton.core.errors import JetonError, summary
from jeton.dataflow.flow import Flow


@dataclass(frozen=True)
class NamedFlow:
    """A flow, or a function that makes one, and the module that it comes from."""

    text: str
    """The name on the command line."""
    module: ModuleType
    found: Any

    def make(self) -> Flow:
        """The flow; a function makes a new one with each call."""
        if isinstance(self.found, Flow):
            return self.found
        try:
            made = self.found()
        except JetonError:
            raise
        except Exception as error:
            raise JetonError(_raised(f"{self.text} raised", error)) from error
        if not isinstance(made, Flow):
            raise UsageError(f"{self.text} returns {described(made)}, not a flow")
        return made


def add_flow(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a flow."""
    parser.add_argument(
        "flow",
        metavar="MODULE:FLOW",
        help="a flow, or a function without arguments that makes one: module:name, or "
        "path/to/file.py:name",
    )


def find_flow(text: str) -> NamedFlow:
    """The flow of a name such as ``module:flow``.

    >>> find_flow("jeton.core.times")
    Traceback (most recent call last):
    jeton.cli.command.UsageError: 'jeton.core.times' does not name a flow: write ...
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(
            f"{text!r} does not name a flow: write module:flow, or path/to/file.py:flow"
        )
    module = _load_file(Path(place)) if _is_path(place) else _import(place)
    return NamedFlow(text, module, _flow_of(module, place, name))


def _is_path(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


def _load_file(path: Path) -> ModuleType:
    """The module in a file, which imports its neighbours as a script does."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    _look_in(str(path.resolve().parent))
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # As an import does: pickle and dataclasses look modules up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise JetonError(_raised(f"{path} could not be loaded", error)) from error
    return module


def _import(name: str) -> ModuleType:
    # As `python -m` does: modules of the current folder come first.
    _look_in(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"there is no module {error.name!r} (looked for in {os.getcwd()} and where Python "
                "finds packages): give the path of its file instead, path/to/file.py:flow"
            ) from error
        raise JetonError(_raised(f"module {name!r} could not be imported", error)) from error
    except Exception as error:
        raise JetonError(_raised(f"module {name!r} could not be imported", error)) from error


def _look_in(folder: str) -> None:
    if sys.path[0] != folder:
        sys.path.insert(0, folder)


def _flow_of(module: ModuleType, place: str, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            flows = [n for n, value in vars(module).items() if isinstance(value, Flow)]
            raise UsageError(
                f"{place} has no {name!r}{suggestion(name, vars(module))} "
                f"(flows there: {', '.join(flows) or 'none'})"
            ) from None
    if isinstance(found, Flow):
        return found
    if not callable(found) or isinstance(found, type):
        raise UsageError(
            f"{place}:{name} is {described(found)}, not a flow or a function that makes one"
        )
    needed = [
        each.name
        for each in inspect.signature(found).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if needed:
        raise UsageError(
            f"{place}:{name} needs {', '.join(needed)}: name a function without arguments"
        )
    return found


def _raised(what: str, error: BaseException) -> str:
    """An error of the user's code, with the lines that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    here = os.path.dirname(__file__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith((here, "<frozen importlib"))
        and os.sep + "importlib" + os.sep not in frame.filename
    ]
    lines = "".join(traceback.format_list(own)).rstrip()
    return f"{what}: {summary(error)}" + (f"\n{lines}" if lines else "")


def require_names(given: Mapping[str, Any], known: tuple[str, ...], what: str, flow: Flow) -> None:
    """Refuse names that are not those of a flow's inputs or outputs."""
    for name in given:
        if name not in known:
            raise UsageError(
                f"flow {flow.name!r} has no {what} {name!r}{suggestion(name, known)} "
                f"(its {what}s: {', '.join(known) or 'none'})"
            )
