"""Leases: which run of a query may change its checkpoints.

What is committed is a log of numbered entries. Each is a whole state of the store: which versions
count, and who holds the lease. An entry is created once (`Files.put`), by a run that has seen the
one before: taking the lease is an entry, committing a version is one. So a run that was superseded,
and does not know it, finds the next number taken. There is no moment between a check and a write.

Old entries are deleted, so a number may be free again. Whether there is a greater one is found out
without a listing, which may lag behind on some stores: of the newest number, the entries stay whose
numbers are its own with some of the last binary digits set to 0, and all powers of two. For any
smaller number, one of a few larger ones is among these: see `later_than`.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from jeton.core.errors import JetonError, SnapshotError
from jeton.storage.chunk_format import CorruptCheckpoint
from jeton.storage.files import Files
from jeton.storage.local_store import UNREADY

log = logging.getLogger(__name__)

FORMAT: Final = 4
"""How manifests are written.

All earlier formats are read too. Format 3 had no chains. Formats 1 and 2 had no log: every manifest
counted. In format 1, each bin was in one file only.
"""
LOG_FORMAT: Final = 3
"""How entries of the log are written."""
KEPT: Final = 2
"""How many entries are read: one more than needed, in case the newest is damaged."""

MANIFEST: Final = re.compile(r"(\d{12,})-(\d+)\.json")
DIGITS: Final = 19
"""How many follow the version in the names of manifests; before there was a log: an epoch."""
_ENTRY: Final = re.compile(rf"(\d{{12,}})\.json(\.\w+{re.escape(UNREADY)})?")


class Superseded(JetonError):
    """Another run of the query has taken its checkpoint over."""


class Committed(NamedTuple):
    """A version that counts."""

    version: int
    epoch: int
    manifest: str
    """The name of the file that has it."""


@dataclass(frozen=True)
class Entry:
    """A state of the store."""

    number: int = 0
    token: str = ""
    """Of the run that holds the lease."""
    attempt: int = 0
    """How many times the lease has been taken."""
    query: str | None = None
    """The name by which sinks know the query."""
    versions: tuple[Committed, ...] = ()
    newest: int = -1
    """The greatest version that there ever was, whether or not it still counts."""
    earlier: tuple[str, ...] = ()
    """The manifests of earlier releases that were there when the lease was taken."""

    def with_version(self, made: Committed) -> Entry:
        """The state after a commit: later versions, of which there may be some, count no more."""
        before = (known for known in self.versions if known.version < made.version)
        newest = max(self.newest, made.version)
        return replace(self, versions=(*before, made), newest=newest)

    def up_to(self, version: int) -> Entry:
        """The state after later versions were given up."""
        return replace(self, versions=tuple(v for v in self.versions if v.version <= version))

    def without(self, versions: set[int]) -> Entry:
        """The state after versions were deleted."""
        return replace(self, versions=tuple(v for v in self.versions if v.version not in versions))


class Lease:
    """One run's right to change a store, which it has until another takes it.

    >>> import tempfile
    >>> place = tempfile.mkdtemp()
    >>> first, second = Lease(Files(place)), Lease(Files(place))
    >>> def settle(newest):
    ...     return newest or Entry()
    >>> first.take(settle).attempt, second.take(settle).attempt
    (1, 2)
    >>> made = Committed(7, 2, "7.json")
    >>> second.append(second.own.with_version(made)).number
    3
    >>> first.append(first.own.with_version(made))
    Traceback (most recent call last):
    jeton.storage.leases.Superseded: another run has taken over the checkpoint in ...
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._folder = files.root / "log"
        self.own = Entry()
        """The newest entry that this run has made; number 0 if it has none."""

    def newest(self) -> Entry | None:
        """The newest entry of any run; nothing if there is none.

        One that is damaged is passed over: then the version that it was about is lost. If there
        were versions and none is left, that is an error, and no fresh start.
        """
        return self._look()[1]

    def take(self, settle: Callable[[Entry | None], Entry], *, query: str | None = None) -> Entry:
        """From now on no run that held the lease before can change the store.

        ``settle`` says what the state is if that is the newest entry, or if there is none yet.
        ``query`` is for a store that has no name yet. A run that has held the lease before takes
        it anew only if no other has it: else it is `Superseded`.
        """
        while True:
            held = self._held()
            number, newest = (held.number, held) if held else self._look()
            before = settle(newest)
            entry = replace(
                before,
                number=number + 1,
                # The same for all entries of a run, so that it always recognises them.
                token=self.own.token or os.urandom(8).hex(),
                attempt=before.attempt + 1,
                query=before.query or query,
            )
            if self._create(entry):
                return entry

    def append(self, state: Entry) -> Entry:
        """Change the store's state; `Superseded` if another run has taken the lease since."""
        entry = replace(state, number=self.own.number + 1)
        if not self._create(entry):
            raise self._superseded()
        return entry

    def require(self) -> None:
        """`Superseded` if another run has taken the lease since this one did."""
        self._held()

    # Inside

    def _look(self) -> tuple[int, Entry | None]:
        """The greatest number that is taken, and the newest entry that is whole."""
        before = -1
        while True:
            newest = self._newest_from(max(self._numbers(), default=0))
            try:
                return newest, self._whole(self._last(newest))
            except FileNotFoundError as error:
                # It was deleted meanwhile, since there are newer ones.
                if newest == before:
                    raise CorruptCheckpoint(f"{self._folder} cannot be read: {error}") from error
                before = newest

    def _last(self, newest: int) -> Iterator[int]:
        """The numbers of the entries that may be read, the newest first."""
        for number in range(newest, max(newest - KEPT, 0), -1):
            # One before the newest may be lost, which is damage like any other.
            if number == newest or self._files.exists(self._path(number)):
                yield number

    def _newest_from(self, number: int) -> int:
        """The greatest number that is taken, which is not below this one."""
        found = number
        while True:
            # In ascending order: an entry is deleted only after a greater one of these is there.
            later = [n for n in later_than(found) if self._files.exists(self._path(n))]
            if not later:
                return found
            found = later[-1]

    def _whole(self, numbers: Iterable[int]) -> Entry | None:
        error: CorruptCheckpoint | None = None
        lease: Entry | None = None
        for number in numbers:
            try:
                found = self._read(number)
            except CorruptCheckpoint as corrupt:
                log.warning("an entry of the log in %s is passed over: %s", self._folder, corrupt)
                error = corrupt
            else:
                if error is None or found.versions:
                    return found
                lease = lease or found
        if error is not None and self._has_manifests():
            raise CorruptCheckpoint(f"no entry of the log in {self._folder} is whole: {error}")
        # If one was damaged, nothing had been committed by then.
        return lease

    def _has_manifests(self) -> bool:
        """Whether there are versions that count only if the log has them."""
        found = map(MANIFEST.fullmatch, self._files.names(self._files.root / "manifests"))
        return any(match is not None and len(match[2]) >= DIGITS for match in found)

    def _held(self) -> Entry | None:
        """The newest entry, if this run made it; nothing if it has not made any yet."""
        if not self.own.number:
            return None
        number = self._newest_from(self.own.number)
        if number > self.own.number:
            try:
                newest = self._read(number)
            except FileNotFoundError:
                # It was deleted meanwhile, since there are newer ones.
                raise self._superseded() from None
            except CorruptCheckpoint as error:
                # Skipped by every run that starts, so that no version goes on from it.
                raise Superseded(
                    f"whether another run has taken over the checkpoint in {self._where} is not "
                    f"known, so this one cannot go on. Start it again. {error}"
                ) from error
            if newest.token != self.own.token:
                raise self._superseded()
            # It was created, although there was an error then.
            self.own = newest
        return self.own

    def _create(self, entry: Entry) -> bool:
        """Create an entry; returns whether it follows the one before."""
        try:
            self._files.put(self._path(entry.number), _encoded(entry))
        except FileExistsError:
            return False
        # Entries are deleted when there are newer ones, so that a number that was taken once may
        # be free again. Then there is a greater one, and always will be: so this does not count,
        # and is never read. If a greater one came just now, this counts, but its maker has been
        # superseded all the same.
        if self._newest_from(entry.number) > entry.number:
            return False
        self.own = entry
        for match in filter(None, map(_ENTRY.fullmatch, self._files.names(self._folder))):
            number = int(match[1])
            if number <= entry.number - KEPT and (match[2] or not stays(number, entry.number)):
                self._files.delete(self._folder / match[0])
        return True

    def _read(self, number: int) -> Entry:
        path = self._path(number)
        try:
            body = decoded(self._files.read(path), str(path))
            versions = tuple(Committed(int(v), int(e), str(n)) for v, e, n in body.pop("versions"))
            return Entry(**body | {"earlier": tuple(body["earlier"])}, versions=versions)
        except FileNotFoundError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error

    def _numbers(self) -> list[int]:
        found = map(_ENTRY.fullmatch, self._files.names(self._folder))
        return [int(match[1]) for match in found if match is not None and match[2] is None]

    def _path(self, number: int) -> PurePosixPath:
        return self._folder / f"{number:012d}.json"

    def _superseded(self) -> Superseded:
        return Superseded(
            f"another run has taken over the checkpoint in {self._where}: this one cannot go on. "
            "If both were started on purpose, give each a checkpoint of its own"
        )

    @property
    def _where(self) -> str:
        return self._files.uri(self._files.root)


