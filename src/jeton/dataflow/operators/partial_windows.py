"""Partial windows: windows of some records of their keys, combined by the owner of the key.

Each worker aggregates its own records first, and sends what it remembers of a window at the
window's last time. Partial results travel in place of records. `KeyedStream` does so for keys with
``combine``, panes for sliding windows, and ``spread`` for hot keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.column import Column
from jeton.columns.time_columns import Times
from jeton.core.antichain import Antichain
from jeton.core.checks import described
from jeton.core.errors import GraphError
from jeton.core.times import TimeKind
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.column_use import group_use
from jeton.dataflow.operators.collecting import add_collecting
from jeton.dataflow.operators.unary import add_unary
from jeton.dataflow.operators.windows import (
    Assigner,
    BoundedAssigner,
    LastTimes,
    OpenWindows,
    with_bounds,
)
from jeton.dataflow.pacts import Pipeline
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.aggregates import Aggregate
from jeton.state.shapes import shape_of
from jeton.state.slot_pool import Slots
from jeton.state.tagged_state import BoundedState

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

MOST_PARTIAL: Final = 1 << 17
"""Partial windows that a worker keeps; with more, it sends them before they are complete."""


class PartialWindows(OpenWindows, BoundedState):
    """Windows of some records of their keys, whose memory is sent to be combined.

    That is at their last times, or sooner once there are many: a window may come in any number of
    parts.
    """

    def emit(self, frontier: Antichain, output: Output) -> None:
        """Send windows that are complete, or all of them if there are many, and forget them."""
        super().emit(frontier if len(self._groups) <= MOST_PARTIAL else Antichain(), output)

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
    """The windows of all records of their keys: of partial windows, and of records if some come."""

    def combine(self, right: TokenRef, batch: Batch) -> None:
        """Add partial windows to those there, opening new ones."""
        self._groups.learn_types(batch)
        if self._grid is not None:
            done, opened, until = self._groups.absorb_in_windows(batch, self._grid)
            self._open(right, until, opened)
            if done == len(batch):
                return
            if done:
                batch = batch.slice(done, len(batch))
        ends = batch.times + 1 if self._assigner.inclusive else batch.times
        slots, new = self._groups.absorb(batch, self._words(ends))
        self._open(right, ends[new], slots[new])


def add_combined_windows(
    keyed: KeyedStream,
    assigner: Assigner,
    aggregates: Mapping[str, Aggregate],
    *,
    name: str,
    schema: pa.Schema | None,
    bounds: BoundedAssigner | None = None,
) -> Stream:
    """Add the operators of windows whose keys have ``combine``; see `add_windows`."""
    require_partial(keyed, aggregates, name=name, why="combine=True")

    def make(kind: TimeKind) -> CombinedWindows:
        return CombinedWindows(keyed.key, aggregates, assigner, kind, bounds)

    return add_two_stages(
        keyed,
        make,
        Parts(assigner, "partial", f"partial {assigner}"),
        aggregates,
        name=name,
        windows=str(assigner),
        schema=schema if bounds is None else with_bounds(schema, keyed),
    )


class Parts(NamedTuple):
    """The windows that each worker keeps of its own records."""

    windows: Assigner
    suffix: str
    """The end of the operator's name."""
    shape: str


def add_two_stages(
    keyed: KeyedStream,
    make: Callable[[TimeKind], CombinedWindows],
    parts: Parts,
    aggregates: Mapping[str, Aggregate],
    *,
    name: str,
    windows: str,
    schema: pa.Schema | None,
) -> Stream:
    """Add an operator that keeps partial windows on each worker, and one that combines them.

    ``windows`` describes those of the second one.
    """
    key = keyed.key
    own = keyed.stream.next_name
    partial = add_collecting(
        keyed if own is None else keyed.named(f"{own}-{parts.suffix}"),
        lambda kind: PartialWindows(key, aggregates, LastTimes(parts.windows), kind, None),
        name=f"{name}-{parts.suffix}",
        shape=shape_of(parts.shape, key, aggregates),
        schema=None,
        pact=Pipeline(local_frontier=True),
        use=group_use(key, aggregates, *parts.windows.columns),
    )
    if own is not None:
        partial = partial.named(own)

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        combined = make(info.kind)
        # The same shape as of windows in one stage, so that a query can go on with it.
        info.keep(combined, token, shape=shape_of(windows, key, aggregates), lazy=True)
        token.drop()

        def step(input: Input, output: Output) -> None:
            for ref, batch in input:
                combined.combine(ref, batch)
            combined.emit(input.frontier, output)

        return step

    return add_unary(
        partial,
        build,
        name=name,
        notify="held",
        pact=partial.key_by(*key).pact,
        schema=schema,
        waits=True,
    )


def require_partial(
    keyed: KeyedStream, aggregates: Mapping[str, Aggregate], *, name: str, why: str
) -> None:
    """Refuse aggregates without partial results, and columns whose names partial results use."""
    for label, aggregate in aggregates.items():
        if not aggregate.merges:
            raise GraphError(
                f"{label!r} cannot be computed with {why}, since its partial results have to "
                "become one: give fold() a merge function"
            ).located(operator=name)
    for column in (*keyed.key, keyed.stream.time_name):
        if column.startswith(("of.", "type.")):
            raise reserved(column, why).located(operator=name)


def reserved(column: str, why: str) -> GraphError:
    """The error for a column whose name partial results use."""
    return GraphError(
        f"column {column!r} has a name that partial results use: rename it before {why}"
    )


def checked_combine(combine: object, spread: int | None) -> bool:
    """Whether workers combine their own records first, which they cannot if a key is spread.

    >>> checked_combine("yes", None)
    Traceback (most recent call last):
    jeton.core.errors.GraphError: combine= is True or False, not 'yes'...
    """
    if not isinstance(combine, bool | np.bool_):
        problem = f"combine= is True or False, not {described(combine)}"
    elif combine and spread is not None:
        problem = (
            "spread= and combine= both divide the records of a key: combine=True does so for all "
            "keys, spread= for hot ones. Leave one of them out"
        )
    else:
        return bool(combine)
    raise GraphError(problem).located(operator="key_by")
