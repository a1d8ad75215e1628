"""One run of a peer: its environment and records, a process with a limit, its answer checked.

A program is called with its variant, the name of what it computes, the number of workers and of
records, a folder with the records and a folder of its own. There it writes ``reported*.json``, one
file for each of its processes: ``first`` and ``last`` (when its first record went in and its last
row came out, by the machine's clock) or ``seconds``; ``rows``; ``counts`` by key; the ``sum`` of
rows.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any, Final

import numpy as np
from tqdm import tqdm

from jeton.spark.java import JavaNotFoundError, ensure_java
from jeton_evaluation.bench.harness import Line

PROGRAMS: Final = ("word count", "window mean")
KEYS: Final = 10_000
WINDOW: Final = 10_000
"""Milliseconds."""


class NotAvailableError(Exception):
    """A peer cannot run here; the message says why."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with a peer in it, made when it is first needed."""

    name: str
    version: str
    packages: tuple[str, ...]
    java: bool = False

    def python(self, folder: Path) -> Path:
        """Its Python; raises `NotAvailableError` if it cannot be made."""
        if self.java:
            try:
                ensure_java()
            except JavaNotFoundError as error:
                raise NotAvailableError(str(error)) from error
        home = folder / f"{self.name}-{self.version}"
        complete = home / "complete"
        if not complete.exists():
            # What is there was begun and not finished.
            shutil.rmtree(home, ignore_errors=True)
            tqdm.write(f"making an environment for {self.name} in {home} ...", file=sys.stderr)
            _call([sys.executable, "-m", "venv", home])
            _call([home / "bin" / "python", "-m", "pip", "install", "--quiet", *self.packages])
            complete.touch()
        return home / "bin" / "python"


def _call(command: Sequence[str | Path]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise NotAvailableError(str(error)) from error
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR")]
        raise NotAvailableError((errors or said or ["no word of why"])[-1])


@dataclass(frozen=True)
class System:
    """A peer, or Jeton, as it takes part: which program, where, and at which size."""

    name: str
    program: tuple[str, ...]
    """Arguments of its Python: a script, or a module."""
    version: str
    environment: Environment | None = None
    """``None``: this Python."""
    variant: str = ""
    share: float = 1.0
    """Factor on ``--records``, so that runs of all systems take seconds."""
    programs: tuple[str, ...] = PROGRAMS
    every_record: bool = True
    """Whether a word count emits a row for each record."""
    note: str = ""


def write_records(folder: Path, records: int) -> None:
    """The records: keys, times and values from their numbers, so that SQL can make the same.

    Ten records a millisecond, each late by less than a second; a window has some ten of each key.
    """
    number = np.arange(records, dtype=np.int64)
    mixed = number * 48271 % 2147483647
    # Squared, for a multiple alone would go through the keys in even strides, which caches like.
    mixed = mixed * mixed % 2147483647
    np.save(folder / "keys.npy", (mixed % KEYS).astype(np.int16))
    np.save(folder / "times.npy", 1000 + number // 10 - mixed // 7 % 1000)
    np.save(folder / "values.npy", (mixed // 10_000 % 1000).astype(np.int16))


def what_is_wrong(system: System, program: str, records: int, data: Path, reported: Line) -> str:
    """The difference of an answer from the right one; empty if there is none."""
    keys, times, values = (
        np.load(data / f"{name}.npy", mmap_mode="r")[:records]
        for name in ("keys", "times", "values")
    )
    if program == "word count":
        right = np.bincount(keys, minlength=KEYS).tolist()
        wrong = sum(reported["counts"].get(str(key), 0) != right[key] for key in range(KEYS))
        if wrong:
            return f"{wrong:,} of {KEYS:,} counts are wrong"
        if system.every_record and reported["rows"] != records:
            return f"{reported['rows']:,} rows, not {records:,}"
        return ""
    group = times // WINDOW * KEYS + keys
    counts = np.bincount(group)
    there = counts > 0
    sums = np.bincount(group, values)
    rows, total = int(there.sum()), float((sums[there] / counts[there]).sum())
    if reported["rows"] != rows:
        return f"{reported['rows']:,} windows, not {rows:,}"
    if not isclose(reported["sum"], total, rel_tol=1e-9):
        return f"the means add up to {reported['sum']:,.2f}, not {total:,.2f}"
    return ""


def run(
    system: System,
    program: str,
    workers: int,
    records: int,
    *,
    data: Path,
    environments: Path,
    limit: float,
) -> Line:
    """One run in a process of its own; its line has the result, or the reason of a failure."""
    line: Line = {
        "experiment": "peers",
        "system": system.name,
        "program": program,
        "workers": workers,
        "records": records,
        "seconds": None,
        "records_per_s": None,
        "correct": None,
        "version": system.version,
        "note": system.note,
    }
    with tempfile.TemporaryDirectory(prefix="jeton-peers-") as out:
        try:
            python = system.environment.python(environments) if system.environment else None
            command = [str(python or sys.executable), *system.program, system.variant, program]
            command += [str(workers), str(records), str(data), out]
            reported = _reported_by(command, Path(out), limit)
        except NotAvailableError as error:
            return line | {"note": f"not available: {error}"}
        except _Failed as error:
            return line | {"note": str(error)}
    seconds = reported["seconds"]
    if seconds <= 0:
        return line | {"note": f"reported no time that it took: {seconds:g} s"}
    measured = reported["records"] or records
    wrong = what_is_wrong(system, program, records, data, reported)
    return line | {
        "records": measured,
        "seconds": round(seconds, 4),
        "records_per_s": round(measured / seconds),
        "correct": not wrong,
        "note": "; ".join(filter(None, [wrong, system.note])),
    }


class _Failed(Exception):
    """A run came to no answer; the message says how."""


def _reported_by(command: Sequence[str], out: Path, limit: float) -> Line:
    log = out / "log"
    with log.open("w") as file:
        # A session of its own: what it starts, Java among them, ends with it.
        child = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=out, start_new_session=True
        )
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            raise _Failed(f"no answer within {limit:g} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    parts = [json.loads(path.read_text()) for path in sorted(out.glob("reported*.json"))]
    if code or not parts:
        said = [text for text in log.read_text(errors="replace").splitlines() if text.strip()]
        raise _Failed(f"failed with code {code}: {said[-1].strip() if said else 'it said nothing'}")
    return _together(parts)


def _together(parts: Sequence[Line]) -> Line:
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part["counts"])
    reported: dict[str, Any] = {
        "rows": sum(part["rows"] for part in parts),
        "sum": sum(part["sum"] for part in parts),
        "records": sum(part.get("records", 0) for part in parts),
        "counts": counts,
    }
    if "seconds" in parts[0]:
        return reported | {"seconds": max(part["seconds"] for part in parts)}
    last = max(part.get("last", 0.0) for part in parts)
    return reported | {"seconds": last - min(part["first"] for part in parts)}
