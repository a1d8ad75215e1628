"""State files: the tables of a worker's state, in order of their bins, inside one file.

A part file is a row of *chunks*, one for each container that has something to write. A chunk is an
Arrow IPC stream whose rows are sorted by group of bins, with the digest of each group in its
schema's metadata. So a group that is the same as before is recognised by its digest, and need not
be written again. Below, bins are such groups.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.core.errors import SnapshotError
from jeton.state.bins import FEWEST_BINS
from jeton.state.snapshot import BIN, require_binned

GROUPS: Final = FEWEST_BINS
"""State is compared and written by groups of bins, those that are equal modulo this number: so a
checkpoint costs the same for any number of bins."""
_DIGEST: Final = 16
_META: Final = b"jeton.digests"


class CorruptCheckpoint(SnapshotError):
    """A file of a checkpoint is torn, changed or gone."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some bins of one container's state: where they are, and which of them still count.

    >>> chunk = Chunk("a.arrow", 0, 100, 7, bins=(1, 4), written=3)
    >>> Chunk.from_json(chunk.to_json()) == chunk
    True
    """

    file: str
    start: int
    size: int
    checksum: int
    bins: tuple[int, ...]
    """The groups of bins to be read from here; others in it were written again since."""
    written: int
    """With how many groups it was written."""

    def to_json(self) -> list[Any]:
        """The chunk as a manifest has it; the bins as the digits of one number."""
        mask = sum(1 << at for at in self.bins)
        return [self.file, self.start, self.size, self.checksum, f"{mask:x}", self.written]

    @staticmethod
    def from_json(value: Sequence[Any]) -> Chunk:
        """A chunk from a manifest."""
        file, start, size, checksum, digits, written = value
        mask = int(digits, 16)
        bins = tuple(at for at in range(GROUPS) if mask >> at & 1)
        return Chunk(str(file), int(start), int(size), int(checksum), bins, int(written))

    def only(self, bins: frozenset[int] | set[int]) -> Chunk:
        """The same chunk with fewer bins that count."""
        return replace(self, bins=tuple(at for at in self.bins if at in bins))


Digests = Mapping[int, bytes]
"""For each bin of a container, the digest of its rows."""


@dataclass(frozen=True, slots=True)
class Binned:
    """A container's table in order of groups of bins, and where each group is."""

    table: pa.Table
    bins: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    """Where each of the bins starts, and after the last one where that ends."""

    @staticmethod
    def of(table: pa.Table, operator: str, name: str) -> Binned:
        """Sort a table by its bins."""
        try:
            numbers = require_binned(table, repr(name)).column(BIN).to_numpy() % GROUPS
        except SnapshotError as error:
            raise error.located(operator=operator) from None
        for field, column in zip(table.schema, table.itercolumns(), strict=True):
            try:
                column.slice(0, 1).take(pa.array([], pa.int64()))
            except pa.ArrowNotImplementedError as error:
                raise SnapshotError(
                    f"column {field.name!r} of state {name!r} is of type {field.type}, of which "
                    "Arrow cannot pick rows, so that it cannot be divided: cast it"
                ).located(operator=operator) from error
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers, kind="stable")
            table, numbers = table.take(pa.array(order)), numbers[order]
        counts = np.bincount(numbers, minlength=GROUPS)
        bins = np.flatnonzero(counts)
        starts = np.concatenate([[0], np.cumsum(counts[bins])])
        return Binned(table.combine_chunks(), bins, starts)

    def digests(self) -> dict[int, bytes]:
        """The digest of each bin: types, names, what the table is labelled with, and values."""
        seed = blake2b(self.table.schema.serialize(), digest_size=_DIGEST)
        views = [_view(column) for column in self.table.itercolumns()]
        found = {}
        bounds = self.starts.tolist()
        for at, number in enumerate(self.bins.tolist()):
            digest = seed.copy()
            for view in views:
                for part in view(bounds[at], bounds[at + 1]):
                    digest.update(part)
            found[number] = digest.digest()
        return found

    def encode(self, bins: Sequence[int], digests: Digests) -> pa.Buffer:
        """Some bins as an Arrow IPC stream."""
        wanted = np.isin(self.bins, bins)
        if wanted.all():
            table = self.table
        else:
            rows = np.repeat(wanted, np.diff(self.starts))
            table = self.table.filter(pa.array(rows))
        packed = b"".join(int(at).to_bytes(2, "little") + digests[at] for at in bins)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), _META: packed})
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        return stream.getvalue()


