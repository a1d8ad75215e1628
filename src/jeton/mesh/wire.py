"""The wire: messages and progress batches as bytes. Arrow-layout buffers, nothing pickled.

A frame is a header of 16 bytes and a payload. The payload of a message is its layout and number of
rows, its time, and then its columns' buffers as they lie in memory, each at a multiple of 8 bytes,
so that the receiver uses them in place. What the columns are called and how they are laid out is
sent once for each layout. From that and the number of rows follow the sizes of buffers of values of
fixed width; those of Arrow's come after the time.
"""

from __future__ import annotations

import struct
import sys
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.column import Column
from jeton.columns.time_units import UNITS
from jeton.core.errors import ProtocolError, TimeError, summary
from jeton.core.times import Product, Time
from jeton.progress.protocol import NamedChanges, ProgressBatch, WorkerPointstamp

Buffer = bytes | bytearray | memoryview

HEADER: Final = struct.Struct("<BxxxiQ")
_CONTENTS: Final = struct.Struct("<II")
"""Of a message: the number of its layout, and its rows."""
_WORDS: Final = np.dtype(np.int64)
_NOTE: Final = -1
"""In a progress batch, in place of a location: a note follows, in place of a change."""
_UNIT, _MARK = range(2)
"""The kinds of notes, in place of times: a unit of times, and the number of a mark."""
_YOURS: Final = -2
"""In a progress batch, less a location: the change is on the worker that receives the batch."""
_FEW: Final = 1 << 14
"""Bytes of a message that are cheaper to copy together than to hand over one by one."""
_SLACK: Final = 4096
"""Bytes beyond those that a column needs that are not worth a copy."""
_GARBLED: Final = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError),
    *(OSError, StopIteration, struct.error, pa.ArrowException),
)
"""The errors that reading damaged bytes may raise."""
_PADDING: Final = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")


class Kind(IntEnum):
    """The kind of a frame."""

    LAYOUT = 1
    MESSAGE = 2
    PROGRESS = 3
    HEARTBEAT = 4
    FAILED = 5
    """A worker stops because of an error: the number says whose, the text which."""
    GOODBYE = 6
    LOST = 7
    """A worker stops because another one, whose number it gives, has gone."""
    BUSY = 8
    """A worker has more than enough to do (1), or not any more (0): sources should wait."""
    REST = 9
    """A worker rests, and reports how much it has sent and received."""


LONGEST: Final[dict[int, int]] = {
    Kind.LAYOUT: 1 << 28,
    Kind.MESSAGE: 1 << 34,
    Kind.PROGRESS: 1 << 30,
    Kind.FAILED: 1 << 24,
    Kind.LOST: 1 << 24,
    Kind.REST: 1 << 20,
}
"""The most bytes that a frame's payload may have; frames of other kinds have none."""

# Plain numbers, since looking up a member of an enumeration takes longer than packing one.
MESSAGE: Final = int(Kind.MESSAGE)
PROGRESS: Final = int(Kind.PROGRESS)


class Layout(NamedTuple):
    """How a batch's columns are laid out."""

    time_name: str
    time_width: int
    """Coordinates of a time; 0 for a plain integer."""
    columns: tuple[tuple[str, str, pa.DataType | None], ...]
    """Name, NumPy type (or nothing) and Arrow type of each column."""
    unit: str | None = None
    """The unit of times, if known."""


class _Form:
    """The part that all messages of a layout share."""

    __slots__ = ("columns", "contents", "frame", "is_words", "layout", "number", "start", "width")

    def __init__(self, number: int, layout: Layout) -> None:
        self.number = number
        self.layout = layout
        self.columns = [
            (name, np.dtype(dtype) if dtype else None, kind) for name, dtype, kind in layout.columns
        ]
        coordinates = max(layout.time_width, 1)
        words = coordinates
        self.width = 8 * coordinates
        """Bytes of a row, as far as they are fixed."""
        self.is_words = True
        """Whether all values have eight bytes."""
        for _, dtype, kind in self.columns:
            if dtype is None:
                words += _buffer_count(kind)
            elif dtype.hasobject:
                raise ProtocolError(f"a column of type {dtype} cannot leave a process")
            else:
                self.width += dtype.itemsize
            self.is_words = self.is_words and dtype is not None and dtype.itemsize == 8
        self.contents = struct.Struct(f"<{words}q")
        """The time, and the sizes of Arrow's buffers."""
        self.frame = struct.Struct(f"{HEADER.format}II{words}q")
        self.start = _CONTENTS.size + self.contents.size
        """The bytes before the first buffer."""


