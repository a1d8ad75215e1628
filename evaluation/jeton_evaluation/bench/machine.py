"""A description of the machine, in one line of the evaluation."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from jeton_evaluation.bench.experiment import Line


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
    from jeton.spark.java import JavaNotFoundError, ask, ensure_java

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
