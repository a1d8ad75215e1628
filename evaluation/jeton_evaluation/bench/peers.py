"""Jeton, compared with Bytewax, Pathway, PyFlink and Structured Streaming in the same run.

``jeton bench peers`` runs a running word count over 10,000 keys and a mean by key over windows of
ten seconds, on one worker and on two, and prints the throughput of Jeton relative to each. Each
peer has its own virtual environment, made when it is first needed; each run has its own process and
a time limit; answers are checked. docs/peers.md lists the differences between the systems. All of
it takes about half an hour, and 4 GB for the environments.

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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import isclose
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import numpy as np
from tqdm import tqdm

import jeton as jt
from jeton.errors import JavaNotFoundError
from jeton.spark.java import ensure_java
from jeton_evaluation.bench.harness import Line, OptionError, Say, command

PROGRAMS: Final = ("word count", "window mean")
KEYS: Final = 10_000
WINDOW: Final = 10_000
"""Milliseconds."""
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jeton" / "peers"


def run(
    say: Say,
    only: Annotated[str, "compare with these only, separated by commas"] = "",
    records: Annotated[int, "records of the per-record peers"] = 1_000_000,
    rounds: Annotated[int, "rounds, of which the median counts"] = 1,
    limit: Annotated[float, "seconds a run"] = 600.0,
    envs: Annotated[Path, "the folder of the peers' environments"] = CACHE,
    out: Annotated[Path | None, "also append the lines to this file"] = None,
) -> Iterator[Line]:
    """Compare all systems; yields a line for each run as it ends."""
    systems, lines = SYSTEMS, []
    if only:
        wanted = {name.strip() for name in only.split(",")}
        systems = [s for s in SYSTEMS if s.name == "jeton" or wanted & {s.name, s.name.split()[0]}]
        if unknown := wanted - {n for s in SYSTEMS for n in (s.name, s.name.split()[0])}:
            names = ", ".join(system.name for system in SYSTEMS)
            raise OptionError(f"no system is called {', '.join(sorted(unknown))}, only {names}")
    for line in compare(systems, records, rounds, envs.resolve(), limit):
        if out:
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")
        lines.append(line)
        yield line
    say(table(lines))


main = command(run)


def compare(
    systems: Sequence[System], records: int, rounds: int, environments: Path, limit: float
) -> Iterator[Line]:
    """All systems in turn, program by program, so that a slow moment hits all of them."""
    runs = [
        (system, program, workers)
        for _, program, workers, system in product(range(rounds), PROGRAMS, (1, 2), systems)
        if program in system.programs
    ]
    with (
        tempfile.TemporaryDirectory(prefix="jeton-peers-") as data,
        tqdm(runs, file=sys.stderr, unit="run") as bar,
    ):
        write_records(Path(data), max(_size(system, records) for system in systems))
        for system, program, workers in bar:
            bar.set_description_str(f"{system.name}, {program} × {workers}")
            size, folder = _size(system, records), Path(data)
            yield run_one(
                system, program, workers, size, data=folder, environments=environments, limit=limit
            )


def _size(system: System, records: int) -> int:
    """A hundred at least, and as many for each of two workers."""
    return max(int(system.share * records) // 2 * 2, 100)


def table(lines: Sequence[Line]) -> str:
    """The lines for people, with how many times as fast Jeton is; medians of all rounds.

    >>> line = {"program": "word count", "workers": 1, "correct": True, "version": "1", "note": ""}
    >>> jeton = line | {"system": "jeton", "records_per_s": 9_000_000}
    >>> peer = line | {"system": "bytewax", "records_per_s": 300_000}
    >>> print(table([jeton, peer]))
    word count, 1 worker            M records/s   jeton/it   answer
    jeton 1                               9.000       1.00   right
    bytewax 1                             0.300      30.00   right
    """
    text = []
    for program in PROGRAMS:
        for workers in (1, 2):
            here = [x for x in lines if (x["program"], x["workers"]) == (program, workers)]
            systems = dict.fromkeys(line["system"] for line in here)
            ours = _rate([line for line in here if line["system"] == "jeton"])
            if systems:
                title = f"{program}, {workers} worker{'s' if workers > 1 else ''}"
                text += ["", f"{title:30}{'M records/s':>13}{'jeton/it':>11}   answer"]
            for system in systems:
                text.append(_row([line for line in here if line["system"] == system], ours))
    return "\n".join(text[1:])


def _row(same: Sequence[Line], ours: float | None) -> str:
    last, rate = same[-1], _rate(same)
    name = f"{last['system']} {last['version']}"
    if rate is None:
        return f"{name:30}{'–':>13}{'–':>11}   {last['note']}"
    ratio = f"{ours / rate:.2f}" if ours else "–"
    # One wrong answer among the rounds is a wrong answer.
    wrong = [line for line in same if line["correct"] is False]
    verdict = f"WRONG: {wrong[0]['note']}" if wrong else f"right  {last['note']}"
    return f"{name:30}{rate / 1e6:>13.3f}{ratio:>11}   {verdict}".rstrip()


def _rate(lines: Sequence[Line]) -> float | None:
    rates = [line["records_per_s"] for line in lines if line["records_per_s"]]
    return median(rates) if rates else None


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


def run_one(
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
    reported: Line = {
        "rows": sum(part["rows"] for part in parts),
        "sum": sum(part["sum"] for part in parts),
        "records": sum(part.get("records", 0) for part in parts),
        "counts": counts,
    }
    if "seconds" in parts[0]:
        return reported | {"seconds": max(part["seconds"] for part in parts)}
    last = max(part.get("last", 0.0) for part in parts)
    return reported | {"seconds": last - min(part["first"] for part in parts)}


_NUMPY = "numpy==2.4.6"
BYTEWAX = Environment("bytewax", "0.21.1", ("bytewax==0.21.1", _NUMPY))
PATHWAY = Environment("pathway", "0.33.0", ("pathway==0.33.0", _NUMPY))
PYFLINK = Environment("pyflink", "2.3.0", ("apache-flink==2.3.0",), java=True)
SPARK = Environment(
    "spark",
    "4.3.0",
    ("pyspark==4.3.0", "pandas==2.3.3", "pyarrow==26.0.1", "protobuf==7.36.2", _NUMPY),
    java=True,
)
WHERE = "in process on 1 worker, on Spark on 2"
IN_JAVA, BY_KEY = "in Java, emits a key once for each micro-batch", "transformWithState"
SELDOM = {"every_record": False}


def _peer(
    name: str, of: Environment, script: str, variant: str, share: float, note: str = "", **more: Any
) -> System:
    path = str(Path(__file__).parent / "peer_programs" / script)
    return System(name, (path,), of.version, of, variant, share, note=note, **more)


SYSTEMS = [
    System(
        "jeton", ("-m", "jeton_evaluation.bench.peer_jeton"), jt.__version__, share=40, note=WHERE
    ),
    _peer("bytewax", BYTEWAX, "bytewax_flows.py", "records", 1),
    _peer("bytewax batches", BYTEWAX, "bytewax_flows.py", "batches", 20, "packed by hand"),
    *(
        _peer(name, PATHWAY, "pathway_tables.py", variant, share, note, **SELDOM)
        for name, variant, share, note in (
            ("pathway", "python", 0.5, "emits a key once for each commit"),
            ("pathway csv", "csv", 2, "emits a key once, reads CSV files"),
        )
    ),
    _peer("pyflink sql", PYFLINK, "flink_jobs.py", "sql", 4, "in Java"),
    _peer("spark sql", SPARK, "spark_queries.py", "sql", 20, IN_JAVA, **SELDOM),
    # Its windows are SQL's.
    _peer("spark state", SPARK, "spark_queries.py", "python", 0.1, BY_KEY, programs=PROGRAMS[:1]),
]