class Encoder:
    """Encoder of the messages for one peer, which remembers the layouts that the peer knows."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], _Form] = {}

    def message(self, location: int, time: Time, batch: Batch) -> list[Buffer]:
        """The buffers of a message's frame, after that of its layout if that is new."""
        frames: list[Buffer] = []
        form = self._form(batch, frames)
        times = batch.times
        rows = len(times)
        few = rows * form.width <= _FEW
        buffers: list[Buffer] = [times.tobytes() if few else _bytes_of(times)]
        sizes: list[int] = []
        for column in batch.columns.values():
            if isinstance(column, np.ndarray):
                buffers.append(column.tobytes() if few else _bytes_of(column))
                if not form.is_words:
                    _pad(buffers)
            else:
                for buffer in _arrow_buffers(column):
                    if buffer is None:
                        sizes.append(-1)
                    else:
                        sizes.append(len(buffer))
                        buffers.append(buffer)
                        _pad(buffers)
        length = form.start + sum(map(len, buffers))
        if length > LONGEST[MESSAGE]:
            raise ProtocolError(
                f"a batch of {length} bytes cannot be sent to another worker, at most "
                f"{LONGEST[MESSAGE]} can: give smaller batches to the session"
            )
        stamp = (time,) if type(time) is int else time
        head = form.frame.pack(MESSAGE, location, length, form.number, rows, *stamp, *sizes)
        if length <= _FEW:
            return [b"".join([*frames, head, *buffers])]
        return [*frames, head, *buffers]

    def _form(self, batch: Batch, frames: list[Buffer]) -> _Form:
        """The form of a batch's layout; one that is new goes out first."""
        columns = batch.columns
        # The properties that distinguish layouts, as cheap to read as possible.
        kinds = [c.dtype if isinstance(c, np.ndarray) else c.type for c in columns.values()]
        shape = (batch.time_name, batch.unit, batch.times.shape[1:], *columns, *kinds)
        form = self._known.get(shape)
        if form is None:
            number = len(self._known)
            form = self._known[shape] = _Form(number, _layout(batch))
            text = _write_layout(form.layout)
            frames += [HEADER.pack(Kind.LAYOUT, number, len(text)), text]
        return form

    def progress(self, batch: ProgressBatch) -> list[Buffer]:
        """The buffers of a progress batch's frame, which has the number of named changes."""
        worker, sequence, changes, yours, unit, named, mark = batch
        words = [worker, sequence]
        for (at, (location, time)), delta in named:
            words += (at, location, delta)
            words += (1, time) if type(time) is int else _coordinates(time)
        for (location, time), delta in changes:
            if type(time) is int:
                words += (location, delta, 1, time)
            else:
                words += (location, delta, *_coordinates(time))
        for (location, time), delta in yours:
            if type(time) is int:
                words += (_YOURS - location, delta, 1, time)
            else:
                words += (_YOURS - location, delta, *_coordinates(time))
        if unit is not None:
            words += (_NOTE, UNITS.index(unit), 1, _UNIT)
        if mark:
            words += (_NOTE, mark, 1, _MARK)
        payload = struct.pack(f"<{len(words)}q", *words)
        return [HEADER.pack(PROGRESS, len(named), len(payload)) + payload]


