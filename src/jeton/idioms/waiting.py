"""Waiting: records put aside by time, without tokens, for idioms that hold tokens otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

import jeton as jt

_MOST_RUNS = 12


class Waiting:
    """Whole batches in, whole batches out, in order of time. Times are integers.

    It is a `jt.RecordQueue` for those who keep the rights to answer elsewhere: as notifications,
    or as the one token of a watermark.

    >>> waiting = Waiting()
    >>> waiting.add(jt.Batch({"n": [50, 10]}, times=[5, 1]))
    >>> waiting.add(jt.Batch({"n": [30]}, times=[3]))
    >>> waiting.take(5)["n"], waiting.take(None)["n"], waiting.take(None)
    (array([10, 30]), array([50]), None)
    """

    def __init__(self, key: Sequence[str] = ()) -> None:
        self._key = tuple(key)
        # Sorted batches, each with how many of its records have been taken.
        self._runs: list[jt.Batch] = []
        self._taken: list[int] = []

    def add(self, batch: jt.Batch) -> None:
        """Let a batch wait."""
        self._runs.append(_sorted(batch))
        self._taken.append(0)
        if len(self._runs) > _MOST_RUNS:
            self._merge_neighbours()

    def take(self, limit: int | None, *, inclusive: bool = False) -> jt.Batch | None:
        """Take out what is before ``limit`` (or at it, if ``inclusive``); ``None``: everything."""
        parts, finished = [], False
        for number, run in enumerate(self._runs):
            start, stop = self._taken[number], len(run)
            if limit is not None:
                times = run.times
                if times[start] > limit or (times[start] == limit and not inclusive):
                    continue
                stop = int(times.searchsorted(limit, side="right" if inclusive else "left"))
            parts.append(run.slice(start, stop))
            self._taken[number] = stop
            finished |= stop == len(run)
        if finished:
            self._forget_finished()
        if not parts:
            return None
        taken = parts[0] if len(parts) == 1 else _sorted(jt.concat(parts))
        # Said here, so that whoever sends it need not look for its least time.
        return taken.at(taken.times, int(taken.times[0]))

    def _forget_finished(self) -> None:
        left = [n for n, run in enumerate(self._runs) if self._taken[n] < len(run)]
        self._runs = [self._runs[n] for n in left]
        self._taken = [self._taken[n] for n in left]

    def _merge_neighbours(self) -> None:
        """Make one run of the two neighbours that are smallest together."""
        left = self._left()
        sizes = [len(run) for run in left]
        at = min(range(len(left) - 1), key=lambda n: sizes[n] + sizes[n + 1])
        left[at : at + 2] = [_sorted(jt.concat(left[at : at + 2]))]
        self._runs, self._taken = left, [0] * len(left)

    def _left(self) -> list[jt.Batch]:
        """What still waits of each run."""
        return [
            run.slice(taken, len(run)) if taken else run
            for run, taken in zip(self._runs, self._taken, strict=True)
        ]

    def __len__(self) -> int:
        """How many records wait."""
        return sum(map(len, self._runs)) - sum(self._taken)

    def snapshot(self) -> pa.Table:
        """The waiting records, with the bins of their keys."""
        if not self._runs:
            return pa.table({"bin": pa.array([], pa.uint16())})
        whole = jt.concat(self._left())
        bins = jt.bins_of([whole[name] for name in self._key])
        values = whole.to_arrow()
        # Prefixed, since a column of the user's may well be called "bin".
        values = values.rename_columns([f"value.{name}" for name in values.column_names])
        return values.add_column(0, "bin", pa.array(bins))

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Let the records wait again."""
        if state.num_rows:
            values = state.drop_columns(["bin"])
            names = [name.removeprefix("value.") for name in values.column_names]
            self.add(jt.Batch.from_arrow(values.rename_columns(names), time=names[0]))

    @property
    def least(self) -> int | None:
        """The least time of what waits, if anything does.

        >>> waiting = Waiting()
        >>> waiting.add(jt.Batch({"n": [50, 10]}, times=[5, 1]))
        >>> waiting.least
        1
        """
        firsts = zip(self._runs, self._taken, strict=True)
        return min((int(run.times[taken]) for run, taken in firsts), default=None)

    @property
    def times(self) -> list[int]:
        """The distinct times of what waits."""
        if not self._runs:
            return []
        found: list[int] = np.unique(jt.concat(self._left()).times).tolist()
        return found


def _sorted(batch: jt.Batch) -> jt.Batch:
    times = batch.times
    if (times[1:] >= times[:-1]).all():
        return batch
    return batch.take(np.argsort(times, kind="stable"))
