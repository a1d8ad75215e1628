"""Stored state: what the versions in a checkpoint folder have, read without changing anything."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.cli.command import UsageError
from jeton.cli.tables import files_at
from jeton.connectors.source_plan import stored_partitions
from jeton.core.errors import SnapshotError
from jeton.state.snapshot import BIN
from jeton.storage.chains import Chain, Place
from jeton.storage.checkpoints import Checkpoint, Checkpoints
from jeton.storage.chunk_format import GROUPS, Chunk, CorruptCheckpoint, digests_of, rows_of
from jeton.storage.files import Files
from jeton.storage.leases import Committed
from jeton.storage.manifest import Key

if TYPE_CHECKING:
    from jeton.spark.query_log import QueryLog

_ENTRY: Final = re.compile(r"\d{12,}\.json")
_ALL: Final = -1
"""Stands for the groups of bins of a container that is written by what changed."""
_DEPTH: Final = 3
"""Folders above a store: a query's checkpoint location, ``jeton`` inside it, the flow."""


class Stored:
    """The state of one flow: a store, and Spark's log beside it if it is of a streaming query."""

    def __init__(self, path: str) -> None:
        self.store = Checkpoints(path)
        self._rows: dict[tuple[str, int], npt.NDArray[np.int64]] = {}
        """For each chunk that was read, the rows of each group of bins."""
        self._rows_of: dict[str, int] = {}
        """For each state that was read, by its token, the number of rows."""

    @property
    def path(self) -> str:
        """Where it is."""
        return self.store.files.uri(self.store.root)

    @cached_property
    def log(self) -> QueryLog | None:
        """Spark's log, if the state belongs to a query of Structured Streaming."""
        above = self.store.root.parent
        if above.name != "jeton":
            return None
        if "metadata" not in self.store.files.names(above.parent):
            return None
        from jeton.spark.query_log import QueryLog

        return QueryLog(self.store.files.uri(above.parent))

    def lease(self) -> dict[str, Any]:
        """Who may commit, as far as the store says it."""
        entry = self.store.state()
        return {
            "query": entry.query or (self.log.query if self.log is not None else None),
            "attempt": entry.attempt,
            "holder": entry.token or None,
            "since": _iso(self._changed(self.store.root / "log" / f"{entry.number:012d}.json")),
        }

    def versions(self) -> list[Version]:
        """All versions that count, in ascending order."""
        there = set(self.store.versions())
        return [
            Version(self, known) for known in self.store.state().versions if known.version in there
        ]

    def version(self, number: int | None) -> Version:
        """One version; the newest if no number is given."""
        found = self.versions()
        for version in found:
            if version.number == (found[-1].number if number is None else number):
                return version
        there = ", ".join(str(version.number) for version in found) or "none"
        raise UsageError(
            f"there is no version {'' if number is None else number} in {self.path}".rstrip()
            + f" (there are: {there})"
        )

    def _changed(self, path: PurePosixPath) -> datetime | None:
        info = self.store.files.info(path)
        return None if info is None or info.modified is None else info.modified.astimezone(UTC)

    def changed(self, manifest: str) -> datetime | None:
        """When a version was committed."""
        return self._changed(self.store.manifests / manifest)

    def rows_by_group(self, chunk: Chunk) -> npt.NDArray[np.int64]:
        """The number of rows of each group of bins in a chunk; each chunk is read once."""
        place = chunk.file, chunk.start
        if place not in self._rows:
            groups = self.store.read_chunk(chunk).column(BIN).to_numpy() % GROUPS
            self._rows[place] = np.bincount(groups, minlength=GROUPS)
        return self._rows[place]

    def rows_of_chain(self, checkpoint: Checkpoint, chain: Chain) -> int:
        """The number of rows of a chain; each state is read once."""
        if chain.token not in self._rows_of:
            self._rows_of[chain.token] = checkpoint.read_chain(chain).rows.num_rows
        return self._rows_of[chain.token]


@dataclass(frozen=True)
class Container:
    """One container of an operator, over all workers."""

    rows: int
    size: int
    """Bytes in files, those of other versions' bins beside it included."""


