"""Earlier releases: facts about a store in files other than the log.

Stores of formats 1 and 2 had no log: every manifest counted, and attempts were numbered elsewhere.
A run that starts from one takes all that over. The names of files also say which versions and
attempts there have been if the newest entry of the log is lost, so that no number is used twice.
"""

from __future__ import annotations

import re
from dataclasses import replace
from secrets import randbits
from typing import Final

from jeton.core.errors import SnapshotError
from jeton.storage.files import Files
from jeton.storage.leases import DIGITS, MANIFEST, Committed, Entry

MARK: Final = re.compile(r"(\d+)-(\d+)(?:\.copy)?")
"""Of a version that was published, and its epoch; two files, in case that one is lost."""
_CLAIM: Final = re.compile(r"(\d+)-[0-9a-f]{8}")


def manifest_name(version: int) -> str:
    """The name of a manifest, which no other attempt has.

    Earlier releases read what follows the version as an epoch, and then refuse the format. It
    does not begin with a zero, which they would lose.

    >>> len(manifest_name(7)), manifest_name(7) == manifest_name(7)
    (37, False)
    """
    return f"{version:012d}-{10 ** (DIGITS - 1) + randbits(59)}.json"


def settled(files: Files, logged: Entry | None) -> Entry:
    """The state from which a run goes on: with no version or attempt that there ever was to come.

    >>> import tempfile
    >>> files = Files(tempfile.mkdtemp())
    >>> files.write(files.root / "manifests" / "000000000007-3.json", [])
    >>> state = settled(files, None)
    >>> state.newest, state.attempt, state.versions[0].epoch
    (7, 3, 3)
    """
    state = state_of(files, logged)
    manifests = _manifests(files)
    earlier = [match for match in manifests if len(match[2]) < DIGITS]
    marks = [
        match
        for folder in ("shown", "delivered")
        for match in map(MARK.fullmatch, files.names(files.root / folder))
        if match is not None
    ]
    claims = map(_CLAIM.fullmatch, files.names(files.root / "claims"))
    versions = [int(match[1]) for match in (*manifests, *marks)]
    attempts = [
        *(int(match[2]) for match in (*earlier, *marks)),
        *(int(match[1]) for match in claims if match is not None),
    ]
    return replace(
        state,
        newest=max([state.newest, *versions]),
        attempt=max([state.attempt, *attempts]),
        earlier=tuple(sorted(match[0] for match in earlier)),
    )


def state_of(files: Files, logged: Entry | None) -> Entry:
    """The state of a store: what its log says, and what earlier releases have done to it."""
    manifests = _manifests(files)
    if logged is None:
        return Entry(versions=_newest_of_each(manifests))
    earlier = [match for match in manifests if len(match[2]) < DIGITS]
    new = [int(match[1]) for match in earlier if match[0] not in logged.earlier]
    if new and len(earlier) == len(manifests):
        # This release took the lease and made no version; then an earlier one went on.
        return replace(logged, versions=_newest_of_each(manifests))
    if new and max(new) > logged.newest:
        raise SnapshotError(
            f"an earlier release of Jeton has committed version {max(new)} in {files.root} since "
            f"this one committed version {logged.newest}: which one counts is not known. Start "
            "anew with another checkpoint"
        )
    return logged


def _manifests(files: Files) -> list[re.Match[str]]:
    found = map(MANIFEST.fullmatch, files.names(files.root / "manifests"))
    return [match for match in found if match is not None]


def _newest_of_each(manifests: list[re.Match[str]]) -> tuple[Committed, ...]:
    """All versions; of several attempts at one the last counts."""
    in_order = sorted(manifests, key=lambda match: (int(match[1]), int(match[2])))
    last = {int(match[1]): match for match in in_order}
    return tuple(Committed(version, int(m[2]), m[0]) for version, m in last.items())