def checksum(data: Any) -> int:
    """The checksum that manifests have beside the place of some bytes."""
    return zlib.crc32(memoryview(data))


class Placed(Protocol):
    """Some bytes of a file."""

    @property
    def file(self) -> str:
        """The name of the file."""
        ...

    @property
    def start(self) -> int:
        """Where they start."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    @property
    def checksum(self) -> int:
        """Their checksum."""
        ...


def require_written(data: pa.Buffer, place: Placed) -> pa.Buffer:
    """Bytes that were read, which must be those that were written."""
    if data.size != place.size or checksum(data) != place.checksum:
        raise CorruptCheckpoint(
            f"bytes {place.start} to {place.start + place.size} of {place.file} are not what was "
            f"written there"
        )
    return data


def digests_of(table: pa.Table) -> dict[int, bytes]:
    """The digests that came with a chunk's table."""
    packed = (table.schema.metadata or {})[_META]
    width = 2 + _DIGEST
    return {
        int.from_bytes(packed[at : at + 2], "little"): packed[at + 2 : at + width]
        for at in range(0, len(packed), width)
    }


def rows_of(table: pa.Table, bins: Sequence[int]) -> pa.Table:
    """The rows of a chunk's table whose groups of bins are wanted."""
    others = {k: value for k, value in (table.schema.metadata or {}).items() if k != _META}
    table = table.replace_schema_metadata(others)
    wanted = np.zeros(GROUPS, dtype=bool)
    wanted[list(bins)] = True
    rows = wanted[table.column(BIN).to_numpy() % GROUPS]
    return table if rows.all() else table.filter(pa.array(rows))


def _view(column: pa.ChunkedArray) -> Any:
    """A function that gives the bytes of a column's rows from one to another, in pieces."""
    array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    while pa.types.is_dictionary(array.type) or isinstance(array, pa.ExtensionArray):
        # The values count, not their places in a dictionary.
        array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array.storage
    kind = array.type
    masks = [] if array.null_count == 0 else [_bytes(pc.is_null(array).cast(pa.uint8()), 1)]
    if pa.types.is_boolean(kind):
        array, kind = array.cast(pa.uint8()), pa.uint8()
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _text_view(array, masks, 4)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _text_view(array, masks, 8)
    if pa.types.is_nested(kind) or not _width(kind):
        return lambda start, stop: _serialized(array.slice(start, stop - start))
    width = _width(kind)
    parts = [*masks, _bytes(array, width)]
    widths = [*(1 for _ in masks), width]

    def fixed(start: int, stop: int) -> Iterator[memoryview]:
        for part, size in zip(parts, widths, strict=True):
            yield part[start * size : stop * size]

    return fixed


def _width(kind: pa.DataType) -> int:
    try:
        return int(kind.bit_width) // 8
    except ValueError:
        return 0


def _bytes(array: pa.Array, width: int) -> memoryview:
    buffer = array.buffers()[1]
    if buffer is None:
        return memoryview(b"")
    return memoryview(buffer)[array.offset * width : (array.offset + len(array)) * width]


def _text_view(array: pa.Array, masks: list[memoryview], width: int) -> Any:
    kind = np.int32 if width == 4 else np.int64
    offsets = np.frombuffer(array.buffers()[1], kind, len(array) + 1, array.offset * width)
    lengths = memoryview(np.diff(offsets).tobytes())
    data = memoryview(array.buffers()[2] or b"")

    def text(start: int, stop: int) -> Iterator[memoryview]:
        for mask in masks:
            yield mask[start:stop]
        yield lengths[start * width : stop * width]
        yield data[int(offsets[start]) : int(offsets[stop])]

    return text


def _serialized(array: pa.Array) -> Iterator[pa.Buffer]:
    # Taking all rows makes an array that has those rows only, without what it was cut from.
    own = pc.take(array, pa.array(np.arange(len(array))))
    batch = pa.RecordBatch.from_arrays([own], ["column"])
    # A whole stream, since a batch alone has no dictionaries, which there may be inside.
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    yield stream.getvalue()
