"""SlotRows: whole records by slot, a column of values for each of their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from jeton.columns.column import Column, to_arrow
from jeton.columns.keys import is_bytes
from jeton.state.key_columns import SlotColumn
from jeton.state.slot_bytes import encoded
from jeton.state.slot_pool import Slots


class SlotRows:
    """Records by slot, of any types; a slot's record is overwritten by the next one.

    >>> import numpy as np
    >>> rows = SlotRows()
    >>> rows.put(np.array([2, 0]), {"n": np.array([20, 0]), "word": pa.array(["b", None])}, 3)
    >>> rows.get(np.array([0, 2]))["n"], rows.get(np.array([0, 2]))["word"].to_pylist()
    (array([ 0, 20]), [None, 'b'])
    """

    def __init__(self) -> None:
        self._columns: dict[str, SlotColumn] = {}
        self._dictionaries: dict[str, pa.DataType] = {}

    def put(self, slots: Slots, columns: Mapping[str, Column], size: int) -> None:
        """Set the records of some slots; there are ``size`` slots."""
        for name, given in columns.items():
            column = given
            if not isinstance(column, pa.Array):
                self._column(name).put(slots, column, size)
                continue
            if pa.types.is_dictionary(column.type):
                self._dictionaries[name] = column.type
                column = column.dictionary_decode()
            if is_bytes(column.type):
                kind = column.type
                self._column(name).put(slots, column.cast(pa.large_binary()), size, kind=kind)
            else:
                self._column(name).put(slots, column, size)

    def get(self, slots: Slots, *names: str) -> dict[str, Column]:
        """The records of some slots, or some columns of them."""
        found = {}
        for name in names or self._columns:
            column = self._columns[name].get(slots)
            kind = self._dictionaries.get(name)
            found[name] = column if kind is None else encoded(to_arrow(column), kind)
        return found

    def plain(self, name: str) -> npt.NDArray[Any] | None:
        """The values of a column by slot, if they are in an array."""
        return self._columns[name].plain if name in self._columns else None

    def compact(self, count: int, live: Callable[[], Slots]) -> None:
        """Forget records that no slot in use refers to, if they are the larger part.

        ``count`` slots are in use at most, and ``live`` finds them.
        """
        for column in self._columns.values():
            if column.is_wasteful(count):
                column.compact(live())

    def _column(self, name: str) -> SlotColumn:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = SlotColumn()
        return column
