"""Plans to kill: which process ends, at which point of its work.

A plan is a file. The first process that reaches the point of the plan takes the file away and ends
itself, or the executor that it belongs to. So a plan that is gone is a kill that hit.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import jeton as jt

VICTIMS = ("worker", "worker", "worker", "executor")
"""An executor takes ten times as long to come back as a worker: so one kill of four hits one."""
MOST_IN_A_ROW = 3
"""At most this many kills before the query must commit again."""


class Plans:
    """The plans in a folder, planted by the driver and carried out by workers.

    >>> import tempfile
    >>> plans = Plans(Path(tempfile.mkdtemp()))
    >>> plans.plant("step", worker=1, victim="worker")
    >>> plans.take("step", worker=0), plans.take("step", worker=1), plans.take("step", worker=1)
    (None, 'worker', None)
    >>> plans.hits()
    {'step': 1}
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def plant(self, point: str, worker: int, victim: str) -> None:
        """Have a victim die when a worker reaches a point."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{point}-{worker}-{victim}").touch()

    def planted(self) -> list[Path]:
        """The plans that nobody has carried out yet."""
        return [path for path in self.folder.glob("*-*-*") if not path.name.startswith("done-")]

    def withdraw(self) -> None:
        """Take back all plans."""
        for path in self.planted():
            path.unlink(missing_ok=True)

    def take(self, point: str, worker: int) -> str | None:
        """The victim of a plan for this point, which from now on counts as carried out."""
        for path in self.folder.glob(f"{point}-{worker}-*"):
            victim = path.name.rsplit("-", 1)[1]
            with suppress(FileNotFoundError):
                path.rename(self.folder / f"done-{time.time_ns()}-{path.name}")
                return victim
        return None

    def reach(self, point: str, worker: int) -> None:
        """End this process, or its executor, if there is a plan for it."""
        victim = self.take(point, worker)
        if victim == "executor":
            os.kill(executor_of(os.getpid()), signal.SIGKILL)
            # The executor's end takes its Python workers with it, in a moment.
            time.sleep(30.0)
        if victim is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    def hits(self) -> dict[str, int]:
        """How many kills hit at each point."""
        found: dict[str, int] = {}
        for path in sorted(self.folder.glob("done-*")):
            point = path.name.split("-")[2]
            found[point] = found.get(point, 0) + 1
        return found


class Fatal:
    """Keeps nothing, but may end its process where state is kept and where it is restored."""

    def __init__(self, plans: Plans, worker: int) -> None:
        self._plans = plans
        self._worker = worker

    def snapshot(self) -> pa.Table:
        """A table without rows."""
        self._plans.reach("snapshot", self._worker)
        return pa.table({"bin": pa.array([], pa.uint16())})

    def restore(self, state: pa.Table, tokens: Any) -> None:
        """There is nothing to restore."""
        self._plans.reach("restore", self._worker)


def passing(plans: Plans, point: str, *, keeps: bool) -> Callable[[Any, Any], Any]:
    """An operator that passes records on, and may end its process at a point."""

    def build(token: Any, info: Any) -> Any:
        token.drop()
        if keeps:
            info.keep(Fatal(plans, info.worker))
            plans.reach("build", info.worker)
        else:
            info.keep_nothing()

        def step(input: Any, output: Any) -> None:
            for ref, batch in input:
                output.session(ref).give(batch)
                plans.reach(point, info.worker)

        return step

    return build


def guarded(plans: Plans, rows: jt.Stream, key: str) -> jt.Stream:
    """Records by key, past the points `build`, `step`, `snapshot` and `restore`."""
    return rows.unary(
        passing(plans, "step", keeps=True),
        pact=jt.Exchange(key),
        name="guarded",
        schema=rows.schema,
    )


def emitting(plans: Plans, rows: jt.Stream) -> jt.Stream:
    """Records on their way out, past the point `emit`."""
    return rows.unary(passing(plans, "emit", keeps=False), name="emitting", schema=rows.schema)


def executor_of(worker: int) -> int:
    """A Python worker is a child of its executor's daemon, and that of the executor."""
    return parent_of(parent_of(worker))


def parent_of(pid: int) -> int:
    """The process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


class Planter:
    """Plants one plan at a time, and goes on once the query has recovered from it."""

    def __init__(
        self,
        plans: Plans,
        points: Sequence[str],
        workers: int,
        random: Random,
        *,
        progress: Callable[[], int],
        patience: float,
    ) -> None:
        self._plans = plans
        self._points = points
        self._workers = workers
        self._random = random
        self._progress = progress
        self._patience = patience
        self._next = 0

    def run(self, until: float, is_over: Callable[[], bool]) -> None:
        """Plant until a moment of ``time.monotonic()``, or until the query is over."""
        seen = -1
        while time.monotonic() < until and not is_over():
            # A version more than after the last kill: whatever was lost is back.
            if not self._await_progress(seen, is_over):
                return
            seen = self._progress()
            # Further ones hit the attempts that follow. Spark allows four of a stage.
            for _ in range(self._random.randint(1, MOST_IN_A_ROW)):
                self._plant_one()
                hit = self._await(lambda: not self._plans.planted(), is_over)
                self._plans.withdraw()
                if not hit:
                    break

    def _plant_one(self) -> None:
        point = self._points[self._next % len(self._points)]
        self._next += 1
        self._plans.plant(
            point, self._random.randrange(self._workers), self._random.choice(VICTIMS)
        )
        if point in ("build", "restore"):
            # Workers are built and restored only after one of them was lost.
            self._plans.plant("step", self._random.randrange(self._workers), "worker")

    def _await_progress(self, seen: int, is_over: Callable[[], bool]) -> bool:
        return self._await(lambda: self._progress() > seen, is_over)

    def _await(self, condition: Callable[[], bool], is_over: Callable[[], bool]) -> bool:
        """Whether a condition came to hold in time."""
        deadline = time.monotonic() + self._patience
        while not condition():
            if is_over() or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True
