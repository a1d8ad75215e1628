"""TemporalFold: sums and means of durations, and means of timestamps, exact to their unit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from jeton.columns.column import Column, from_arrow, to_arrow
from jeton.core.errors import BatchError
from jeton.state.accumulators import Folding, Mask, Numeric, Unrepresentable, Values, is_unknown
from jeton.state.slot_pool import Slots


class TemporalFold(Numeric):
    """A sum or mean of 64-bit durations or timestamps, as their exact sums of integers.

    A mean is rounded down to the unit of its column.
    """

    def __init__(self, how: str, kind: pa.DataType) -> None:
        super().__init__(how)
        self._kind = kind

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Fold the values in."""
        super().add(slots, self._integers(column), size)

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Fold the values in; returns the result after each record."""
        return super().roll(slots, self._integers(column), size)

    def _folding(self, column: Column | None, counts: Values) -> Folding | None:
        # Plain integers are not durations, although they are kept in the same way.
        return None

    def save(self, slots: Slots) -> dict[str, Column]:
        """The sums, of the type of the values, and how often each wrapped around."""
        saved = super().save(slots)
        return {**saved, "value": to_arrow(saved["value"]).view(self._kind)}

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The same again."""
        super().load(slots, {**saved, "value": self._integers(saved["value"])}, size)

    def _integers(self, column: Column | None) -> Column:
        assert column is not None, "durations and timestamps come from a column"
        if is_unknown(column):
            return column
        kind = to_arrow(column[:0]).type
        if kind != self._kind:
            raise BatchError(
                f"values are of type {kind}, but they were {self._kind} before: cast them to one "
                "type, or give the input a schema=…"
            )
        if isinstance(column, np.ndarray):
            return column.view(np.int64)
        return from_arrow(column.view(pa.int64()))

    def _finished(self, values: Values, carry: Values | None, counts: Values) -> Column:
        seen: Mask = counts > 0
        if self._how == "mean":
            values = _quotients(values, carry, np.maximum(counts, 1))
        elif carry is not None and carry.any():
            row = int(carry.argmax() if carry.max() else carry.argmin())
            exact = int(values[row]) + (int(carry[row]) << 64)
            raise Unrepresentable(
                row, f"a sum of durations is {exact} {self._kind.unit}, which 64 bits cannot hold"
            )
        shown = pa.array(values).view(self._kind)
        if seen.all():
            return from_arrow(shown)
        return shown.take(pa.array(np.arange(len(seen)), mask=~seen))


def _quotients(values: Values, carry: Values | None, counts: Values) -> Values:
    """Sums of 128 bits divided by counts, rounded down, where the results have 64 bits.

    >>> _quotients(np.array([-2, 7]), np.array([1, 0]), np.array([2, 2])).tolist()
    [9223372036854775807, 3]
    """
    quotients, rest = np.divmod(values, counts)
    if carry is None or not carry.any():
        return quotients
    # 2**64 divided by the counts, and what is left over; sums wrap around as the results need.
    whole, over = np.divmod(np.uint64(2**64 - 1), counts.view(np.uint64))
    over = over.view(np.int64) + 1
    full = over == counts
    whole, over = whole + full.astype(np.uint64), np.where(full, 0, over)
    quotients = quotients + (carry.view(np.uint64) * whole).view(np.int64)
    found: Values = quotients + (carry * over + rest) // counts
    return found
