"""OpenWindows: the pairs of a search are those of a plain list of windows."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jeton.state import open_windows
from jeton.state.open_windows import NO_TEST, OPERATORS, NumberTest, OpenWindows

KEYS: dict[str, Any] = {
    "integers": lambda keys: np.array(keys, np.int64),
    "unsigned": lambda keys: np.array(keys, np.uint64),
    "far apart": lambda keys: np.array(keys, np.int64) * -(2**61),
    "text": lambda keys: pa.array([str(key) for key in keys], pa.string()),
    "integers of Arrow": lambda keys: pa.array([key or None for key in keys], pa.int64()),
}
NUMBERS: dict[str, Any] = {
    "integers": (np.int64, st.integers(-2, 2)),
    "floats": (np.float64, st.sampled_from([-1.5, -0.0, 0.0, 2.0, float("nan"), float("inf")])),
}


@dataclass
class Window:
    """A window of the twin."""

    slot: int
    key: int
    start: int
    end: int
    order: int
    number: Any


@pytest.fixture(params=[open_windows._PATIENCE, -1], ids=["chains", "in order"])
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How soon a search gives up to go through chains."""
    monkeypatch.setattr(open_windows, "_PATIENCE", request.param)
    return request.param


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.usefixtures("patience")
@settings(max_examples=60)
@given(data=st.data())
def test_a_search_finds_what_a_list_has(keys: str, numbers: str, data: st.DataObject) -> None:
    key_of = KEYS[keys]
    kind, some = NUMBERS[numbers]
    windows = OpenWindows(1)
    there: list[Window] = []
    of_windows = np.zeros(200, kind)
    free = list(range(200))
    opened = 0
    for _ in range(data.draw(st.integers(1, 6))):
        count = data.draw(st.integers(1, 8))
        new = [
            Window(
                free.pop(data.draw(st.integers(0, 20))),
                data.draw(st.integers(0, 3)),
                start := data.draw(st.integers(0, 10)),
                start + data.draw(st.integers(1, 10)),
                opened + n,
                data.draw(some),
            )
            for n in range(count)
        ]
        opened += count
        for window in new:
            of_windows[window.slot] = window.number
        columns = [
            np.array([getattr(w, n) for w in new]) for n in ("slot", "start", "end", "order")
        ]
        windows.open([key_of([w.key for w in new])], *columns)
        there += new
        assert windows.size > max(w.slot for w in there)
        for _ in range(2):
            _search(windows, there, of_windows, key_of, (kind, some), opened, data)
        gone = [w for w in there if data.draw(st.booleans())]
        windows.close(np.array([w.slot for w in gone], np.int64))
        there = [w for w in there if w not in gone]
        free += [w.slot for w in gone]
        _search(windows, there, of_windows, key_of, (kind, some), opened, data)
        starts, ends = windows.spans(np.array([w.slot for w in there], np.int64))
        assert [*zip(starts.tolist(), ends.tolist(), strict=True)] == [
            (w.start, w.end) for w in there
        ]


def _search(
    windows: OpenWindows,
    there: list[Window],
    of_windows: Any,
    key_of: Any,
    numbers: Any,
    opened: int,
    data: st.DataObject,
) -> None:
    kind, some = numbers
    # Some records go past a block, and with most of them in one window they need more room.
    many = data.draw(st.sampled_from([1, 5, open_windows._BLOCK + 3]))
    keys = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=6)) * many
    times = [data.draw(st.integers(0, 20)) for _ in range(min(len(keys), 8))]
    times = (times * len(keys))[: len(keys)]
    values = [data.draw(some) for _ in range(min(len(keys), 8))]
    values = (values * len(keys))[: len(keys)]
    since = data.draw(st.sampled_from([0, opened // 2, opened]))
    name = data.draw(st.sampled_from([None, *OPERATORS]))
    test: NumberTest = NO_TEST
    if name is not None:
        test = (OPERATORS[name], of_windows, np.array(values, kind))
    found = windows.search(
        [key_of(keys)],
        np.array(times),
        test,
        since=since,
        live=lambda: np.array([w.slot for w in there], np.int64),
    )
    expected = [
        (row, w.slot)
        for row, (key, time, value) in enumerate(zip(keys, times, values, strict=True))
        for w in there
        if w.key == key
        and w.start <= time < w.end
        and w.order >= since
        and (name is None or getattr(operator, name)(w.number, value))
    ]
    assert sorted(zip(*map(np.ndarray.tolist, found), strict=True)) == sorted(expected)


def test_many_keys_and_slots_that_are_used_again() -> None:
    windows = OpenWindows(1)
    count = 3_000
    slots, order = np.arange(count), np.arange(count)
    for turn in range(4):
        keys = np.arange(count) * 7 + turn
        windows.open([keys], slots, np.full(count, turn), np.full(count, turn + 5), order)
        asked = np.arange(0, 8 * count, 3)
        rows, found = windows.search([asked], np.full(len(asked), turn + 4), live=lambda: slots)
        assert (keys[found] == asked[rows]).all()
        assert len(rows) == np.isin(asked, keys).sum()
        windows.mark(found)
        assert windows.hit[:count].sum() == len(found)
        windows.close(slots)
        assert (
            len(windows.search([asked], np.full(len(asked), turn), live=lambda: slots[:0])[0]) == 0
        )
