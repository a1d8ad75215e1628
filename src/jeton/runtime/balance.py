"""Rebalancing: how many records come to each bin, and which bins to move to share them out.

Nothing is counted as a rule. When asked to, the channels of a worker that route by bins count the
records of each bin, and stop when they are asked for the counts. A `Rebalance` decides by such
counts whether bins should move, for a query that does so by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from jeton.core.checks import described
from jeton.core.errors import GraphError
from jeton.runtime.migration import require_plan
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
        loads = _loads(Placement(owners, placement.workers), load)
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


@dataclass(frozen=True)
class Decision:
    """The result of one look at the load of all workers."""

    reason: str
    moves: Mapping[int, int] = field(default_factory=dict)
    """The bins to move, and the workers that they go to."""
    load: Sequence[float] = ()
    """Records a second of each worker."""
    is_uneven: bool = False
    """Whether the load is uneven enough for bins to move, if it stays so."""


@dataclass(frozen=True, kw_only=True)
class Rebalance:
    """When a query moves bins from its busiest workers by itself, and how.

    Args:
        every: Seconds from one look at the load to the next.
        seconds: For how long the records of each bin are counted then.
        above: Bins move only if the busiest worker has more than the mean by at least this share.
        within: They move until no worker has more than the mean by more than this share.
        gain: They move only if the busiest worker then has less to do by at least this share.
        looks: In how many looks in a row the load has to be uneven.
        cool_down: Seconds after a migration in which nothing moves.
        least: Records a second, of all workers, below which nothing moves.
        plan: How bins move: see `Query.migrate`.

    >>> policy = Rebalance(above=0.5)
    >>> even = Placement.even(workers=2, bins=256)
    >>> load = np.zeros(256, dtype=np.int64)
    >>> load[[0, 2, 4]] = 5000, 4000, 1000
    >>> decision = policy.decide(even, load, seconds=1.0)
    >>> decision.moves
    {0: 1}
    >>> decision.reason
    'worker 0 has 100 % more than the mean, and 0 % after the move of 1 bin'
    >>> policy.decide(even.moved(decision.moves), load, seconds=1.0).reason
    'worker 0 has 0 % more than the mean of 5,000 records/s: less than 50 %'
    """

    every: float = 10.0
    seconds: float = 1.0
    above: float = 0.25
    within: float = 0.1
    gain: float = 0.1
    looks: int = 2
    cool_down: float = 30.0
    least: float = 1000.0
    plan: str | int = "fluid"

    def __post_init__(self) -> None:
        for name in ("every", "seconds", "above", "within", "gain", "looks", "cool_down", "least"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise GraphError(f"Rebalance({name}=…) is a number, not {described(value)}")
        require_plan(self.plan)
        for name in ("every", "seconds"):
            if not getattr(self, name) > 0:
                raise GraphError(f"Rebalance({name}={getattr(self, name)!r}): it is above zero")
        for name in ("above", "within", "gain", "cool_down", "least"):
            if not getattr(self, name) >= 0:
                raise GraphError(f"Rebalance({name}={getattr(self, name)!r}): it is 0 or more")
        if self.within > self.above:
            raise GraphError(
                f"Rebalance(above={self.above!r}, within={self.within!r}): bins that move until "
                "the load is within a share of the mean cannot begin below that"
            )
        if self.looks < 1:
            raise GraphError(f"Rebalance(looks={self.looks!r}): there is at least one look")

    def decide(self, placement: Placement, load: Counts, seconds: float) -> Decision:
        """The bins to move for a load that was counted for some seconds, and why, or why not."""
        before = _loads(placement, load) / seconds
        rates, mean = tuple(before.tolist()), float(before.mean())
        total = float(before.sum())
        if total < self.least or not total:
            few = f"{total:,.0f} records/s are too few to judge by"
            least = f": less than {self.least:,.0f}" if self.least else ""
            return Decision(few + least, load=rates)
        worker, most = int(before.argmax()), float(before.max())
        seen = f"worker {worker} has {most / mean - 1:.0%} more than the mean".replace("%", " %")
        if most < mean * (1 + self.above):
            limit = f"{self.above:.0%}".replace("%", " %")
            return Decision(f"{seen} of {mean:,.0f} records/s: less than {limit}", load=rates)
        moves = balancing_moves(placement, load, self.within)
        after = _loads(placement.moved(moves), load) / seconds
        gain = 1 - float(after.max()) / most
        if not moves or gain < self.gain:
            hottest = int(load.argmax())
            share = f"{load[hottest] / load.sum():.0%}".replace("%", " %")
            return Decision(
                f"{seen}, but moving bins would not help: bin {hottest} alone has {share} of all "
                "records (spread= of key_by divides a hot key)",
                load=rates,
            )
        left = f"{float(after.max()) / mean - 1:.0%}".replace("%", " %")
        bins = f"{len(moves)} bin{'s' if len(moves) > 1 else ''}"
        return Decision(f"{seen}, and {left} after the move of {bins}", moves, rates, True)


def _loads(placement: Placement, load: Counts) -> npt.NDArray[np.float64]:
    """The load of each worker."""
    weights = load.astype(np.float64)
    counted = np.bincount(placement.owners, weights=weights, minlength=placement.workers)
    return counted.astype(np.float64, copy=False)


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
