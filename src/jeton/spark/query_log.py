"""Spark's own log of a streaming query: which micro-batches it has planned, and which are done."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from jeton.core.errors import SnapshotError
from jeton.storage.files import Files

_NOTHING = "-"
"""The offset of a source of which nothing has been read yet."""


class QueryLog:
    r"""The log under a query's checkpoint location.

    >>> import tempfile
    >>> log = QueryLog(tempfile.mkdtemp())
    >>> for batch, end in enumerate("335"):
    ...     text = "v1", "{}", end
    ...     log.files.put(log.files.root / "offsets" / str(batch), "\n".join(text).encode())
    >>> log.planned, log.done
    ([0, 1, 2], [])
    >>> [log.brought_nothing(batch) for batch in log.planned]
    [False, True, False]
    >>> log.brought_nothing(0, first=["3"])
    True

    In format 2, which Spark writes if ``spark.sql.streaming.offsetLog.formatVersion`` says so,
    each offset follows the name of its source, in any order.

    >>> text = "v2", "{}", "1:-", '0:{"offset": 5}'
    >>> log.files.put(log.files.root / "offsets" / "3", "\n".join(text).encode())
    >>> log.offsets(3)
    {'1': '-', '0': {'offset': 5}}
    """

    def __init__(self, checkpoint: str | os.PathLike[str]) -> None:
        self.files = Files(checkpoint)

    @property
    def query(self) -> str | None:
        """The query's id, the same each time that it is started."""
        if "metadata" not in self.files.names(self.files.root):
            return None
        return str(json.loads(self.files.read(self.files.root / "metadata"))["id"])

    @property
    def planned(self) -> list[int]:
        """The micro-batches of which it is known which rows they have."""
        return self._numbers("offsets")

    @property
    def done(self) -> list[int]:
        """The micro-batches that the sink has."""
        return self._numbers("commits")

    def brought_nothing(self, batch: int, first: Sequence[str | None] = ()) -> bool:
        """Whether it is certain that no source had rows for a micro-batch.

        ``first`` is where each source began, as far as that is known.
        """
        after = self.offsets(batch)
        if after is None:
            return False
        if batch == 0:
            # Sources without a name of their own go by their number.
            starts = {str(at): json.loads(text) for at, text in enumerate(first) if text}
            return all(end in (_NOTHING, starts.get(name)) for name, end in after.items())
        return after == self.offsets(batch - 1)

    def forget_plan(self, batch: int) -> None:
        """Let Spark plan a micro-batch anew."""
        self._forget("offsets", batch)

    def forget_end(self, batch: int) -> None:
        """Let Spark run a micro-batch again, as it was planned."""
        self._forget("commits", batch)

    def offsets(self, batch: int) -> dict[str, Any] | None:
        """How far each source has been read after a micro-batch; nothing if it is not known."""
        if batch not in self.planned:
            return None
        text = self.files.read(self.files.root / "offsets" / str(batch)).decode()
        # The format, and what else belongs to the micro-batch, come first.
        version, _, *lines = text.splitlines()
        if version == "v1":
            named = [(str(at), line) for at, line in enumerate(lines)]
        elif version == "v2":
            named = [_named(line) for line in lines]
        else:
            raise SnapshotError(
                f"the offsets of micro-batch {batch} in {self.files.root} are of format "
                f"{version!r}, which this version of Jeton does not know: set "
                "spark.sql.streaming.offsetLog.formatVersion to 1 or 2 before the query is started"
            )
        return {
            name: offset if offset == _NOTHING else json.loads(offset) for name, offset in named
        }

    def _numbers(self, folder: str) -> list[int]:
        names = self.files.names(self.files.root / folder)
        return sorted(int(name) for name in names if name.isdecimal())

    def _forget(self, folder: str, batch: int) -> None:
        there = self.files.names(self.files.root / folder)
        for name in (str(batch), f".{batch}.crc"):
            if name in there:
                self.files.remove(self.files.root / folder / name)


def _named(line: str) -> tuple[str, str]:
    name, _, offset = line.partition(":")
    return name, offset