def later_than(number: int) -> list[int]:
    """Numbers in ascending order, one of which is taken if any greater number than this one is.

    They are the number with one of its zeros set and the digits after that cleared, and the next
    power of two. Of a greater number with as many digits, the first digit that differs is one of
    these zeros, and the number up to there `stays`.

    >>> [f"{each:b}" for each in later_than(0b10100)]
    ['10101', '10110', '11000', '100000']
    """
    zeros = (at for at in range(number.bit_length()) if not number >> at & 1)
    return [*(((number >> at) | 1) << at for at in zeros), 1 << number.bit_length()]


def stays(number: int, newest: int) -> bool:
    """Whether an entry is not deleted while another is the newest.

    >>> [number for number in range(1, 23) if stays(number, 0b10110)]
    [1, 2, 4, 8, 16, 20, 22]
    """
    cleared = number & -number
    return number == cleared or newest // cleared * cleared == number


def _encoded(entry: Entry) -> bytes:
    return encoded(asdict(entry), LOG_FORMAT)


def encoded(body: Mapping[str, Any], form: int = FORMAT) -> bytes:
    """The bytes of a manifest or an entry, which say whether they are whole.

    >>> decoded(encoded({"n": 1}), "a")
    {'n': 1}
    """
    text = json.dumps(body, separators=(",", ":"))
    whole = {"format": form, "digest": _digest(form, text), "body": text}
    return json.dumps(whole).encode()


def decoded(data: bytes, path: str) -> dict[str, Any]:
    """The input of `encoded`, in any format so far; errors of several kinds if it is not one."""
    whole = json.loads(data)
    if whole["digest"] != _digest(whole["format"], whole["body"]):
        raise CorruptCheckpoint(f"the digest of {path} does not fit what it says")
    if whole["format"] > FORMAT:
        raise SnapshotError(
            f"{path} is of format {whole['format']}, but this Jeton reads formats up to {FORMAT}: "
            "a newer one has written it"
        )
    body: dict[str, Any] = json.loads(whole["body"])
    return body


def _digest(form: int, text: str) -> str:
    # The format counts too, so that a changed one is not believed; in the first one it did not.
    signed = text if form == 1 else f"{form} {text}"
    return blake2b(signed.encode(), digest_size=16).hexdigest()
