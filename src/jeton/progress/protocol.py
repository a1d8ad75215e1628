"""The broadcast protocol: the changes of one worker, in indivisible numbered batches.

A batch holds the net changes of whole operator invocations. Batches of one worker are applied in
order and at most once; batches of different workers in any order. Whatever a worker has seen, its
frontiers are then never ahead of a pointstamp that exists and could lead there.

A pointstamp is on a worker: a token where it is held, a message where it goes. A worker counts
its own apart from those of all others, so that its frontiers wait only for what can reach it.

With many workers, batches go through relays, which add several up: see `jeton.progress.relay`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jeton.core.changes import ChangeBatch
from jeton.core.errors import ProtocolError
from jeton.progress.tracker import Pointstamp

WorkerPointstamp = tuple[int, Pointstamp]
"""A pointstamp, after the worker that it is on."""

Changes = tuple[tuple[Pointstamp, int], ...]
NamedChanges = tuple[tuple[WorkerPointstamp, int], ...]


class ProgressBatch(NamedTuple):
    """The net changes of some invocations of one worker, for one other: all of them or none.

    That of a relay has those of several workers.
    """

    worker: int
    """The worker that sends it."""
    sequence: int
    """Its number, of those that go from that worker to the one that receives it."""
    changes: Changes
    """Changes on other workers than the one that receives the batch."""
    yours: Changes = ()
    """Changes on the one that receives it: messages that were sent to it."""
    unit: str | None = None
    """The unit of the worker's times, in the first batch after the worker has learnt it."""
    named: NamedChanges = ()
    """For a relay: changes on workers that it has to know, as it sends them on."""
    mark: int = 0
    """The number of the mark that it carries, if it does: see `jeton.progress.relay`."""


class Outbox:
    """Gathers one worker's changes and seals them into numbered batches.

    The worker applies its own changes earlier than it sends them to the others: it may settle the
    changes of whole invocations at any time. If it is ``alone``, nothing is sealed.

    >>> outbox = Outbox(worker=0)
    >>> for pointstamp, delta in [((3, 17), +1), ((3, 17), -1), ((4, 5), +1)]:
    ...     outbox.add(pointstamp, delta)
    >>> outbox.settle()
    ({(4, 5): 1}, {})
    >>> outbox.add((4, 5), -1)
    >>> outbox.add((4, 8), +1)
    >>> outbox.add_at(2, (6, 5), +1)
    >>> outbox.settle()
    ({(4, 5): -1, (4, 8): 1}, {(2, (6, 5)): 1})
    >>> sealed = outbox.seal()
    >>> sealed.batch_for(1).changes, sealed.batch_for(1).yours
    ((((4, 8), 1), ((6, 5), 1)), ())
    >>> sealed.batch_for(2).changes, sealed.batch_for(2).yours
    ((((4, 8), 1),), (((6, 5), 1),))
    >>> outbox.seal() is None
    True
    """

    __slots__ = (
        "_alone",
        "_changes",
        "_elsewhere",
        "_sequence",
        "_settled",
        "_settled_elsewhere",
        "add",
        "worker",
    )

    def __init__(self, worker: int, *, alone: bool = False) -> None:
        self.worker = worker
        self._alone = alone
        self._changes: ChangeBatch[Pointstamp] = ChangeBatch()
        self._elsewhere: ChangeBatch[WorkerPointstamp] = ChangeBatch()
        self._settled: ChangeBatch[Pointstamp] = ChangeBatch()
        self._settled_elsewhere: ChangeBatch[WorkerPointstamp] = ChangeBatch()
        self._sequence = 0
        self.add = self._changes.update
        """Add to the count of a pointstamp on this worker."""

    def add_at(self, worker: int, pointstamp: Pointstamp, delta: int) -> None:
        """Add to the count of a pointstamp on another worker: of a message that goes there."""
        self._elsewhere.update((worker, pointstamp), delta)

    @property
    def sealed(self) -> int:
        """The number of batches so far."""
        return self._sequence

    def settle(self) -> tuple[dict[Pointstamp, int], dict[WorkerPointstamp, int]]:
        """The net changes since the last time, here and elsewhere, which are final now."""
        net = self._changes.net
        if net:
            self._changes.net = {}
            if not self._alone:
                self._settled.absorb(net)
        elsewhere = self._elsewhere.net
        if elsewhere:
            self._elsewhere.net = {}
            self._settled_elsewhere.absorb(elsewhere)
        return net, elsewhere

    def seal(self, unit: str | None = None) -> SealedChanges | None:
        """All settled changes since the last batch, or nothing if they cancelled out."""
        if not (self._settled.net or self._settled_elsewhere.net):
            return None
        sequence = self._sequence
        self._sequence += 1
        elsewhere = self._settled_elsewhere.drain()
        return SealedChanges(self.worker, sequence, self._settled.drain(), elsewhere, unit)


