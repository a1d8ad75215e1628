"""Relays: with many workers, progress goes through one relay for each group of workers.

Without relays, each of W workers sends each of its batches to all others. From `RELAYED_FROM`
workers on, they form about √W groups of neighbours. The first worker of a group is its *relay*,
and a worker like any other besides. There are three hops:

- **up**: a member sends its batches to its relay only. They name the workers to which messages go.
- **across**: a relay sends to each other relay the net changes of its own group. Those on workers
  of the receiving group are named, all others are one sum.
- **down**: a relay sends to each of its members the net changes of all others: those of its group,
  except the member's own, and those that came across. What came across never goes across again.

A relay applies to its own frontiers at once what comes, and sends it on at the end of its step.

Why that is safe: without relays, a worker's view is a union of *prefixes*, one of the batches of
each worker, and no union of prefixes shows a frontier that is ahead of what exists. With relays it
still is one. The batches of a worker reach another one on one path only, each hop is first in,
first out, and a relay sends on all that has come, in one batch for each receiver. That batch
extends the prefixes of several workers, by whole batches and at once. Net changes are as good as
the changes themselves, since a batch is applied as one.

A migration has to know that all have heard all up to some moment. Then each worker puts a *mark*
into its next batch. A relay marks what goes across once its whole group has, and what goes down
once the other relays have, too. Marks are behind the changes that they are about on every hop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import isqrt
from typing import Final, Protocol

from jeton.core.changes import ChangeBatch
from jeton.core.errors import ProtocolError
from jeton.progress.protocol import (
    Changes,
    NamedChanges,
    ProgressBatch,
    SealedChanges,
    WorkerPointstamp,
)
from jeton.progress.tracker import Pointstamp

RELAYED_FROM: Final = 32
"""The least number of workers that have relays, unless the host decides otherwise."""
ACROSS, DOWN = range(2)


def group_size(workers: int) -> int:
    """The number of workers that share a relay; 1 if there are no relays.

    >>> [group_size(workers) for workers in (2, 31, 32, 100, 4096)]
    [1, 1, 6, 10, 64]
    """
    return 1 if workers < RELAYED_FROM else isqrt(workers - 1) + 1


class Hop(Protocol):
    """One worker's part in passing progress on."""

    @property
    def pending(self) -> bool:
        """Whether there is something to send at the end of the next step."""
        ...

    @property
    def has_heard(self) -> bool:
        """Whether all that any worker sealed before its latest mark has arrived here."""
        ...

    def mark(self) -> None:
        """Mark the next batch: what this worker has sealed so far is before it."""
        ...

    def receive(self, batch: ProgressBatch) -> tuple[Changes, Changes]:
        """Take a batch of another worker; returns the changes on this worker and on others."""
        ...

    def send(self, sealed: SealedChanges | None) -> Iterable[tuple[int, ProgressBatch]]:
        """The batches to send after a step, with the changes of that step, and their receivers."""
        ...


Hops = Callable[[int, int], Hop | None]
"""From a worker and the number of workers to its part; none without relays."""


def in_groups(worker: int, workers: int) -> Hop | None:
    """A worker's part in groups of `group_size`."""
    return _part(worker, workers, group_size(workers))


def in_groups_of(size: int) -> Hops:
    """Parts of workers in groups of a size; 1 is for no relays."""
    return partial(_part, size=size)


def _part(worker: int, workers: int, size: int) -> Hop | None:
    if size <= 1 or workers <= 1:
        return None
    return Member(worker, worker - worker % size) if worker % size else Relay(worker, workers, size)


