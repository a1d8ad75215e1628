"""Campaigns that CI leaves out: ``make soak MINUTES=60`` runs all of them and ends with a table."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tqdm import tqdm

from tests.soak.campaigns import LANES, Campaign
from tests.soak.outcome import Outcome, table

TICK = 0.5


def main(arguments: list[str] | None = None) -> int:
    """Run the campaigns; returns 0 if none has found anything."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to run in all")
    parser.add_argument("--seed", type=int, help="to repeat a run; random by default")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="campaigns to run")
    options = parser.parse_args(arguments)
    known = [campaign.name for lane in LANES for campaign in lane]
    if unknown := set(options.only or ()) - set(known):
        parser.error(f"there are no campaigns {sorted(unknown)}: the names are {known}")
    seed = int.from_bytes(os.urandom(3)) if options.seed is None else options.seed
    print(f"{options.minutes:g} minutes, seed {seed}", flush=True)
    chosen = [[c for c in lane if not options.only or c.name in options.only] for lane in LANES]
    outcomes = {c.name: Outcome(c.name) for lane in chosen for c in lane}
    with TemporaryDirectory(prefix="jeton-soak-") as folder:
        lanes = [
            threading.Thread(
                target=run_lane,
                args=(lane, Path(folder), options.minutes * 60, seed, outcomes),
                daemon=True,
            )
            for lane in chosen
            if lane
        ]
        for thread in lanes:
            thread.start()
        watch(lanes, outcomes, options.minutes * 60)
    print(table(list(outcomes.values())))
    problems = [f"{one.name}: {text}" for one in outcomes.values() for text in one.problems()]
    for problem in problems:
        print(problem)
    print(f"{len(outcomes) - len({p.split(':')[0] for p in problems})} campaigns without a finding")
    return 1 if problems else 0


def run_lane(
    lane: list[Campaign], folder: Path, seconds: float, seed: int, outcomes: dict[str, Outcome]
) -> None:
    """Run campaigns one after the other, each for its share of the time."""
    end = time.monotonic() + seconds
    for at, campaign in enumerate(lane):
        # What the campaigns before left over, or took beyond their time, is shared by the others.
        left = sum(other.share for other in lane[at:])
        until = time.monotonic() + max(0.0, end - time.monotonic()) * campaign.share / left
        # Not by hash(), which differs from one process to the next.
        random = Random(f"{seed} {campaign.name}")
        outcome, number = outcomes[campaign.name], 0
        while time.monotonic() < until and not (campaign.once and number):
            place = folder / f"{campaign.name.replace(' ', '-')}-{number}"
            place.mkdir()
            try:
                outcome.add(campaign.run(place, random, number, until - time.monotonic()))
            except Exception as error:
                outcome.runs += 1
                outcome.failed.append(f"run {number}: {type(error).__name__}: {error}")
            number += 1


def watch(lanes: list[threading.Thread], outcomes: dict[str, Outcome], seconds: float) -> None:
    """Show how far the campaigns are until all lanes have ended."""
    began = time.monotonic()
    form = "{l_bar}{bar}| {elapsed}{postfix}"
    with tqdm(total=seconds, unit="s", bar_format=form, file=sys.stderr) as bar:
        while any(thread.is_alive() for thread in lanes):
            bar.n = min(time.monotonic() - began, seconds)
            bar.set_postfix_str(
                ", ".join(f"{one.name} {one.hit}" for one in outcomes.values() if one.runs)
            )
            lanes[0].join(TICK)
            if not lanes[0].is_alive():
                lanes.append(lanes.pop(0))


if __name__ == "__main__":
    sys.exit(main())
