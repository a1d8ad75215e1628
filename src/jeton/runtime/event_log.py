"""The event log: what a run or a query did, as Arrow files.

A *sampled* log has a row for each operator of each worker and second, which the driver writes. A
*full* log has a row for each invocation of an operator, which its worker writes. Both have the same
columns. Files are rotated, and the oldest of a writer are removed when its share of the limit is
used up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from jeton.core.errors import GraphError
from jeton.runtime.metrics import measure, plain
from jeton.runtime.monitor import Observation
from jeton.runtime.operator import Operator
from jeton.runtime.worker import Worker

SCHEMA: Final = pa.schema(
    {
        "clock": pa.timestamp("us", "UTC"),
        "run": pa.dictionary(pa.int32(), pa.string()),
        "worker": pa.int32(),
        "operator": pa.dictionary(pa.int32(), pa.string()),
        "kind": pa.dictionary(pa.int8(), pa.string()),
        "frontier": pa.string(),
        "seconds": pa.float64(),
        "records_in": pa.int64(),
        "records_out": pa.int64(),
        "tokens": pa.int64(),
        "queued": pa.int64(),
        "unit": pa.dictionary(pa.int8(), pa.string()),
    }
)
"""The columns. Counts and seconds of an invocation are its own. Those of a sample are totals of one
run of the driver, over all attempts at a query: each writer has a ``run`` of its own. The ``unit``
is that of the frontier's times, once it is known."""
BATCH: Final = 4096
"""Events that are written at a time."""
LATEST: Final = 1.0
"""Seconds after which events are written though they are few."""
LIMIT: Final = 256 << 20
"""Bytes of files that a writer keeps, by default."""
FILES: Final = 8
"""Files into which a writer's share is divided, so that the oldest can go."""


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """Where a log is written, and how much of it."""

    path: str
    limit: int = LIMIT
    """Bytes of files that each writer keeps: the driver, or each worker of a full log."""

    def __post_init__(self) -> None:
        least = FILES * 1024
        if self.limit < least:
            raise GraphError(f"an event log needs limit={least} bytes or more, not {self.limit}")


class EventWriter:
    """Writes events to files, and removes the oldest of its own.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with EventWriter(LogSettings(path=folder), "driver") as writer:
    ...     writer.add(0.0, 0, "map", "sample", "[7]", 0.5, 10, 10, 1, 0, None)
    >>> [file.name for file in Path(folder).iterdir()]
    ['driver-000001.arrow']
    """

    def __init__(self, settings: LogSettings, name: str) -> None:
        self._folder = Path(settings.path)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._name = name
        self._most = settings.limit // FILES
        self._written: list[Path] = sorted(self._folder.glob(f"{name}-*.arrow"))
        self._number = 1 + max(
            (int(file.stem.rpartition("-")[2]) for file in self._written), default=0
        )
        self._file: pa.NativeFile | None = None
        self._writer: pa.RecordBatchWriter | None = None
        self._events: list[tuple[Any, ...]] = []
        self._run = f"{name}-{uuid4().hex[:12]}"

    def add(self, clock: float, *event: Any) -> None:
        """Note an event, with a value for each column but the run; the clock is since 1970."""
        self._events.append((clock, self._run, *event))
        if len(self._events) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Write what was noted."""
        if not self._events:
            return
        columns = list(zip(*self._events, strict=True))
        self._events.clear()
        clock = pa.array([int(at * 1e6) for at in columns[0]], pa.int64()).cast(SCHEMA[0].type)
        arrays = [
            pa.array(column, field.type.value_type).dictionary_encode().cast(field.type)
            if pa.types.is_dictionary(field.type)
            else pa.array(column, field.type)
            for column, field in zip(columns[1:], list(SCHEMA)[1:], strict=True)
        ]
        if self._writer is None:
            self._open()
        assert self._writer is not None
        assert self._file is not None
        self._writer.write_batch(pa.RecordBatch.from_arrays([clock, *arrays], schema=SCHEMA))
        self._file.flush()
        if self._file.tell() > self._most:
            self._close_file()

    def close(self) -> None:
        """Write the rest, and end the file."""
        self.flush()
        self._close_file()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        while len(self._written) >= FILES:
            self._written.pop(0).unlink(missing_ok=True)
        path = self._folder / f"{self._name}-{self._number:06d}.arrow"
        self._number += 1
        self._written.append(path)
        self._file = pa.OSFile(str(path), "wb")
        # A stream, not a file: what was written before a crash can be read.
        options = pa.ipc.IpcWriteOptions(compression="lz4", emit_dictionary_deltas=True)
        self._writer = pa.ipc.new_stream(self._file, SCHEMA, options=options)

    def _close_file(self) -> None:
        if self._writer is not None and self._file is not None:
            self._writer.close()
            self._file.close()
        self._writer = self._file = None


class FullLog:
    """Notes each invocation of a worker's operators."""

    def __init__(self, settings: LogSettings, worker: Worker) -> None:
        self._worker = worker
        self._writer = EventWriter(settings, f"worker-{worker.index}")
        self._counts = [(each.records_in, each.records_out) for each in worker.operators]
        self._flushed = perf_counter()
        # Invocations are timed by a clock that does not jump; this is where it stands now.
        self._offset = time.time() - self._flushed

    def invoked(self, operator: Operator, began: float, seconds: float) -> None:
        """An operator has been invoked; its records are those since the last time."""
        inputs = operator.inputs
        least = self._worker.tracker.least(inputs[0].location) if inputs else ()
        records_in, records_out = self._counts[operator.index]
        self._counts[operator.index] = operator.records_in, operator.records_out
        self._writer.add(
            self._offset + began,
            self._worker.index,
            operator.plan.name,
            "invocation",
            # Most frontiers are one integer, for which JSON would be slow.
            f"[{least[0]}]"
            if len(least) == 1 and type(least[0]) is int
            else json.dumps(plain(least)),
            seconds,
            operator.records_in - records_in,
            operator.records_out - records_out,
            sum([book.held for book in operator.books]),
            sum(map(len, inputs)),
            self._worker.units.unit,
        )
        if began - self._flushed > LATEST:
            self._flushed = began
            self._writer.flush()

    def close(self) -> None:
        """Write the rest."""
        self._writer.close()


def log_invocations(worker: Worker, settings: LogSettings) -> None:
    """Have a worker write a full log from now on, until it is closed; twice is an error."""
    meter = measure(worker)
    if meter.log is not None:
        raise GraphError(f"worker {worker.index} writes an event log already")
    log = meter.log = FullLog(settings, worker)
    worker.at_end(log.close)


class SampledLog:
    """Notes each operator at each look of a monitor."""

    def __init__(self, settings: LogSettings) -> None:
        self._writer = EventWriter(settings, "driver")

    def take(self, now: Observation) -> None:
        """Note an observation: its operators, outputs and inputs."""
        totals, unit = now.totals, now.unit
        for rank, report in now.reports.items():
            for each in totals[rank].get("operators", ()):
                frontiers = each["frontiers"]
                self._writer.add(
                    now.clock,
                    rank,
                    each["name"],
                    "sample",
                    json.dumps(frontiers[0] if frontiers else _input(report, each["name"])),
                    each.get("seconds"),
                    each.get("records_in"),
                    each.get("records_out"),
                    each["tokens"],
                    each["queued"],
                    unit,
                )
        self._writer.flush()

    def close(self) -> None:
        """End the file."""
        self._writer.close()


def _input(report: Mapping[str, Any], name: str) -> list[Any]:
    """How far an input is: it has no frontier of its own."""
    found = report.get("inputs", {}).get(name)
    return [] if found is None else [found[0]]
