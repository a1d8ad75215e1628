"""`jeton simulate`: a flow under random schedules, all of which must give the same rows."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jeton.cli.command import (
    FAILED,
    FINE,
    BuiltIn,
    UsageError,
    add_json,
    count,
    print_json,
    say,
    whole_number,
)
from jeton.cli.run import add_inputs

if TYPE_CHECKING:
    from jeton.cli.simulation import Rows, Seen

_SHOWN: Final = 3
"""Rows of a difference that are shown."""


@dataclass
class Campaign:
    """The results of many seeds."""

    flow: str
    workers: int
    seeds: int = 0
    restores: int = 0
    checks: int = 0
    failed: dict[str, Any] | None = field(default=None)

    def add(self, seen: Seen) -> None:
        """Count a seed whose rows were right."""
        self.seeds += 1
        self.restores += seen.restores
        self.checks += seen.checks


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from jeton.cli.flows import add_flow

    add_flow(parser)
    add_inputs(parser)
    parser.add_argument(
        "--rows",
        type=whole_number("a number of rows"),
        default=200,
        metavar="N",
        help="random rows for each input without a file, by its schema (default: 200)",
    )
    parser.add_argument(
        "--workers",
        type=whole_number("a number of workers"),
        default=3,
        metavar="N",
        help="number of simulated workers (default: 3)",
    )
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument(
        "--seeds",
        type=whole_number("a number of seeds"),
        default=100,
        metavar="N",
        help="try the seeds 0 to N-1 (default: 100)",
    )
    seeds.add_argument(
        "--seed",
        type=whole_number("a seed", least=0),
        metavar="SEED",
        help="try this one only, as a failure names it",
    )
    parser.add_argument(
        "--no-restores",
        action="store_true",
        help="never stop at a snapshot and go on from it with another number of workers",
    )
    add_json(parser, "a summary (seeds, restores, checks, seconds, the failure if there is one)")


def _run(options: argparse.Namespace) -> int:
    from jeton.cli.flows import find_flow, require_names
    from jeton.cli.run import read_inputs
    from jeton.cli.simulation import Simulation, random_tables
    from jeton.cli.tables import named_formats, named_paths

    paths = named_paths(options.input, "--input")
    named = find_flow(options.flow)
    flow = named.make()
    require_names(paths, flow.inputs, "input", flow)
    if not flow.outputs:
        raise UsageError(f"flow {flow.name!r} has no outputs, so there is nothing to compare")
    general, formats = named_formats(options.format, list(paths))
    files = {name: (path, formats.get(name), general) for name, path in paths.items()}
    tables = read_inputs(files)
    tables |= random_tables(flow, [n for n in flow.inputs if n not in tables], options.rows)
    simulation = Simulation(named.make, tables, options.workers, restores=not options.no_restores)
    campaign = Campaign(flow.name, options.workers)
    seeds = range(options.seeds) if options.seed is None else [options.seed]
    began = time.perf_counter()
    expected = simulation.plain()
    for seed in _with_bar(seeds, flow.name):
        seen = simulation.run(seed)
        if seen.error is None and seen.rows == expected:
            campaign.add(seen)
            continue
        campaign.failed = {
            "seed": seed,
            "error": seen.error,
            "restores": seen.restores,
            "outputs": {} if seen.error else _differences(expected, seen.rows),
            "command": _command(options, seed),
        }
        break
    seconds = time.perf_counter() - began
    _report(campaign, seconds, options.json)
    return FINE if campaign.failed is None else FAILED


def _with_bar(seeds: Sequence[int], name: str) -> Iterable[int]:
    if not sys.stderr.isatty():
        return seeds
    from tqdm import tqdm

    bar: Iterable[int] = tqdm(seeds, desc=name, unit=" seeds", leave=False)
    return bar


def _differences(expected: Mapping[str, Rows], found: Mapping[str, Rows]) -> dict[str, Any]:
    """For each output that differs, the rows that are missing and those that should not be."""
    return {
        name: {
            "missing": _dictionaries(expected[name] - found[name]),
            "unexpected": _dictionaries(found[name] - expected[name]),
        }
        for name in expected
        if expected[name] != found[name]
    }


def _dictionaries(rows: Counter[Any]) -> list[Any]:
    from jeton.cli.tables import plain

    return [plain(dict(row)) for row in sorted(rows.elements(), key=repr)]


def _command(options: argparse.Namespace, seed: int) -> str:
    """The command line that runs one seed again."""
    words = ["jeton", "simulate", options.flow, "--seed", str(seed)]
    words += ["--workers", str(options.workers)]
    for value in options.input:
        words += ["--input", value]
    for value in options.format:
        words += ["--format", value]
    words += ["--rows", str(options.rows)]
    if options.no_restores:
        words.append("--no-restores")
    return shlex.join(words)


def _report(campaign: Campaign, seconds: float, as_json: bool) -> None:
    failed = campaign.failed
    if as_json:
        print_json(
            {
                "flow": campaign.flow,
                "workers": campaign.workers,
                "seeds": campaign.seeds,
                "restores": campaign.restores,
                "checks": campaign.checks,
                "seconds": round(seconds, 3),
                "failed": failed,
            }
        )
        return
    if failed is None:
        print(
            f"{campaign.flow}: the same rows under {count(campaign.seeds, 'schedule')} of "
            f"{count(campaign.workers, 'worker')}, with {count(campaign.restores, 'restore')}; "
            f"frontiers were checked {campaign.checks:,} times"
        )
        return
    say(f"{campaign.flow}: seed {failed['seed']} " + ("failed" if failed["error"] else "differs"))
    if failed["restores"]:
        say(
            f"  It went on from a snapshot {count(failed['restores'], 'time')}: --no-restores "
            "tells whether schedules alone do it"
        )
    if failed["error"]:
        say(failed["error"])
    for name, difference in failed["outputs"].items():
        for what, rows in difference.items():
            if rows:
                say(f"  {name}: {count(len(rows), 'row')} {what}")
                for row in rows[:_SHOWN]:
                    say(f"    {row}")
    say(f"Before it, {count(campaign.seeds, 'seed')} gave the same rows. To run it again:")
    say(f"  {failed['command']}")


COMMAND: Final = BuiltIn(
    "simulate",
    "run a flow under random schedules and compare the rows",
    "Run a flow in this process under random schedules: workers step and messages arrive in any "
    "order, and some runs stop at a snapshot and go on from it with another number of workers. "
    "Every schedule must give the rows of the plain run. Inputs without a file get random rows, by "
    "their schema.",
    "\n".join(
        (
            "jeton simulate averages.py:flow --seeds 1000",
            "jeton simulate averages.py:flow --input readings=readings.csv --workers 5",
        )
    ),
    _add_arguments,
    _run,
)
