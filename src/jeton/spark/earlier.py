"""Earlier releases: what files other than the log tell of a store.

Stores of formats 1 and 2 had no log: every manifest counted, and attempts were numbered elsewhere.
Whoever goes on from one takes all that over. The names of files also tell which versions and
attempts there have been if the newest entry of the log is lost, so that no number is used twice.
"""

from __future__ import annotations

import re
from dataclasses import replace
from secrets import randbits
from typing import Final

from jeton.core.errors import SnapshotError
from jeton.spark.files import Files
from jeton.spark.leases import DIGITS, MANIFEST, Committed, Entry

MARK: Final = re.compile(r"(\d+)-(\d+)(?:\.copy)?")
"""Of a version that was shown, and its epoch; there are two, in case that one is lost."""
_CLAIM: Final = re.compile(r"(\d+)-[0-9a-f]{8}")


def manifest_name(version: int) -> str:
    """The name of a manifest, which no other attempt has.

    Earlier releases read what follows the version as an epoch, and then refuse the format. There
    is no zero in front, which they would lose.

    >>> len(manifest_name(7)), manifest_name(7) == manifest_name(7)
    (37, False)
    """
    return f"{version:012d}-{10 ** (DIGITS - 1) + randbits(59)}.json"


def state_of(files: Files, logged: Entry | None) -> Entry:
    """The state of a store: what its log says, and what earlier releases have done to it.

    >>> import tempfile
    >>> files = Files(tempfile.mkdtemp())
    >>> files.write(files.root / "manifests" / "000000000007-3.json", [])
    >>> state = state_of(files, None)
    >>> state.newest, state.attempt, state.versions[0].epoch
    (7, 3, 3)
    """
    found = map(MANIFEST.fullmatch, files.names(files.root / "manifests"))
    manifests = [match for match in found if match is not None]
    earlier = {match[0] for match in manifests if len(match[2]) < DIGITS}
    marks = [
        match
        for folder in ("shown", "delivered")
        for match in map(MARK.fullmatch, files.names(files.root / folder))
        if match is not None
    ]
    claims = map(_CLAIM.fullmatch, files.names(files.root / "claims"))
    versions = [int(match[1]) for match in (*manifests, *marks)]
    attempts = [
        *(int(match[2]) for match in manifests if match[0] in earlier),
        *(int(match[2]) for match in marks),
        *(int(match[1]) for match in claims if match is not None),
    ]
    state = logged
    if state is None:
        state = Entry(versions=_newest_of_each(manifests))
    elif new := [m for m in manifests if m[0] in earlier and m[0] not in state.earlier]:
        if len(earlier) == len(manifests):
            # This release took the lease and made no version; then an earlier one went on.
            state = replace(state, versions=_newest_of_each(manifests))
        elif (version := max(int(match[1]) for match in new)) > state.newest:
            raise SnapshotError(
                f"an earlier release of Jeton has committed version {version} in {files.root} "
                f"since this one committed version {state.newest}: which one counts is not known. "
                "Start anew with another checkpoint"
            )
    return replace(
        state,
        newest=max([state.newest, *versions]),
        attempt=max([state.attempt, *attempts]),
        earlier=tuple(sorted(earlier)),
    )


def _newest_of_each(manifests: list[re.Match[str]]) -> tuple[Committed, ...]:
    """All versions; of several attempts at one the last counts."""
    in_order = sorted(manifests, key=lambda match: (int(match[1]), int(match[2])))
    last = {int(match[1]): match for match in in_order}
    return tuple(Committed(version, int(m[2]), m[0]) for version, m in last.items())
