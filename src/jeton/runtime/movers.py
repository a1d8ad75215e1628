"""Movers: operators whose state by bins moves in one act, and whether they can be moved at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.core.errors import GraphError, SnapshotError
from jeton.core.times import Product, Time, TimeKind
from jeton.core.tokens import tokens_for
from jeton.dataflow.pacts import Broadcast, SpreadExchange
from jeton.runtime.operator import Operator
from jeton.state.snapshot import Movable, is_held_by_breakpoint

if TYPE_CHECKING:
    from jeton.runtime.worker import Worker

Tables = dict[str, pa.Table]
"""The state of one operator, by the names of its containers."""


@dataclass(eq=False)
class Arrival:
    """The state that one worker has given: by operator, with the tokens that it needs."""

    giver: int
    tables: dict[int, Tables]
    tokens: list[tuple[int, int, Time]]
    """The operator, its output and the time of each."""


@dataclass(eq=False)
class Mover:
    """Operators of one worker whose state moves in one act."""

    number: int
    """The same on all workers."""
    operators: list[Operator]
    to: list[int] = field(default_factory=list)
    """The workers that it still has to give state to."""
    missing: set[int] = field(default_factory=set)
    """The workers whose state has not come yet."""
    arrived: list[Arrival] = field(default_factory=list)
    has_taken: bool = False
    at_once: bool = False
    """Whether records of bins that leave are still answered here, as long as they come."""

    @property
    def is_done(self) -> bool:
        """Whether it has given and taken everything."""
        return not self.to and self.has_taken

    @property
    def may_take(self) -> bool:
        """Whether it has given everything, and all state has come that it has not taken."""
        return not self.to and not self.has_taken and not self.missing

    def is_ready(self, worker: Worker, at: int, leaving: npt.NDArray[np.bool_]) -> bool:
        """Whether all before *t* is done, and nothing waits between its operators.

        Tokens before *t* would hold back the movers behind it until `Release`. Nor may a record of
        bins that leave wait for state that is on disk.
        """
        for operator in self.operators:
            if self.to and operator.spill is not None and not operator.spill.is_free_of(leaving):
                return False
            for port, plan in zip(operator.inputs, operator.plan.inputs, strict=True):
                if plan.pact.local and not plan.observes and len(port):
                    return False
                if any(outermost(time) < at for time in worker.frontier(port.location)):
                    return False
        books = [book for operator in self.operators for book in operator.books]
        return all(outermost(token.time) >= at for _, token in tokens_for(books))

    def snapshot(self, worker: Worker) -> dict[Operator, Tables] | None:
        """The state of operators that are built anew; nothing while some waits inside a loop."""
        whole = [each for each in self.operators if not moves_in_place(each)]
        try:
            found = {each: each.snapshot(worker.index) for each in whole}
        except SnapshotError:
            if all(each.plan.kind.total for each in self.operators):
                raise
            return None
        return {
            operator: {n: t for n, t in tables.items() if not is_held_by_breakpoint(n)}
            for operator, tables in found.items()
        }

    def sharing(self, operators: Iterable[Operator]) -> list[Operator]:
        """Some of its operators, and those that share values with any of them, in order."""
        found = set(operators)
        while True:
            keys = {key for operator in found for key in operator.shared}
            more = {each for each in self.operators if each.shared & keys}
            if more <= found:
                return sorted(found, key=lambda each: each.index)
            found |= more


def moves_in_place(operator: Operator) -> bool:
    """Whether bins can be taken out of an operator, and added to it, as it is."""
    kept = [each.state for name, each in operator.kept.items() if not is_held_by_breakpoint(name)]
    total = operator.plan.kind.total
    return (
        total
        and bool(kept)
        and not operator.shared
        and all(isinstance(each, Movable) for each in kept)
    )


def movers_of(operators: Sequence[Operator]) -> list[Mover]:
    """The operators that keep state by bins, in groups that move together."""
    lead = {operator.index: operator.index for operator in operators if operator.inputs}

    def leader(index: int) -> int:
        while lead[index] != index:
            index = lead[index]
        return index

    def join(one: int, other: int) -> None:
        one, other = sorted((leader(one), leader(other)))
        lead[other] = one

    by_key: dict[Any, int] = {}
    for operator in operators:
        if not operator.inputs:
            continue
        for plan in operator.plan.inputs:
            if plan.pact.local and not plan.observes:
                for source in plan.sources:
                    if source.operator in lead:
                        join(operator.index, source.operator)
        for key in operator.shared:
            join(operator.index, by_key.setdefault(key, operator.index))
    groups: dict[int, list[Operator]] = {}
    for operator in operators:
        if operator.inputs:
            groups.setdefault(leader(operator.index), []).append(operator)
    return [
        Mover(number, group)
        for number, group in sorted(groups.items())
        if any(_is_by_bins(operator) for operator in group)
        and any(not is_held_by_breakpoint(name) for each in group for name in each.kept)
    ]


def behind(worker: Worker, movers: Sequence[Mover]) -> list[int]:
    """The locations that records and tokens may lead to when the state of movers moves."""
    work = [
        location
        for mover in movers
        for operator in mover.operators
        for location in _moved_at(operator)
    ]
    found = set(work)
    while work:
        for step in worker.graph.steps[work.pop()]:
            if step.to not in found:
                found.add(step.to)
                work.append(step.to)
    return sorted(found)


def _moved_at(operator: Operator) -> list[int]:
    """Where a pointstamp may move from one worker to another: records and tokens."""
    ports = zip(operator.inputs, operator.plan.inputs, strict=True)
    inputs = [port.location for port, plan in ports if plan.pact.by_bins and not plan.observes]
    return inputs + ([book.location for book in operator.books] if operator.kept else [])


def _is_by_bins(operator: Operator) -> bool:
    return any(plan.pact.by_bins and not plan.observes for plan in operator.plan.inputs)


def require_movable(operators: Sequence[Operator]) -> None:
    """Refuse flows with records that do not follow bins, beside state that does."""
    for mover in movers_of(operators):
        for operator in mover.operators:
            for plan in operator.plan.inputs:
                pact = plan.pact
                known = pact.by_bins or pact.local or isinstance(pact, Broadcast)
                if not known and not plan.observes:
                    name = operator.plan.name
                    how, instead = f"by {pact!r}", "Use Exchange"
                    if isinstance(pact, SpreadExchange):
                        how, instead = f"by key_by(…, spread={pact.spread})", "Leave spread= out"
                    raise GraphError(
                        f"state cannot move: records of {name!r} come {how}, which does not follow "
                        f"bins when they move. {instead}, or go on without migrations"
                    ).located(operator=name)


def outermost(time: Time) -> int:
    """The time of the flow's inputs that a time inside loops belongs to."""
    found: int = time[0] if isinstance(time, Product) else time
    return found


def first_time(kind: TimeKind, at: int) -> Time:
    """The least time inside a scope whose outermost part is a given one."""
    return Product.of((at, *([0] * kind.depth))) if kind.depth else at


def least(times: Sequence[Time]) -> Time:
    """The least of some times; of those in loops, which have none, any will do."""
    return min(times) if not isinstance(times[0], Product) else times[0]
