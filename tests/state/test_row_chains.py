"""Chains of rows against a list of rows, through which each search goes anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jeton as jt
from jeton.columns.column import to_arrow
from jeton.state import row_chains
from jeton.state.row_chains import RowChains

KEYS = 5
ROW = st.tuples(st.integers(0, KEYS - 1), st.integers(0, 40), st.sampled_from(["a", "bc", None]))
Kept = list[tuple[int, int, str | None]]


def batch_of(rows: Kept) -> jt.Batch:
    keys, times, words = zip(*rows, strict=True)
    columns = {"key": np.array(keys), "at": np.array(times), "word": pa.array(words, pa.string())}
    return jt.Batch(columns, np.array(times))


def rows_of(batch: jt.Batch) -> Kept:
    return [(row["key"], row["time"], row["word"]) for row in batch.rows()]


@pytest.mark.parametrize("most", [120, np.iinfo(np.int32).max])
@given(data=st.data(), in_order=st.booleans())
def test_chains_find_what_a_list_has(most: int, data: st.DataObject, in_order: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Numbers of rows begin anew soon, and rows that are over are looked for often.
        patch.setattr(row_chains, "_MOST_NUMBER", most)
        patch.setattr(row_chains, "_SMALL", 8)
        check(data, in_order)


def check(data: st.DataObject, in_order: bool) -> None:
    chains, kept, limit = RowChains(), Kept(), -1
    cuts: list[tuple[jt.Batch, Kept]] = []
    for step in range(data.draw(st.integers(1, 12))):
        rows = data.draw(st.lists(ROW, min_size=1, max_size=20))
        if in_order:
            rows = sorted(((key, time + 10 * step, word) for key, time, word in rows), key=at)
        batch = batch_of(rows)
        assert chains.fits(batch)
        assert chains.add(batch["key"].to_numpy(), batch, KEYS)
        kept += rows
        if data.draw(st.booleans()):
            limit = max(limit, data.draw(st.integers(0, 45)) + 10 * step * in_order)
            chains.drop_before(limit)
        if data.draw(st.integers(0, 3)) == 0:
            stays = data.draw(st.lists(st.booleans(), min_size=len(chains), max_size=len(chains)))
            kept = [row for row, stay in zip(rows_of(chains.batch()), stays, strict=True) if stay]
            chains.keep(np.flatnonzero(stays))
        left = rows_of(chains.batch())
        assert len(left) == len(chains)
        assert [row for row in left if row[1] >= limit] == [row for row in kept if row[1] >= limit]
        assert chains.slots().tolist() == [key for key, _, _ in left]
        unused = np.ones(KEYS, np.bool_)
        chains.unmark(unused)
        assert set(np.flatnonzero(~unused).tolist()) == {key for key, _, _ in left}
        asking = data.draw(st.lists(ROW, min_size=1, max_size=9))
        lower = data.draw(st.integers(-20, 5))
        assert pairs(chains, asking, lower, lower + 15, limit) == sorted(
            ((mine, row) for mine in asking for row in kept if is_near(mine, row, lower, limit)),
            key=repr,
        )
        cuts.append((chains.batch(), left))
    for batch, expected in cuts:
        assert rows_of(batch) == expected


def at(row: Any) -> int:
    return int(row[1])


def is_near(mine: Any, row: Any, lower: int, limit: int) -> bool:
    return bool(
        mine[0] == row[0] and lower <= at(row) - at(mine) <= lower + 15 and at(row) >= limit
    )


def pairs(chains: RowChains, asking: Kept, lower: int, upper: int, limit: int) -> list[Any]:
    keys, times, _ = (np.array(column) for column in zip(*asking, strict=True))
    pairs, start = list[Any](), 0
    while start < len(asking):
        found = chains.partners(keys, times, lower, upper, start, 4)
        start = found.stop
        assert not found.is_slow
        assert chains.take(found.rows, ["key", "at"]).keys() == {"word"}
        columns = [to_arrow(column).to_pylist() for column in chains.take(found.rows).values()]
        rows = [
            (asking[n], row)
            for n, row in zip(found.asking, zip(*columns, strict=True), strict=True)
        ]
        assert found.times.tolist() == [max(at(mine), at(other)) for mine, other in rows]
        pairs += [(mine, other) for mine, other in rows if at(other) >= limit]
    return sorted(pairs, key=repr)


def test_rows_that_are_over_go_from_the_front() -> None:
    """Those behind a row that stays go before they are the larger part."""
    chains = RowChains()
    for time in range(0, 100_000, 100):
        batch = jt.Batch({"key": np.arange(100)}, times=np.arange(time, time + 100))
        chains.add(np.arange(100), batch, 100) if chains.fits(batch) else pytest.fail("it fits")
        chains.drop_before(time)
        assert len(chains) == 100
    late = jt.Batch({"key": [0]}, times=[10**6])
    assert chains.add(np.array([0]), late, 100)
    for time in range(100_000, 200_000, 100):
        batch = jt.Batch({"key": np.arange(100)}, times=np.arange(time, time + 100))
        assert chains.add(np.arange(100), batch, 100)
        chains.drop_before(time)
    assert len(chains) <= 4096 + 2 * 101
    chains.drop_before(10**6 + 1)
    assert len(chains) == 0


@pytest.mark.parametrize("before", [0, 100, 1024, 1500, 3000, 5000, 20_000])
def test_row_numbers_begin_anew_before_they_are_too_great(before: int) -> None:
    """Arrays have room for rows to come: their numbers count too."""
    chains, keys = RowChains(), np.arange(100) % 3
    chains._base = chains._first = chains._end = np.iinfo(np.int32).max - before
    for time in range(300):
        batch = jt.Batch({"key": keys}, times=np.full(100, time))
        assert chains.fits(batch)
        assert chains.add(keys, batch, 3)
        chains.drop_before(time - 9)
        found = chains.partners(keys[:1], np.array([time]), -5, 0, 0, 1 << 20)
        assert len(found.rows) == 34 * min(time + 1, 6)
    assert chains._end <= 300 * 100
