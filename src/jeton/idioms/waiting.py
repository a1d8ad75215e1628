"""Waiting: records put aside by time, without tokens, for idioms that hold tokens otherwise."""

from __future__ import annotations

import jeton as jt


class Waiting(jt.state.RecordQueue):
    """Whole batches in, whole batches out, in order of time. Times are integers.

    It is a `RecordQueue` for those who keep the rights to answer elsewhere: as notifications,
    or as the one token of a watermark.

    >>> waiting = Waiting()
    >>> waiting.add(jt.Batch({"n": [50, 10]}, times=[5, 1]))
    >>> waiting.add(jt.Batch({"n": [30]}, times=[3]))
    >>> waiting.least, waiting.times
    (1, [1, 3, 5])
    >>> waiting.take(5)["n"], waiting.take(None)["n"], waiting.take(None)
    (array([10, 30]), array([50]), None)
    """

    def __init__(self, key: tuple[str, ...] | list[str] = ()) -> None:
        super().__init__(jt.IntegerTimes(), key)

    def add(self, batch: jt.Batch) -> None:
        """Let a batch wait."""
        self.push(None, batch)

    def take(self, limit: int | None, *, inclusive: bool = False) -> jt.Batch | None:
        """Take out what is before ``limit`` (or at it, if ``inclusive``); ``None``: everything."""
        frontier = jt.Antichain([] if limit is None else [limit])
        return next((batch for _, batch in self.pop(frontier, inclusive=inclusive)), None)