class Decoder:
    """Turns frames of one peer back into messages and progress batches."""

    def __init__(self) -> None:
        self._forms: dict[int, _Form] = {}

    def layout(self, number: int, payload: Buffer) -> None:
        """Record a layout."""
        try:
            self._forms[number] = _Form(number, _read_layout(bytes(payload)))
        except _GARBLED as error:
            raise _garbled("a layout", error) from error

    def message(self, payload: Buffer) -> tuple[Time, Batch]:
        """A message's lower bound and its batch, which uses the payload in place."""
        try:
            return self._message(payload)
        except _GARBLED as error:
            raise _garbled("a message", error) from error

    def progress(self, payload: Buffer, named: int = 0) -> ProgressBatch:
        """A progress batch, whose first changes are ``named``."""
        try:
            return self._progress(payload, named)
        except _GARBLED as error:
            raise _garbled("a progress batch", error) from error

    def _message(self, payload: Buffer) -> tuple[Time, Batch]:
        number, rows = _CONTENTS.unpack_from(payload)
        form = self._forms.get(number)
        if form is None:
            raise ProtocolError(f"a message has the layout {number}, which was not sent")
        layout = form.layout
        coordinates = max(layout.time_width, 1)
        contents = form.contents.unpack_from(payload, _CONTENTS.size)
        stop = form.start + 8 * coordinates * rows
        columns: dict[str, Column] = {}
        if form.is_words:
            _require_size(payload, form.start + rows * form.width)
            words: np.ndarray[Any, Any] = np.frombuffer(payload, dtype=_WORDS)
            at = stop // 8
            times = words[form.start // 8 : at]
            for name, dtype, _ in form.columns:
                column = words[at : at + rows]
                columns[name] = column if dtype is _WORDS else column.view(dtype)
                at += rows
        else:
            view = memoryview(payload)
            times = np.frombuffer(view[form.start : stop], dtype=_WORDS)
            buffers = _Buffers(view, stop, contents[coordinates:])
            for name, dtype, kind in form.columns:
                if dtype is None:
                    columns[name] = _read_arrow(kind, rows, buffers)
                else:
                    columns[name] = np.frombuffer(buffers.of(rows * dtype.itemsize), dtype=dtype)
            _require_size(payload, buffers.at)
            for column in columns.values():
                if len(column) != rows:
                    raise ProtocolError(f"a message of {rows} rows has columns of other lengths")
        if layout.time_width:
            times = times.reshape(rows, layout.time_width)
            time: Time = Product.of(contents[:coordinates])
        else:
            time = contents[0]
        return time, Batch.trusted(columns, times, layout.time_name, time, layout.unit)

    @staticmethod
    def _progress(payload: Buffer, count: int) -> ProgressBatch:
        words = struct.unpack(f"<{len(payload) // 8}q", payload)
        named, at = _named(words, count) if count else ((), 2)
        changes: list[tuple[tuple[int, Time], int]] = []
        yours: list[tuple[tuple[int, Time], int]] = []
        unit: str | None = None
        mark = 0
        while at < len(words):
            location, delta, width = words[at : at + 3]
            at += 3
            if not 1 <= width <= len(words) - at:
                raise ProtocolError(f"a progress batch has a time of {width} coordinates")
            time = words[at] if width == 1 else Product.of(words[at : at + width])
            at += width
            if location >= 0:
                changes.append(((location, time), delta))
            elif location <= _YOURS:
                yours.append(((_YOURS - location, time), delta))
            elif time == _UNIT and 0 <= delta < len(UNITS):
                unit = UNITS[delta]
            elif time == _MARK and delta > 0:
                mark = delta
            else:
                raise ProtocolError(f"a progress batch has a note of kind {time} with {delta}")
        return ProgressBatch(words[0], words[1], tuple(changes), tuple(yours), unit, named, mark)


def _named(words: tuple[int, ...], count: int) -> tuple[NamedChanges, int]:
    """The named changes at the start of a progress batch, and where they end."""
    if count < 0:
        raise ProtocolError(f"a progress batch has {count} named changes")
    found: list[tuple[WorkerPointstamp, int]] = []
    at = 2
    for _ in range(count):
        worker, location, delta, width = words[at : at + 4]
        if worker < 0 or location < 0:
            raise ProtocolError(
                f"a progress batch has a change at location {location} of worker {worker}"
            )
        at += 4
        if not 1 <= width <= len(words) - at:
            raise ProtocolError(f"a progress batch has a time of {width} coordinates")
        time = words[at] if width == 1 else Product.of(words[at : at + width])
        at += width
        found.append(((worker, (location, time)), delta))
    return tuple(found), at


def _coordinates(time: Time) -> tuple[int, ...]:
    """The number of a time's coordinates, and these."""
    if not isinstance(time, Product):
        raise TimeError(f"times of type {type(time).__name__} cannot leave a process")
    return (len(time), *time)


def _garbled(what: str, error: Exception) -> ProtocolError:
    """The error for bytes that could not be read."""
    return ProtocolError(f"{what} cannot be read: {summary(error)}")


def _layout(batch: Batch) -> Layout:
    times = batch.times
    if times.dtype == object:
        raise TimeError("user-defined times cannot leave a process")
    return Layout(
        batch.time_name,
        times.shape[1] if times.ndim == 2 else 0,
        tuple(
            (name, column.dtype.str, None)
            if isinstance(column, np.ndarray)
            else (name, "", column.type)
            for name, column in batch.columns.items()
        ),
        batch.unit,
    )


def _write_layout(layout: Layout) -> bytes:
    fields = [
        pa.field(name, kind or pa.null(), metadata={"numpy": dtype})
        for name, dtype, kind in layout.columns
    ]
    about = {
        "time": layout.time_name,
        "width": str(layout.time_width),
        "unit": layout.unit or "",
    }
    written: bytes = pa.schema(fields, metadata=about).serialize().to_pybytes()
    return written


def _read_layout(text: bytes) -> Layout:
    schema = pa.ipc.read_schema(pa.py_buffer(text))
    columns = []
    for field in schema:
        dtype = field.metadata[b"numpy"].decode()
        columns.append((field.name, dtype, None if dtype else field.type))
    about = schema.metadata
    # The same string as everywhere else, so that comparing it costs nothing.
    unit = sys.intern(about[b"unit"].decode()) or None
    return Layout(about[b"time"].decode(), int(about[b"width"]), tuple(columns), unit)


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    if array.dtype.kind in "mM":
        # Python's buffers do not know dates.
        array = array.view(np.int64)
    data = array.data if array.flags.c_contiguous else np.ascontiguousarray(array).data
    return data.cast("B") if array.size else memoryview(b"")


def _is_flat(kind: pa.DataType) -> bool:
    """Whether an Arrow array of this type is nothing but its own buffers."""
    return not (
        pa.types.is_nested(kind)
        or pa.types.is_dictionary(kind)
        or pa.types.is_run_end_encoded(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
    )


def _pad(buffers: list[Buffer]) -> None:
    """Have the next buffer begin at a multiple of 8 bytes."""
    if len(buffers[-1]) % 8:
        buffers.append(_PADDING[len(buffers[-1]) % 8])


def _buffer_count(kind: pa.DataType) -> int:
    """The number of buffers of an Arrow array of a type."""
    if not _is_flat(kind) or pa.types.is_null(kind):
        return 1
    return 3 if _has_offsets(kind) else 2


def _arrow_buffers(column: pa.Array) -> list[memoryview | None]:
    if column.offset or column.get_total_buffer_size() > 2 * column.nbytes + _SLACK:
        # A slice refers to its parent's buffers: send what it needs of them.
        column = pa.concat_arrays([column, column.slice(0, 0)])
    if not _is_flat(column.type):
        if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
            # However few rows it has, a view keeps all that it ever pointed into.
            column = column.cast(_viewed(column.type))
        stream = pa.BufferOutputStream()
        whole = pa.record_batch([column], names=["column"])
        with pa.ipc.new_stream(stream, whole.schema) as writer:
            writer.write_batch(whole)
        return [memoryview(stream.getvalue()).cast("B")]
    # Arrow's bytes have a sign.
    return [None if each is None else memoryview(each).cast("B") for each in column.buffers()]


def _require_size(payload: Buffer, size: int) -> None:
    """Refuse a payload that does not have as many bytes as its contents."""
    if len(payload) != size:
        raise ProtocolError(f"a message of {len(payload)} bytes has {size} bytes of contents")


class _Buffers:
    """The buffers of a message, which are taken out one by one."""

    __slots__ = ("_sizes", "_view", "at")

    def __init__(self, view: memoryview, at: int, sizes: tuple[int, ...]) -> None:
        self._view = view
        self._sizes = iter(sizes)
        self.at = at

    def of(self, size: int) -> memoryview:
        """The next buffer, of a size that is known."""
        at = self.at
        self.at += size + -size % 8
        return self._view[at : at + size]

    def next(self) -> memoryview | None:
        """The next one, of a size that came with the message."""
        size = next(self._sizes)
        return None if size < 0 else self.of(size)


def _read_arrow(kind: pa.DataType, rows: int, taken: _Buffers) -> pa.Array:
    if not _is_flat(kind):
        with pa.ipc.open_stream(pa.py_buffer(_needed(taken.next()))) as reader:
            column = reader.read_next_batch().column(0)
        # Rare and slow as they are, these are looked at closely: offsets of lists, indices.
        column.validate(full=True)
        if column.type != _viewed(kind):
            raise ProtocolError(f"a column of type {kind} came as {column.type}")
        return column.cast(kind)
    count = _buffer_count(kind)
    found = [taken.next() for _ in range(count)]
    buffers = [None if buffer is None else pa.py_buffer(buffer) for buffer in found]
    if count == 3:
        if buffers[2] is None:
            buffers[2] = pa.py_buffer(b"")
        _check_offsets(kind, rows, buffers[1])
    return pa.Array.from_buffers(kind, rows, buffers)


def _check_offsets(kind: pa.DataType, rows: int, buffer: pa.Buffer | None) -> None:
    """Offsets that go back would have Arrow read where it should not; it checks the last only."""
    if buffer is None:
        raise ProtocolError("a column of text lacks its offsets")
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    offsets: np.ndarray[Any, Any] = np.frombuffer(buffer, np.int64 if large else np.int32)
    used = offsets[: rows + 1]
    if rows and (len(used) <= rows or used[0] < 0 or (used[1:] < used[:-1]).any()):
        raise ProtocolError("the offsets of a column of text make no sense")


def _viewed(kind: pa.DataType) -> pa.DataType:
    """The type in which a column is sent: that of the values, for views."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def _has_offsets(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _needed(buffer: memoryview | None) -> memoryview:
    if buffer is None:
        raise ProtocolError("a message lacks a buffer")
    return buffer
