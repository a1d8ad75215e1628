"""A long-lived query whose workers and executors are killed at named points: a driver's program."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import jeton as jt
from jeton.connectors.sinks import Parquet, SinkContext, Writer
from jeton.connectors.sources import Reader, Source, number_of, numbered
from tests.soak.fatal import Plans, Planter, guarded
from tests.soak.sessions import cluster

ROWS = 40
"""Records of a partition in one table."""
PAUSE = 0.05
"""Seconds from one table of a partition to the next."""
KEYS = 97
SIZE = 1000
PATIENCE = 60.0

POINTS = ("step", "snapshot", "write", "stage", "build", "restore")


class Numbers(Source):
    """Numbered records, until a file says that it is enough.

    Where a partition ends is then written down, so that a reader that goes back to an earlier
    position ends at the same record.
    """

    def __init__(self, folder: Path, partitions: int) -> None:
        self._folder = folder
        self._partitions = partitions

    def partitions(self, workers: int) -> dict[str, None]:
        """As many as were asked for."""
        return numbered(self._partitions)

    def open(self, partition: str, position: Any | None) -> Reader:
        """Read on from a position."""
        return _NumbersReader(self._folder, *number_of(partition), position or 0)

    def last(self, partition: int) -> int:
        """How many records a partition had in the end."""
        return int((self._folder / f"end-{partition}").read_text())


class _NumbersReader(Reader):
    def __init__(self, folder: Path, partition: int, partitions: int, position: int) -> None:
        self._folder = folder
        self._partition = partition
        self._partitions = partitions
        self._next = position
        self.ready_at = time.monotonic()

    def read(self) -> Any | None:
        now = time.monotonic()
        assert self.ready_at is not None
        if now < self.ready_at:
            return None
        end = self._folder / f"end-{self._partition}"
        if end.exists():
            self.ended = self._next >= int(end.read_text())
        elif (self._folder / "enough").exists():
            # Written beside and renamed, so that nobody reads a part of it.
            beside = self._folder / f".end-{self._partition}"
            beside.write_text(str(self._next))
            beside.rename(end)
            self.ended = True
        if self.ended:
            return None
        self.ready_at = now + PAUSE
        first, self._next = self._next, self._next + ROWS
        numbers = [n * self._partitions + self._partition for n in range(first, self._next)]
        return records(numbers)

    @property
    def position(self) -> int:
        return self._next


def records(numbers: list[int]) -> dict[str, Any]:
    """The records of these numbers."""
    return {
        "time": numbers,
        "k": [n * 7919 % KEYS for n in numbers],
        "v": [n * 31 % 1009 for n in numbers],
    }


class FatalParquet(Parquet):
    """Parquet files, whose writers may end their process."""

    def __init__(self, path: Path, plans: Plans) -> None:
        super().__init__(path)
        self._plans = plans

    def open(self, context: SinkContext) -> Writer:
        """Write on this worker, past the points `write` and `stage`."""
        assert context.worker is not None
        return _FatalWriter(super().open(context), self._plans, context.worker)


class _FatalWriter(Writer):
    def __init__(self, writer: Writer, plans: Plans, worker: int) -> None:
        self._writer = writer
        self._plans = plans
        self._worker = worker

    def write(self, table: pa.Table) -> None:
        self._writer.write(table)
        self._plans.reach("write", self._worker)

    def stage(self, version: int) -> list[Any]:
        staged = self._writer.stage(version)
        self._plans.reach("stage", self._worker)
        return staged

    def close(self) -> None:
        self._writer.close()


def flow_of(plans: Plans) -> jt.Flow:
    """The program that is killed."""
    flow = jt.Flow("killed")
    rows = flow.input("r", schema={"k": int, "v": int}, lateness=10**9)
    safe = guarded(plans, rows, "k")
    flow.output("counts", safe.key_by("k").running().count().select("k", "count"))
    flow.output("passed", rows.select("k"))
    flow.output("sums", safe.key_by("k").tumbling(SIZE).sum("v"))
    return flow


def expected(source: Numbers, partitions: int) -> dict[str, Counter[tuple[int, ...]]]:
    """The expected outputs, by plain counting."""
    numbers = [
        n * partitions + partition
        for partition in range(partitions)
        for n in range(source.last(partition))
    ]
    seen: Counter[int] = Counter(n * 7919 % KEYS for n in numbers)
    sums: Counter[tuple[int, int]] = Counter()
    for n in numbers:
        sums[(n // SIZE + 1) * SIZE, n * 7919 % KEYS] += n * 31 % 1009
    return {
        "counts": Counter((k, n + 1) for k, count in seen.items() for n in range(count)),
        "passed": Counter((n, n * 7919 % KEYS) for n in numbers),
        "sums": Counter((end, k, total) for (end, k), total in sums.items()),
    }


def written(folder: Path, name: str) -> Iterator[tuple[int, ...]]:
    """The rows of an output."""
    columns = {"counts": ["k", "count"], "passed": ["time", "k"], "sums": ["time", "k", "sum"]}
    for path in (folder / name).glob("part-*"):
        table = pq.read_table(path, columns=columns[name])
        yield from zip(*(column.to_pylist() for column in table.columns), strict=True)


def main(folder: str, slots: str, seed: str, seconds: str) -> None:
    """Run a query for a while, kill, check, and print what was seen as JSON."""
    root, workers, random = Path(folder), int(slots), Random(int(seed))
    plans, source = Plans(root / "plans"), Numbers(root, int(slots) + 1)
    spark = cluster(root, workers)
    deadline = time.monotonic() + float(seconds)
    query = flow_of(plans).start(
        spark,
        sources={"r": source},
        sinks={name: FatalParquet(root / name, plans) for name in ("counts", "passed", "sums")},
        workers=workers,
        checkpoint=root / "checkpoint",
        every=0.5,
        restarts=50,
    )

    def progress() -> int:
        return int(query.metrics()["checkpoints"]["version"] or 0)

    planter = Planter(plans, POINTS, workers, random, progress=progress, patience=PATIENCE)
    planter.run(deadline, lambda: not query.is_active)
    (root / "enough").touch()
    failures = []
    try:
        assert query.await_termination(300.0), "the query does not end"
    except Exception as error:
        failures.append(str(error)[:2000])
    spark.stop()
    lost = doubled = rows = 0
    if not failures:
        for name, want in expected(source, workers + 1).items():
            have = Counter(written(root, name))
            lost += (want - have).total()
            doubled += (have - want).total()
            rows += have.total()
    seen = {"hits": plans.hits(), "failures": failures, "batches": progress(), "rows": rows}
    print(json.dumps({**seen, "lost": lost, "doubled": doubled}))


if __name__ == "__main__":
    main(*sys.argv[1:])
