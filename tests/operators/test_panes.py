"""Sliding windows made of panes: many steps, few records."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import jeton as jt


@pytest.mark.parametrize("rows", [1, 40, 3000])
def test_windows_of_many_steps(rows: int) -> None:
    steps, every = 300, 2
    times = np.arange(rows) * 7 % 50
    keys = np.arange(rows) % 3
    expected: Counter[tuple[int, int]] = Counter()
    for time, key in zip(times.tolist(), keys.tolist(), strict=True):
        for step in range(steps):
            expected[(time // every + 1 + step) * every, key] += 1
    flow = jt.Flow("steps")
    flow.output("out", flow.input("in").key_by("k").sliding(steps * every, every=every).count())
    found = flow.run({"in": {"time": times, "k": keys}}, workers=2)["out"].to_pylist()
    assert {(row["time"], row["k"]): row["count"] for row in found} == expected
