"""Operators and the plain scripts that they are compared with compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

import jeton as jt
from jeton_evaluation.bench import bare, operators
from jeton_evaluation.bench.bare import Columns

CASES = {case.name: case for case in operators.CASES}


def flow_rows(name: str, data: Sequence[Columns]) -> pd.DataFrame:
    """The rows of a case's operator, by time and key."""
    case = CASES[name]
    flow = jt.Flow("compared")
    streams = [
        flow.source(operators._source(data[number :: case.inputs], case.workers))
        for number in range(case.inputs)
    ]
    flow.output("rows", case.attach(streams[0], streams[-1]))
    with flow.open(workers=case.workers) as run:
        return run.finish()["rows"].to_pandas()


def bare_rows(name: str, data: Sequence[Columns]) -> list[Any]:
    """The results of a case's script, for each batch."""
    script = CASES[name].bare()
    return [script(part) for part in data]


def made(name: str, batch: int, batches: int) -> list[Columns]:
    return bare.make(batch, batches, CASES[name].keys, CASES[name].inputs)


def test_counts() -> None:
    data = made("rolling word count", 512, 9)
    rows = flow_rows("rolling word count", data).sort_values("time")
    assert rows["count"].tolist() == np.concatenate(bare_rows("rolling word count", data)).tolist()


def test_filters() -> None:
    data = made("filter + map", 512, 3)
    rows = flow_rows("filter + map", data).sort_values("time")
    times, keys, values = map(np.concatenate, zip(*bare_rows("filter + map", data), strict=True))
    assert rows["time"].tolist() == times.tolist()
    assert rows["key"].tolist() == keys.tolist()
    assert rows["value"].tolist() == values.tolist()


def test_means() -> None:
    # The script emits a window with the first batch behind it: never the last one.
    data = made("tumbling mean by key", 16_384, 9)
    rows = flow_rows("tumbling mean by key", data).sort_values(["time", "key"])
    found = [part for part in bare_rows("tumbling mean by key", data) if len(part)]
    assert len(found) == 2
    keys, means = map(np.concatenate, zip(*found, strict=True))
    assert rows["key"].tolist()[: len(keys)] == keys.tolist()
    np.testing.assert_allclose(rows["mean"][: len(means)], means)


def test_partitions() -> None:
    data = made("hash exchange to 2 workers", 512, 4)
    rows = flow_rows("hash exchange to 2 workers", data)
    sizes = [sum(sizes) for *_, sizes in bare_rows("hash exchange to 2 workers", data)]
    assert len(rows) == sum(sizes) == 4 * 512


@pytest.mark.parametrize("batch", [256, 4096])
def test_pairs(batch: int) -> None:
    """Also where a batch is shorter than the interval, and where it is longer."""
    data = made("interval join by key", batch, 12_288 // batch)
    rows = flow_rows("interval join by key", data).sort_values(["time", "key", "value"])
    turns = bare_rows("interval join by key", data)
    pairs = [
        # The second side's batches have the value of the first side in the other place.
        (time, key, *((one, other) if turn % 2 == 0 else (other, one)))
        for turn, found in enumerate(turns)
        for time, key, one, other in zip(*map(np.ndarray.tolist, found), strict=True)
    ]
    values = [name for name in rows.columns if name not in ("time", "key")]
    expected = sorted(pairs)
    assert len(expected) > 100
    assert sorted(zip(*(rows[n].tolist() for n in ("time", "key", *values[:2])), strict=True)) == (
        expected
    )
