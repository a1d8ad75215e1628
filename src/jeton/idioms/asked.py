"""What is asked, or to be asked: records with their tokens, their times, and how they are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt

_BIN: Final = "bin"


@dataclass(slots=True)
class Asked:
    """Records that wait for an answer, and the tokens to give it with."""

    tokens: list[jt.TimestampToken]
    batch: jt.Batch

    @property
    def time(self) -> Any:
        """A lower bound of the records' times."""
        return self.tokens[0].time


class Times:
    """Times, some of them more than once, and the least of them.

    >>> times = Times(total=True)
    >>> for time in (5, 3, 3):
    ...     times.add(time)
    >>> times.remove(3)
    >>> list(times.least())
    [3]
    >>> times.remove(3)
    >>> list(times.least())
    [5]
    """

    def __init__(self, total: bool) -> None:
        self._total = total
        self._counts: Counter[Any] = Counter()
        self._heap: list[Any] = []

    def add(self, time: Any) -> None:
        """One more."""
        self._counts[time] += 1
        if self._total and self._counts[time] == 1:
            heappush(self._heap, time)

    def remove(self, time: Any) -> None:
        """One less."""
        self._counts[time] -= 1
        if not self._counts[time]:
            del self._counts[time]
            while self._heap and self._heap[0] not in self._counts:
                heappop(self._heap)

    def least(self) -> Iterable[Any]:
        """The least one, if there are any; of times that have no total order, all."""
        return self._heap[:1] if self._total else self._counts


def last_time(kind: Any) -> Any:
    """The last of all times of a kind, at which nothing is said; the user's own have none.

    >>> last_time(jt.IntegerTimes(minimum=-5)) == jt.END_OF_TIME
    True
    """
    least = kind.minimum
    if isinstance(least, jt.Product) and type(least[0]) is int:
        return jt.Product.of((jt.END_OF_TIME,) * len(least))
    return jt.END_OF_TIME if type(least) is int else None


def sorted_by_time(batch: jt.Batch) -> jt.Batch:
    """A batch in order of time; those at one time stay as they are."""
    times = batch.times
    if (times[1:] >= times[:-1]).all():
        return batch
    return batch.take(np.argsort(times, kind="stable"))


def kept(waiting: Sequence[jt.Batch], pact: jt.Pact | None) -> pa.Table:
    """Batches as a part of a snapshot."""
    if not waiting:
        return pa.table({_BIN: pa.array([], pa.uint16())})
    whole = jt.concat(waiting)
    table = whole.to_arrow()
    # Prefixed, since a column of the user's may well be called "bin".
    table = table.rename_columns([f"value.{name}" for name in table.column_names])
    return table.append_column(_BIN, pa.array(_bins(whole, pact)))


def restored(state: pa.Table) -> jt.Batch:
    """The records of a snapshot's part: there must be some."""
    table = state.drop_columns([_BIN])
    table = table.rename_columns([name.removeprefix("value.") for name in table.column_names])
    return jt.Batch.from_arrow(table, time=table.column_names[0])


def _bins(batch: jt.Batch, pact: jt.Pact | None) -> npt.NDArray[np.uint16]:
    """Which workers records go to when they are asked again: those that the pact chooses."""
    if isinstance(pact, jt.Exchange):
        return jt.state.bins_of(
            [
                batch.column(key) if isinstance(key, str) else np.asarray(key(batch))
                for key in pact.key
            ]
        )
    if isinstance(pact, jt.Gather):
        return np.zeros(len(batch), np.uint16)
    return jt.state.bins_of([batch.times])


def shape_of(pact: jt.Pact | None) -> str:
    """What a snapshot's part depends on: the key that has brought records to their workers.

    >>> shape_of(jt.Exchange("user", "item"))
    'asked by user, item'
    """
    key = pact.key if isinstance(pact, jt.Exchange) else ()
    names = [name if isinstance(name, str) else "a function" for name in key]
    return f"asked by {', '.join(names)}" if names else "asked"
