"""Runs of the evaluation: JSON lines in a file, a data frame for each experiment in memory.

The first line describes the machine.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from jeton.cli.versions import modules
from jeton_evaluation.bench.harness import Line

LATENCIES = ["p50_ms", "p999_ms", "max_ms"]
NAMES = {
    "tokens": "tokens",
    "tokens-relayed": "tokens, relayed",
    "notifications": "notifications",
    "watermarks-x": "watermarks-X",
    "watermarks-p": "watermarks-P",
}
"""The mechanisms, as the report spells them."""


class NotMeasuredError(LookupError):
    """The runs that a rule needs are missing."""


class Runs:
    """A data frame for each experiment, with the last line of each run.

    Latencies of a run that did not finish are infinite. Searches for the highest sustained rate
    are an experiment of their own, ``NAME sustained``.

    >>> runs = Runs(
    ...     [
    ...         {"run": "a", "experiment": "chain", "length": 8, "p50_ms": 2.0},
    ...         {"run": "a", "experiment": "chain", "length": 8, "p50_ms": 0.1},
    ...         {"run": "b", "experiment": "chain", "length": 256, "p50_ms": 0.2},
    ...     ]
    ... )
    >>> runs.one("chain", length=8)["p50_ms"]
    0.1
    >>> runs.some("chain")["length"].to_list()
    [8, 256]
    >>> runs.one("idle", workers=2)
    Traceback (most recent call last):
        ...
    jeton_evaluation.bench.runs.NotMeasuredError: no run of idle with workers=2
    """

    def __init__(self, lines: Iterable[Line]) -> None:
        # Lines of other tools may have no run: all of them count.
        last: dict[Any, tuple[Line, str]] = {}
        where = ""
        for at, line in enumerate(lines):
            if line["experiment"] == "machine":
                where = f"{line.get('commit')} ({line.get('date', 'no date').split()[0]})"
            last[line.get("run", at)] = line, where
        self.lines = [line for line, _ in last.values()]
        self.measured: dict[str, list[str]] = {}
        """The experiments whose runs count, by the commit and the date at which they were run."""
        for line, where in last.values():
            found = self.measured.setdefault(where, [])
            if line["experiment"] not in ("machine", *found):
                found.append(line["experiment"])
        experiments: dict[str, list[Line]] = {}
        for line in self.lines:
            kind = " sustained" if line.get("sustained") else ""
            experiments.setdefault(line["experiment"] + kind, []).append(line)
        self._frames = {name: pd.DataFrame(found) for name, found in experiments.items()}
        for frame in self._frames.values():
            if "dnf" in frame:
                frame.loc[frame["dnf"], LATENCIES] = inf

    @staticmethod
    def read(path: Path) -> Runs:
        """The runs of a file."""
        return Runs(read_lines(path))

    def where(self, experiment: str, **wanted: Any) -> Any:
        """The runs of an experiment whose columns have these values, as a data frame."""
        frame = self._frames.get(experiment, pd.DataFrame())
        return frame[(frame.reindex(columns=[*wanted]) == [*wanted.values()]).all(axis=1)]

    def some(self, experiment: str, **wanted: Any) -> Any:
        """The same; raises if there are none."""
        found = self.where(experiment, **wanted)
        if found.empty:
            values = ", ".join(f"{name}={value}" for name, value in wanted.items())
            raise NotMeasuredError(f"no run of {experiment}{' with ' if values else ''}{values}")
        return found

    def one(self, experiment: str, **wanted: Any) -> Line:
        """The last of them."""
        [line] = self.some(experiment, **wanted).tail(1).to_dict("records")
        return dict(line)


def read_lines(path: Path) -> list[Line]:
    """The lines of a file, except a last one without an end: a sweep was stopped while writing."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line]


def power(exponent: int) -> str:
    """A power of two as people write it.

    >>> power(12)
    '2¹²'
    """
    return "2" + str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def short(number: float) -> str:
    """A large number in a few characters.

    >>> short(244_140), short(4e6), short(1.5e6), short(1e10)
    ('244K', '4M', '1.5M', '10G')
    """
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g}{sign}"
    return f"{number:g}"


def machine() -> Line:
    """The hardware, the software and the commit of this code.

    >>> sorted(machine())[:4]
    ['commit', 'cores', 'cpu', 'date']
    """
    return {
        "experiment": "machine",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": platform.platform(),
        "python": platform.python_version(),
        "java": _java(),
        **{name: version(name) for name in ("pyspark", "numpy", "numba", "pyarrow", "jeton")},
        "modules": modules(),
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def same_machine(one: Line, other: Line) -> bool:
    """Whether two such lines differ in their dates only."""
    return {**one, "date": None} == {**other, "date": None}


def _cpu() -> str:
    """The model, which Python's `platform` does not know on Linux."""
    about = Path("/proc/cpuinfo")
    if about.exists():
        for line in about.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _java() -> int | None:
    from jeton.errors import JavaNotFoundError
    from jeton.spark.java import ask, ensure_java

    try:
        found = ask(ensure_java() / "bin" / "java")
    except JavaNotFoundError:
        return None
    return found.version if found else None


def _commit() -> str | None:
    """The commit of this code, and whether something was changed since; none without Git."""

    def git(*words: str) -> str:
        here = Path(__file__).parent
        return subprocess.check_output(
            ["git", "-C", str(here), *words], text=True, stderr=subprocess.DEVNULL
        ).strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
