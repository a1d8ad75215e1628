"""Due slots against a list: what a frontier has passed comes out, in order, once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jeton as jt
from jeton.columns import time_columns
from jeton.core.times import IntegerTimes, ProductTimes, TimeKind, sort_key
from jeton.state.due_slots import DueSlots

INTEGERS = st.integers(0, 20)
PRODUCTS = st.builds(jt.Product, st.integers(0, 4), st.integers(0, 4))


@pytest.mark.parametrize(
    ("kind", "times"),
    [(IntegerTimes(), INTEGERS), (ProductTimes(IntegerTimes()), PRODUCTS)],
    ids=["integers", "products"],
)
@pytest.mark.parametrize("inclusive", [False, True])
@given(data=st.data())
def test_what_is_due_comes_out_in_order(
    kind: TimeKind, times: st.SearchStrategy[object], inclusive: bool, data: st.DataObject
) -> None:
    agenda = DueSlots.of(kind)
    waiting: list[tuple[object, int]] = []
    numbers = iter(range(10_000))
    for added in data.draw(st.lists(st.lists(times, max_size=6), max_size=30)):
        slots = [next(numbers) for _ in added]
        waiting += zip(added, slots, strict=True)
        agenda.add(time_columns.as_times(kind, added), np.array(slots, dtype=np.int64))
        if data.draw(st.booleans()):
            most = 1 if kind.total else 3
            frontier = jt.Antichain(data.draw(st.lists(times, max_size=most)))
            behind = frontier.less_than if inclusive else frontier.less_equal
            due = [(time, slot) for time, slot in waiting if not behind(time)]
            waiting = [(time, slot) for time, slot in waiting if behind(time)]
            found, slots_found = agenda.due(frontier, inclusive=inclusive)
            emitted = [time_columns.one(found, row) for row in range(len(found))]
            assert sorted(slots_found.tolist()) == sorted(slot for _, slot in due)
            assert emitted == sorted(emitted, key=sort_key)
            assert dict(zip(slots_found.tolist(), emitted, strict=True)) == {s: t for t, s in due}
        assert jt.Antichain(agenda.pending()) == jt.Antichain(time for time, _ in waiting)
