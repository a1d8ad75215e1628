"""The whole evaluation, run by run: each run is appended as one JSON line when it is done.

A sweep that was interrupted resumes: runs that are in the file are not run again.
`jeton_evaluation.bench.plan` lists the runs; ``--list`` says how long those that are left take.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated

from tqdm import tqdm

from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.experiment import HostName
from jeton_evaluation.bench.harness import Line, OptionError, Say, command
from jeton_evaluation.bench.plan import FULL, PARTS, QUICK, Run, plan
from jeton_evaluation.bench.runs import machine, read_lines, same_machine

OUT = Path("docs/evaluation/runs.jsonl")


def run(
    say: Say,
    quick: Annotated[bool, "fewer and shorter runs, to try it"] = False,
    seconds: Annotated[float | None, "measured in each run (default: 5, quick: 1)"] = None,
    only: Annotated[str, f"only these parts, P,P,… of: {', '.join(PARTS)}"] = "",
    out: Annotated[Path, "JSON lines"] = OUT,
    again: Annotated[bool, "repeat runs that the file has"] = False,
    list: Annotated[bool, "list the runs and stop"] = False,
    host: Annotated[HostName, "where flows run"] = "spark",
) -> Generator[Line, None, int]:
    """Run the runs that the file does not have, or list them; returns 0 if none failed."""
    parts = only.split(",") if only else [*PARTS]
    if unknown := {*parts} - {*PARTS}:
        raise OptionError(
            f"there is no part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}"
        )
    had = read_lines(out)
    done = set() if again else {line.get("run") for line in had}
    scale = QUICK if quick else FULL
    if seconds is not None:
        scale = replace(scale, seconds=seconds)
    todo = [run for run in plan(scale, parts) if run.id not in done]
    if host != "spark":
        todo = [run for run in todo if not run.needs_spark]
    if not list:
        return sweep(todo, out, had, host)
    for each in todo:
        say(f"{each.id}   {each.seconds:.0f} s")
        yield {"run": each.id, "about_seconds": round(each.seconds)}
    say(f"{len(todo)} runs, about {sum(run.seconds for run in todo) / 60:.0f} minutes")
    return 0


main = command(run)


def sweep(runs: Sequence[Run], out: Path, had: Sequence[Line], host: HostName) -> int:
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
            with experiment.open_host(host if workers else "in-process", max(workers, 1)) as where:
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
