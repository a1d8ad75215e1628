"""Misuse of the containers: an error that says so, never a hang or another key's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import BatchError, SnapshotError

KEYS: dict[str, Any] = {"integers": np.array([1, 2, 3]), "text": pa.array(["a", "b", "c"])}


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("slots", [[99], [-1], "twice", "again"])
def test_a_slot_that_is_not_in_use_is_not_removed(key: str, timed: bool, slots: Any) -> None:
    keys = jt.state.KeySlots(1, timed=timed)
    times = np.array([7], dtype=np.uint64) if timed else None
    found = keys.find([KEYS[key]], 3, times)[0].copy()
    if slots == "again":
        keys.remove(found[:1])
    gone = {"twice": found[[1, 1]], "again": found[:1]}.get(str(slots), np.array(slots))
    with pytest.raises(BatchError, match="remove each slot once"):
        keys.remove(np.asarray(gone, dtype=np.int64))


def test_keys_of_another_shape_are_refused() -> None:
    one, timed = np.array([1, 2]), np.array([5], dtype=np.uint64)
    keys = jt.state.KeySlots(1)
    keys.find([one], 2)
    with pytest.raises(BatchError, match=r"keys of 2 columns do not fit KeySlots\(1\)"):
        keys.find([one, one], 2)
    with pytest.raises(BatchError, match="only KeySlots with timed=True take times"):
        keys.find([one], 2, timed)
    with pytest.raises(BatchError, match="needs a time for each key"):
        jt.state.KeySlots(1, timed=True).find([one], 2)


def test_fractions_are_not_cut_off_in_a_snapshot() -> None:
    values: jt.state.KeyedValues[Any] = jt.state.KeyedValues(type=pa.int64())
    values[1] = 2.0
    assert values.snapshot().num_rows == 1
    values[1] = 1.75
    with pytest.raises(SnapshotError, match="cannot be stored"):
        values.snapshot()
