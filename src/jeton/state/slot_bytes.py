"""SlotBytes: text and binary values by slot, in one growing array of bytes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import compiled as nb
from jeton.columns.column import is_text
from jeton.columns.keys import bytes_of, eight_bytes, is_bytes
from jeton.state.slot_pool import Slots, grown

_ALL_VALID: Final = np.empty(0, dtype=np.bool_)
_NULL: Final = -1
"""The length of a null."""


class SlotBytes:
    """Text or binary values by slot: they are compared byte by byte, without being copied out.

    >>> words = SlotBytes(pa.string())
    >>> words.put(np.array([1, 0]), pa.array(["to", None]), 2)
    >>> words.matches(np.array([1, 0, 1]), pa.array(["to", None, "be"]))
    array([ True,  True, False])
    >>> words.get(np.array([0, 1])).to_pylist()
    [None, 'to']
    """

    __slots__ = ("_categories", "_data", "_lengths", "_starts", "_type", "_used", "rows")

    def __init__(self, kind: pa.DataType, size: int = 0) -> None:
        self._type = kind
        self._categories: pa.Array | None = None
        self._data = np.empty(1024, dtype=np.uint8)
        self._used = 0
        self._starts = np.zeros(size, dtype=np.int64)
        self._lengths = np.full(size, _NULL, dtype=np.int64)
        self.rows = 0
        """How many values have been put since the last compaction."""

    def put(
        self,
        slots: Slots,
        column: pa.Array,
        size: int,
        *,
        rows: npt.NDArray[Any] | None = None,
        kind: pa.DataType | None = None,
        categories: pa.Array | None = None,
    ) -> None:
        """Set the values of some slots to those at some rows (all of them) of a column.

        ``size`` is how many slots there are, ``kind`` the type as which values come out again,
        ``categories`` the dictionary of one whose order counts.
        """
        if categories is not None and self._categories is None:
            self._categories = categories
        self._learn(column.type if kind is None else kind)
        if rows is None:
            rows = np.arange(len(slots))
        if size > len(self._starts):
            size = max(size, 2 * len(self._starts))
            self._starts, self._lengths = grown(self._starts, size), grown(self._lengths, size)
        ends, letters, valid = _parts(column)
        self._reserve(int(_size(ends, rows)))
        self._used = _put(
            ends, letters, valid, rows, slots, self._starts, self._lengths, self._data, self._used
        )
        self.rows += len(slots)

    def matches(self, slots: Slots, column: pa.Array) -> npt.NDArray[np.bool_]:
        """Whether the values of some slots are those of a column, row by row."""
        if not (is_bytes(_decoded(column.type)) or pa.types.is_null(column.type)):
            return np.zeros(len(slots), dtype=np.bool_)
        same: npt.NDArray[np.bool_] = _match(
            *_parts(column), slots, self._starts, self._lengths, self._data
        )
        return same

    def get(self, slots: Slots) -> pa.Array:
        """The values of some slots."""
        offsets, letters, valid = _gather(slots, self._starts, self._lengths, self._data)
        mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        text = pa.Array.from_buffers(
            pa.large_binary(),
            len(slots),
            [mask, pa.py_buffer(offsets), pa.py_buffer(letters)],
        )
        return _as_type(text, self._type, self._categories)

    def compact(self, live: Slots) -> None:
        """Forget all values but those of the slots in use."""
        offsets, letters, valid = _gather(live, self._starts, self._lengths, self._data)
        self._starts[live] = offsets[:-1]
        self._lengths[live] = np.where(valid, np.diff(offsets), _NULL)
        self._data, self._used = letters, len(letters)
        self.rows = len(live)

    def _reserve(self, size: int) -> None:
        if self._used + size > len(self._data):
            self._data = grown(
                self._data[: self._used], max(2 * len(self._data), self._used + size)
            )

    def _learn(self, kind: pa.DataType) -> None:
        """Widen the type if values of another one come: text stays text, whatever its offsets."""
        if kind == self._type or pa.types.is_null(kind):
            return
        if pa.types.is_null(self._type):
            self._type = kind
            return
        text = all(is_text(_decoded(one)) for one in (kind, self._type))
        self._type = pa.large_string() if text else pa.large_binary()


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _parts(column: pa.Array) -> tuple[Any, Any, Any]:
    """Where values end, their bytes, and which are valid (nothing if all are)."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    ends, letters = bytes_of(column)
    valid = _ALL_VALID
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
    return ends, letters, valid


