"""Checkpoints: versions of a flow's state, in files.

Workers write *parts*; their coordinator commits a version: it writes a *manifest*, which
says which part files make it up, and then an entry of the store's log, which says which manifests
count. A version exists once that entry does, whole or not at all; see `jeton.storage.leases`.

A bin that did not change is written once more, with the next version, so that it is in two files;
from then on manifests point at these. When too little of an older file is still needed, its bins
are written anew, so that it can go. So whichever single file is damaged, at most the version that
it was written for is lost: the one before does not need it.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa

from jeton.core.errors import SnapshotError
from jeton.state.bins import BINS
from jeton.state.changes import Cut
from jeton.state.snapshot import misfit
from jeton.storage.chains import Appending, Chain, extended
from jeton.storage.chunk_format import (
    Binned,
    Chunk,
    CorruptCheckpoint,
    Digests,
    Placed,
    require_written,
)
from jeton.storage.earlier_formats import manifest_name, settled, state_of
from jeton.storage.files import Files, PatientFiles
from jeton.storage.leases import MANIFEST, Committed, Entry, Lease, Superseded, decoded, encoded
from jeton.storage.manifest import Key, Part, Tables, too_rare, unchanged
from jeton.storage.store import StoreUnavailable
from jeton.storage.version import Checkpoint

__all__ = ["Checkpoint", "Checkpoints", "Part"]

log = logging.getLogger(__name__)

_PART: Final = re.compile(r"(\d{12,})-\d+-\d+-[0-9a-f]+\.arrow")


class Checkpoints:
    """The checkpoints under a path or URI.

    They can be read on any file system of Arrow's, and committed where a file can be created only
    if it is not there: see `Files.put`.

    >>> import tempfile, jeton as jt
    >>> flow = jt.Flow("count")
    >>> flow.output("counts", flow.input("words").key_by("word").running().count())
    >>> store = Checkpoints(tempfile.mkdtemp())
    >>> with flow.open(workers=2) as run:
    ...     run.input("words").send({"time": [0, 0], "word": ["a", "b"]})
    ...     run.run_to_rest()
    ...     parts = [store.write_part(1, w.index, w.snapshot()) for w in run.workers]
    >>> store.commit(1, parts, flow="count", meta={"offset": 2})
    <Checkpoint 1 of 'count': 2 workers>
    >>> newest = store.latest()
    >>> newest.version, newest.meta
    (1, {'offset': 2})
    >>> with flow.open(workers=1, restore=newest.share(0, 1)) as run:
    ...     run.input("words").send({"time": [1], "word": ["a"]})
    ...     run.finish()["counts"].to_pylist()
    [{'time': 1, 'word': 'a', 'count': 2}]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        filesystem: Any = None,
        *,
        files: Files | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """``wait`` waits for some seconds, before a file that could not be read is read again."""
        self.files: Files = PatientFiles(files or Files(path, filesystem), wait)
        self.root = self.files.root
        self._parts = self.root / "parts"
        self.manifests = self.root / "manifests"
        """The folder that has a file for each version."""
        self._lease = Lease(self.files)

    def __repr__(self) -> str:
        return f"<Checkpoints at {self.root}>"

    # Writing

    def write_part(
        self,
        version: int,
        worker: int,
        tables: Tables,
        *,
        epoch: int = 0,
        base: Part | None = None,
        bins: int = BINS,
        owners: Sequence[int] = (),
    ) -> Part:
        """Write what changed of a worker's state; it counts once `commit` has it.

        ``base`` is the part that this worker contributed to the version before, as `write_part`
        returned it or as `Checkpoint.part` read it. Without one, everything is written. ``bins``
        says into how many the worker divides keys, and ``owners`` which worker owns each, if some
        have been moved.
        """
        # A name that no other attempt has, of any process at any time.
        file = Appending(f"{version:012d}-{epoch}-{worker}-{token_hex(4)}.arrow")
        chunks: dict[Key, tuple[Chunk, ...]] = {}
        chains: dict[Key, Chain] = {}
        digests: dict[Key, Digests] = {}
        for operator, kept in tables.items():
            for container, table in kept.items():
                key = Key(operator, container)
                if isinstance(table, Cut):
                    before = None if base is None else base.chains.get(key)
                    chains[key] = self._extended(key, before, table, file)
                    continue
                if table.num_rows == 0:
                    continue
                binned = Binned.of(table, operator, container)
                found = digests[key] = binned.digests()
                same = () if base is None else unchanged(base, key, found)
                if anew := too_rare(found, same):
                    at = file.add(binned.encode(anew, found))
                    place = (at.file, at.start, at.size, at.checksum)
                    same = (*same, Chunk(*place, bins=tuple(anew), written=len(anew)))
                chunks[key] = tuple(same)
        if file.buffers:
            self.files.write(self._parts / file.name, file.buffers)
        return Part(worker, chunks, digests, file.size, bins, tuple(owners), chains)

    def commit(
        self,
        version: int,
        parts: Sequence[Part],
        *,
        flow: str,
        epoch: int = 0,
        meta: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Commit a version of the parts of all workers, atomically.

        ``meta`` has what else belongs to it as JSON, such as sources' offsets. A run that has no
        lease yet takes it now. `Superseded` if another run has taken the lease: then the version
        is not there.
        """
        parts = sorted(parts, key=lambda part: part.worker)
        if [part.worker for part in parts] != list(range(len(parts))):
            raise SnapshotError(
                f"version {version} needs one part of each worker, not of "
                f"{[part.worker for part in parts]}"
            )
        bins = {part.bins for part in parts} or {BINS}
        if len(bins) > 1:
            raise SnapshotError(f"the workers of version {version} divide keys into {bins} bins")
        body: dict[str, Any] = {
            "version": version,
            "epoch": epoch,
            "flow": flow,
            "bins": max(bins),
            "meta": dict(meta or {}),
            "parts": [part.to_json() for part in parts],
        }
        if self._lease.own.number:
            # Also to go on from an entry that was created although there was an error.
            self.require_lease()
        else:
            self.take_lease()
        name = manifest_name(version)
        self.files.write(self.manifests / name, [encoded(body)])
        try:
            state = self._lease.own.with_version(Committed(version, epoch, name))
            self._lease.append(state)
        except Superseded:
            if name not in (known.manifest for known in self.state().versions):
                self.files.delete(self.manifests / name)
            raise
        return Checkpoint(self, version, epoch, flow, body["meta"], tuple(parts), body["bins"])

    # Who may commit

    def take_lease(self, *, query: str | None = None) -> Entry:
        """From now on only this run commits here, until another takes the lease.

        Returns the state of the store. Its ``attempt`` is a number that no other run has; its
        ``query`` is the name given here, if the store has none yet.
        """
        return self._lease.take(partial(settled, self.files), query=query)

    def require_lease(self) -> None:
        """`Superseded` if another run has taken the lease since this one did."""
        self._lease.require()

    def give_up(self, *, above: int) -> None:
        """Have no version after one count, because what follows does not go on from them."""
        self._lease.append(self._lease.own.up_to(above))

    def query(self) -> str | None:
        """The name by which sinks know the query whose checkpoints these are, if it has one."""
        return self.state().query

    # Reading

    def state(self) -> Entry:
        """The state of the store: which versions count, and who holds the lease."""
        return state_of(self.files, self._lease.newest())

    def versions(self) -> list[int]:
        """The versions that were committed, in ascending order, whether or not they are whole."""
        return [version for version, _ in self.committed()]

    def committed(self) -> list[tuple[int, int]]:
        """The version and epoch of each version that counts, in ascending order."""
        return [(known.version, known.epoch) for known in self._committed()]

    def load(self, version: int) -> Checkpoint:
        """A version; `SnapshotError` if there is none, `CorruptCheckpoint` if it is damaged.

        `StoreUnavailable` if its manifest cannot be read now, which says nothing about it.
        Its part files are looked at when they are read, or by `Checkpoint.verify`.
        """
        committed = self._committed()
        for known in committed:
            if known.version == version:
                return self._load(known)
        raise SnapshotError(
            f"there is no version {version} of the state in {self.root} (there are: "
            f"{[known.version for known in committed] or 'none'})"
        )

    def latest(self, *, below: int | None = None) -> Checkpoint | None:
        """The newest version that is whole, or nothing if there is none at all.

        All its files are read and checked. If one is torn or was changed, that is logged, and the
        version before it is tried; `CorruptCheckpoint` if there are versions but none is whole.
        If files cannot be read now, that is `StoreUnavailable`: no version is passed over then.
        """
        error: SnapshotError | None = None
        for known in reversed(self._committed()):
            if below is not None and known.version >= below:
                continue
            try:
                found = self._load(known)
                found.verify()
            except CorruptCheckpoint as corrupt:
                log.warning(
                    "checkpoint %d in %s cannot be used, the one before it is tried: %s",
                    known.version,
                    self.root,
                    corrupt,
                )
                error = corrupt
            else:
                return found
        if error is not None:
            raise CorruptCheckpoint(f"no checkpoint in {self.root} is whole: {error}")
        return None

    # Cleaning up

    def clean(self, keep: int = 2, *, newest: int | None = None) -> None:
        """Delete all but the newest versions, and files that no version needs any more.

        ``newest`` counts as the newest version, even if there are later ones.
        """
        if keep < 1:
            raise SnapshotError(f"at least one version must be kept, not {keep}")
        committed = self._committed()
        versions = [known.version for known in committed]
        if newest is not None:
            versions = [version for version in versions if version <= newest]
        if not versions:
            return
        oldest = versions[-keep:][0]
        used: set[str] = set()
        for known in committed:
            if known.version >= oldest:
                try:
                    used |= {*self._load(known).files, known.manifest}
                except (CorruptCheckpoint, StoreUnavailable) as error:
                    log.warning("nothing is cleaned up in %s: %s", self.root, error)
                    return
        # If another run has taken over, it cleans up by itself, and may go on from elsewhere.
        self._lease.require()
        # Manifests go first: what they point at must be there for as long as they are.
        for folder, ours in ((self.manifests, MANIFEST), (self._parts, _PART)):
            for match in map(ours.fullmatch, self.files.names(folder)):
                # A newer file without a manifest may belong to a version that is being written.
                if match is not None and match[0] not in used and int(match[1]) < oldest:
                    self.files.delete(folder / match[0])
        # The next entry of the log will not have them any more.
        gone = {version for version in versions if version < oldest}
        self._lease.own = self._lease.own.without(gone)

    # Inside

    def _committed(self) -> list[Committed]:
        """All versions that count, but for those at the beginning that were deleted.

        The newest never is: if its manifest has gone, that is damage.
        """
        there = {*self.files.names(self.manifests)}
        found = list(self.state().versions)
        while len(found) > 1 and found[0].manifest not in there:
            del found[0]
        return found

    def _load(self, known: Committed) -> Checkpoint:
        path = self.manifests / known.manifest
        try:
            body = decoded(self.files.read(path), str(path))
            if body["epoch"] != known.epoch:
                raise CorruptCheckpoint(f"whether {path} counts is not known: the log is gone")
            parts = tuple(map(Part.from_json, body["parts"]))
            return Checkpoint(
                self,
                int(body["version"]),
                known.epoch,
                body["flow"],
                body["meta"],
                parts,
                int(body["bins"]),
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error

    def read_chunk(self, chunk: Chunk) -> pa.Table:
        """The table of a chunk, whose bytes are checked."""
        return pa.ipc.open_stream(self.read_place(chunk)).read_all()

    def read_place(self, place: Placed) -> pa.Buffer:
        """Some bytes of a part file, which are checked."""
        try:
            data = self.files.read_at(self._parts / place.file, place.start, place.size)
        except FileNotFoundError as error:
            raise CorruptCheckpoint(f"{place.file} cannot be read: {error}") from error
        return require_written(data, place)

    def _extended(self, key: Key, before: Chain | None, cut: Cut, file: Appending) -> Chain:
        """A container's chain with its changes; an error if they are those of another state."""
        if cut.after is not None and (before is None or before.token != cut.after):
            raise SnapshotError(
                f"the changes of {key.name!r} are not those of the state that is stored: a part "
                "needs its worker's part before it as its base"
            ).located(operator=key.operator)
        try:
            return extended(before, cut, self.read_place, file)
        except pa.ArrowException as error:
            raise misfit(key.operator, key.name, error) from error
