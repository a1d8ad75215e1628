"""Checkpoints: versions of a flow's state, in files on any file system that Arrow can write.

Workers write *parts*; whoever coordinates them commits a version by writing one *manifest*, which
says which part files make it up. A version exists once its manifest does, whole or not at all.

A bin that did not change is written once more, with the next version, so that it is in two files;
from then on manifests point at these. When too little of an older file is still needed, its bins
are written anew, so that it can go. So whichever single file is damaged, at most the version that
it was written for is lost: the one before does not need it.

Each attempt at a version has an *epoch*; of two manifests for a version the one with the greater
epoch counts, so that an attempt that was given up cannot spoil a later one.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa

from jeton.core.errors import SnapshotError
from jeton.dataflow.pacts import BINS
from jeton.spark.files import UNREADY, Files
from jeton.spark.parts import Key, Part, Tables, too_rare, unchanged
from jeton.spark.state_files import (
    Binned,
    Chunk,
    CorruptCheckpoint,
    Digests,
    checksum,
    decode,
)
from jeton.spark.version import Checkpoint

__all__ = ["Checkpoint", "Checkpoints", "Part"]

log = logging.getLogger(__name__)

FORMAT: Final = 2
"""How manifests are written; in format 1, which is read too, each bin was in one file only."""

_MANIFEST: Final = re.compile(r"(\d{12,})-(\d+)\.json")
_PART: Final = re.compile(r"(\d{12,})-\d+-\d+-[0-9a-f]+\.arrow")
_UNREADY: Final = re.compile(rf"(\d{{12,}})-.*{re.escape(UNREADY)}")


class Checkpoints:
    """The checkpoints under a path or URI, local or on any file system of Arrow's.

    >>> import tempfile, jeton as jt
    >>> flow = jt.Flow("count")
    >>> flow.output("counts", flow.input("words").key_by("word").rolling().count())
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

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:
        self.files = Files(path, filesystem)
        self.root = self.files.root
        self._parts = self.root / "parts"
        self._manifests = self.root / "manifests"

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
    ) -> Part:
        """Write what changed of a worker's state; it counts once `commit` has it.

        ``base`` is the part that this worker contributed to the version before, as `write_part`
        returned it or as `Checkpoint.part` read it. Without one, everything is written. ``bins``
        says into how many the worker divides keys.
        """
        # A name that no other attempt has, whoever makes it and whenever.
        name = f"{version:012d}-{epoch}-{worker}-{token_hex(4)}.arrow"
        chunks: dict[Key, tuple[Chunk, ...]] = {}
        digests: dict[Key, Digests] = {}
        buffers: list[pa.Buffer] = []
        at = 0
        for operator, kept in tables.items():
            for container, table in kept.items():
                if table.num_rows == 0:
                    continue
                key = Key(operator, container)
                binned = Binned.of(table, operator, container)
                found = digests[key] = binned.digests()
                same = () if base is None else unchanged(base, key, found)
                if anew := too_rare(found, same):
                    buffer = binned.encode(anew, found)
                    place = (name, at, buffer.size, checksum(buffer))
                    same = (*same, Chunk(*place, bins=tuple(anew), written=len(anew)))
                    buffers.append(buffer)
                    at += buffer.size
                chunks[key] = tuple(same)
        if buffers:
            self.files.write(self._parts / name, buffers)
        return Part(worker, chunks, digests, at, bins)

    def commit(
        self,
        version: int,
        parts: Sequence[Part],
        *,
        flow: str,
        epoch: int = 0,
        meta: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Make a version of the parts of all workers, at once: from now on it is there.

        ``meta`` is whatever else belongs to it, such as sources' offsets, if JSON can hold it.
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
        text = json.dumps(body, separators=(",", ":"))
        whole = {"format": FORMAT, "digest": _digest(FORMAT, text), "body": text}
        path = self._manifests / f"{version:012d}-{epoch}.json"
        self.files.put(path, json.dumps(whole).encode())
        return Checkpoint(self, version, epoch, flow, body["meta"], tuple(parts), body["bins"])

    # Reading

    def versions(self) -> list[int]:
        """The versions that were committed, in ascending order, whether or not they are whole."""
        return sorted({version for version, _ in self.committed()})

    def committed(self) -> list[tuple[int, int]]:
        """The version and epoch of each manifest, in no particular order."""
        found = map(_MANIFEST.fullmatch, self.files.names(self._manifests))
        return [(int(match[1]), int(match[2])) for match in found if match is not None]

    def load(self, version: int) -> Checkpoint:
        """A version; `SnapshotError` if there is none, `CorruptCheckpoint` if it is spoilt.

        Its part files are looked at when they are read, or by `Checkpoint.verify`.
        """
        epochs = [epoch for number, epoch in self.committed() if number == version]
        if not epochs:
            raise SnapshotError(
                f"there is no version {version} of the state in {self.root} (there are: "
                f"{self.versions() or 'none'})"
            )
        return self._load(version, max(epochs))

    def latest(self, *, below: int | None = None) -> Checkpoint | None:
        """The newest version that is whole, or nothing if there is none at all.

        All its files are read and checked. If one is torn or was changed, that is logged, and the
        version before it is tried; `CorruptCheckpoint` if there are versions but none is whole.
        """
        error: SnapshotError | None = None
        for version, epoch in sorted(self.committed(), reverse=True):
            if below is not None and version >= below:
                continue
            try:
                found = self._load(version, epoch)
                found.verify()
            except CorruptCheckpoint as corrupt:
                log.warning(
                    "checkpoint %d in %s cannot be used, the one before it is tried: %s",
                    version,
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

        ``newest`` counts as the newest version, whatever else there is.
        """
        if keep < 1:
            raise SnapshotError(f"at least one version must be kept, not {keep}")
        versions = self.versions()
        if newest is not None:
            versions = [version for version in versions if version <= newest]
        if not versions:
            return
        oldest = versions[-keep:][0]
        used: set[str] = set()
        for version, epoch in self.committed():
            if version >= oldest:
                try:
                    used |= self._load(version, epoch).files
                except CorruptCheckpoint as error:
                    log.warning("nothing is cleaned up in %s: %s", self.root, error)
                    return
        # Manifests go first: what they point at must be there for as long as they are.
        for version, epoch in self.committed():
            if version < oldest:
                self.files.delete(self._manifests / f"{version:012d}-{epoch}.json")
        for folder, ours in ((self._parts, _PART), (self._manifests, _UNREADY)):
            for match in map(ours.fullmatch, self.files.names(folder)):
                # A newer file without a manifest may belong to a version that is being written.
                if match is not None and match[0] not in used and int(match[1]) < oldest:
                    self.files.delete(folder / match[0])

    def abandon(self, *, above: int) -> None:
        """Forget all versions after one for good, because what follows does not go on from them."""
        for version, epoch in self.committed():
            if version > above:
                self.files.fs.delete_file(str(self._manifests / f"{version:012d}-{epoch}.json"))

    # Inside

    def _load(self, version: int, epoch: int) -> Checkpoint:
        path = self._manifests / f"{version:012d}-{epoch}.json"
        try:
            whole = json.loads(self.files.read(path))
            if whole["digest"] != _digest(whole["format"], whole["body"]):
                raise CorruptCheckpoint(f"the digest of {path} does not fit what it says")
            if whole["format"] > FORMAT:
                raise SnapshotError(
                    f"{path} is of format {whole['format']}, but this Jeton reads formats up to "
                    f"{FORMAT}: a newer one has written it"
                )
            body = json.loads(whole["body"])
            parts = tuple(map(Part.from_json, body["parts"]))
            meta, bins = body["meta"], int(body["bins"])
            return Checkpoint(self, int(body["version"]), epoch, body["flow"], meta, parts, bins)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error

    def read_chunk(self, chunk: Chunk) -> pa.Table:
        """The table of a chunk, whose bytes are checked."""
        try:
            data = self.files.read_at(self._parts / chunk.file, chunk.start, chunk.size)
        except OSError as error:
            raise CorruptCheckpoint(f"{chunk.file} cannot be read: {error}") from error
        return decode(data, chunk)


def _digest(form: int, text: str) -> str:
    # The format counts too, so that a changed one is not believed; in the first one it did not.
    told = text if form == 1 else f"{form} {text}"
    return blake2b(told.encode(), digest_size=16).hexdigest()
