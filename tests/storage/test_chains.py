"""Chains of changes in files: short, whole although any one file is damaged, and readable again."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.core.errors import SnapshotError
from jeton.runtime.in_process import Run
from jeton.storage.checkpoints import Checkpoints, Part
from jeton.storage.chunk_format import CorruptCheckpoint
from jeton.storage.files import Files
from jeton.storage.store import StoreUnavailable
from tests.storage.stored_rows import newest
from tests.storage.test_damaged_checkpoints import damaged

KEYS = 400
Counts = dict[int, int]


def counting() -> jt.Flow:
    flow = jt.Flow("counting")
    flow.output("counts", flow.input("words").key_by("k").running().count())
    return flow


class Counter:
    """A running count whose versions are stored, and the counts that it should have."""

    def __init__(self, store: Checkpoints, run: Run, part: Part | None = None) -> None:
        self.store = store
        self.run = run
        self.part = part
        self.counts: Counts = {}

    def add(self, keys: list[int]) -> None:
        if keys:
            self.run.input("words").send({"time": [0] * len(keys), "k": keys})
            self.run.run_to_rest()
        for key in keys:
            self.counts[key] = self.counts.get(key, 0) + 1

    def write(self, version: int) -> Part:
        tokens = {} if self.part is None else self.part.tokens
        cut = self.run.workers[0].cut(tokens)
        self.part = self.store.write_part(version, 0, cut, base=self.part)
        return self.part

    def take(self, version: int) -> Part:
        part = self.write(version)
        self.store.commit(version, [part], flow="counting", meta={"keys": len(self.counts)})
        return part

    @property
    def is_broken(self) -> bool:
        assert self.part is not None
        return any(chain.is_broken for chain in self.part.chains.values())

    @property
    def copies(self) -> int:
        """In how many files all of it is."""
        assert self.part is not None
        return min(len(link.copies) for c in self.part.chains.values() for link in c.links)

    @property
    def links(self) -> int:
        assert self.part is not None
        [chain] = self.part.chains.values()
        return len(chain.links)


def counts_in(store: Checkpoints, workers: int = 1) -> Counts:
    found: Counts = {}
    for worker in range(workers):
        share = newest(store).share(worker, workers)
        table = share.operators["count"]["state"]
        pairs = zip(table["key.k"].to_pylist(), table["of.count.count"].to_pylist(), strict=True)
        rows = dict(pairs)
        assert len(rows) == table.num_rows
        assert not rows.keys() & found.keys()
        found |= rows
    return found


@pytest.mark.parametrize("seed", range(4))
def test_whichever_file_is_damaged_at_most_one_version_is_lost(tmp_path: Path, seed: int) -> None:
    """Little changes or much; some versions come to nothing; some go on from files."""
    random = Random(seed)
    store = Checkpoints(tmp_path)
    flow = counting()
    counter = Counter(store, flow.open())
    counter.add(list(range(KEYS)))
    history: list[Counts] = []
    longest = 0
    for version in range(1, 40):
        counter.add([random.randrange(KEYS) for _ in range(random.choice([0, 1, 9, 200]))])
        if history and random.random() < 0.1:
            counter.write(version)
            continue
        if history and random.random() < 0.1:
            # Another process goes on.
            found = newest(store)
            counter.run.close()
            counts = dict(history[-1])
            counter = Counter(store, flow.open(restore=found.share(0, 1)), found.part(0, 1))
            counter.counts = counts
        counter.take(version)
        longest = max(longest, counter.links)
        history.append(dict(counter.counts))
        store.clean(2)
        if len(history) < 2:
            continue
        assert counts_in(store, random.choice([1, 3])) == history[-1]
        files = sorted((tmp_path / "parts").iterdir())
        for path in random.sample(files, min(4, len(files))):
            content = path.read_bytes()
            damaged(path, random.choice(["flipped", "truncated", "emptied", "deleted"]))
            own = path.name.startswith(f"{version:012d}")
            assert counts_in(store, random.choice([1, 3])) in history[-2 if own else -1 :]
            path.write_bytes(content)
    assert 3 < longest < 20
    assert len(list((tmp_path / "parts").iterdir())) < 25
    counter.run.close()


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    with counting().open() as run:
        counter = Counter(store, run)
        counter.add(list(range(20_000)))
        first = counter.take(1).written
        assert counter.take(2).written == first, "once more, so that there are two of each"
        assert counter.take(3).written == 0
        counter.add([17])
        changed = counter.take(4).written
        assert 0 < changed < first / 100
        assert counter.take(5).written == changed
        assert counter.take(6).written == 0
        assert counts_in(store) == counter.counts


def test_a_chain_goes_on_where_another_process_left_it(tmp_path: Path) -> None:
    store, flow = Checkpoints(tmp_path), counting()
    with flow.open() as run:
        counter = Counter(store, run)
        counter.add(list(range(5_000)))
        first = counter.take(1).written
        counter.take(2)
    for version in range(3, 8):
        found = newest(store)
        with flow.open(restore=found.share(0, 1)) as run:
            again = Counter(store, run, found.part(0, 1))
            again.counts = counter.counts
            # Keys that are known, and new ones, in other slots than before.
            again.add([version, 9_999 - version])
            assert again.take(version).written < first / 10
            counter = again
        assert counts_in(store, 2) == counter.counts
    # With another number of workers, everything is written.
    found = newest(store)
    with flow.open(workers=2, restore=found.share(0, 1)) as run:
        assert found.part(0, 2) is None
        parts = [store.write_part(9, w.index, w.cut({})) for w in run.workers]
        store.commit(9, parts, flow="counting")
    assert counts_in(store, 3) == counter.counts
    assert sum(part.written for part in parts) > 0.9 * first


def test_what_was_in_a_damaged_file_is_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, flow = Checkpoints(tmp_path), counting()
    with flow.open() as run:
        counter = Counter(store, run)
        counter.add(list(range(1_000)))
        for version in (1, 2, 3):
            counter.take(version)
    first, second = sorted((tmp_path / "parts").iterdir())
    damaged(second, "flipped")
    found = newest(store)
    with flow.open(restore=found.share(0, 1)) as run:
        again = Counter(store, run, found.part(0, 1))
        assert again.take(4).written
    assert second.name in caplog.text
    damaged(first, "flipped")
    assert newest(store).version == 4
    assert counts_in(store) == counter.counts


def test_if_no_file_is_whole_a_running_worker_writes_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It finds that out when it merges changes; from the next version on all is well."""
    store = Checkpoints(tmp_path)
    with counting().open() as run:
        counter = Counter(store, run)
        counter.add(list(range(100)))
        counter.take(1)
        counter.take(2)
        for path in (tmp_path / "parts").iterdir():
            damaged(path, "flipped")
        with caplog.at_level(logging.WARNING):
            for version in range(3, 12):
                counter.add(list(range(60)))
                counter.take(version)
                if counter.is_broken:
                    break
        assert "cannot be merged" in caplog.text
        with pytest.raises(CorruptCheckpoint, match=r"no checkpoint .* is whole"):
            store.latest()
        counter.take(version + 1)
        assert counter.links == 1
        assert counts_in(store) == counter.counts


