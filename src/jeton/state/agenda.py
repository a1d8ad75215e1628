"""Agendas: slots that wait for their times, taken out when a frontier has passed.

A slot's time is when it is *due*: when nothing before that time can come any more. With integer
times, slots wait in runs sorted by time, so that a frontier's jump takes a slice of each, whatever
the number of distinct times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from jeton.columns import time_columns
from jeton.columns.time_columns import Times
from jeton.core.antichain import Antichain
from jeton.core.times import Time, TimeKind, sort_key
from jeton.state.slot_pool import Slots
from jeton.state.sorted_runs import merge_from

_NONE: Slots = np.empty(0, dtype=np.int64)


class Agenda(ABC):
    """Slots by the time at which they are due."""

    @abstractmethod
    def add(self, times: Times, slots: Slots) -> None:
        """Let slots wait for their times."""

    @abstractmethod
    def due(self, frontier: Antichain, *, inclusive: bool) -> tuple[Times, Slots]:
        """Take out the slots that are due, in order of time.

        With ``inclusive``, a slot is due once every time *before* its own is complete (a window
        that ends there); otherwise once its own time is complete too.
        """

    @abstractmethod
    def pending(self) -> Iterable[Time]:
        """Times that include the least ones still waiting."""

    @staticmethod
    def of(kind: TimeKind) -> Agenda:
        """The agenda for a kind of time."""
        return IntegerAgenda() if kind.total else PartialAgenda(kind)


class IntegerAgenda(Agenda):
    """An agenda of integer times.

    >>> agenda = IntegerAgenda()
    >>> agenda.add(np.array([20, 10, 30]), np.array([0, 1, 2]))
    >>> agenda.due(Antichain([20]), inclusive=True)
    (array([10, 20]), array([1, 0]))
    >>> list(agenda.pending())
    [30]
    """

    def __init__(self) -> None:
        self._runs: list[tuple[npt.NDArray[np.int64], Slots]] = []
        self._least: int | None = None

    def add(self, times: Times, slots: Slots) -> None:
        """Add a run."""
        if len(slots) == 0:
            return
        order = np.argsort(times, kind="stable")
        self._runs.append((times[order], slots[order]))
        start = merge_from([len(run) for _, run in self._runs])
        if start is not None:
            self._runs[start:] = [_merged(self._runs[start:])]
        self._note_least()

    def due(self, frontier: Antichain, *, inclusive: bool) -> tuple[Times, Slots]:
        """The front of each run."""
        limit, least = frontier.only, self._least
        if least is None or (limit is not None and (limit, inclusive) < (least, True)):
            return _NONE, _NONE
        taken, left = [], []
        for times, slots in self._runs:
            cut = len(times)
            if limit is not None:
                cut = int(np.searchsorted(times, limit, side="right" if inclusive else "left"))
            if cut:
                taken.append((times[:cut], slots[:cut]))
            if cut < len(times):
                left.append((times[cut:], slots[cut:]))
        self._runs = left
        self._note_least()
        return _merged(taken) if taken else (_NONE, _NONE)

    def pending(self) -> Iterable[Time]:
        """The least time."""
        return [] if self._least is None else [self._least]

    def _note_least(self) -> None:
        self._least = min((int(times[0]) for times, _ in self._runs), default=None)


class PartialAgenda(Agenda):
    """An agenda of partially ordered times: the distinct ones are looked at one by one."""

    def __init__(self, kind: TimeKind) -> None:
        self._kind = kind
        self._waiting: dict[Time, list[Slots]] = {}

    def add(self, times: Times, slots: Slots) -> None:
        """Add slots under each distinct time."""
        for time, rows in time_columns.groups(times):
            self._waiting.setdefault(time, []).append(slots[rows])

    def due(self, frontier: Antichain, *, inclusive: bool) -> tuple[Times, Slots]:
        """All whose time the frontier has passed."""
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
        """All times that are waited for."""
        return self._waiting


def _merged(
    runs: list[tuple[npt.NDArray[np.int64], Slots]],
) -> tuple[npt.NDArray[np.int64], Slots]:
    if len(runs) == 1:
        return runs[0]
    times = np.concatenate([times for times, _ in runs])
    slots = np.concatenate([slots for _, slots in runs])
    order = np.argsort(times, kind="stable")
    return times[order], slots[order]
