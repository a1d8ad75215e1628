"""RowColumns: the columns of rows that are appended and never overwritten, of the usual types.

Arrays double when they are full. What was handed out before stays as it was, so that a checkpoint
can read it later.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns.column import Column, is_plain_type, is_text
from jeton.state.slot_pool import Slots

Rows: TypeAlias = "Slots | slice"
_MOST_SHORT: Final = np.iinfo(np.int32).max
"""The bytes that text with narrow offsets can have in all."""
_WIDTHS: Final = frozenset((8, 16, 32, 64))


class FixedColumn:
    """Values of equal width: numbers and times, with or without nulls.

    >>> column = FixedColumn(pa.int64())
    >>> column.reserve(slice(0, 0), 4)
    >>> column.add(0, 2, np.array([5, 6]))
    >>> column.add(2, 4, pa.array([7, None]))
    >>> column.take(np.array([1, 0])), column.take(np.array([3, 1])).to_pylist()
    (array([6, 5]), [None, 6])
    """

    __slots__ = ("_dtype", "_type", "_valid", "_values")

    def __init__(self, kind: pa.DataType) -> None:
        self._type = kind
        self._dtype: np.dtype[Any] | None = None
        """The type of NumPy's values, if NumPy has it."""
        if is_plain_type(kind):
            self._values = pa.array([], kind).to_numpy(zero_copy_only=False)
            self._dtype = self._values.dtype
        else:
            self._values = np.empty(0, dtype=f"i{kind.bit_width // 8}")
        self._valid: npt.NDArray[np.bool_] | None = None

    def fits(self, column: Column) -> bool:
        """Whether a column is of the same type."""
        if isinstance(column, np.ndarray):
            dtype = column.dtype
            return dtype is self._dtype or (self._dtype is not None and dtype == self._dtype)
        # Arrow has truth values in bits.
        return bool(column.type == self._type) and not pa.types.is_boolean(self._type)

    def reserve(self, rows: Rows, room: int) -> None:
        """Have some of the rows, and no others, in new arrays with room for more."""
        self._values = some_rows(self._values, rows, room)
        if self._valid is not None:
            self._valid = some_rows(self._valid, rows, room)

    def add(self, first: int, end: int, column: Column) -> None:
        """Append values, for which there is room, as the rows from ``first`` up to ``end``."""
        if isinstance(column, np.ndarray):
            self._values[first:end] = column
            if self._valid is not None:
                self._valid[first:end] = True
            return
        self._values[first:end] = _stored(column, self._values.dtype)
        if self._valid is None and column.null_count:
            self._valid = np.ones(len(self._values), dtype=np.bool_)
        if self._valid is not None:
            self._valid[first:end] = _valid(column)

    def take(self, rows: Slots) -> Column:
        """The values of some rows."""
        values = self._values.take(rows)
        if self._valid is None and self._dtype is not None:
            return values
        return self._made(values, None if self._valid is None else self._valid.take(rows))

    def cut(self, start: int, stop: int) -> Column:
        """The values of the rows from ``start`` up to ``stop``, uncopied."""
        valid = None if self._valid is None else self._valid[start:stop]
        return self._made(self._values[start:stop], valid)

    def _made(self, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None) -> Column:
        if self._dtype is not None and (valid is None or valid.all()):
            return values
        return pa.Array.from_buffers(self._type, len(values), [_mask(valid), pa.py_buffer(values)])

    @property
    def width(self) -> int:
        """About how many bytes of memory a row takes."""
        return int(self._values.itemsize) + (self._valid is not None)


