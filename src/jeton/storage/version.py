"""Checkpoint: one version of a flow's state, to be read by any number of workers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from jeton.core.errors import SnapshotError
from jeton.state.bins import BINS, Placement
from jeton.state.changes import Delta, with_numbers
from jeton.state.snapshot import Snapshot, concatenated, misfit, share_of
from jeton.storage.chains import Chain, read_bytes, read_link
from jeton.storage.chunk_format import (
    GROUPS,
    Chunk,
    CorruptCheckpoint,
    Digests,
    digests_of,
    rows_of,
)
from jeton.storage.manifest import Key, Part
from jeton.storage.store import StoreUnavailable

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow
    from jeton.storage.checkpoints import Checkpoints

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """One version of a flow's state.

    >>> import tempfile
    >>> from jeton.storage.checkpoints import Checkpoints
    >>> store = Checkpoints(tempfile.mkdtemp())
    >>> table = pa.table({"bin": pa.array([0, 1, 2], pa.uint16()), "value": ["a", "b", "c"]})
    >>> part = store.write_part(0, 0, {"operator": {"state": table}})
    >>> checkpoint = store.commit(0, [part], flow="f")
    >>> for worker in (0, 1):
    ...     share = checkpoint.share(worker, 2)
    ...     print(share.operators["operator"]["state"]["value"].to_pylist())
    ['a', 'c']
    ['b']
    """

    store: Checkpoints
    version: int
    epoch: int
    flow: str
    meta: Mapping[str, Any]
    parts: tuple[Part, ...]
    bins: int = BINS
    """Into how many bins keys are divided, by workers that go on from it too."""

    @property
    def workers(self) -> int:
        """How many workers wrote it; any number can read it."""
        return len(self.parts)

    @property
    def placement(self) -> Placement | None:
        """The owners of bins, for the same number of workers, if some bins had been moved."""
        owners = self.parts[0].owners if self.parts else ()
        return Placement.from_json(owners, self.workers) if owners else None

    def placed_on(self, workers: int) -> Placement:
        """The owners of bins for a number of workers that go on from it."""
        moved = self.placement
        return Placement.even(workers, self.bins) if moved is None else moved.on(workers)

    @property
    def operators(self) -> list[str]:
        """The operators that it has state of."""
        keys = (key for part in self.parts for key in (*part.chunks, *part.chains))
        return list(dict.fromkeys(key.operator for key in keys))

    @property
    def files(self) -> set[str]:
        """The names of the part files that it needs."""
        return {name for part in self.parts for name in part.files}

    def check(self, flow: Flow, *, allow_removed: Collection[str] = ()) -> None:
        """Refuse state of operators that the flow does not have, unless that is allowed.

        Operators that are new in the flow start empty.
        """
        names = [plan.name for plan in flow.operators]
        gone = [name for name in self.operators if name not in names and name not in allow_removed]
        if gone:
            new = [name for name in names if name not in self.operators]
            raise SnapshotError(
                f"version {self.version} in {self.store.root} has state of the operators {gone}, "
                f"which flow {flow.name!r} does not have. If they were renamed, give them their "
                f"old names back with named(…) (operators without state there: {new}); if they "
                f"were removed for good, say allow_removed={gone}"
            )

    def share(self, worker: int, workers: int, *, allow_removed: Collection[str] = ()) -> Snapshot:
        """The state that one of any number of workers starts with: the rows of its bins."""
        placement = self.placed_on(workers)
        own = np.flatnonzero(placement.owners == worker)
        # Rows that all workers keep have no bin of their own.
        wanted = {0, *np.unique(own % GROUPS).tolist()}
        found: dict[str, dict[str, list[pa.Table]]] = {}
        for key, chunks in self._containers():
            if {key.operator, f"{key.operator}/{key.name}"} & set(allow_removed):
                continue
            for chunk, table in self._read(chunks, wanted):
                rows = share_of(rows_of(table, chunk.bins), worker, placement)
                found.setdefault(key.operator, {}).setdefault(key.name, []).append(rows)
        for key in dict.fromkeys(key for part in self.parts for key in part.chains):
            if {key.operator, f"{key.operator}/{key.name}"} & set(allow_removed):
                continue
            tables = self._of_chains(key, worker, placement)
            found.setdefault(key.operator, {}).setdefault(key.name, []).extend(tables)
        return Snapshot(
            self.flow,
            {
                operator: {name: concatenated(operator, name, t) for name, t in kept.items()}
                for operator, kept in found.items()
            },
            bins=self.bins,
            placement=self.placement,
        )

    def part(self, worker: int, workers: int) -> Part | None:
        """A worker's part, as the base of its next one; nothing if there was no such worker.

        Files that cannot be read are left out, so that what they had is written anew.
        """
        if workers != self.workers:
            return None
        whole: dict[Key, tuple[Chunk, ...]] = {}
        digests: dict[Key, Digests] = {}
        for key, chunks in self.parts[worker].chunks.items():
            found: dict[int, bytes] = {}
            for chunk in chunks:
                try:
                    stored = digests_of(self.store.read_chunk(chunk))
                except (CorruptCheckpoint, StoreUnavailable) as unread:
                    self._warn(unread)
                    continue
                found |= {number: stored[number] for number in chunk.bins}
                whole[key] = (*whole.get(key, ()), chunk)
            digests[key] = found
        chains = {key: self._readable(c) for key, c in self.parts[worker].chains.items()}
        return Part(worker, whole, digests, bins=self.bins, chains=chains)

    def read_chain(self, chain: Chain) -> Delta:
        """All rows of a container, with their numbers."""
        deltas = [read_link(link, self.store.read_place) for link in chain.links]
        return Delta.merged(deltas, whole=True)

    def _of_chains(self, key: Key, worker: int, placement: Placement) -> list[pa.Table]:
        """A worker's rows of a container, from the chains of all workers."""
        tables: list[pa.Table] = []
        own: pa.Table | None = None
        for part in self.parts:
            if key not in part.chains:
                continue
            chain = part.chains[key]
            try:
                whole = self.read_chain(chain)
            except pa.ArrowException as error:
                raise misfit(key.operator, key.name, error) from error
            rows = share_of(whole.rows, worker, placement)
            tables.append(rows)
            if part.worker == worker and rows.num_rows == whole.rows.num_rows:
                own = with_numbers(whole, chain.token)
        goes_on = placement.workers == self.workers
        if goes_on and own is not None and own.num_rows == sum(t.num_rows for t in tables):
            # It goes on with what it had, so that it can add to its chain.
            return [own]
        return tables

    def _readable(self, chain: Chain) -> Chain:
        """A chain without the copies of links that cannot be read, which are then made anew."""
        links = []
        for link in chain.links:
            copies = []
            for place in link.copies:
                try:
                    self.store.read_place(place)
                except (CorruptCheckpoint, StoreUnavailable) as unread:
                    self._warn(unread)
                else:
                    copies.append(place)
            if not copies:
                return replace(chain, is_broken=True)
            links.append(replace(link, copies=tuple(copies)))
        return replace(chain, links=tuple(links))

    def verify(self) -> None:
        """Read everything once; `CorruptCheckpoint` if some of it is in no file that is whole.

        `StoreUnavailable` if whether it is cannot be seen now.
        """
        for _, chunks in self._containers():
            for _ in self._read(chunks, {*range(GROUPS)}):
                pass
        for part in self.parts:
            for chain in part.chains.values():
                for link in chain.links:
                    read_bytes(link, self.store.read_place)

    def __repr__(self) -> str:
        return f"<Checkpoint {self.version} of {self.flow!r}: {self.workers} workers>"

    def _containers(self) -> Iterator[tuple[Key, tuple[Chunk, ...]]]:
        for part in self.parts:
            yield from part.chunks.items()

    def _read(self, chunks: Sequence[Chunk], bins: set[int]) -> Iterator[tuple[Chunk, pa.Table]]:
        """The tables of chunks that have some bins, each of which counts once.

        Of a bin that is in two files, one that is whole will do.
        """
        lost: set[int] = set()
        error: CorruptCheckpoint | StoreUnavailable | None = None
        left = [chunk.only(bins) for chunk in chunks]
        while left := [chunk for chunk in left if chunk.bins]:
            # As few as possible, since all of a chunk is read.
            left.sort(key=lambda chunk: len(chunk.bins))
            chunk = left.pop()
            try:
                table = self.store.read_chunk(chunk)
            except (CorruptCheckpoint, StoreUnavailable) as unread:
                self._warn(unread)
                # A version is not given up for a file that may be read later.
                if not isinstance(error, StoreUnavailable):
                    error = unread
                lost |= {*chunk.bins}
                continue
            yield chunk, table
            bins = bins - {*chunk.bins}
            left = [other.only(bins) for other in left]
        if error is not None and lost & bins:
            raise error

    def _warn(self, unread: CorruptCheckpoint | StoreUnavailable) -> None:
        log.warning(
            "a file of checkpoint %d in %s is %s; if another has the same, that is used: %s",
            self.version,
            self.store.root,
            "damaged" if isinstance(unread, CorruptCheckpoint) else "not read",
            unread,
        )
