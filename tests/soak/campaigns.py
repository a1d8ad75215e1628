"""The campaigns: what each does in one run, and how much of the time it gets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SLOTS: Final = (4, 6, 8)
SINKS: Final = ("foreach", "files", "long-lived")
RUN: Final = 150.0
"""Seconds for which one Spark session is used, if there is that much time."""
GRACE: Final = 600.0
"""Seconds that a run may take beyond its time before it counts as hanging."""

Seen = Mapping[str, Any]
"""What one run has seen: see `Outcome.add`."""


@dataclass(frozen=True)
class Campaign:
    """Something that is done again and again, with other random choices each time."""

    name: str
    run: Callable[[Path, Random, int, float], Seen]
    """Takes a folder, random choices, the number of the run and the seconds that are left."""
    share: float
    """Its part of the time of its lane."""


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


LANES: Final = (
    (
        Campaign("kills", kills, share=3.0),
        Campaign("deletions", deletions, share=1.0),
    ),
)
"""Campaigns that run one after the other; lanes run side by side."""