class SealedChanges:
    """Changes that are sealed: a batch for each other worker, which says what is for that one.

    A batch does not name the other workers on which there are messages, so that it is as large
    with many workers as with few.
    """

    __slots__ = ("_common", "_sequence", "_total", "_worker", "by_worker", "here", "unit")

    def __init__(
        self,
        worker: int,
        sequence: int,
        here: dict[Pointstamp, int],
        elsewhere: Mapping[WorkerPointstamp, int],
        unit: str | None,
    ) -> None:
        self._worker = worker
        self._sequence = sequence
        self.here = tuple(here.items())
        """Changes on the worker itself."""
        self.unit = unit
        self.by_worker: dict[int, list[tuple[Pointstamp, int]]] = {}
        """Changes on each other worker that messages went to."""
        for (at, pointstamp), delta in elsewhere.items():
            self.by_worker.setdefault(at, []).append((pointstamp, delta))
        self._total: dict[Pointstamp, int] | None = None
        self._common: ProgressBatch | None = None

    def batch_for(self, worker: int) -> ProgressBatch:
        """The batch for another worker."""
        by_worker = self.by_worker
        yours = by_worker.get(worker)
        if yours is None:
            if self._common is None:
                changes = tuple(self._sum().items()) if by_worker else self.here
                self._common = self._batch(changes, ())
            return self._common
        if len(by_worker) == 1:
            return self._batch(self.here, tuple(yours))
        others: ChangeBatch[Pointstamp] = ChangeBatch()
        others.absorb(self._sum())
        for pointstamp, delta in yours:
            others.update(pointstamp, -delta)
        return self._batch(tuple(others.net.items()), tuple(yours))

    def _sum(self) -> dict[Pointstamp, int]:
        """All changes, on whichever worker."""
        if self._total is None:
            total = ChangeBatch(self.here)
            for changes in self.by_worker.values():
                for pointstamp, delta in changes:
                    total.update(pointstamp, delta)
            self._total = total.net
        return self._total

    def _batch(self, changes: Changes, yours: Changes) -> ProgressBatch:
        return ProgressBatch(self._worker, self._sequence, changes, yours, self.unit)


class Inbox:
    """Checks that batches of each worker arrive in order, none twice.

    >>> inbox = Inbox(workers=2)
    >>> inbox.accept(ProgressBatch(1, 0, ()))
    >>> inbox.accept(ProgressBatch(1, 0, ()))
    Traceback (most recent call last):
    jeton.core.errors.ProtocolError: progress batch 0 of worker 1 arrived, but 1 was due
    """

    __slots__ = ("_due",)

    def __init__(self, workers: int) -> None:
        self._due = [0] * workers

    def has_heard(self, sealed: Sequence[int], but: int) -> bool:
        """Whether a number of batches of each worker has arrived, ``but`` those of one."""
        return all(
            due >= wanted
            for worker, (due, wanted) in enumerate(zip(self._due, sealed, strict=True))
            if worker != but
        )

    def accept(self, batch: ProgressBatch) -> None:
        """Count a batch, or raise if it is not the next one of its worker."""
        if not 0 <= batch.worker < len(self._due):
            raise ProtocolError(f"a progress batch of worker {batch.worker}, which does not exist")
        due = self._due[batch.worker]
        if batch.sequence != due:
            raise ProtocolError(
                f"progress batch {batch.sequence} of worker {batch.worker} arrived, "
                f"but {due} was due"
            )
        self._due[batch.worker] = due + 1
