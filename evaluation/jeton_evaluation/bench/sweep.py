"""The whole evaluation, run by run: each run is appended as one JSON line when it is done.

A sweep that was interrupted resumes: runs that are in the file are not run again.
`jeton_evaluation.bench.plan` lists the runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from tqdm import tqdm

from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.experiment import Line
from jeton_evaluation.bench.machine import machine, same_machine
from jeton_evaluation.bench.plan import FULL, PARTS, QUICK, Run, plan
from jeton_evaluation.bench.runs import read_lines

OUT = Path("docs/evaluation/runs.jsonl")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the runs that the file does not have."""
    parser = argparse.ArgumentParser(
        prog="jeton bench sweep", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs, to try it")
    parser.add_argument("--seconds", type=float, help="measured in each run (default: 5, quick: 1)")
    parser.add_argument("--only", metavar="P,P", help=f"only these parts, of: {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=OUT, help=f"JSON lines (default: {OUT})")
    parser.add_argument("--again", action="store_true", help="repeat runs that the file has")
    parser.add_argument("--list", action="store_true", help="list the runs and stop")
    parser.add_argument("--host", default="spark", choices=["spark", "in-process"])
    parsed = parser.parse_args(argv)
    parts = parsed.only.split(",") if parsed.only else list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"there are no parts {unknown}: choose from {', '.join(PARTS)}")
    had = read_lines(parsed.out)
    done = set() if parsed.again else {line.get("run") for line in had}
    scale = QUICK if parsed.quick else FULL
    if parsed.seconds is not None:
        scale = replace(scale, seconds=parsed.seconds)
    todo = [run for run in plan(scale, parts) if run.id not in done]
    if parsed.host != "spark":
        todo = [run for run in todo if not run.needs_spark]
    if parsed.list:
        for run in todo:
            print(f"{run.id}   {run.seconds:.0f} s")
        print(f"{len(todo)} runs, about {sum(run.seconds for run in todo) / 60:.0f} minutes")
        return 0
    return sweep(todo, parsed.out, had, parsed.host)


def sweep(runs: Sequence[Run], out: Path, had: Sequence[Line], host: str) -> int:
    """Run them, with one session for each number of workers; returns 0 if none failed."""
    if not runs:
        print(f"{out} has all of these runs", file=sys.stderr)
        return 0
    out.parent.mkdir(parents=True, exist_ok=True)
    _drop_unfinished_line(out)
    failed = []
    by_workers = sorted(runs, key=lambda run: run.workers)
    with (
        out.open("a") as file,
        tqdm(
            total=sum(whole(run) for run in runs),
            bar_format="{desc} {percentage:3.0f}% |{bar}| {elapsed} elapsed, {remaining} left",
            file=sys.stderr,
        ) as bar,
    ):

        def write(line: Line) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        here = machine()
        machines = [line for line in had if line.get("experiment") == "machine"]
        if not machines or not same_machine(machines[-1], here):
            write(here)
        for workers, together in groupby(by_workers, key=lambda run: run.workers):
            # Runs with no workers of the host simulate them or start processes.
            with experiment.host(host if workers else "in-process", max(workers, 1)) as where:
                for run in together:
                    bar.set_description_str(run.id)
                    try:
                        write({"run": run.id, **run.measure(where)})
                    except Exception as error:
                        # The sweep continues without it; the next sweep tries it again.
                        failed.append(run.id)
                        tqdm.write(f"{run.id}: {type(error).__name__}: {error}", file=sys.stderr)
                    bar.update(whole(run))
    if failed:
        print(f"{len(failed)} of {len(runs)} runs failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def whole(run: Run) -> int:
    """The seconds it takes, about: whole ones, so that the progress bar ends at 100 %."""
    return max(round(run.seconds), 1)


def _drop_unfinished_line(out: Path) -> None:
    """Remove an unfinished last line: a sweep was killed while writing."""
    text = out.read_text() if out.exists() else ""
    if not text.endswith("\n"):
        out.write_text(text[: text.rfind("\n") + 1])


if __name__ == "__main__":
    raise SystemExit(main())
