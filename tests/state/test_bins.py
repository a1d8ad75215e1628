"""The number of bins is a flow's setting, and stays with its state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import GraphError
from jeton.state.snapshot import Snapshot
from jeton.storage.checkpoints import Checkpoints

KEYS = 300


def counting(bins: int = 4096) -> jt.Flow:
    flow = jt.Flow("counts", bins=bins)
    flow.output("counts", flow.input("rows").key_by("key").running().count())
    return flow


def rows(time: int) -> dict[str, object]:
    return {"time": [time] * KEYS, "key": [f"key {n}" for n in range(KEYS)]}


def counted(run: jt.Run, time: int) -> list[int]:
    """The count of each key after one more record of it, in order of keys."""
    run.input("rows").send(rows(time))
    found = run.finish()["counts"]
    counts: list[int] = found.sort_by("key")["count"].to_pylist()
    return counts


@pytest.mark.parametrize("bins", [256, 4096, 65536])
@pytest.mark.parametrize("workers", [1, 3])
def test_state_finds_its_keys_again(bins: int, workers: int) -> None:
    flow = counting(bins)
    with flow.open(workers=2) as run:
        run.input("rows").send(rows(0))
        run.run_to_rest()
        snapshot = run.snapshot()
    assert snapshot.bins == bins
    # The flow's number of bins does not matter now: the state is divided as it is.
    with counting(512).open(workers=workers, restore=snapshot) as run:
        assert all(worker.bins == bins for worker in run.workers)
        assert counted(run, 1) == [2] * KEYS


def as_written_before(snapshot: Snapshot) -> Snapshot:
    """The same state as releases with 256 bins wrote it: rows of inputs in each bin, no others."""

    def old(name: str, table: pa.Table) -> pa.Table:
        bins = table["bin"].to_numpy() % 256
        if "closed" in table.column_names:
            table = table.take(pa.array(np.repeat(np.arange(table.num_rows), 256)))
            bins = np.tile(np.arange(256), len(bins))
            emitted = table.schema.metadata or {}
            table = table.replace_schema_metadata(
                {k: v for k, v in emitted.items() if k != b"jeton.everyone"}
            )
        return table.set_column(0, "bin", pa.array(bins.astype(np.uint16)))

    tables = {
        operator: {name: old(name, table) for name, table in kept.items()}
        for operator, kept in snapshot.operators.items()
    }
    return replace(snapshot, operators=tables, bins=256)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_checkpoint_of_the_release_before_is_read(tmp_path: Path, workers: int) -> None:
    flow = counting()
    with counting(256).open() as run:
        run.input("rows").send(rows(0))
        run.input("rows").advance_to(1)
        run.run_to_rest()
        before = as_written_before(run.snapshot())
    store = Checkpoints(tmp_path)
    made = store.commit(0, [store.write_part(0, 0, before.operators, bins=256)], flow=flow.name)
    assert store.load(0).bins == made.bins == 256
    shares = [store.load(0).share(worker, workers) for worker in range(workers)]
    assert {share.bins for share in shares} == {256}
    tables = [share.operators[op]["state"] for share in shares for op in share.operators]
    assert sum(table.num_rows for table in tables if "key.key" in table.column_names) == KEYS
    with flow.open(workers=workers, restore=before) as run:
        assert run.input("rows", workers - 1).time == 1
        assert counted(run, 1) == [2] * KEYS


def test_a_checkpoint_keeps_the_number_of_bins(tmp_path: Path) -> None:
    flow = counting(1024)
    store = Checkpoints(tmp_path)
    with flow.open() as run:
        run.input("rows").send(rows(0))
        run.run_to_rest()
        [worker] = run.workers
        part = store.write_part(0, 0, worker.snapshot(), bins=worker.bins)
    store.commit(0, [part], flow=flow.name)
    share = store.load(0).share(0, 1)
    with counting().open(restore=share) as run:
        assert run.workers[0].bins == 1024
        assert counted(run, 1) == [2] * KEYS


def test_every_worker_of_many_gets_keys() -> None:
    # Each of 700 workers owns bins, which 256 bins could not give them.
    keys = np.arange(100_000)
    batch = jt.Batch({"key": keys}, times=np.zeros(len(keys), np.int64))
    assert len(list(jt.Exchange("key").route(batch, 700))) == 700


def test_more_workers_than_bins_are_refused() -> None:
    with pytest.raises(GraphError, match=r"257 workers are more than the 256 bins.*bins=512"):
        counting(256).open(workers=257)


@pytest.mark.parametrize("bins", [0, 255, 1000, 1 << 17])
def test_other_numbers_of_bins_are_refused(bins: int) -> None:
    with pytest.raises(GraphError, match="power of two"):
        counting(bins)