class Member:
    """A worker that is not a relay: it sends to its relay, and hears of all others from it."""

    def __init__(self, worker: int, relay: int) -> None:
        self._worker = worker
        self._relay = relay
        self._sequence = 0
        self._marks = 0
        self._marks_of_all = 0
        self.pending = False

    @property
    def has_heard(self) -> bool:
        """Whether all that any worker sealed before its latest mark has arrived here."""
        return self._marks_of_all >= self._marks

    def mark(self) -> None:
        """Mark the next batch: what this worker has sealed so far is before it."""
        self._marks += 1
        self.pending = True

    def receive(self, batch: ProgressBatch) -> tuple[Changes, Changes]:
        """Take a batch of the relay."""
        if batch.worker != self._relay or batch.named:
            raise misrouted(batch, self._worker)
        self._marks_of_all = max(self._marks_of_all, batch.mark)
        return batch.yours, batch.changes

    def send(self, sealed: SealedChanges | None) -> Iterable[tuple[int, ProgressBatch]]:
        """One batch for the relay, if there is anything to say."""
        if sealed is None and not self.pending:
            return ()
        here: Changes = ()
        unit: str | None = None
        yours: Changes = ()
        named = []
        if sealed is not None:
            here, unit = sealed.here, sealed.unit
            for at, changes in sealed.by_worker.items():
                if at == self._relay:
                    yours = tuple(changes)
                else:
                    named += [((at, pointstamp), delta) for pointstamp, delta in changes]
        mark = self._marks if self.pending else 0
        self.pending = False
        sequence = self._sequence
        self._sequence += 1
        batch = ProgressBatch(self._worker, sequence, here, yours, unit, tuple(named), mark)
        return ((self._relay, batch),)


