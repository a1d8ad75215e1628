"""The broadcast protocol: the changes of one worker, in indivisible numbered batches.

A batch holds the net changes of whole operator invocations. Batches of one worker are applied in
order and at most once; batches of different workers in any order. Whatever a worker has seen, its
frontiers are then never ahead of a pointstamp that exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jeton.core.changes import ChangeBatch
from jeton.core.errors import ProtocolError
from jeton.progress.tracker import Pointstamp


class ProgressBatch(NamedTuple):
    """The net changes of some invocations of one worker: all of them or none."""

    worker: int
    sequence: int
    changes: tuple[tuple[Pointstamp, int], ...]
    unit: str | None = None
    """The unit of the worker's times, in the first batch after the worker has learnt it."""


class Outbox:
    """Gathers one worker's changes and seals them into numbered batches.

    The worker applies its own changes earlier than it sends them to the others: it may settle the
    changes of whole invocations at any time. If it is ``alone``, nothing is sealed.

    >>> outbox = Outbox(worker=0)
    >>> for pointstamp, delta in [((3, 17), +1), ((3, 17), -1), ((4, 5), +1)]:
    ...     outbox.add(pointstamp, delta)
    >>> outbox.settle()
    {(4, 5): 1}
    >>> outbox.add((4, 5), -1)
    >>> outbox.add((4, 8), +1)
    >>> outbox.settle()
    {(4, 5): -1, (4, 8): 1}
    >>> outbox.seal()
    ProgressBatch(worker=0, sequence=0, changes=(((4, 8), 1),), unit=None)
    >>> outbox.seal() is None
    True
    """

    __slots__ = ("_alone", "_changes", "_sequence", "_settled", "add", "worker")

    def __init__(self, worker: int, *, alone: bool = False) -> None:
        self.worker = worker
        self._alone = alone
        self._changes = ChangeBatch[Pointstamp]()
        self._settled = ChangeBatch[Pointstamp]()
        self._sequence = 0
        self.add = self._changes.update
        """Add to the count of a pointstamp."""

    @property
    def sealed(self) -> int:
        """The number of batches so far."""
        return self._sequence

    def settle(self) -> dict[Pointstamp, int]:
        """The net changes since the last time, which are final now."""
        net = self._changes.net
        if net:
            self._changes.net = {}
            if not self._alone:
                self._settled.absorb(net)
        return net

    def seal(self) -> ProgressBatch | None:
        """All settled changes since the last batch, or nothing if they cancelled out."""
        if not self._settled.net:
            return None
        changes = tuple(self._settled.drain().items())
        batch = ProgressBatch(self.worker, self._sequence, changes)
        self._sequence += 1
        return batch


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
        due = self._due[batch.worker]
        if batch.sequence != due:
            raise ProtocolError(
                f"progress batch {batch.sequence} of worker {batch.worker} arrived, "
                f"but {due} was due"
            )
        self._due[batch.worker] = due + 1
