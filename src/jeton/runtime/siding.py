"""Sidings: where records wait before an input while the state of their bins moves.

See `jeton.runtime.migration` for why no record can pass its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from jeton.columns import time_columns
from jeton.columns.batch import Batch
from jeton.core.times import Time
from jeton.dataflow.pacts import KeyGuard, Pact
from jeton.runtime.channels import from_time
from jeton.runtime.movers import Mover
from jeton.runtime.operator import Operator

if TYPE_CHECKING:
    from jeton.runtime.migration import Migration

MARKER: Final = "jeton.rerouted"
"""The only column of a message that follows what was routed by the old owners."""


class Siding:
    """The place before an input, where records at or after *t* of bins that move have to wait."""

    def __init__(self, migration: Migration, mover: Mover, operator: Operator, port: int) -> None:
        self._migration = migration
        self._mover = mover
        self._operator = operator
        self._worker = migration.worker
        self._pact: Pact = operator.plan.inputs[port].pact
        self._port = operator.inputs[port]
        self.location = self._port.location
        self._waiting: list[tuple[Time, Batch]] = []
        """Records of bins whose state has not come yet."""
        self._leaving: list[tuple[int, Time, Batch]] = []
        """Records of bins that leave, until the new owners have begun."""
        self.markers = 0
        self._to = self._worker.delivers_to(self.location)
        self._guard: KeyGuard | None = self._worker.redirect(self.location, self)
        self.sort_out()

    def sort_out(self) -> None:
        """Let the messages that wait in the input pass, wait, or go to their new owner."""
        for time, batch in self._port.take_all():
            self.deliver(time, batch)

    def belongs_to(self, mover: Mover) -> bool:
        """Whether it is before an operator of this mover."""
        return self._mover is mover

    def is_before(self, operator: Operator) -> bool:
        """Whether it is before an input of this operator."""
        return self._operator is operator

    def learn(self, state: pa.Table) -> None:
        """State has come, whose keys must be of the types of those that come as records."""
        if self._guard is not None and state.num_rows:
            self._guard.learn(state.schema)

    def deliver(self, time: Time, batch: Batch) -> None:
        """A message has arrived: let its records pass, wait, or go to their new owner."""
        if MARKER in batch.columns:
            self.markers += 1
            self._migration.wake()
            return
        worker, guard = self._worker, self._guard
        if guard is not None and not worker.admits(
            self._operator.index, guard, self.location, time, batch
        ):
            return
        migration = self._migration
        later = from_time(batch, migration.at)
        if not later.any():
            self._to.deliver(time, batch)
            return
        bins = self._pact.bins(batch, migration.after.bins)
        here, to = worker.index, migration.after.owners[bins]
        was_here = migration.before.owners[bins] == here
        leaves = later & was_here & (to != here) & (not self._mover.at_once)
        waits = later & ~was_here & (to == here) & (not self._mover.has_taken)
        passes = ~(leaves | waits)
        if passes.all():
            self._to.deliver(time, batch)
            return
        if passes.any():
            self._to.deliver(time, batch.filter(passes))
        else:
            worker.consumed((self.location, time), -1)
        if waits.any():
            self._waiting.append(self._count(time, batch.filter(waits)))
        for other in np.unique(to[leaves]).tolist():
            part = self._count(time, batch.filter(leaves & (to == other)))
            self._leaving.append((other, *part))
        if migration.has_rerouted:
            self.send_on()

    def _count(self, time: Time, part: Batch) -> tuple[Time, Batch]:
        """Count some records of a message as one of their own, at a time that is theirs."""
        bound = time_columns.lower_bound(part.times, time)
        self._worker.consumed((self.location, bound), +1)
        return bound, part

    def send_on(self) -> None:
        """Send the records of bins that leave to the new owners."""
        leaving, self._leaving = self._leaving, []
        for other, time, part in leaving:
            self._migration.send_on(other, self.location, time, part)

    def mark(self) -> None:
        """Tell all other workers that nothing more will be routed by the old owners."""
        none = np.empty(0, dtype=np.int64)
        for other in range(self._worker.workers):
            if other != self._worker.index:
                marker = Batch.trusted({MARKER: none}, none)
                self._worker.send_message(other, self.location, 0, marker)

    def let_pass(self) -> None:
        """Let the records pass that waited for state, or for a migration that is cancelled."""
        waiting, self._waiting = self._waiting, []
        for time, part in waiting:
            self._to.deliver(time, part)
        if waiting:
            self._worker.activate(self._operator.index)

    def remove(self) -> None:
        """Have messages delivered to the input again."""
        self._waiting += [(time, part) for _, time, part in self._leaving]
        self._leaving = []
        self.let_pass()
        self._worker.redirect(self.location, self._to, self._guard)
