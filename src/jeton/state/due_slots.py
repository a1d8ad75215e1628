"""DueSlots: slots that wait for their times, taken out once a frontier has passed.

A slot's time is when it is *due*: when no earlier time can arrive any more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jeton.columns import time_columns
from jeton.columns.time_columns import Times
from jeton.core.antichain import Antichain
from jeton.core.errors import BatchError
from jeton.core.times import Time, TimeKind, sort_key
from jeton.state.slot_pool import Slots, as_slots
from jeton.state.sorted_runs import SortedRuns

_INTEGERS: Final = np.dtype(np.int64)
_NONE: Slots = np.empty(0, dtype=np.int64)


class DueSlots(ABC):
    """Slots of a `KeySlots` by the time at which they are due; a slot may wait for several times.

    >>> import jeton as jt
    >>> windows = DueSlots.of(jt.IntegerTimes())
    >>> windows.add(np.array([20, 10, 30]), np.array([0, 1, 2]))
    >>> windows.due(jt.Antichain([20]), inclusive=True)
    (array([10, 20]), array([1, 0]))
    >>> list(windows.pending())
    [30]
    """

    @abstractmethod
    def add(self, times: Times, slots: Slots) -> None:
        """Let slots wait for their times."""

    @abstractmethod
    def due(self, frontier: Antichain, *, inclusive: bool) -> tuple[Times, Slots]:
        """Take out the slots that are due, in order of time.

        With ``inclusive``, a slot is due once every time *before* its own is complete (a window
        that ends there); otherwise once its own time is complete too.
        """

    def remove(self, slots: Slots) -> None:
        """Forget slots that are used no more; times must be integers."""
        raise NotImplementedError("only slots with integer times can be removed")

    @abstractmethod
    def pending(self) -> Iterable[Time]:
        """Times that include the least ones for which slots wait."""

    @staticmethod
    def of(kind: TimeKind) -> DueSlots:
        """The container for a kind of time."""
        return _IntegerSlots(kind) if kind.total else _PartialSlots(kind)


class _Timed:
    """Times and slots side by side."""

    __slots__ = ("slots", "times")

    def __init__(self, times: npt.NDArray[np.int64], slots: Slots) -> None:
        self.times = times
        self.slots = slots

    def take(self, rows: npt.NDArray[np.intp]) -> _Timed:
        return _Timed(self.times[rows], self.slots[rows])

    def slice(self, start: int, stop: int) -> _Timed:
        return _Timed(self.times[start:stop], self.slots[start:stop])

    def __len__(self) -> int:
        return len(self.slots)

    @staticmethod
    def concat(parts: Sequence[_Timed]) -> _Timed:
        return _Timed(
            np.concatenate([part.times for part in parts]),
            np.concatenate([part.slots for part in parts]),
        )


class _IntegerSlots(DueSlots):
    """Slots by integer times, in sorted runs."""

    def __init__(self, kind: TimeKind) -> None:
        self._kind = kind
        self._runs = SortedRuns(_Timed.concat)

    def add(self, times: Times, slots: Slots) -> None:
        if (
            type(times) is not np.ndarray
            or type(slots) is not np.ndarray
            or times.dtype is not _INTEGERS
            or slots.dtype is not _INTEGERS
            or times.shape != slots.shape
            or times.ndim != 1
        ):
            times, slots = _checked(self._kind, times, slots)
        if len(slots):
            # Copied, since the slots that a `KeySlots` returns are valid until its next call only.
            self._runs.add(_Timed(times, slots.copy()))

    def due(self, frontier: Antichain, *, inclusive: bool) -> tuple[Times, Slots]:
        found = self._runs.take(frontier.only, inclusive=inclusive)
        return (_NONE, _NONE) if found is None else (found.times, found.slots)

    def remove(self, slots: Slots) -> None:
        if len(slots):
            gone = np.zeros(int(slots.max()) + 1, dtype=np.bool_)
            gone[slots] = True
            self._runs.keep(lambda rows: ~gone.take(rows.slots, mode="clip") | _beyond(rows, gone))

    def pending(self) -> Iterable[Time]:
        return [] if self._runs.least is None else [self._runs.least]


def _beyond(rows: _Timed, gone: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The rows whose slots are greater than any that is gone."""
    beyond: npt.NDArray[np.bool_] = rows.slots >= len(gone)
    return beyond


class _PartialSlots(DueSlots):
    """Slots by partially ordered times: the distinct ones are examined one by one."""

    def __init__(self, kind: TimeKind) -> None:
        self._kind = kind
        self._waiting: dict[Time, list[Slots]] = {}

    def add(self, times: Times, slots: Slots) -> None:
        times, slots = _checked(self._kind, times, slots)
        for time, rows in time_columns.groups(times):
            self._waiting.setdefault(time, []).append(slots[rows].copy())

    def due(self, frontier: Antichain, *, inclusive: bool) -> tuple[Times, Slots]:
        behind = frontier.less_than if inclusive else frontier.less_equal
        done = sorted((time for time in self._waiting if not behind(time)), key=sort_key)
        times, slots = [], []
        for time in done:
            together = np.concatenate(self._waiting.pop(time))
            slots.append(together)
            times.append(time_columns.constant(self._kind, time, len(together)))
        if not slots:
            return time_columns.as_times(self._kind, []), np.empty(0, dtype=np.int64)
        return np.concatenate(times), np.concatenate(slots)

    def pending(self) -> Iterable[Time]:
        return self._waiting


def _checked(kind: TimeKind, times: Any, slots: Slots) -> tuple[Times, Slots]:
    """Times and slots as arrays of equal length."""
    if kind.total or type(times) is not np.ndarray:
        times = time_columns.as_times(kind, times)
    slots = as_slots(slots)
    if len(times) != len(slots):
        raise BatchError(f"there are {len(times)} times for {len(slots)} slots: give one for each")
    return times, slots