class Relay:
    """The worker of a group that passes progress on.

    >>> relay = Relay(0, workers=5, size=2)
    >>> up = ProgressBatch(1, 0, (((3, 7), -1),), named=(((2, (4, 7)), +1), ((3, (4, 7)), +1)))
    >>> relay.receive(up)
    ((), (((3, 7), -1), ((4, 7), 2)))
    >>> for to, batch in relay.send(None):
    ...     print(to, batch.changes, batch.yours, batch.named)
    2 (((3, 7), -1),) (((4, 7), 1),) (((3, (4, 7)), 1),)
    4 (((3, 7), -1), ((4, 7), 2)) () ()
    """

    def __init__(self, worker: int, workers: int, size: int) -> None:
        self._worker = worker
        self._workers = workers
        self._size = size
        self._members = range(worker + 1, min(worker + size, workers))
        self._relays = [each for each in range(0, workers, size) if each != worker]
        self._sequences: dict[int, int] = {}
        """The number of the next batch for each worker that it sends to."""
        self._ours: ChangeBatch[Pointstamp] = ChangeBatch()
        """Changes of this group, on any worker."""
        self._theirs: ChangeBatch[Pointstamp] = ChangeBatch()
        """Changes that came across, on any worker."""
        self._by: dict[int, ChangeBatch[Pointstamp]] = {}
        """Of the changes of this group, those that a member made: it knows them."""
        self._at: dict[int, ChangeBatch[Pointstamp]] = {}
        """Of all changes, those on workers that are named to their relay, or are members here."""
        self._units: list[str | None] = [None, None]
        """The latest unit of the group, which goes across; and that of all, which goes down."""
        self._units_sent: list[str | None] = [None, None]
        self._marks = dict.fromkeys((worker, *self._members, *self._relays), 0)
        """The latest mark of each worker that sends to it, and its own."""
        self._marks_sent = [0, 0]
        """The latest marks that went across, and down."""
        self.pending = False

    @property
    def has_heard(self) -> bool:
        """Whether all that any worker sealed before its latest mark has arrived here."""
        return min(self._marks.values()) >= self._marks[self._worker]

    def mark(self) -> None:
        """Mark this worker's own changes so far."""
        self._marks[self._worker] += 1
        self.pending = True

    def receive(self, batch: ProgressBatch) -> tuple[Changes, Changes]:
        """Take a batch of a member, or of another relay."""
        sender = batch.worker
        within = sender in self._members
        if sender not in self._marks or sender == self._worker:
            raise misrouted(batch, self._worker)
        self.pending = True
        if batch.mark:
            self._marks[sender] = batch.mark
        if batch.unit is not None:
            self._learn(batch.unit, within)
        reached = range(self._workers) if within else self._members
        elsewhere = ChangeBatch(batch.changes)
        for (at, pointstamp), delta in batch.named:
            # Those on this worker are not named, and the sender's own are not on another one.
            if at not in reached or at in (self._worker, sender):
                raise misrouted(batch, self._worker)
            elsewhere.update(pointstamp, delta)
            self._on(at).update(pointstamp, delta)
        total = self._ours if within else self._theirs
        total.absorb(elsewhere.net)
        total.extend(batch.yours)
        if within:
            known = self._by.setdefault(sender, ChangeBatch())
            known.absorb(elsewhere.net)
            known.extend(batch.yours)
        return batch.yours, tuple(elsewhere)

    def send(self, sealed: SealedChanges | None) -> Iterator[tuple[int, ProgressBatch]]:
        """All that came since the last time: a net batch for each other relay and each member."""
        if sealed is not None:
            self._take(sealed)
        if not self.pending:
            return
        self.pending = False
        ours, at = self._ours.drain(), self._at
        everything = ChangeBatch[Pointstamp]()
        everything.absorb(ours)
        everything.absorb(self._theirs.drain())
        by, self._by, self._at = self._by, {}, {}
        yield from self._across(ours, at, *self._notes(ACROSS))
        yield from self._down(everything.net, by, at, *self._notes(DOWN))

    def _take(self, sealed: SealedChanges) -> None:
        """Add the changes of this worker itself."""
        self.pending = True
        self._ours.extend(sealed.here)
        for at, changes in sealed.by_worker.items():
            self._ours.extend(changes)
            self._on(at).extend(changes)
        if sealed.unit is not None:
            self._learn(sealed.unit, True)

    def _learn(self, unit: str, within: bool) -> None:
        if within:
            self._units[ACROSS] = unit
        self._units[DOWN] = unit

    def _on(self, worker: int) -> ChangeBatch[Pointstamp]:
        found = self._at.get(worker)
        if found is None:
            found = self._at[worker] = ChangeBatch()
        return found

    def _notes(self, way: int) -> tuple[str | None, int]:
        """The unit and the mark that have not gone this way."""
        unit, mark = self._units[way], min(self._marks.values())
        if way == ACROSS:
            mark = min(self._marks[each] for each in (self._worker, *self._members))
        if unit == self._units_sent[way]:
            unit = None
        else:
            self._units_sent[way] = unit
        if mark == self._marks_sent[way]:
            mark = 0
        else:
            self._marks_sent[way] = mark
        return unit, mark

    def _across(
        self,
        ours: dict[Pointstamp, int],
        at: dict[int, ChangeBatch[Pointstamp]],
        unit: str | None,
        mark: int,
    ) -> Iterator[tuple[int, ProgressBatch]]:
        by_relay: dict[int, list[int]] = {}
        for worker in at:
            by_relay.setdefault(worker - worker % self._size, []).append(worker)
        common = tuple(ours.items())
        for relay in self._relays:
            changes = common
            yours: Changes = ()
            named: list[tuple[WorkerPointstamp, int]] = []
            if relay in by_relay:
                others: ChangeBatch[Pointstamp] = ChangeBatch()
                others.absorb(ours)
                for worker in by_relay[relay]:
                    net = at[worker]
                    others.extend((pointstamp, -delta) for pointstamp, delta in net)
                    if worker == relay:
                        yours = tuple(net)
                    else:
                        named += [((worker, pointstamp), delta) for pointstamp, delta in net]
                changes = tuple(others)
            if changes or yours or named or unit or mark:
                yield relay, self._batch(relay, changes, yours, unit, tuple(named), mark)

    def _down(
        self,
        everything: dict[Pointstamp, int],
        by: dict[int, ChangeBatch[Pointstamp]],
        at: dict[int, ChangeBatch[Pointstamp]],
        unit: str | None,
        mark: int,
    ) -> Iterator[tuple[int, ProgressBatch]]:
        common = tuple(everything.items())
        nothing: ChangeBatch[Pointstamp] = ChangeBatch()
        for member in self._members:
            changes, yours = common, tuple(at.get(member, nothing))
            known = by.get(member, nothing)
            if yours or known:
                others: ChangeBatch[Pointstamp] = ChangeBatch()
                others.absorb(everything)
                others.extend((pointstamp, -delta) for pointstamp, delta in (*known, *yours))
                changes = tuple(others)
            if changes or yours or unit or mark:
                yield member, self._batch(member, changes, yours, unit, (), mark)

    def _batch(
        self,
        to: int,
        changes: Changes,
        yours: Changes,
        unit: str | None,
        named: NamedChanges,
        mark: int,
    ) -> ProgressBatch:
        sequence = self._sequences.get(to, 0)
        self._sequences[to] = sequence + 1
        return ProgressBatch(self._worker, sequence, changes, yours, unit, named, mark)


def misrouted(batch: ProgressBatch, worker: int) -> ProtocolError:
    """The error for a batch that a worker should not have got, or not like that."""
    return ProtocolError(
        f"progress batch {batch.sequence} of worker {batch.worker} is not one for worker {worker}"
    )
