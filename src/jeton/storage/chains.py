"""Chains: the state of one container as all its rows and what changed since.

A container that knows its changes is written as a *chain* of links. The first link has all rows,
each of the others has rows that changed and the numbers of those that have gone. Each link is in
two files once the next version is written: its bytes are copied. Links of similar size are merged,
with the first one too when the others have grown to half its size: so a chain has few links, and a
row is written again no more often than the logarithm of their number. Earlier links are read from
files for that, so that a worker's memory and its flow have no part in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from jeton.columns import compiled as nb
from jeton.state.changes import NONE, Cut, Delta
from jeton.state.slot_pool import Slots
from jeton.state.sorted_runs import merge_from
from jeton.state.spilled import written
from jeton.storage.chunk_format import CorruptCheckpoint, checksum
from jeton.storage.store import StoreUnavailable

log = logging.getLogger(__name__)

COPIES: Final = 2
"""In how many files a link is from the next version on."""
MOST_LINKS: Final = 8
"""A chain has no more links than this, but for the logarithm of its size."""
_ROW: Final = "jeton.row"
_FIRST: Final = b"jeton.first"
_BEFORE: Final = b"jeton.before"
_ORDER: Final = b"jeton.order"


@dataclass(frozen=True, slots=True)
class Place:
    """Where some bytes are, and their checksum."""

    file: str
    start: int
    size: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Link:
    """One link of a chain: the places of its bytes, each of which has all of them.

    >>> link = Link((Place("a.arrow", 0, 100, 7),), rows=5, removed=1)
    >>> Link.from_json(link.to_json()) == link
    True
    """

    copies: tuple[Place, ...]
    rows: int
    removed: int

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.copies[0].size

    def to_json(self) -> list[Any]:
        """The link as a manifest has it."""
        copies = [[at.file, at.start, at.size, at.checksum] for at in self.copies]
        return [copies, self.rows, self.removed]

    @staticmethod
    def from_json(value: Sequence[Any]) -> Link:
        """A link from a manifest."""
        copies, rows, removed = value
        places = (Place(str(f), int(s), int(n), int(c)) for f, s, n, c in copies)
        return Link(tuple(places), int(rows), int(removed))


@dataclass(frozen=True, slots=True)
class Chain:
    """The links of a container's state, and the token by which the container knows that state."""

    token: str
    links: tuple[Link, ...]
    is_broken: bool = False
    """Whether a link was found in no file: the container has to be asked for all rows."""


Read = Callable[[Place], pa.Buffer]
"""Reads bytes and checks them: `CorruptCheckpoint` or `StoreUnavailable` if they are not there."""


