"""Column use: which columns of its input an operator reads, and what a flow needs of an input.

A source that stores columns by themselves, as Parquet does, need not read those that no operator
uses, nor blocks of records that no filter keeps. Operators that take whole batches, such as
functions of the user's, use all columns: so nothing has to be known of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from jeton.columns.conditions import Condition
from jeton.columns.expressions import columns_read, condition_of
from jeton.columns.kernel import Kernel
from jeton.dataflow.pacts import Broadcast, Exchange, Gather, Pact, Pipeline, SpreadExchange

if TYPE_CHECKING:
    from jeton.dataflow.plan import OperatorPlan
    from jeton.state.aggregates import Aggregate

Columns: TypeAlias = "frozenset[str] | None"
"""Names of columns; ``None`` stands for all."""


@dataclass(frozen=True)
class ColumnUse:
    """The columns of its inputs that an operator reads, and those that it passes on.

    >>> use = ColumnUse(frozenset(("price",)), made=frozenset(("euros",)))
    >>> sorted(use.before(frozenset(("euros", "item"))))
    ['item', 'price']
    """

    reads: frozenset[str] = frozenset()
    """Those that it needs for itself."""
    passes: bool = True
    """Whether the others go on under their names."""
    made: frozenset[str] = frozenset()
    """Those that it makes."""
    dropped: frozenset[str] = frozenset()
    """Those that it leaves out, without a look at them."""
    offered: Columns = None
    """All that it passes on, if that is known."""
    keeps: Condition | None = None
    """The condition that all records it passes on meet, if it only leaves records out."""

    def before(self, wanted: Columns) -> Columns:
        """The columns that it needs, if these of its outputs are wanted."""
        if not self.passes:
            return self.reads
        wanted = self.offered if wanted is None else wanted
        if wanted is None:
            return None
        return self.reads | (wanted - self.made - self.dropped)


@dataclass(frozen=True)
class InputNeeds:
    """The columns and records of an input that a flow needs."""

    columns: Columns
    """The value columns that operators read."""
    condition: Condition | None
    """A condition that is false for records which no operator keeps."""


def use_of(*functions: object, passes: bool = True, made: Iterable[str] = ()) -> ColumnUse | None:
    """The use of an operator that calls functions of batches; ``None`` if they may read anything.

    >>> from jeton.columns.expressions import col
    >>> use_of(col("a") > 1, "b").reads == {"a", "b"}, use_of(lambda batch: batch["a"])
    (True, None)
    """
    reads: set[str] = set()
    for function in functions:
        names = _read_by(function)
        if names is None:
            return None
        reads |= names
    return ColumnUse(frozenset(reads), passes, frozenset(made))


def filter_use(condition: object) -> ColumnUse | None:
    """The use of a filter by a condition."""
    names = _read_by(condition)
    return None if names is None else ColumnUse(names, keeps=condition_of(condition))


def group_use(
    key: Iterable[str], aggregates: Mapping[str, Aggregate], *others: str, passes: bool = False
) -> ColumnUse:
    """The use of an operator on groups: keys, what is aggregated, and ``others``."""
    columns = (aggregate.column for aggregate in aggregates.values())
    reads = (*key, *others, *(column for column in columns if column is not None))
    return ColumnUse(frozenset(reads), passes, frozenset(aggregates))


def needs_of(operators: Sequence[OperatorPlan], index: int) -> InputNeeds:
    """The columns and records that a flow needs of the input with operator number ``index``."""
    time = operators[index].time_name
    columns = _wanted(operators)[index]
    return InputNeeds(
        None if columns is None else columns - {time}, _kept(operators, index, frozenset())
    )


def _read_by(function: object) -> frozenset[str] | None:
    if isinstance(function, str):
        return frozenset((function,))
    if isinstance(function, Kernel):
        return frozenset(function.names)
    return columns_read(function)


def _wanted(operators: Sequence[OperatorPlan]) -> list[Columns]:
    """For each operator the columns of its outputs that others use."""
    found: list[Columns] = [frozenset() for _ in operators]
    changed = True
    while changed:  # once, unless there are loops
        changed = False
        for plan in reversed(operators):
            before = None if plan.use is None else plan.use.before(found[plan.index])
            for port in plan.inputs:
                needed = frozenset() if port.observes else _both(before, _routed_by(port.pact))
                for source in port.sources:
                    both = _both(found[source.operator], needed)
                    changed = changed or both != found[source.operator]
                    found[source.operator] = both
    return found


def _routed_by(pact: Pact) -> Columns:
    """The columns that decide to which workers records go."""
    if isinstance(pact, Exchange) and not isinstance(pact, SpreadExchange):
        return None if any(callable(key) for key in pact.key) else _names(pact.key)
    return frozenset() if isinstance(pact, Pipeline | Broadcast | Gather) else None


def _names(key: Iterable[str | Callable[..., Any]]) -> frozenset[str]:
    return frozenset(name for name in key if isinstance(name, str))


def _both(one: Columns, other: Columns) -> Columns:
    return None if one is None or other is None else one | other


def _kept(operators: Sequence[OperatorPlan], index: int, above: frozenset[int]) -> Condition | None:
    """The condition that each record of an operator's outputs meets if any other keeps it."""
    whole: Condition | None = None
    for plan in operators:
        for port in plan.inputs:
            if port.observes or all(source.operator != index for source in port.sources):
                continue
            if plan.use is None or plan.use.keeps is None or plan.index in above:
                return None
            own = plan.use.keeps & _kept(operators, plan.index, above | {plan.index})
            whole = own if whole is None else whole | own
    return whole
