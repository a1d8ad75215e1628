"""The campaigns: what each does in one run, and how much of the time it gets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).parents[2]
SLOTS: Final = (4, 6, 8)
SINKS: Final = ("foreach", "files", "long-lived")
RUN: Final = 240.0
"""Seconds for which one Spark session is used, if there is that much time."""
GRACE: Final = 600.0
"""Seconds that a run may take beyond its time before it counts as hanging."""

Seen = Mapping[str, Any]
"""The result of one run: see `Outcome.add`."""


@dataclass(frozen=True)
class Campaign:
    """Something that is done again and again, with other random choices each time."""

    name: str
    run: Callable[[Path, Random, int, float], Seen]
    """Takes a folder, random choices, the number of the run and the seconds that are left."""
    share: float
    """Its part of the time of its lane."""
    once: bool = False
    """Whether one run is all there is to it, however much time is left."""


def program(module: str, folder: Path, *arguments: object, seconds: float) -> Seen:
    """Run a program that ends with a line of JSON; nothing that it started is left behind."""
    command = [sys.executable, "-m", module, str(folder), *map(str, arguments)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        try:
            out, _ = process.communicate(timeout=seconds + GRACE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        tail = (folder / "log").read_text(errors="replace")[-2000:]
        raise AssertionError(f"{' '.join(command[2:])} ended with {process.returncode}: {tail}")
    seen: Seen = json.loads(out.decode().splitlines()[-1])
    shutil.rmtree(folder, ignore_errors=True)
    return {**seen, "run": " ".join(command[2:])}


def kills(folder: Path, random: Random, number: int, seconds: float) -> Seen:
    """Workers and executors are killed at named points, for each sink and number of slots."""
    slots, sink = SLOTS[number % 3], SINKS[number // 3 % 3]
    seconds = min(RUN, seconds)
    seed = random.randrange(1 << 24)
    if sink == "long-lived":
        module = "tests.soak.killed_long_lived"
        seen = program(module, folder, slots, seed, seconds, seconds=seconds)
    else:
        module = "tests.soak.killed_micro_batches"
        seen = program(module, folder, slots, sink, seed, seconds, seconds=seconds)
    hits = {f"{sink}/{slots}/{point}": count for point, count in seen["hits"].items()}
    return {**seen, "hits": hits}


def deletions(folder: Path, random: Random, number: int, seconds: float) -> Seen:
    """Shuffle files and cached blocks are deleted while a micro-batch is read."""
    seconds = min(RUN, seconds)
    arguments = SLOTS[number % 3], random.randrange(1 << 24), seconds
    return program("tests.soak.deletions", folder, *arguments, seconds=seconds)


def pauses(folder: Path, random: Random, number: int, seconds: float) -> Seen:
    """Drivers are suspended at any step of a commit while a rival starts."""
    seconds = min(RUN, seconds)
    arguments = random.randrange(1 << 24), seconds
    return program("tests.soak.pauses", folder, *arguments, seconds=seconds)


def stalls(folder: Path, random: Random, number: int, seconds: float) -> Seen:
    """A peer is busy for 10, 31 or 60 seconds, or its machine vanishes."""
    return program("tests.soak.stalls", folder, random.randrange(1 << 24), number, seconds=RUN)


def strangers(folder: Path, random: Random, number: int, seconds: float) -> Seen:
    """Strangers flood a rendezvous in different ways."""
    seconds = min(RUN, seconds)
    arguments = random.randrange(1 << 24), seconds
    return program("tests.soak.strangers", folder, *arguments, seconds=seconds)


def oracle(folder: Path, random: Random, number: int, seconds: float) -> Seen:
    """Random pipelines are compared with SQL; one run of three is on Spark too."""
    seconds = min(2 * RUN, seconds)
    where = "spark" if number % 3 == 1 else "here"
    arguments = random.randrange(1 << 40), seconds, where
    return program("tests.soak.oracle_cases", folder, *arguments, seconds=seconds)


def moves(folder: Path, random: Random, number: int, seconds: float) -> Seen:
    """State of every keyed operator moves at random in simulated runs that crash."""
    seconds = min(2 * RUN, seconds)
    arguments = random.randrange(1 << 40), seconds
    return program("tests.soak.moves", folder, *arguments, seconds=seconds)


def rescaled(folder: Path, random: Random, number: int, seconds: float) -> Seen:
    """State moves and the number of workers changes on Spark, while workers are killed."""
    seconds = min(2 * RUN, seconds)
    arguments = random.randrange(1 << 24), seconds
    return program("tests.soak.rescaled", folder, *arguments, seconds=seconds)


def long_tests(folder: Path, random: Random, number: int, seconds: float) -> Seen:
    """The tests that are marked as long, file by file, as far as the time goes."""
    until = time.monotonic() + seconds
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "long"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    files = sorted({line.split("::")[0] for line in listed.stdout.splitlines() if "::" in line})
    random.shuffle(files)
    passed, left_out, wrong = 0, 0, list[str]()
    for at, file in enumerate(files):
        report = folder / f"{at}.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "long",
            f"--junit-xml={report}",
            file,
        ]
        try:
            with (folder / "log").open("ab") as log:
                limit = max(1.0, until - time.monotonic())
                subprocess.run(
                    command, cwd=ROOT, stdout=log, stderr=log, check=False, timeout=limit
                )
        except subprocess.TimeoutExpired:
            left_out += 1
            continue
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                wrong.append(f"{case.get('classname')}::{case.get('name')}")
            else:
                passed += case.find("skipped") is None
    if left_out:
        print(f"long tests: no time was left for {left_out} of {len(files)} files", flush=True)
    return {"hits": {"passed": passed}, "rows": 0, "lost": 0, "doubled": 0, "wrong": wrong}


LANES: Final = (
    (
        Campaign("kills", kills, share=3.0),
        Campaign("deletions", deletions, share=1.0),
        Campaign("rescaled", rescaled, share=1.0),
    ),
    (
        Campaign("pauses", pauses, share=1.0),
        Campaign("stalls", stalls, share=1.5),
        Campaign("strangers", strangers, share=0.5),
        Campaign("oracle", oracle, share=3.0),
        Campaign("moves", moves, share=1.5),
        Campaign("long tests", long_tests, share=2.0, once=True),
    ),
)
"""Campaigns that run one after the other; lanes run side by side."""