class Appending:
    """The bytes of a file to be written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.buffers: list[pa.Buffer] = []
        self.size = 0

    def add(self, buffer: pa.Buffer) -> Place:
        """Add bytes; where they will be."""
        place = Place(self.name, self.size, buffer.size, checksum(buffer))
        self.buffers.append(buffer)
        self.size += buffer.size
        return place


def extended(before: Chain | None, cut: Cut, read: Read, file: Appending) -> Chain:
    """The chain with the changes of a cut, merged where it is time, with the copies it needs."""
    links = () if before is None or cut.after is None else before.links
    broken = before is not None and cut.after is not None and before.is_broken
    if not cut.is_empty:
        delta = cut.read()
        start = merge_from([*(link.size for link in links), delta.nbytes], MOST_LINKS)
        if start is not None and start < len(links):
            try:
                older = [read_link(link, read) for link in links[start:]]
            except (CorruptCheckpoint, StoreUnavailable) as error:
                log.warning("changes cannot be merged with earlier ones: %s", error)
                broken = broken or isinstance(error, CorruptCheckpoint)
            else:
                links = links[:start]
                delta = Delta.merged([*older, delta], whole=start == 0)
        if not links:
            delta = replace(delta, removed=NONE, before=None)
        if delta.rows.num_rows or len(delta.removed) or delta.before is not None:
            data = encoded(delta, is_large=cut.is_large)
            made = Link((file.add(data),), delta.rows.num_rows, len(delta.removed))
            links = (*(copied(link, read, file) for link in links), made)
            return Chain(cut.token, links, broken)
    return Chain(cut.token, tuple(copied(link, read, file) for link in links), broken)


def copied(link: Link, read: Read, file: Appending) -> Link:
    """A link that is in enough files, if its bytes can be read now."""
    if len(link.copies) >= COPIES:
        return link
    try:
        data = read(link.copies[0])
    except (CorruptCheckpoint, StoreUnavailable) as error:
        log.warning("changes that are in one file are not copied to another: %s", error)
        return link
    return replace(link, copies=(*link.copies, file.add(data)))


def read_link(link: Link, read: Read) -> Delta:
    """A link from any of its files that is whole."""
    return decoded(read_bytes(link, read))


def read_bytes(link: Link, read: Read) -> pa.Buffer:
    """The bytes of a link, from any of its files that is whole."""
    error: CorruptCheckpoint | StoreUnavailable | None = None
    for place in link.copies:
        try:
            return read(place)
        except (CorruptCheckpoint, StoreUnavailable) as unread:
            log.warning("if another file has the same, that is used: %s", unread)
            # A version is not given up for a file that may be read later.
            if not isinstance(error, StoreUnavailable):
                error = unread
    assert error is not None, "a link is somewhere"
    raise error


def encoded(delta: Delta, *, is_large: bool = False) -> pa.Buffer:
    """A delta as bytes: an Arrow IPC stream of its rows, and one of the numbers that have gone.

    Those of a large one are in a file that is mapped into memory.

    >>> delta = Delta(pa.table({"n": [10, 20]}), np.array([3, 9]), removed=np.array([4]))
    >>> again = decoded(encoded(delta))
    >>> again.rows.equals(delta.rows), again.ids, again.removed
    (True, array([3, 9]), array([4]))
    """
    rows, labels = delta.rows, dict(delta.rows.schema.metadata or {})
    if delta.ids is not None:
        if _is_range(delta.ids):
            # One after the other, as they are in a container from which nothing was removed.
            labels[_FIRST] = str(int(delta.ids[0]) if len(delta.ids) else 0).encode()
        else:
            rows = rows.append_column(_ROW, pa.array(_narrow(delta.ids)))
    if delta.before is not None:
        labels[_BEFORE] = str(delta.before).encode()
    if delta.order is not None:
        labels[_ORDER] = delta.order.encode()
    tables = [rows.replace_schema_metadata(labels)]
    if len(delta.removed):
        tables.append(pa.table({_ROW: _narrow(delta.removed)}))
    if is_large:
        return written(partial(_write, tables))
    measured = pa.MockOutputStream()
    _write(tables, measured)
    # Of the right size from the beginning: one that grows is copied again and again.
    data = pa.allocate_buffer(measured.size())
    _write(tables, pa.FixedSizeBufferWriter(data))
    return data


def decoded(data: pa.Buffer) -> Delta:
    """The input of `encoded`."""
    source = pa.BufferReader(data)
    rows = pa.ipc.open_stream(source).read_all()
    removed = NONE
    if source.tell() < data.size:
        removed = _wide(pa.ipc.open_stream(source).read_all().column(_ROW))
    labels = dict(rows.schema.metadata or {})
    first, before, order = (labels.pop(name, None) for name in (_FIRST, _BEFORE, _ORDER))
    ids: Slots | None = None
    if first is not None:
        ids = np.arange(int(first), int(first) + rows.num_rows)
    elif _ROW in rows.column_names:
        ids = _wide(rows.column(_ROW))
        rows = rows.drop_columns([_ROW])
    return Delta(
        rows.replace_schema_metadata(labels),
        ids,
        removed,
        None if before is None else int(before),
        None if order is None else order.decode(),
    )


def _write(tables: Sequence[pa.Table], stream: Any) -> None:
    for table in tables:
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)


@nb.njit(cache=True, nogil=True)
def _is_range(ids: Slots) -> bool:
    differ = False
    for i in range(len(ids)):
        differ |= ids[i] != ids[0] + i
    return not differ


def _narrow(ids: Slots) -> Any:
    """Numbers in as few bytes as hold them."""
    return ids.astype(np.uint32 if ids.max(initial=0) < 1 << 32 else np.int64)


def _wide(column: pa.ChunkedArray) -> Slots:
    wide: Slots = column.to_numpy().astype(np.int64)
    return wide
