"""Pathway: ``groupby().reduce`` and ``windowby``, from a Python source and from CSV files.

Run by `bench.peers` in Pathway's environment. The Python source has its records in memory
before the clock starts, and is read on one worker. A CSV file is read from
the page cache, one for each worker. Pathway emits a key once for each commit, not for each record.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["PATHWAY_THREADS"] = sys.argv[3]

import numpy as np
import pathway as pw


class Record(pw.Schema):
    key: int
    time: int
    value: int


class Python(pw.io.python.ConnectorSubject):
    def __init__(self, rows: list[tuple[int, int, int]], clock: dict[str, float]) -> None:
        super().__init__()
        self.rows, self.clock = rows, clock

    def run(self) -> None:
        self.clock["first"] = time.perf_counter()
        for key, at, value in self.rows:
            self.next(key=key, time=at, value=value)


def main(variant: str, program: str, workers: int, records: int, data: Path, out: Path) -> None:
    clock: dict[str, float] = {}
    columns = [np.load(data / f"{name}.npy")[:records] for name in ("keys", "times", "values")]
    if variant == "python":
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        table = pw.io.python.read(Python(rows, clock), schema=Record, autocommit_duration_ms=100)
    else:
        (out / "csv").mkdir()
        for part in range(workers):
            share = np.stack([column[part::workers] for column in columns], axis=1)
            name = out / "csv" / f"{part}.csv"
            np.savetxt(name, share, "%d", ",", header="key,time,value", comments="")
        table = pw.io.csv.read(out / "csv", schema=Record, mode="static")
    reported: dict[str, Any] = {"rows": 0, "counts": {}, "sum": 0.0}
    if program == "word count":
        answer = table.groupby(pw.this.key).reduce(pw.this.key, count=pw.reducers.count())
    else:
        answer = table.windowby(
            pw.this.time,
            window=pw.temporal.tumbling(duration=10_000),
            behavior=pw.temporal.exactly_once_behavior(shift=1000),
            instance=pw.this.key,
        ).reduce(mean=pw.reducers.avg(pw.this.value))

    def count(key: Any, row: dict[str, int], time: int, is_addition: bool) -> None:
        if is_addition:
            reported["rows"] += 1
            reported["counts"][row["key"]] = row["count"]

    def add_up(key: Any, row: dict[str, float], time: int, is_addition: bool) -> None:
        reported["rows"] += 1 if is_addition else -1
        reported["sum"] += row["mean"] if is_addition else -row["mean"]

    def end() -> None:
        clock["last"] = time.perf_counter()

    on_change = count if program == "word count" else add_up
    pw.io.subscribe(answer, on_change=on_change, on_end=end)
    clock["first"] = time.perf_counter()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    (out / "reported.json").write_text(json.dumps(clock | reported))


if __name__ == "__main__":
    variant, program, workers, records, data, out = sys.argv[1:]
    main(variant, program, int(workers), int(records), Path(data), Path(out))