class BytesColumn:
    """Text or binary values, with or without nulls, in one array of bytes.

    >>> column = BytesColumn(pa.string())
    >>> column.reserve(slice(0, 0), 3)
    >>> column.add(0, 2, pa.array(["to", "be"]))
    >>> column.add(2, 3, pa.array(["or", None])[1:])
    >>> column.take(np.array([2, 1])).to_pylist(), column.cut(0, 1).to_pylist()
    ([None, 'be'], ['to'])
    """

    __slots__ = ("_ends", "_letters", "_rows", "_type", "_valid")

    def __init__(self, kind: pa.DataType) -> None:
        self._type = kind
        wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        self._ends = np.zeros(1, dtype=np.int64 if wide else np.int32)
        """Where values end; the first number is where the first one starts."""
        self._letters = np.empty(0, dtype=np.uint8)
        self._valid: npt.NDArray[np.bool_] | None = None
        self._rows = 0

    def fits(self, column: Column) -> bool:
        """Whether a column is of the same type, and its bytes have room beside those here."""
        if isinstance(column, np.ndarray) or column.type != self._type:
            return False
        return self._ends.itemsize > 4 or self._used + int(column.nbytes) <= _MOST_SHORT

    @property
    def _used(self) -> int:
        return int(self._ends[self._rows])

    def reserve(self, rows: Rows, room: int) -> None:
        """Have some of the rows, and no others, in new arrays with room for more."""
        if isinstance(rows, slice):
            ends = self._ends[rows.start : rows.stop + 1]
            letters = self._letters[ends[0] : ends[-1]]
        else:
            ends, letters = _parts(self._whole().take(pa.array(rows)), self._ends.dtype)
        if self._valid is not None:
            self._valid = some_rows(self._valid, rows, room)
        self._rows = len(ends) - 1
        self._ends = some_rows(ends - ends[0], slice(0, len(ends)), room + 1)
        self._letters = some_rows(letters, slice(0, len(letters)), 2 * len(letters))

    def add(self, first: int, end: int, column: Column) -> None:
        """Append values, for which there is room, as the rows from ``first`` up to ``end``."""
        assert not isinstance(column, np.ndarray)
        ends, letters = _parts(column, self._ends.dtype)
        used = self._used
        stop = used + len(letters)
        if stop > len(self._letters):
            self._letters = some_rows(self._letters, slice(0, used), max(2 * used, stop))
        self._letters[used:stop] = letters
        self._ends[first + 1 : end + 1] = ends[1:] + (used - ends[0])
        self._rows = end
        if self._valid is None and column.null_count:
            self._valid = np.ones(len(self._ends) - 1, dtype=np.bool_)
        if self._valid is not None:
            self._valid[first:end] = _valid(column)

    def take(self, rows: Slots) -> Column:
        """The values of some rows."""
        taken = self._whole().take(pa.array(rows))
        return taken if self._valid is None else self._with_nulls(taken, self._valid.take(rows))

    def cut(self, start: int, stop: int) -> Column:
        """The values of the rows from ``start`` up to ``stop``, uncopied."""
        part = self._whole().slice(start, stop - start)
        return part if self._valid is None else self._with_nulls(part, self._valid[start:stop])

    def _whole(self) -> pa.Array:
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(self._letters)]
        return pa.Array.from_buffers(self._type, self._rows, buffers)

    def _with_nulls(self, values: pa.Array, valid: npt.NDArray[np.bool_]) -> pa.Array:
        ends, letters = values.buffers()[1:]
        at = values.offset * self._ends.itemsize
        buffers = [_mask(valid), ends.slice(at), letters]
        return pa.Array.from_buffers(self._type, len(values), buffers)

    @property
    def width(self) -> int:
        """About how many bytes of memory a row takes."""
        each = self._used // max(self._rows, 1)
        return self._ends.itemsize + each + (self._valid is not None)


RowColumn: TypeAlias = FixedColumn | BytesColumn


def row_column(column: Column) -> RowColumn | None:
    """An empty column for values like these, if there is one for their type.

    >>> row_column(pa.array(["a"]).dictionary_encode()) is None
    True
    """
    if isinstance(column, np.ndarray):
        try:
            made = FixedColumn(pa.from_numpy_dtype(column.dtype))
        except (pa.ArrowNotImplementedError, TypeError):
            return None
        return made if made.fits(column) else None
    kind = column.type
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return BytesColumn(kind)
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if (numbers or pa.types.is_temporal(kind)) and _width(kind) in _WIDTHS:
        return FixedColumn(kind)
    return None


def _width(kind: pa.DataType) -> int:
    return kind.bit_width if pa.types.is_primitive(kind) else 0


def some_rows(array: npt.NDArray[Any], rows: Rows, room: int) -> npt.NDArray[Any]:
    """Some rows of an array, in a new one with more room."""
    taken = array[rows]
    longer = np.empty(max(room, len(taken)), dtype=array.dtype)
    longer[: len(taken)] = taken
    return longer


def _stored(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values of an Arrow array of fixed width, whatever they are where there are nulls."""
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(len(column), dtype=dtype)
    return np.frombuffer(data, dtype)[column.offset : column.offset + len(column)]


def _parts(column: pa.Array, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Where the values of a text or binary array end, from where the first starts, and bytes."""
    _, ends, letters = column.buffers()
    if ends is None or not len(column):
        return np.zeros(len(column) + 1, dtype=dtype), np.empty(0, dtype=np.uint8)
    offsets = np.frombuffer(ends, dtype)[column.offset : column.offset + len(column) + 1]
    if letters is None:
        return offsets, np.empty(0, dtype=np.uint8)
    return offsets, np.frombuffer(letters, np.uint8)[offsets[0] : offsets[-1]]


def _valid(column: pa.Array) -> Any:
    if not column.null_count:
        return True
    return column.is_valid().to_numpy(zero_copy_only=False)


def _mask(valid: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