def _as_type(binary: pa.Array, kind: pa.DataType, categories: pa.Array | None) -> pa.Array:
    """Bytes as the text or the binary values that they were."""
    if pa.types.is_null(kind):
        return pa.nulls(len(binary))
    if pa.types.is_dictionary(kind):
        return encoded(binary.cast(kind.value_type), kind, categories)
    return binary.cast(kind)


def encoded(values: pa.Array, kind: pa.DataType, categories: pa.Array | None = None) -> pa.Array:
    """Values with a dictionary, as a type has it; with wider indices if it must be.

    The dictionary begins with ``categories``, if there are any.
    """
    if categories is not None:
        there = pc.or_(values.is_null(), pc.is_in(values, value_set=categories))
        others = pc.unique(values.filter(pc.invert(there)))
        categories = pa.concat_arrays([categories, others])
        indices = pc.index_in(values, value_set=categories)
        made = pa.DictionaryArray.from_arrays(indices, categories)
    else:
        made = values.dictionary_encode()
    indices = made.indices
    if len(made.dictionary) <= np.iinfo(kind.index_type.to_pandas_dtype()).max:
        indices = indices.cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, made.dictionary, ordered=kind.ordered)


@nb.njit(cache=True)
def _size(ends, rows):  # type: ignore[no-untyped-def]
    size = 0
    for row in rows:
        size += ends[row + 1] - ends[row]
    return size


@nb.njit(cache=True)
def _put(ends, letters, valid, rows, slots, starts, lengths, data, used):  # type: ignore[no-untyped-def]
    for i in range(len(slots)):
        slot, row = slots[i], rows[i]
        starts[slot] = used
        if len(valid) and not valid[row]:
            lengths[slot] = -1
            continue
        length = np.int64(ends[row + 1] - ends[row])
        lengths[slot] = length
        # Places without a sign are not taken for ones from the end: so bytes are copied together.
        to, at = np.uint64(used), np.uint64(ends[row])
        for j in range(np.uint64(length)):
            data[to + j] = letters[at + j]
        used += length
    return used


@nb.njit(cache=True)
def _match(ends, letters, valid, slots, starts, lengths, data):  # type: ignore[no-untyped-def]
    out = np.empty(len(slots), np.bool_)
    for i in range(len(slots)):
        slot = slots[i]
        if len(valid) and not valid[i]:
            out[i] = lengths[slot] < 0
            continue
        at, end = np.uint64(ends[i]), np.uint64(ends[i + 1])
        if lengths[slot] != np.int64(end - at):
            out[i] = False
            continue
        other = np.uint64(starts[slot])
        same = True
        while same and at + np.uint64(8) <= end:
            same = eight_bytes(letters, at) == eight_bytes(data, other)
            at += np.uint64(8)
            other += np.uint64(8)
        while same and at < end:
            same = letters[at] == data[other]
            at += np.uint64(1)
            other += np.uint64(1)
        out[i] = same
    return out


@nb.njit(cache=True)
def _gather(slots, starts, lengths, data):  # type: ignore[no-untyped-def]
    offsets = np.zeros(len(slots) + 1, np.int64)
    valid = np.empty(len(slots), np.bool_)
    for i in range(len(slots)):
        length = lengths[slots[i]]
        valid[i] = length >= 0
        offsets[i + 1] = offsets[i] + max(length, 0)
    letters = np.empty(offsets[-1], np.uint8)
    for i in range(len(slots)):
        to, at = np.uint64(offsets[i]), np.uint64(starts[slots[i]])
        for j in range(np.uint64(offsets[i + 1]) - to):
            letters[to + j] = data[at + j]
    return offsets, letters, valid
