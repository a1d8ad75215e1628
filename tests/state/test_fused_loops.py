"""Records folded in windows by one loop, against a dictionary that is filled record by record."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jeton.columns.time_arithmetic import LEAST, MOST
from jeton.state.accumulators import NO_FOLDING, Folding
from jeton.state.dense_index import Grid, PanedIndex
from jeton.state.fold_loops import HOW
from jeton.state.fused_loops import COUNT

KEYS: Final = 1024
"""Keys from here on are too great for the first arrays."""
PANES: Final = 16
"""Windows that have room in these."""
STARTS = st.one_of(
    st.integers(-300, 300), st.sampled_from([LEAST, LEAST + 40, MOST - 600, MOST - 5, MOST])
)
MANY = st.one_of(st.integers(1, 90), st.integers(200, 600))
STRETCH = st.tuples(STARTS, st.integers(0, 3), MANY, st.integers(1, 60))
"""Records that follow each other: the first time, the step, their number and that of their keys."""


def fold(how: str, left: Any, right: Any) -> Any:
    """The expected result of a fold, of values without NaN."""
    return {"sum": left + right, "min": min(left, right), "max": max(left, right)}[how]


@pytest.mark.parametrize("how", ["nothing", "count", "sum", "min", "max"])
@given(data=st.data())
def test_windows_have_what_a_dictionary_has(how: str, data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 7, 64, 5000, 2**62]))
    grid = Grid(size, data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 1)))
    noted = how == "nothing" or data.draw(st.booleans())
    counted = how != "nothing" and data.draw(st.booleans())
    index = PanedIndex()
    value, seen = np.zeros(8192, np.int64), np.zeros(8192, np.int64)
    index.reserve(4096)
    known: dict[tuple[int, int], int] = {}
    folded: dict[tuple[int, int], tuple[int, int]] = {}
    for _ in range(data.draw(st.integers(1, 4))):
        stretches = data.draw(st.lists(STRETCH, min_size=1, max_size=6))
        random = np.random.default_rng(data.draw(st.integers(0, 99)))
        numbers = [t + step * n for t, step, rows, _ in stretches for n in range(rows)]
        times = np.array([min(number, MOST) for number in numbers], np.int64)
        keys = np.concatenate([random.integers(0, most, rows) for _, _, rows, most in stretches])
        for at in data.draw(st.lists(st.integers(0, len(keys) - 1), max_size=2)):
            keys[at] = data.draw(st.sampled_from([KEYS - 1, KEYS, -1]))
        values = random.integers(-9, 9, len(keys))
        counts = random.integers(0, 3, len(keys)) if counted else np.empty(0, np.int64)
        folding: Folding = (COUNT, value, seen, values, counts)
        if how != "count":
            folding = NO_FOLDING if how == "nothing" else (HOW[how], *folding[1:])
        done, slots, opened = index.fold(grid, times, keys.view(np.uint64), folding, noted=noted)
        new = []
        for row in range(done):
            place = (window_end(int(times[row]), grid), int(keys[row]))
            if place not in known:
                end, key = place
                cells = index.stored[0].view(np.int64) == end, index.stored[1] == key
                [slot] = [s for s in np.flatnonzero(cells[0] & cells[1]).tolist() if s in opened]
                known[place] = slot
                new.append(slot)
            if noted:
                assert slots[row] == known[place]
            count = int(counts[row]) if counted else 1
            number, before = folded.get(place, (0, 0))
            if count and how in HOW:
                right = int(values[row])
                before = fold(how, before, right) if number else right
            folded[place] = (number + count, before)
        assert opened.tolist() == new
        if done < len(keys):
            panes = {end for end, _ in known}
            end = window_end(int(times[done]), grid)
            beyond = end + grid.beyond > MOST or (end not in panes and len(panes) == PANES)
            assert beyond or not 0 <= keys[done] < KEYS
        for place, slot in known.items():
            if how != "nothing":
                number, result = folded[place]
                assert seen[slot] == number
                assert how == "count" or not number or value[slot] == result


def window_end(time: int, grid: Grid) -> int:
    """The time that the window of a time is known by."""
    start = (time - grid.offset) // grid.size * grid.size + grid.offset
    return start + grid.size - grid.beyond
