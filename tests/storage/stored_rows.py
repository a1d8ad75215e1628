"""Rows that are stored as the state of one operator, and read again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import settings

from jeton.state.bins import BINS, bin_owners
from jeton.state.snapshot import bins_of
from jeton.storage.checkpoints import Checkpoint, Checkpoints, Part

Rows = dict[int, Any]
SOME = settings().max_examples // 20
"""Fewer examples than usual: each writes files."""


def table_of(rows: Rows, kind: pa.DataType | None = None) -> pa.Table:
    keys = np.array(list(rows), dtype=np.int64)
    return pa.table({"bin": bins_of([keys]), "key": keys, "value": pa.array(rows.values(), kind)})


def rows_in(table: pa.Table | None) -> Rows:
    if table is None:
        return {}
    pairs = zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    rows = dict(pairs)
    assert len(rows) == table.num_rows, "a key is there twice"
    return rows


def dealt(rows: Rows, worker: int, workers: int, kind: pa.DataType | None = None) -> pa.Table:
    """The rows that a worker owns."""
    bins = bins_of([np.array(list(rows), dtype=np.int64)]) % BINS
    own = bin_owners(workers)[bins] == worker
    return table_of({key: rows[key] for key, mine in zip(rows, own, strict=True) if mine}, kind)


def write(
    store: Checkpoints,
    version: int,
    rows: Rows,
    *,
    workers: int = 1,
    bases: list[Part | None] | None = None,
    epoch: int = 0,
    kind: pa.DataType | None = None,
) -> list[Part]:
    """Commit rows as the state of one container; returns the parts."""
    bases = bases or [None] * workers
    parts = [
        store.write_part(
            version,
            worker,
            {"op": {"state": dealt(rows, worker, workers, kind)}},
            epoch=epoch,
            base=bases[worker],
        )
        for worker in range(workers)
    ]
    store.commit(version, parts, flow="f", epoch=epoch, meta={"rows": len(rows)})
    return parts


def read(checkpoint: Checkpoint, workers: int = 1) -> Rows:
    found: Rows = {}
    for worker in range(workers):
        share = checkpoint.share(worker, workers)
        rows = rows_in(share.operators.get("op", {}).get("state"))
        assert not rows.keys() & found.keys(), "two workers got the same key"
        found |= rows
    return found


def newest(store: Checkpoints) -> Checkpoint:
    found = store.latest()
    assert found is not None
    return found
