"""Spread keys: partial windows on several workers, combined when they are complete.

A record goes to one of several workers of its key. Each of these keeps windows of its part, and
sends what it remembers of them at their last times. The owner of the key combines these partial
windows and emits results at the windows' ends, as it does without ``spread``. What is combined
does not depend on how records were divided, so that state may move to any worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.column import Column
from jeton.columns.time_columns import Times
from jeton.core.checks import described
from jeton.core.errors import GraphError
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.operators.collecting import add_collecting
from jeton.dataflow.operators.windows import (
    Assigner,
    BoundedAssigner,
    EachTime,
    OpenWindows,
    Rows,
    with_bounds,
)
from jeton.dataflow.ports import Output
from jeton.state.aggregates import Aggregate
from jeton.state.shapes import shape_of
from jeton.state.slot_pool import Slots

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def checked_spread(spread: object) -> int:
    """The number of workers over which a key is spread, if it can be.

    >>> checked_spread(1)
    Traceback (most recent call last):
    jeton.core.errors.GraphError: spread= is the number of workers for each key, an integer from...
    """
    if not isinstance(spread, int | np.integer) or isinstance(spread, bool) or spread < 2:
        raise GraphError(
            "spread= is the number of workers for each key, an integer from 2 on, not "
            f"{described(spread)}"
        ).located(operator="key_by")
    return int(spread)


def add_spread_windows(
    keyed: KeyedStream,
    assigner: Assigner,
    aggregates: Mapping[str, Aggregate],
    *,
    name: str,
    schema: pa.Schema | None,
    bounds: BoundedAssigner | None = None,
) -> Stream:
    """Add the two operators of windows whose keys are spread; see `add_windows`."""
    key, stream = keyed.key, keyed.stream
    for label, aggregate in aggregates.items():
        if not aggregate.merges:
            raise GraphError(
                f"{label!r} cannot be computed for a spread key, since its partial results have to "
                "become one: give fold() a merge function"
            ).located(operator=name)
    for column in (*key, stream.time_name):
        if column.startswith(("of.", "type.")):
            raise GraphError(
                f"column {column!r} has the name of a partial result: rename it before spread="
            ).located(operator=name)
    own = stream.next_name
    windows = str(assigner)
    partial = add_collecting(
        keyed if own is None else keyed.named(f"{own}-partial"),
        lambda kind: PartialWindows(key, aggregates, LastTimes(assigner), kind, None),
        name=f"{name}-partial",
        shape=shape_of(f"partial {windows}", key, aggregates),
        schema=None,
    )
    ends = NextTimes() if assigner.inclusive else EachTime()
    return add_collecting(
        (partial if own is None else partial.named(own)).key_by(*key),
        lambda kind: CombinedWindows(key, aggregates, ends, kind, bounds),
        name=name,
        # The same as without spread, so that a query can go on with it.
        shape=shape_of(windows, key, aggregates),
        schema=schema if bounds is None else with_bounds(schema, keyed),
    )


class LastTimes(Assigner):
    """Windows known by their last times, so that they are complete before their ends."""

    inclusive = False

    def __init__(self, windows: Assigner) -> None:
        self._windows = windows
        self._beyond = int(windows.inclusive)
        """How far the end of a window is from its last time."""

    def assign(self, batch: Batch) -> tuple[Times, Rows | None]:
        """The last times of the windows that records are in."""
        return self._before(*self._windows.assign(batch))

    def assign_shortly(self, batch: Batch) -> tuple[Times, Rows | None]:
        """The same, but a single one if all rows belong to the same window."""
        return self._before(*self._windows.assign_shortly(batch))

    def _before(self, ends: Times, rows: Rows | None) -> tuple[Times, Rows | None]:
        return (ends - self._beyond if self._beyond else ends), rows


class NextTimes(Assigner):
    """The ends of windows, from their last times."""

    def assign(self, batch: Batch) -> tuple[Times, Rows | None]:
        """One later than the times."""
        return batch.times + 1, None


class PartialWindows(OpenWindows):
    """The windows of some of the records; what it remembers of them is sent to be combined."""

    def _columns(self, slots: Slots, times: Times, output: Output) -> dict[str, Column]:
        return self._groups.partial(slots)

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """Open the windows again: there may be several parts of one, from different workers."""
        if state.num_rows:
            ends = state.column("end").to_numpy()
            batch = self._groups.read(state.drop_columns(["end"]))
            slots, new = self._groups.absorb(batch, self._words(ends))
            self._open(tokens[0], ends[new], slots[new])


class CombinedWindows(OpenWindows):
    """The windows of all records of their keys, from partial ones."""

    def add(self, right: TokenRef, batch: Batch) -> None:
        """Add partial windows to those there, opening new ones."""
        ends, _ = self._assigner.assign(batch)
        slots, new = self._groups.absorb(batch, self._words(ends))
        self._open(right, ends[new], slots[new])