@dataclass(frozen=True)
class Version:
    """One version of the state."""

    stored: Stored
    known: Committed

    @property
    def number(self) -> int:
        """The number of the version; of a streaming query, that of the micro-batch."""
        return self.known.version

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The manifest; `CorruptCheckpoint` if it cannot be read."""
        return self.stored.store.load(self.number)

    @cached_property
    def committed(self) -> datetime | None:
        """When it was committed."""
        return self.stored.changed(self.known.manifest)

    def chunks(self) -> Iterator[tuple[int, Key, tuple[Chunk, ...]]]:
        """The worker, the container and the chunks of everything that it has."""
        for part in self.checkpoint.parts:
            for key, chunks in part.chunks.items():
                yield part.worker, key, chunks

    def chains(self) -> Iterator[tuple[int, Key, Chain]]:
        """The worker, the container and the chain of all that are written by what changed."""
        for part in self.checkpoint.parts:
            for key, chain in part.chains.items():
                yield part.worker, key, chain

    def places(self) -> Iterator[tuple[Key, Place | Chunk]]:
        """The containers and the places of all bytes that it needs."""
        for _, key, chunks in self.chunks():
            for chunk in chunks:
                yield key, chunk
        for _, key, chain in self.chains():
            for link in chain.links:
                for place in link.copies:
                    yield key, place

    def containers(self) -> dict[Key, Container]:
        """The rows of each container; `CorruptCheckpoint` if some are in no file that is whole."""
        rows: Counter[Key] = Counter()
        size: Counter[Key] = Counter()
        for _, key, chunks in self.chunks():
            rows[key] += self._rows(chunks)
        for _, key, chain in self.chains():
            rows[key] += self.stored.rows_of_chain(self.checkpoint, chain)
        for key, place in self.places():
            size[key] += place.size
        return {key: Container(rows[key], size[key]) for key in rows}

    def size(self) -> int:
        """Bytes of files that it needs; other versions may need them too."""
        return sum(place.size for _, place in self.places())

    def written(self) -> int:
        """Bytes that were written for this version."""
        own = f"{self.number:012d}-"
        return sum(place.size for _, place in self.places() if place.file.startswith(own))

    def positions(self) -> dict[str, Any]:
        """For each source, where each of its partitions was; of Spark's sources, their offsets."""
        meta = self.checkpoint.meta
        if "partitions" in meta or "positions" in meta:
            return stored_partitions(meta)
        log = self.stored.log
        return {} if log is None else log.offsets(self.number) or {}

    def digests(self) -> dict[Key, dict[int, frozenset[tuple[int, bytes]]]]:
        """For each container and group of bins the workers that have rows, and their digests."""
        found: dict[Key, dict[int, set[tuple[int, bytes]]]] = {}
        for worker, key, chunks in self.chunks():
            groups = found.setdefault(key, {})
            for chunk in chunks:
                stored = digests_of(self.stored.store.read_chunk(chunk))
                for group in chunk.bins:
                    groups.setdefault(group, set()).add((worker, stored[group]))
        for worker, key, chain in self.chains():
            state = (worker, chain.token.encode())
            found.setdefault(key, {}).setdefault(_ALL, set()).add(state)
        return {
            key: {group: frozenset(each) for group, each in groups.items()}
            for key, groups in found.items()
        }

    def table(self, key: Key, groups: set[int]) -> pa.Table | None:
        """The rows of some groups of a container."""
        tables = []
        for _, own, chunks in self.chunks():
            if own != key:
                continue
            left = set(groups)
            for chunk in chunks:
                wanted = left & set(chunk.bins)
                if wanted:
                    tables.append(rows_of(self.stored.store.read_chunk(chunk), sorted(wanted)))
                    left -= wanted
        if _ALL in groups:
            chains = (chain for _, own, chain in self.chains() if own == key)
            tables += [self.checkpoint.read_chain(chain).rows for chain in chains]
        if not tables:
            return None
        return pa.concat_tables(tables, promote_options="permissive")

    def _rows(self, chunks: tuple[Chunk, ...]) -> int:
        """Rows of all groups, each of which counts once, from a file that is whole."""
        total, left = 0, {group for chunk in chunks for group in chunk.bins}
        error: CorruptCheckpoint | None = None
        for chunk in chunks:
            wanted = left & set(chunk.bins)
            if not wanted:
                continue
            try:
                by_group = self.stored.rows_by_group(chunk)
            except CorruptCheckpoint as corrupt:
                error = corrupt
                continue
            total += int(by_group[sorted(wanted)].sum())
            left -= wanted
        if left and error is not None:
            raise error
        return total


