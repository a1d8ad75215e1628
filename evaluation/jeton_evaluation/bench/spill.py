"""State beyond memory: counts of very many keys in memory, and with a budget that holds few.

``jeton bench spill`` counts records of 10 million keys, in memory and with a budget, each in a
process of its own. Every key is sent the same number of times, in an order without any locality,
and the answers are checked: the count of every key, which keys there are, and how many.
``--keys 1e8 --budget 2GB`` is the run of docs/state.md. ``--stores`` measures what state could be
kept in instead: to put the keys of a bin in, to take them out again, and to change some at random.
LMDB and RocksDB are measured if their packages ``lmdb`` and ``rocksdict`` are installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import resource
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton_evaluation.bench.harness import Line, Say, Table, child_line, command

BATCH = 65_536
END = 10**9
"""The end of the only window."""

Keys = npt.NDArray[np.int64]

RUNS = Table(
    {
        "memory": "budget:<12",
        "keys": "keys:>13,",
        "records": "records:>14,",
        "seconds": "seconds:>10.1f",
        "M records/s": "rate:>13.2f",
        "peak RSS, MB": "peak_mb:>14,",
        "of it anonymous": "anonymous_mb:>17,",
        "on disk, MB": "spilled_mb:>13,",
        "came back": "brought_back:>11,",
    }
)
STORES = Table(
    {
        "store": "store:<14",
        "M keys/s in": "put:>13.3f",
        "M keys/s out": "get:>14.3f",
        "M changes/s": "change:>13.3f",
        "bytes/key": "bytes:>11.1f",
    }
)


def run(
    say: Say,
    keys: Annotated[int, "keys"] = 10_000_000,
    each: Annotated[int, "records of each key"] = 2,
    budget: Annotated[str, "the memory budget"] = "256MB",
    *,
    stores: Annotated[bool, "measure stores instead"] = False,
    spilled_only: Annotated[bool, "leave out the run in memory"] = False,
    one: Annotated[str | None, argparse.SUPPRESS] = None,
) -> Iterator[Line]:
    """Measure runs in memory and with a budget, or stores; ``one`` is a process of its own."""
    if one is not None:
        print(json.dumps(counted(keys, each, None if one == "none" else one)))
        return
    if stores:
        yield from compared(say, keys)
        return
    say(RUNS.head)
    found = []
    for memory in (budget,) if spilled_only else ("none", budget):
        options = ("--one", memory, "--keys", keys, "--each", each)
        line = child_line(__spec__.name, *options)
        found.append(line)
        say(RUNS.row(line))
        yield line
    if len(found) == 2:
        say(f"with a budget: {found[1]['rate'] / found[0]['rate']:.2f} of the rate in memory")


main = command(run)


def scattered(keys: int, each: int) -> Iterator[Keys]:
    """Every key ``each`` times, in batches whose keys are far from each other."""
    step = 0x9E3779B1 % keys
    while math.gcd(step, keys) != 1:
        step += 1
    for turn in range(each):
        for start in range(0, keys, BATCH):
            numbers = np.arange(start, min(start + BATCH, keys), dtype=np.int64)
            yield (numbers * step + turn * 12_345) % keys


def counted(keys: int, each: int, budget: str | None) -> Line:
    """Count all records in one window; wrong answers are an error."""
    flow = jt.Flow("counts")
    flow.output("counts", flow.input("records").key_by("key").tumbling(END).count())
    seen = total = rows = 0
    most: dict[str, int] = {"spilled_bytes": 0, "brought_back": 0}
    anonymous = _Anonymous()
    with flow.open(memory_budget=budget) as run:
        output = run.workers[0].handles[flow.handle("output", "counts")]
        records = run.input("records")
        began = perf_counter()

        def take() -> None:
            nonlocal seen, total, rows
            for batch in output:
                counts, names = batch.column("count"), batch.column("key")
                if (counts != each).any():
                    raise RuntimeError("a key has another count than it must have")
                rows += len(batch)
                seen += int(names.sum())
                total += int(counts.sum())
            output.clear()
            found = run.agents[0].metrics().operators[1].to_json()
            for name, value in most.items():
                most[name] = max(value, found.get(name, 0))

        for batch in scattered(keys, each):
            records.send(jt.Batch({"key": batch}, np.zeros(len(batch), dtype=np.int64)))
            while run.agents[0].step():
                pass
        take()
        records.close()
        while run.turn():
            take()
        take()
        seconds = perf_counter() - began
    if (rows, seen, total) != (keys, keys * (keys - 1) // 2, keys * each):
        raise RuntimeError(f"{rows} keys with {total} records came out, not {keys}, {keys * each}")
    return {
        "experiment": "spill",
        "budget": budget or "unbounded",
        "keys": keys,
        "records": keys * each,
        "seconds": round(seconds, 2),
        "rate": round(keys * each / seconds / 1e6, 3),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "anonymous_mb": anonymous.peak() >> 10,
        "spilled_mb": most["spilled_bytes"] >> 20,
        "brought_back": most["brought_back"],
    }


class _Anonymous:
    """The most memory of this process that is not of files, looked at now and then."""

    def __init__(self) -> None:
        self._most = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ends.wait(0.05):
            with suppress(OSError):
                for line in Path("/proc/self/status").read_text().splitlines():
                    if line.startswith("RssAnon"):
                        self._most = max(self._most, int(line.split()[1]))

    def peak(self) -> int:
        """In kilobytes; no more is looked at."""
        self._ends.set()
        self._thread.join()
        return self._most


# Stores


def compared(say: Say, keys: int) -> Iterator[Line]:
    """Measure the stores that are installed with a number of keys."""
    say(STORES.head)
    for name, (package, measure) in _STORES.items():
        if importlib.util.find_spec(package) is None:
            say(f"{name:<14}(not installed: pip install {package})")
            continue
        with tempfile.TemporaryDirectory(prefix="jeton-bench-") as directory:
            line = {"experiment": "spill-stores", "store": name, "keys": keys}
            line |= measure(keys, Path(directory))
        say(STORES.row(line))
        yield line


def _rates(keys: int, put: float, get: float, change: float, size: int) -> Line:
    return {
        "put": round(keys / put / 1e6, 4),
        "get": round(keys / get / 1e6, 4),
        "change": round(keys / change / 1e6, 4),
        "bytes": round(size / keys, 1),
    }


def _timed(act: Callable[[], Any]) -> float:
    began = perf_counter()
    act()
    return perf_counter() - began


def _content(keys: int) -> tuple[Keys, Keys]:
    """Keys without any order, and two numbers for each."""
    chosen = np.concatenate(list(scattered(keys, 1)))
    return chosen, np.column_stack([chosen, chosen * 3]).astype(np.int64)


def _arrow(keys: int, directory: Path) -> Line:
    """A file of columns; to change some keys, all of a file come in and go out again."""
    names, values = _content(keys)
    path = str(directory / "state.arrow")
    table = pa.table({"key": names, "a": values[:, 0].copy(), "b": values[:, 1].copy()})

    def put() -> None:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)

    def get() -> None:
        with pa.memory_map(path) as source:
            found = pa.ipc.open_stream(source).read_all()
            for name in ("key", "a", "b"):
                found.column(name).to_numpy().copy()

    into, out = _timed(put), _timed(get)
    return _rates(keys, into, out, into + out, Path(path).stat().st_size)


def _pairs(names: Keys, values: Keys) -> Iterator[list[tuple[bytes, bytes]]]:
    for at in range(0, len(names), BATCH):
        some, of = names[at : at + BATCH], values[at : at + BATCH]
        yield list(
            zip(map(bytes, some.astype(">i8").view("V8").tolist()), map(bytes, of), strict=True)
        )


def _lmdb(keys: int, directory: Path) -> Line:
    lmdb: Any = importlib.import_module("lmdb")
    names, values = _content(keys)
    settings = {"map_size": 1 << 36, "sync": False, "metasync": False, "writemap": True}
    with lmdb.open(str(directory), **settings) as store:

        def put() -> None:
            with store.begin(write=True) as act, act.cursor() as cursor:
                for pairs in _pairs(names, values):
                    cursor.putmulti(pairs)

        def get() -> None:
            with store.begin(buffers=False) as act:
                for _ in act.cursor():
                    pass

        def change() -> None:
            with store.begin(write=True) as act, act.cursor() as cursor:
                for pairs in _pairs(names, values):
                    found = dict(cursor.getmulti([key for key, _ in pairs]))
                    cursor.putmulti([(key, found[key]) for key, _ in pairs])

        into, out, changed = _timed(put), _timed(get), _timed(change)
    size = (directory / "data.mdb").stat().st_blocks * 512
    return _rates(keys, into, out, changed, size)


def _rocksdb(keys: int, directory: Path) -> Line:
    rocksdict: Any = importlib.import_module("rocksdict")
    names, values = _content(keys)
    plain = rocksdict.WriteOptions()
    plain.disable_wal = True
    assert plain.disable_wal, "what is beyond memory need not survive"
    store = rocksdict.Rdict(str(directory), rocksdict.Options(raw_mode=True))
    store.set_write_options(plain)

    def put() -> None:
        for pairs in _pairs(names, values):
            batch = rocksdict.WriteBatch(raw_mode=True)
            for key, value in pairs:
                batch.put(key, value)
            store.write(batch)
        store.flush()

    def get() -> None:
        for _ in store.items():
            pass

    def change() -> None:
        for pairs in _pairs(names, values):
            found = store[[key for key, _ in pairs]]
            batch = rocksdict.WriteBatch(raw_mode=True)
            for (key, _), value in zip(pairs, found, strict=True):
                batch.put(key, value)
            store.write(batch)
        store.flush()

    into, out, changed = _timed(put), _timed(get), _timed(change)
    store.close()
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return _rates(keys, into, out, changed, size)


_STORES: dict[str, tuple[str, Callable[[int, Path], Line]]] = {
    "Arrow + mmap": ("pyarrow", _arrow),
    "LMDB": ("lmdb", _lmdb),
    "RocksDB": ("rocksdict", _rocksdb),
}

if __name__ == "__main__":
    raise SystemExit(main())
