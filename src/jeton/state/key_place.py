"""KeyPlace: the worker on which the entries of a keyed container belong.

After a restart, an entry goes to the worker that owns the bin of its key. That is where its records
go only if they come by an `Exchange` of the same key. All of them may also come to the first
worker. Anything else would separate entries from their records, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from jeton.core.errors import SnapshotError
from jeton.state.bins import BINS, Placement
from jeton.state.snapshot import BIN

Arrival = Literal["by key", "at the first", "anywhere"]
"""Where records arrive: on the worker that owns their key, on the first, or on any worker."""


class Arriving(Protocol):
    """A rule that brings records to their workers: the pact of an operator's input."""

    @property
    def arrival(self) -> Arrival:
        """Where records arrive."""
        ...


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """A worker, and how the records of an operator come there.

    >>> from jeton.dataflow.pacts import Gather, Pipeline
    >>> table = pa.table({"bin": pa.array([7, 8], pa.uint16()), "key": ["a", "b"]})
    >>> KeyPlace(0, 2, pacts=[Gather()]).placed(table)["bin"].to_pylist()
    [0, 0]
    >>> KeyPlace(0, 2, pacts=[Pipeline()]).placed(table)
    Traceback (most recent call last):
    jeton.core.errors.SnapshotError: the entry of key 'a' is on worker 0, but belongs to worker 1...
    """

    worker: int = 0
    workers: int = 1
    bins: int = BINS
    pacts: Sequence[Arriving] = ()
    """The pacts that decide where records are; none if the operator has no inputs."""
    placement: Callable[[], Placement] | None = None
    """The owners of bins at the moment, if bins may have moved."""

    def placed(self, table: pa.Table) -> pa.Table:
        """A container's table, with the bins of keys, as it is restored where its records come."""
        arrivals = self._arrivals
        if arrivals == {"at the first"}:
            first = pa.array(np.zeros(table.num_rows, np.uint16))
            return table.set_column(table.column_names.index(BIN), BIN, first)
        if arrivals and self.workers > 1 and table.num_rows:
            bins = table.column(BIN).to_numpy() & (self.bins - 1)
            now = self.placement or (lambda: Placement.even(self.workers, self.bins))
            owners = now().owners[bins]
            others = np.flatnonzero(owners != self.worker)
            if len(others):
                at = int(others[0])
                raise SnapshotError(
                    f"the entry of key {_key(table, at)!r} is on worker {self.worker}, but belongs "
                    f"to worker {owners[at]} by its key, and would be there after a restart: "
                    f"{self._how}. Use pact=jt.Exchange(…) with exactly the columns that make up "
                    "the keys of the container, or jt.Gather()"
                )
        return table

    def require_known(self, table: pa.Table) -> None:
        """Refuse to divide entries among workers whose records may come to any of them."""
        if self._arrivals == {"anywhere"} and self.workers > 1 and table.num_rows:
            raise SnapshotError(
                f"which of {self.workers} workers the keyed entries belong to is not known, since "
                f"{self._how}: use pact=jt.Exchange(…) with the columns that make up the keys of "
                "the container, or jt.Gather()"
            )

    @property
    def _arrivals(self) -> set[Arrival]:
        return {pact.arrival for pact in self.pacts}

    @property
    def _how(self) -> str:
        pacts = dict.fromkeys(map(repr, self.pacts))
        return f"the operator's records come by {' and '.join(pacts)}"


def _key(table: pa.Table, at: int) -> Any:
    if "key" in table.column_names:
        return table.column("key")[at].as_py()
    names = [name for name in table.column_names if name.startswith("key.")]
    return tuple(table.column(name)[at].as_py() for name in names)
