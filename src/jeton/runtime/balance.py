"""Rebalancing: how many records come to each bin, and which bins to move to share them out.

Nothing is counted as a rule. When asked to, the channels of a worker that route by bins count the
records of each bin, and stop when they are asked for the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from jeton.runtime.steering import Protocol, Steer, require_no_errors
from jeton.state.bins import Placement

if TYPE_CHECKING:
    from jeton.runtime.agent import Agent

Counts: TypeAlias = npt.NDArray[np.int64]


def balancing_moves(
    placement: Placement, load: Sequence[int] | Counts, within: float
) -> dict[int, int]:
    """The bins to move, so that no worker has more than the mean load and a share ``within`` more.

    Each time, the greatest bin that fits goes from the worker with most to the one with least: so
    few bins move. A bin with more than a worker's share stays.

    >>> placement = Placement.even(workers=2, bins=256)
    >>> load = np.zeros(256, dtype=np.int64)
    >>> load[[0, 2, 4]] = 50, 40, 10
    >>> balancing_moves(placement, load, within=0.1)
    {0: 1}
    >>> balancing_moves(placement.moved({0: 1}), load, within=0.1)
    {}
    """
    load = np.asarray(load)
    owners = placement.owners.copy()
    limit = load.sum() / placement.workers * (1 + within)
    while True:
        loads = np.bincount(owners, weights=load, minlength=placement.workers)
        most, least = int(loads.argmax()), int(loads.argmin())
        if loads[most] <= limit:
            break
        mine = np.flatnonzero((owners == most) & (load > 0))
        # More than half of the difference would only turn it round.
        fits = mine[load[mine] <= (loads[most] - loads[least]) / 2]
        if not len(fits):
            break
        owners[fits[load[fits].argmax()]] = least
    return Placement(owners, placement.workers).moves_from(placement)


@dataclass(frozen=True, kw_only=True)
class CountRecords(Steer):
    """Begin to count the records of each bin, or stop and report them."""

    kind = "count records"
    begin: bool

    def do(self, agent: Agent) -> dict[str, Any]:
        """Count from now on, or return the counts."""
        worker = agent.worker
        if self.begin:
            counts = np.zeros(worker.bins, dtype=np.int64)
            for channel in worker.routed:
                channel.count(counts)
            return {}
        found = np.zeros(worker.bins, dtype=np.int64)
        for channel in worker.routed:
            counted = channel.stop_counting()
            if counted is not None:
                found = counted
        return {"payload": found.tobytes()}


def counting() -> Protocol[None]:
    """Have all workers count the records of each bin."""
    require_no_errors((yield CountRecords(begin=True)))


def counted() -> Protocol[Counts]:
    """The records of each bin on all workers, which no longer count them."""
    answers = yield CountRecords(begin=False)
    require_no_errors(answers)
    total: Counts = np.sum([np.frombuffer(each["payload"], np.int64) for each in answers], axis=0)
    return total
