"""Partitions of an input: each has a floor of its own, and lateness counts from there.

An input advances with the slowest of its partitions. It does not wait for those that
have ended or are idle.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from jeton.columns import compiled as nb
from jeton.core.errors import TimeError, TokenError
from jeton.core.times import END_OF_TIME, Time

if TYPE_CHECKING:
    from jeton.dataflow.inputs import InputHandle

PartitionKey: TypeAlias = "str | int"
"""The name of a partition: a text or a number."""


class StoredPartition(NamedTuple):
    """The state of a partition in a snapshot."""

    floor: int
    ended: bool
    idle: bool


class Partition:
    """One partition of an input on one worker: records that come in an order of their own.

    `floor` is the time below which its records are late: the greatest time sent so far less the
    input's lateness, or what `advance_to` promised.

    >>> import jeton as jt
    >>> flow = jt.Flow("two partitions")
    >>> flow.output("n", flow.input("n", lateness=5))
    >>> with flow.open() as run:
    ...     fast, slow = run.input("n").partition("a"), run.input("n").partition("b")
    ...     fast.send({"time": [100, 80]})
    ...     slow.send({"time": [12, 10]})
    ...     fast.floor, slow.floor, run.input("n").time, run.finish().late
    (95, 7, 7, {'n': 1})
    """

    __slots__ = ("_handle", "_idle", "ended", "floor", "heard_at", "key", "latest", "stored")

    def __init__(
        self,
        handle: InputHandle,
        key: PartitionKey | None,
        floor: Time,
        *,
        ended: bool = False,
        idle: bool = False,
        stored: bool = False,
    ) -> None:
        self.key = key
        self.floor = floor
        self.ended = ended
        self.stored = stored
        """Whether snapshots of the input have it among their partitions."""
        self.latest: int | None = None
        """The greatest time of a record that it has sent, since it was opened."""
        self.heard_at = -math.inf
        """When it last had records, or was opened, by the clock of a host that takes note of it."""
        self._idle = idle
        self._handle = handle

    @property
    def idle(self) -> bool:
        """Whether the input does not wait for it until its next record."""
        return self._idle

    @property
    def holds(self) -> bool:
        """Whether the input waits for this partition."""
        return not self.ended and not self._idle

    def send(self, data: Any = None, *, times: Any = None, **columns: Any) -> None:
        """Send records of this partition: see `InputHandle.send`."""
        with self._handle.turn:
            self.require_open()
            self._handle.send_from(self, data, times, columns)

    def advance_to(self, time: Time) -> None:
        """Promise that this partition sends nothing before ``time`` any more."""
        with self._handle.turn:
            self.require_open()
            time = self._handle.check(time)
            if time < self.floor:
                handle = self._handle
                raise TimeError(
                    f"partition {self.key!r} of input {handle.name!r} is at "
                    f"{handle.in_words(self.floor)} and cannot go back to {handle.in_words(time)}"
                ).located(operator=handle.name)
            self.floor = time
            self._handle.settle()

    def mark_idle(self) -> None:
        """Do not wait for this partition until it sends again.

        It goes on at its own floor then. Its records are late if the input has passed them.
        """
        with self._handle.turn:
            self.require_open()
            self._idle = True
            self._handle.settle()

    def wake(self) -> None:
        """Wait for this partition again."""
        self._idle = False

    def close(self) -> None:
        """End this partition. Closing twice is harmless."""
        with self._handle.turn:
            if not self.ended:
                self.ended = True
                self._handle.settle()

    def require_open(self) -> None:
        """Refuse if the partition has ended."""
        if self.ended:
            raise TokenError(
                f"partition {self.key!r} of input {self._handle.name!r} is closed"
            ).located(operator=self._handle.name)


@nb.njit(cache=True)
def sift(
    times: npt.NDArray[np.int64], floor: int, bound: int, lateness: int, least: int
) -> tuple[npt.NDArray[np.bool_], int, int]:
    """Which times are late when they come, how many of them, and the floor afterwards.

    A time is late if it is below the floor of its partition or the bound of the whole input. Each
    raises the floor to itself less the lateness, but not below the least time there is.

    >>> late, count, floor = sift(np.array([3, 9, 4, 5]), 2, 2, 4, 0)
    >>> late.tolist(), count, floor
    ([False, False, True, False], 1, 5)
    """
    late = np.zeros(len(times), np.bool_)
    count = 0
    # From here on a time less the lateness does not overflow.
    safe = END_OF_TIME if least > END_OF_TIME - lateness else least + lateness
    for i in range(len(times)):
        time = times[i]
        if time < floor or time < bound:
            late[i] = True
            count += 1
        if time > safe:
            floor = max(floor, time - lateness)
    return late, count, floor


def passed(
    times: npt.NDArray[np.int64], floor: int, bound: int, lateness: int, least: int
) -> npt.NDArray[np.int64]:
    """For each record the time below which it would have been late when it came: see `sift`.

    >>> passed(np.array([3, 9, 4, 5]), 2, 2, 4, 0)
    array([2, 2, 5, 5])
    """
    safe = min(least + lateness, END_OF_TIME)
    # The values that overflow are not used.
    raised = np.where(times > safe, times - lateness, least)
    before = np.concatenate([np.array([max(floor, bound)], np.int64), raised[:-1]])
    floors: npt.NDArray[np.int64] = np.maximum.accumulate(before)
    return floors


def stored(
    partitions: Mapping[PartitionKey, Partition], before: Mapping[PartitionKey, StoredPartition]
) -> str:
    """Partitions as text for snapshots, also those not opened again yet.

    For each its key, floor, whether it has ended, whether it is open here, and whether it is idle.
    """
    rows: list[list[Any]] = [
        [key, at.floor, at.ended, False, at.idle] for key, at in before.items()
    ]
    rows += [[key, p.floor, p.ended, True, p.idle] for key, p in partitions.items() if p.stored]
    return json.dumps(rows)


def restored(texts: Iterable[str]) -> dict[PartitionKey, StoredPartition]:
    """Where each partition was, from the texts of all workers.

    The floor on a worker where the partition was open is newer than those that other workers had
    restored. If it was open on several, the slowest counts. Earlier versions did not store whether
    a partition is idle: then it is not.

    >>> texts = ['[["a", 3, false, false], ["b", 2, false, true]]', '[["a", 7, false, true, true]]']
    >>> {key: tuple(at) for key, at in restored(texts).items()}
    {'a': (7, False, True), 'b': (2, False, False)}
    """
    found: dict[PartitionKey, tuple[StoredPartition, bool]] = {}
    for key, floor, ended, live, *idle in (row for text in texts for row in json.loads(text)):
        at = StoredPartition(floor, ended, any(idle))
        other, was_live = found.get(key, (None, False))
        if other is None or (live and not was_live):
            found[key] = (at, live)
        elif live or not was_live:
            slowest = min(floor, other.floor)
            both = StoredPartition(slowest, ended and other.ended, at.idle and other.idle)
            found[key] = (both, live)
    return {key: at for key, (at, _) in found.items()}


def slowest(partitions: Iterable[Partition]) -> Time | None:
    """The least floor of the partitions that an input waits for; ``None`` if there is none."""
    return min((each.floor for each in partitions if each.holds), default=None)


def follow(handles: Iterable[InputHandle]) -> bool:
    """Let an input advance on workers where all its partitions are idle.

    It goes as far as the slowest of the other workers, so that idle partitions hold no other
    worker back. Returns whether there are such workers.
    """
    still_open = [handle for handle in handles if not handle.closed]
    idle = [handle for handle in still_open if handle.idle]
    least = least_of_active((handle.time, handle.idle) for handle in still_open)
    for handle in idle:
        if least is not None and handle.time < least:
            handle.advance_to(least)
    return bool(idle)


def least_of_active(states: Iterable[tuple[Time, bool]]) -> Time | None:
    """The least time of those that are not idle, from each one's time and whether it is idle.

    >>> least_of_active([(3, True), (9, False), (7, False)])
    7
    """
    return min((time for time, idle in states if not idle), default=None)
