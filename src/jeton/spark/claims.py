"""Claims: to which query a checkpoint belongs, and which run of it may commit."""

from __future__ import annotations

import json
import logging
import os
import re
from typing import Final

from jeton.core.errors import JetonError
from jeton.spark.files import Files

log = logging.getLogger(__name__)

_CLAIM: Final = re.compile(r"(\d+)-([0-9a-f]{8})")


class Superseded(JetonError):
    """Another run of the query has taken its checkpoint over."""


class Claims:
    """One run's claim to a checkpoint, which is worth something until another is made.

    >>> import tempfile
    >>> place = tempfile.mkdtemp()
    >>> first, second = Claims(Files(place)), Claims(Files(place))
    >>> first.take_over(), second.take_over()
    (1, 2)
    >>> second.require()
    >>> first.require()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jeton.spark.claims.Superseded: another run has taken over the checkpoint in ...
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._folder = files.root / "claims"
        self._own = (0, "")

    def take_over(self) -> int:
        """From now on nobody who claimed the checkpoint before can commit.

        Returns the number of the attempt, which no other has.
        """
        rivals = True
        while rivals:
            before = self._all()
            own = self._own = (max(before, default=(0, ""))[0] + 1, os.urandom(4).hex())
            self._files.write(self._folder / _name(own), [])
            rivals = any(claim[0] >= own[0] and claim != own for claim in self._all())
            # Who made a claim at the same moment may or may not have seen this one: the lesser of
            # the two gives way, and the greater goes beyond what the lesser may believe to have.
            self.require()
        for claim in before:
            self._files.delete(self._folder / _name(claim))
        return self._own[0]

    def require(self) -> None:
        """`Superseded` if another run has taken over since this one did."""
        if self._own[0] and any(claim > self._own for claim in self._all()):
            raise Superseded(
                f"another run has taken over the checkpoint in {self._files.root}: this one "
                "cannot go on"
            )

    def _all(self) -> list[tuple[int, str]]:
        found = map(_CLAIM.fullmatch, self._files.names(self._folder))
        return [(int(match[1]), match[2]) for match in found if match is not None]


def _name(claim: tuple[int, str]) -> str:
    return f"{claim[0]}-{claim[1]}"


def name_of_query(files: Files, committed: str | None) -> str:
    """By what sinks know a query: made up once, and kept with its checkpoints.

    Each version has it, and what is ``committed`` counts. A file has it too, from before the first.

    >>> import tempfile
    >>> files = Files(tempfile.mkdtemp())
    >>> name = name_of_query(files, None)
    >>> name_of_query(files, None) == name, name_of_query(files, "3f9a"), name_of_query(files, None)
    (True, '3f9a', '3f9a')
    """
    path = files.root / "query.json"
    told: str | None = None
    try:
        told = str(json.loads(files.read(path))["query"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read and is written anew: %s", path, error)
    name = committed or told or os.urandom(6).hex()
    if name != told:
        files.put(path, json.dumps({"query": name}).encode())
    return name
