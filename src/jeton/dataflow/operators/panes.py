"""Panes: sliding windows that are a whole number of steps, from aggregates of each step.

Two operators. The first one aggregates the records of each worker by *panes*, tumbling windows as
long as a step, and sends what it remembers of them at their last times to the owner of the key. The
second one adds each pane to the windows that it is a part of. So a record is added once, not to
each of its windows, and partial results travel in place of records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.time_arithmetic import later
from jeton.core.times import TimeKind
from jeton.core.tokens import TokenRef
from jeton.dataflow.operators.partial_windows import (
    CombinedWindows,
    Parts,
    add_two_stages,
    require_partial,
)
from jeton.dataflow.operators.windows import (
    Assigner,
    BoundedAssigner,
    Sliding,
    with_bounds,
)
from jeton.state.aggregates import Aggregate

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

_ALWAYS: Final = frozenset(("count", "min", "max"))
_OF_INTEGERS: Final = frozenset(("sum", "mean"))
_TOGETHER: Final = 1 << 12
"""About how many panes of windows are added at once."""


def has_panes(keyed: KeyedStream, assigner: Assigner, aggregates: Mapping[str, Aggregate]) -> bool:
    """Whether windows can be made of panes, with exactly the same results.

    Sums of floating-point numbers depend on the order in which they are added: they are not, unless
    the key has ``combine``.
    """
    if not isinstance(assigner, Sliding) or assigner.steps is None or not aggregates:
        return False
    if keyed.combine:
        return True
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
    require_partial(keyed, aggregates, name=name, why="combine=True")

    def make(kind: TimeKind) -> PanedWindows:
        return PanedWindows(keyed.key, aggregates, assigner, kind, bounds)

    return add_two_stages(
        keyed,
        make,
        Parts(assigner.panes, "panes", f"panes of {assigner}"),
        aggregates,
        name=name,
        windows=str(assigner),
        schema=schema if bounds is None else with_bounds(schema, keyed),
    )


class PanedWindows(CombinedWindows):
    """Windows made of panes."""

    def combine(self, right: TokenRef, batch: Batch) -> None:
        """Add panes, which come at their last times, to all windows that they are a part of."""
        windows, rows = self._assigner, len(batch)
        assert isinstance(windows, Sliding)
        assert windows.steps is not None
        if not rows:
            return
        # Refuses those whose last window is beyond the end of time. A pane's end is after its time.
        later(batch.times, windows.size - windows.every + 1, f"its window of {windows.size}")
        # Few panes are added to many windows at once.
        most = max(_TOGETHER // rows, 1)
        for start in range(0, windows.steps, most):
            count = min(most, windows.steps - start)
            after = np.arange(start, start + count) * windows.every
            times = (batch.times[:, np.newaxis] + after).ravel()
            panes = batch if count == 1 else batch.take(np.repeat(np.arange(rows), count))
            super().combine(right, panes.at(times))