@dataclass
class Change:
    """The difference of one container between two versions."""

    rows_before: int = 0
    rows_after: int = 0
    keys_added: int = 0
    keys_removed: int = 0
    keys_changed: int = 0
    keyed: bool = field(default=True)
    """Whether its rows say which key they belong to; if not, each row counts as a key."""

    def to_json(self) -> dict[str, Any]:
        """The difference as a record."""
        return dict(vars(self))


def changes(before: Version, after: Version) -> dict[Key, Change]:
    """The changes of each container from one version to another.

    Only groups of bins whose digests differ are compared key by key, and containers that are
    written by what changed.
    """
    one, other = before.digests(), after.digests()
    rows = before.containers(), after.containers()
    found: dict[Key, Change] = {}
    for key in dict.fromkeys([*one, *other]):
        old, new = one.get(key, {}), other.get(key, {})
        sizes = [each[key].rows if key in each else 0 for each in rows]
        change = Change(rows_before=sizes[0], rows_after=sizes[1])
        groups = {group for group in {*old, *new} if old.get(group) != new.get(group)}
        if groups:
            _compare(change, before.table(key, groups), after.table(key, groups))
        found[key] = change
    return found


def _compare(change: Change, before: pa.Table | None, after: pa.Table | None) -> None:
    old, new = _by_key(before), _by_key(after)
    change.keyed = all(t is None or bool(_key_columns(t)) for t in (before, after))
    change.keys_added = sum(1 for key in new if key not in old)
    change.keys_removed = sum(1 for key in old if key not in new)
    change.keys_changed = sum(1 for key in new if key in old and old[key] != new[key])


def _key_columns(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name == "key" or name.startswith("key.")]


def _by_key(table: pa.Table | None) -> dict[str, Counter[str]]:
    """The rows of each key; without keys, each row is its own."""
    if table is None:
        return {}
    keys = _key_columns(table)
    found: dict[str, Counter[str]] = {}
    for row in table.drop_columns([BIN]).to_pylist():
        whole = repr(row)
        key = repr([row[name] for name in keys]) if keys else whole
        found.setdefault(key, Counter())[whole] += 1
    return found


def find_stores(path: str) -> list[Stored]:
    """All state under a path: a store, or a folder of several, such as a query's location.

    >>> import tempfile
    >>> find_stores(tempfile.mkdtemp())
    []
    """
    files = files_at(path)
    if not files.is_folder(files.root):
        raise UsageError(f"there is no folder {path}")
    found = sorted(map(files.uri, _stores(files, files.root, _DEPTH)))
    return [Stored(place) for place in found]


def one_store(path: str, flow: str | None) -> Stored:
    """The state under a path, where there must be that of one flow only, or of the one named."""
    found = find_stores(path)
    if flow is not None:
        found = [each for each in found if flow in (PurePosixPath(each.path).name, _flow_of(each))]
    if len(found) == 1:
        return found[0]
    if not found:
        whose = "" if flow is None else f" of flow {flow!r}"
        raise UsageError(f"there are no checkpoints{whose} in {path}")
    names = ", ".join(str(PurePosixPath(each.path).name) for each in found)
    raise UsageError(f"{path} has the state of several flows: add --flow ({names})")


def _flow_of(stored: Stored) -> str | None:
    for version in reversed(stored.versions()):
        try:
            return version.checkpoint.flow
        except SnapshotError:
            continue
    return None


def _stores(files: Files, folder: PurePosixPath, depth: int) -> Iterator[PurePosixPath]:
    inside = files.folders(folder)
    logged = files.names(folder / "log") if "log" in inside else []
    if "manifests" in inside or any(map(_ENTRY.fullmatch, logged)):
        yield folder
    elif depth:
        for name in inside:
            yield from _stores(files, folder / name, depth - 1)


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")


def moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The positions that differ, as ``source`` or ``source/partition``.

    >>> moved({"bids": {"0": 3, "1": 5}}, {"bids": {"0": 3, "1": 9}})
    {'bids/1': {'before': 5, 'after': 9}}
    """
    old, new = _flat(before), _flat(after)
    return {
        name: {"before": old.get(name), "after": new.get(name)}
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    }


def _flat(positions: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for source, position in positions.items():
        if isinstance(position, Mapping):
            found |= {f"{source}/{partition}": at for partition, at in position.items()}
        else:
            found[source] = position
    return found
