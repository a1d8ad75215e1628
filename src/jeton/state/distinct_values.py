"""DistinctValues: the number of different values of each group, exactly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns.column import Column, as_column, from_arrow, take, to_arrow
from jeton.state import fold_loops as loops
from jeton.state.accumulators import Accumulator, roomy, valid_mask
from jeton.state.key_slots import KeySlots
from jeton.state.slot_chains import SlotChains
from jeton.state.slot_pool import Slots


class DistinctValues(Accumulator):
    """The number of different values: one hash table for all groups, of groups and values.

    Values are equal as keys are: NaN equals itself, zeros of both signs are one. Nulls are passed
    over.
    """

    def __init__(self) -> None:
        self._values = KeySlots(1, timed=True, compact=True)
        self._of = SlotChains()
        """The values of each group."""
        self._count = np.zeros(0, dtype=np.int64)

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Keep the values that their groups do not have."""
        new = self._insert(slots, column, size)
        loops.add_count(self._count, slots, new)

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Keep new values; returns the count after each record."""
        new = self._insert(slots, column, size)
        out = np.empty(len(slots), dtype=np.int64)
        loops.roll_count(self._count, slots, new, out)
        return out

    def result(self, slots: Slots) -> Column:
        """The counts."""
        counts: Slots = self._count[slots]
        return counts

    def clear(self, slots: Slots) -> None:
        """Forget the values of some groups."""
        self._take(slots)

    def save(self, slots: Slots) -> dict[str, Column]:
        """The values of each group, as lists."""
        rows, offsets = self._of.rows(slots)
        return {"value": lists_of(offsets, self._values.values(rows)[0])}

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The same again."""
        values, counts = unlisted(saved["value"])
        self.add(np.repeat(slots, counts), values, size)

    def absorb(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """Add values to those there, which loading them does."""
        self.load(slots, saved, size)

    def merge(self, into: Slots, others: Slots) -> None:
        """The values of both, each once."""
        rows, offsets = self._of.rows(others)
        slots = np.repeat(into, np.diff(offsets))
        values = self._values.values(rows)[0]
        self._take(others)
        self.add(slots, values, len(self._count))

    def _insert(self, slots: Slots, column: Column | None, size: int) -> np.ndarray:
        """Keep the values of records; returns for each whether its value is new to its group."""
        assert column is not None, "distinct values name a column"
        self._count = roomy(self._count, size)
        new = np.zeros(len(slots), dtype=bool)
        known = np.arange(len(slots))
        valid = valid_mask(column)
        if len(valid):
            known = np.flatnonzero(valid)
            slots, column = slots[known], as_column(take(column, known))
        if len(known):
            found, added = self._values.find([column], len(known), slots.view(np.uint64))
            self._of.append(slots[added], found[added])
            new[known[added]] = True
        return new

    def _take(self, slots: Slots) -> None:
        rows, _ = self._of.rows(slots)
        self._values.remove(rows)
        self._of.clear(slots)
        self._count[slots] = 0


def lists_of(offsets: Slots, values: Column) -> pa.Array:
    """Lists of values, each from one offset to the next.

    >>> lists_of(np.array([0, 2, 2]), np.array([5, 7])).to_pylist()
    [[5, 7], []]
    """
    return pa.LargeListArray.from_arrays(pa.array(offsets), to_arrow(values))


def unlisted(column: Column) -> tuple[Column, Slots]:
    """The values of all lists, and the number of each list's; a null is an empty list.

    >>> unlisted(pa.array([[5, 7], None, []]))
    (array([5, 7]), array([2, 0, 0]))
    """
    counts = pc.list_value_length(column).cast(pa.int64()).fill_null(0).to_numpy()
    return from_arrow(column.flatten()), counts
