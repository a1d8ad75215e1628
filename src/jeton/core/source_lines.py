"""Source lines: which line of the user's own program an error, or an operator, comes from."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Literal

_OURS: Final = (str(Path(__file__).parents[1]), "jeton/")
"""This library's files, whose names begin with that of the package in compiled modules."""
_PYTHON: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))

_COMPILED: Final = (".pxi", ".pyx")
"""Sources of compiled packages, whose frames name files that do not exist."""

_NO_FILES: Final = ("<frozen", "<string>", "<__array_function__")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a program, and its text where the file can be read.

    >>> str(SourceLine("app.py", 17, "flow.map(ratio)"))
    'app.py:17: flow.map(ratio)'
    """

    file: str
    number: int
    code: str = ""

    def with_code(self) -> SourceLine:
        """The same with its text: a worker on another machine may not have the file."""
        code = self.code or linecache.getline(self.file, self.number).strip()
        return replace(self, code=code)

    def __str__(self) -> str:
        path = Path(self.file)
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return f"{shown}:{self.number}" + (f": {self.code}" if self.code else "")


def user_line(error: BaseException) -> SourceLine | None:
    """The user's own line that an error comes from, if its traceback has any.

    It is the innermost one that belongs neither to this library nor to Python nor to an installed
    package. If the user's program is itself installed, it is the first line outside of this
    library.

    >>> try:
    ...     sum(1 / n for n in [1, 0])
    ... except ZeroDivisionError as error:
    ...     user_line(error).number
    2
    """
    lines = list(_lines(error.__traceback__))
    own = [line for line in lines if _owner(line.file) == "user"]
    installed = [line for line in lines if _owner(line.file) == "package"]
    found = own[-1] if own else installed[0] if installed else None
    return None if found is None else found.with_code()


def raising_line(error: BaseException) -> SourceLine | None:
    """The line that raised an error, in any code."""
    lines = list(_lines(error.__traceback__))
    return lines[-1] if lines else None


def calling_line() -> SourceLine | None:
    """The user's line that calls this library now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _owner(frame.f_code.co_filename) in ("user", "package"):
            return SourceLine(frame.f_code.co_filename, frame.f_lineno).with_code()
        frame = frame.f_back
    return None


def is_users(file: str) -> bool:
    """Whether a file is neither this library's, nor Python's, nor an installed package's."""
    return _owner(file) == "user"


def _lines(traceback: TracebackType | None) -> Iterator[SourceLine]:
    while traceback is not None:
        yield SourceLine(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next


def _owner(file: str) -> Literal["library", "package", "python", "user"]:
    """Whose code is in a file. What a user types (`<stdin>`, a cell, a doctest) is the user's."""
    if file.startswith(_OURS):
        return "library"
    if file.startswith(_INSTALLED):
        return "package"
    if file.endswith(_COMPILED):
        return "python"
    return "python" if file.startswith((*_PYTHON, *_NO_FILES)) else "user"
