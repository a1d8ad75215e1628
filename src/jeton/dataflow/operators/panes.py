"""Panes: sliding windows that are a whole number of steps, from aggregates of each step.

Two operators. The first one aggregates the records of each worker by *panes*, tumbling windows as
long as a step, and sends what it remembers of them at their last times to the owner of the key. The
second one adds each pane to the windows that it is a part of. So a record is added once, not to
each of its windows, and partial results travel in place of records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.time_arithmetic import later
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.column_use import group_use
from jeton.dataflow.operators.collecting import add_collecting
from jeton.dataflow.operators.spread import CombinedWindows, PartialWindows
from jeton.dataflow.operators.unary import add_unary
from jeton.dataflow.operators.windows import (
    Assigner,
    BoundedAssigner,
    LastTimes,
    Sliding,
    with_bounds,
)
from jeton.dataflow.pacts import Pipeline
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.aggregates import Aggregate
from jeton.state.shapes import shape_of

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

_ALWAYS: Final = frozenset(("count", "min", "max"))
_OF_INTEGERS: Final = frozenset(("sum", "mean"))
_TOGETHER: Final = 1 << 12
"""About how many panes of windows are added at once."""


def has_panes(keyed: KeyedStream, assigner: Assigner, aggregates: Mapping[str, Aggregate]) -> bool:
    """Whether windows can be made of panes, with exactly the same results.

    Sums of floating-point numbers depend on the order in which they are added: they are not.
    """
    if not isinstance(assigner, Sliding) or assigner.steps is None or not aggregates:
        return False
    names = (*keyed.key, keyed.stream.time_name)
    if any(name.startswith(("of.", "type.")) for name in names):
        return False
    schema = keyed.stream.schema
    for aggregate in aggregates.values():
        if aggregate.name in _ALWAYS:
            continue
        if aggregate.name not in _OF_INTEGERS or schema is None:
            return False
        if aggregate.column not in schema.names:
            return False
        if not pa.types.is_integer(schema.field(aggregate.column).type):
            return False
    return True


def add_paned_windows(
    keyed: KeyedStream,
    assigner: Sliding,
    aggregates: Mapping[str, Aggregate],
    *,
    name: str,
    schema: pa.Schema | None,
    bounds: BoundedAssigner | None = None,
) -> Stream:
    """Add the operators of sliding windows that are made of panes; see `add_windows`."""
    key, stream = keyed.key, keyed.stream
    own = stream.next_name
    panes = add_collecting(
        keyed if own is None else keyed.named(f"{own}-panes"),
        lambda kind: PartialWindows(key, aggregates, LastTimes(assigner.panes), kind, None),
        name=f"{name}-panes",
        shape=shape_of(f"panes of {assigner}", key, aggregates),
        schema=None,
        pact=Pipeline(local_frontier=True),
        use=group_use(key, aggregates),
    )
    if own is not None:
        panes = panes.named(own)

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        windows = PanedWindows(key, aggregates, assigner, info.kind, bounds)
        # The same shape as of windows without panes, so that a query can go on with it.
        info.keep(windows, token, shape=shape_of(str(assigner), key, aggregates), lazy=True)
        token.drop()

        def step(input: Input, output: Output) -> None:
            for ref, batch in input:
                windows.add_panes(ref, batch)
            windows.emit(input.frontier, output)

        return step

    return add_unary(
        panes,
        build,
        name=name,
        notify="held",
        pact=panes.key_by(*key).pact,
        schema=schema if bounds is None else with_bounds(schema, keyed),
    )


class PanedWindows(CombinedWindows):
    """Windows made of panes."""

    def add_panes(self, right: TokenRef, batch: Batch) -> None:
        """Add panes, which come at their last times, to all windows that they are a part of."""
        windows, rows = self._assigner, len(batch)
        assert isinstance(windows, Sliding)
        assert windows.steps is not None
        if not rows:
            return
        # Refuses those whose last window is beyond the end of time.
        later(batch.times, windows.size - windows.every, f"its window of {windows.size}")
        # Few panes are added to many windows at once.
        most = max(_TOGETHER // rows, 1)
        for start in range(0, windows.steps, most):
            count = min(most, windows.steps - start)
            after = np.arange(start, start + count) * windows.every
            times = (batch.times[:, np.newaxis] + after).ravel()
            panes = batch if count == 1 else batch.take(np.repeat(np.arange(rows), count))
            self.combine(right, panes.at(times))