def test_a_store_that_cannot_be_read_now_delays_copies_only(tmp_path: Path) -> None:
    class Failing(Files):
        fails = False

        def read_at(self, path: Any, start: int, size: int) -> pa.Buffer:
            if self.fails:
                raise TimeoutError(110, "connection timed out")
            return super().read_at(path, start, size)

    files = Failing(tmp_path)
    store = Checkpoints(tmp_path, files=files, wait=lambda seconds: None)
    with counting().open() as run:
        counter = Counter(store, run)
        counter.add(list(range(100)))
        counter.take(1)
        files.fails = True
        counter.take(2)
        assert counter.copies == 1
        with pytest.raises(StoreUnavailable):
            store.latest()
        files.fails = False
        counter.take(3)
        assert counter.copies == 2
        assert counts_in(store) == counter.counts


def test_changes_of_another_state_are_refused(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    with counting().open() as run:
        counter = Counter(store, run)
        counter.add([1, 2])
        first = counter.take(1)
        counter.add([2])
        counter.take(2)
        counter.add([2])
        cut = run.workers[0].cut(counter.part.tokens if counter.part else {})
        for base in (None, first):
            with pytest.raises(SnapshotError, match="not those of the state that is stored"):
                store.write_part(3, 0, cut, base=base)


def test_state_in_groups_becomes_a_chain(tmp_path: Path) -> None:
    """As releases before changes wrote it."""
    store, flow = Checkpoints(tmp_path), counting()
    with flow.open() as run:
        run.input("words").send({"time": np.zeros(300, np.int64), "k": np.arange(300)})
        run.run_to_rest()
        store.commit(1, [store.write_part(1, 0, run.workers[0].snapshot())], flow="counting")
    found = newest(store)
    assert not found.parts[0].chains
    with flow.open(restore=found.share(0, 1)) as run:
        counter = Counter(store, run, found.part(0, 1))
        counter.counts = dict.fromkeys(range(300), 1)
        for version in (2, 3):
            counter.add([version])
            counter.take(version)
        assert counter.links == 2
    assert counts_in(store) == counter.counts


@pytest.mark.parametrize("workers", [1, 3])
def test_records_wait_under_another_name_of_their_times(tmp_path: Path, workers: int) -> None:
    """A query goes on with another name of its time column, and again after the next version."""
    store = Checkpoints(tmp_path)
    answered: list[int] = []
    for version, (name, times, now) in enumerate(
        [("then", [5, 6, 7, 8], 3), ("at", [9, 10], 6), ("at", [11], 9)], start=1
    ):
        flow = jt.Flow("f", bins=256)
        records = flow.input("in", time=name)
        flow.output("out", records.key_by("k").running(ordered=True).count())
        before = store.latest()
        restore = None if before is None else before.share(0, 1)
        with flow.open(workers=workers, restore=restore) as run:
            run.input("in").send({name: times, "k": [time % 3 for time in times]})
            for index in range(workers):
                run.input("in", index).advance_to(now)
            run.run_to_rest()
            parts = []
            for worker in run.workers:
                base = None if before is None else before.part(worker.index, workers)
                cuts = worker.cut({} if base is None or workers > 1 else base.tokens)
                parts.append(store.write_part(version, worker.index, cuts, base=base, bins=256))
            store.commit(version, parts, flow="f")
            answered += run.results()["out"][name].to_pylist()
    with flow.open(restore=store.load(version).share(0, 1)) as run:
        answered += run.finish()["out"]["at"].to_pylist()
    assert sorted(answered) == [5, 6, 7, 8, 9, 10, 11]


def test_rows_that_are_over_do_not_gather_from_restart_to_restart(tmp_path: Path) -> None:
    flow = jt.Flow("last", bins=256)
    flow.output("out", flow.input("in").key_by("k").rolling(rows=2).sum("n"))
    store, keys = Checkpoints(tmp_path), np.arange(3000)
    for version in range(6):
        before = store.latest()
        base = None if before is None else before.part(0, 1)
        with flow.open(restore=None if before is None else before.share(0, 1)) as run:
            run.input("in").send({"time": keys * 0 + version, "k": keys, "n": keys})
            run.input("in").advance_to(version + 1)
            run.run_to_rest()
            cuts = run.workers[0].cut({} if base is None else base.tokens)
            part = store.write_part(version, 0, cuts, base=base, bins=256)
            store.commit(version, [part], flow="last")
        rows = sum(link.rows for chain in part.chains.values() for link in chain.links)
        assert rows <= 12000
