"""Jeton, compared with Bytewax, Pathway, PyFlink and Structured Streaming in the same run.

``jeton bench peers`` runs a running word count over 10,000 keys and a mean by key over windows of
ten seconds, on one worker and on two, and prints the throughput of Jeton relative to each. Each
peer has its own virtual environment, made when it is first needed; each run has its own process and
a time limit; answers are checked. docs/peers.md lists the differences between the systems.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from tqdm import tqdm

import jeton as jt
from jeton_evaluation.bench.harness import Line
from jeton_evaluation.bench.peer_runs import PROGRAMS, Environment, System, run, write_records

_PROGRAMS = Path(__file__).parent / "peer_programs"
_NUMPY = "numpy==2.4.6"
_WHERE = "in process on 1 worker, on Spark on 2"

BYTEWAX = Environment("bytewax", "0.21.1", ("bytewax==0.21.1", _NUMPY))
PATHWAY = Environment("pathway", "0.33.0", ("pathway==0.33.0", _NUMPY))
PYFLINK = Environment("pyflink", "2.3.0", ("apache-flink==2.3.0",), java=True)
SPARK = Environment(
    "spark",
    "4.3.0",
    ("pyspark==4.3.0", "pandas==2.3.3", "pyarrow==26.0.1", "protobuf==7.36.2", _NUMPY),
    java=True,
)


def _peer(
    name: str,
    of: Environment,
    script: str,
    variant: str,
    share: float,
    note: str = "",
    *,
    programs: tuple[str, ...] = PROGRAMS,
    every_record: bool = True,
) -> System:
    path = str(_PROGRAMS / script)
    return System(name, (path,), of.version, of, variant, share, programs, every_record, note)


SYSTEMS = [
    System(
        "jeton", ("-m", "jeton_evaluation.bench.peer_jeton"), jt.__version__, share=40, note=_WHERE
    ),
    _peer("bytewax", BYTEWAX, "bytewax_flows.py", "records", 1),
    _peer("bytewax batches", BYTEWAX, "bytewax_flows.py", "batches", 20, "packed by hand"),
    _peer(
        "pathway",
        PATHWAY,
        "pathway_tables.py",
        "python",
        0.5,
        "emits a key once for each commit",
        every_record=False,
    ),
    _peer(
        "pathway csv",
        PATHWAY,
        "pathway_tables.py",
        "csv",
        2,
        "emits a key once, reads CSV files",
        every_record=False,
    ),
    _peer("pyflink sql", PYFLINK, "flink_jobs.py", "sql", 4, "in Java"),
    _peer(
        "spark sql",
        SPARK,
        "spark_queries.py",
        "sql",
        20,
        "in Java, emits a key once for each micro-batch",
        every_record=False,
    ),
    _peer(
        "spark state",
        SPARK,
        "spark_queries.py",
        "python",
        0.1,
        "transformWithState",
        # Its windows are SQL's.
        programs=("word count",),
    ),
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; ``--json`` prints a line for each run as it ends, and nothing else."""
    parser = argparse.ArgumentParser(
        prog="jeton bench peers", description=(__doc__ or "").split("\n\n")[0]
    )
    names = ", ".join(system.name for system in SYSTEMS)
    parser.add_argument(
        "--only",
        metavar="NAMES",
        help=f"compare with these only, separated by commas (of: {names})",
    )
    parser.add_argument(
        "--records", type=float, default=1e6, help="of the per-record peers (default: 1e6)"
    )
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--limit", type=float, default=600, help="seconds a run (default: 600)")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jeton" / "peers"
    parser.add_argument("--envs", type=Path, default=cache, help=f"default: {cache}")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also append the lines to this file"
    )
    options = parser.parse_args(argv)
    systems = SYSTEMS
    if options.only:
        wanted = {name.strip() for name in options.only.split(",")}
        systems = [s for s in SYSTEMS if s.name == "jeton" or wanted & {s.name, s.name.split()[0]}]
        if unknown := wanted - {n for s in SYSTEMS for n in (s.name, s.name.split()[0])}:
            parser.error(f"no system is called {', '.join(sorted(unknown))}, only {names}")

    def say(line: Line) -> None:
        if options.json:
            print(json.dumps(line), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")

    lines = compare(
        systems, int(options.records), options.rounds, options.envs.resolve(), options.limit, say
    )
    if not options.json:
        print(table(lines))
    return 0


def compare(
    systems: Sequence[System],
    records: int,
    rounds: int,
    environments: Path,
    limit: float,
    say: Callable[[Line], None],
) -> list[Line]:
    """All systems in turn, program by program, so that they share the machine's moods."""
    runs = [
        (system, program, workers)
        for _ in range(rounds)
        for program in PROGRAMS
        for workers in (1, 2)
        for system in systems
        if program in system.programs
    ]
    lines = []
    with (
        tempfile.TemporaryDirectory(prefix="jeton-peers-") as data,
        tqdm(runs, file=sys.stderr, unit="run") as bar,
    ):
        write_records(Path(data), max(_size(system, records) for system in systems))
        for system, program, workers in bar:
            bar.set_description_str(f"{system.name}, {program} × {workers}")
            line = run(
                system,
                program,
                workers,
                _size(system, records),
                data=Path(data),
                environments=environments,
                limit=limit,
            )
            say(line)
            lines.append(line)
    return lines


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


if __name__ == "__main__":
    raise SystemExit(main())
