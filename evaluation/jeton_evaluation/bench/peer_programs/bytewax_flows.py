"""Bytewax: ``stateful_map`` and ``fold_window``, record by record and in NumPy batches.

Run by `bench.peers` in Bytewax's environment. Records are in memory before the clock starts;
packing them into arrays by worker and window is inside, for it is part of the work. With several
workers each is a process, since Python runs one thread at a time. Lists are long: that is faster.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
import numpy as np
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

KEYS = 10_000
WINDOW = 10_000
LIST = 50_000
PACKED = 16_384
ZERO = datetime(1970, 1, 1, tzinfo=UTC)
LABELS = {1: ["0"], 2: ["0", "4"]}  # keys that Bytewax sends to different workers
clock: dict[str, float] = {}


def at(milliseconds: int) -> datetime:
    return ZERO + timedelta(milliseconds=milliseconds)


class Items(DynamicSource):
    """A worker's share of the records, as lists of items."""

    def __init__(self, variant: str, program: str, records: int, data: Path) -> None:
        self.make = packed if variant == "batches" else one_by_one
        self.program, self.records, self.data = program, records, data

    def build(self, step_id: str, index: int, count: int) -> "Share":
        keys, times, values = (
            np.load(self.data / f"{name}.npy")[: self.records][index::count]
            for name in ("keys", "times", "values")
        )
        return Share(self.make(self.program, count, keys, times, values))


def one_by_one(program: str, workers: int, keys: Any, times: Any, values: Any) -> Iterator[Any]:
    words = map(str, keys.tolist())
    if program == "word count":
        items = list(zip(words, values.tolist(), strict=True))
    else:
        stamped = zip(map(at, times.tolist()), values.tolist(), strict=True)
        items = list(zip(words, stamped, strict=True))
    return iter([items[first : first + LIST] for first in range(0, len(items), LIST)])


def packed(program: str, workers: int, keys: Any, times: Any, values: Any) -> Iterator[Any]:
    """Items of many records: for each worker one, and for each window of each worker."""
    labels = LABELS[workers]
    for first in range(0, len(keys), PACKED):
        chunk = slice(first, first + PACKED)
        k, t, v = keys[chunk], times[chunk], values[chunk]
        items: list[Any] = []
        for number, label in enumerate(labels):
            mine = k % workers == number
            if program == "word count":
                items.append((label, k[mine]))
                continue
            windows = t // WINDOW
            for window in np.unique(windows[mine]).tolist():
                piece = mine & (windows == window)
                items.append((label, (at(int(t[piece].min())), k[piece], v[piece])))
        yield items


class Share(StatelessSourcePartition):
    def __init__(self, lists: Iterator[Any]) -> None:
        self.lists = lists

    def next_batch(self) -> Any:
        clock.setdefault("first", time.perf_counter())
        return next(self.lists)


class Tally(DynamicSink, StatelessSinkPartition):
    """Counts the output, and stores the values by which the answer is checked."""

    def __init__(self) -> None:
        self.rows, self.sum = 0, 0.0
        self.counts: dict[str, int] = {}
        self.array = np.zeros(KEYS, np.int64)

    def build(self, step_id: str, index: int, count: int) -> "Tally":
        return self

    def write_batch(self, items: list[Any]) -> None:
        self.write(items)
        clock["last"] = time.perf_counter()

    def counted(self, items: list[tuple[str, int]]) -> None:
        self.rows += len(items)
        self.counts.update(items)

    def averaged(self, items: list[Any]) -> None:
        self.rows += len(items)
        for _, (_, (total, count)) in items:
            self.sum += total / count

    def counted_arrays(self, items: list[Any]) -> None:
        for _, (keys, counts) in items:
            self.rows += len(keys)
            self.array[keys] = counts

    def averaged_arrays(self, items: list[Any]) -> None:
        for _, (_, (totals, counts)) in items:
            there = counts > 0
            self.rows += int(there.sum())
            self.sum += float((totals[there] / counts[there]).sum())


def running_counts(state: Any, keys: Any) -> tuple[Any, Any]:
    """The state's counts, and each record's own: its place among the equal keys of the batch."""
    state = np.zeros(KEYS, np.int64) if state is None else state
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    lengths = np.diff(begins, append=len(keys))
    counts = np.empty(len(keys), np.int64)
    counts[order] = np.arange(1, len(keys) + 1) - np.repeat(begins, lengths) + state[ordered]
    state[ordered[begins]] += lengths
    return state, (keys, counts)


def add(state: Any, item: Any) -> Any:
    return state[0] + item[1], state[1] + 1


def add_arrays(state: Any, item: Any) -> Any:
    state[0] += np.bincount(item[1], item[2], KEYS)
    state[1] += np.bincount(item[1], minlength=KEYS)
    return state


def main(variant: str, program: str, workers: int, records: int, data: Path, out: Path) -> None:
    arrays = variant == "batches"
    tally = Tally()
    flow = Dataflow("peer")
    items = op.input("in", flow, Items(variant, program, records, data))
    if program == "word count":
        one_more = running_counts if arrays else lambda n, _: ((n or 0) + 1, (n or 0) + 1)
        answers = op.stateful_map("count", items, one_more)
        tally.write = tally.counted_arrays if arrays else tally.counted
    else:
        answers = win.fold_window(
            "mean",
            items,
            win.EventClock(
                lambda item: item[0],
                wait_for_system_duration=timedelta(seconds=1),
                # Records are replayed: only their own times move the clock, and none is due.
                now_getter=lambda: ZERO,
                to_system_utc=lambda at: None,
            ),
            win.TumblingWindower(length=timedelta(milliseconds=WINDOW), align_to=ZERO),
            builder=(lambda: [np.zeros(KEYS), np.zeros(KEYS)]) if arrays else lambda: (0, 0),
            folder=add_arrays if arrays else add,
            merger=lambda a, b: (a[0] + b[0], a[1] + b[1]),
        ).down
        tally.write = tally.averaged_arrays if arrays else tally.averaged
    op.output("out", answers, tally)
    addresses = os.environ.get("PEER_ADDRESSES", "").split()
    index = int(os.environ.get("PEER_INDEX", 0))
    cluster_main(flow, addresses, index, worker_count_per_proc=1)
    counts = dict(enumerate(tally.array.tolist())) if arrays else tally.counts
    answer = {"rows": tally.rows, "counts": counts, "sum": tally.sum}
    (out / f"reported-{index}.json").write_text(json.dumps(clock | answer))


def start_others(workers: int) -> list[subprocess.Popen[bytes]]:
    """The other processes of the cluster: this program again, with a number of its own each."""
    if workers == 1 or "PEER_INDEX" in os.environ:
        return []
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(workers)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        os.environ["PEER_ADDRESSES"] = " ".join(f"127.0.0.1:{s.getsockname()[1]}" for s in sockets)
    return [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "PEER_INDEX": str(number)})
        for number in range(1, workers)
    ]


if __name__ == "__main__":
    others = start_others(int(sys.argv[3]))
    variant, program, workers, records, data, out = sys.argv[1:]
    main(variant, program, int(workers), int(records), Path(data), Path(out))
    sys.exit(max((other.wait() for other in others), default=0))
