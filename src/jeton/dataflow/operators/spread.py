"""Spread keys: the records of hot keys on several workers, combined when windows are complete.

Three operators. The first one splits the stream: records of keys that have a large share of all
records are *hot*, others are cold. Cold ones go to the owner of their key, as without ``spread``.
Each hot one goes to one of several workers, which keep partial windows, and send what they remember
of them at their last times. The owner of a key combines all of this, and emits results at windows'
ends, as without ``spread``. Results do not depend on which records were hot, nor on how they were
divided, so that partial windows may be restored on any worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import compiled as nb
from jeton.columns.batch import Batch
from jeton.columns.column import Column
from jeton.columns.keys import hash_columns
from jeton.columns.time_columns import Times
from jeton.core.antichain import Antichain
from jeton.core.checks import described
from jeton.core.errors import GraphError
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.operators.binary import add_binary
from jeton.dataflow.operators.collecting import add_collecting
from jeton.dataflow.operators.windows import (
    Assigner,
    BoundedAssigner,
    OpenWindows,
    Rows,
    with_bounds,
)
from jeton.dataflow.plan import OperatorInfo, Step
from jeton.dataflow.ports import Input, Output
from jeton.state.aggregates import Aggregate
from jeton.state.shapes import shape_of
from jeton.state.slot_pool import Slots

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

HOT: Final = 8
"""A key is hot if it has more than this part of an even share of the records of a worker: an
eighth."""
RECENT: Final = 1 << 17
"""Counts are halved once there are as many records."""


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
    """Add the operators of windows whose keys are spread; see `add_windows`."""
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
    called = name if own is None else own
    windows = str(assigner)
    cold, hot = _add_split(stream if own is None else stream.named(f"{own}-split"), key, name)
    if own is not None:
        cold, hot = cold.named(own), hot.named(f"{own}-partial")
    partial = add_collecting(
        hot.key_by(*key, spread=keyed.spread),
        lambda kind: PartialWindows(key, aggregates, LastTimes(assigner), kind, None),
        name=f"{called}-partial",
        shape=shape_of(f"partial {windows}", key, aggregates),
        schema=None,
    )

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Input, Output], None]:
        combined = CombinedWindows(key, aggregates, assigner, info.kind, bounds)
        # The same shape as without spread, so that a query can go on with it.
        info.keep(combined, token, shape=shape_of(windows, key, aggregates))
        token.drop()

        def step(records: Input, partials: Input, output: Output) -> None:
            for ref, batch in records:
                combined.add(ref, batch)
            for ref, batch in partials:
                combined.combine(ref, batch)
            combined.emit(Antichain([*records.frontier, *partials.frontier]), output)

        return step

    pact = cold.key_by(*key).pact
    return add_binary(
        cold,
        partial,
        build,
        pact=pact,
        other_pact=pact,
        name=name,
        notify="held",
        schema=schema if bounds is None else with_bounds(schema, keyed),
    )


def _add_split(stream: Stream, key: Sequence[str], name: str) -> tuple[Stream, Stream]:
    """Add the operator that divides records into cold and hot ones."""
    builder = stream.operator(f"{name}-split")
    builder.input(stream)
    cold, hot = (builder.output(schema=stream.schema) for _ in range(2))

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        for token in tokens:
            token.drop()
        keys = HotKeys(key, info.workers)
        types: set[tuple[object, ...]] = set()

        def step(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            for ref, batch in inputs[0]:
                is_hot = keys.find(batch)
                some = np.flatnonzero(is_hot)
                columns = [batch.column(one) for one in key]
                kinds = tuple(c.dtype if isinstance(c, np.ndarray) else c.type for c in columns)
                # All types of keys are announced there, so that those that do not fit are refused.
                if len(some) < len(batch) or kinds not in types:
                    types.add(kinds)
                    left = batch.take(np.flatnonzero(~is_hot)) if len(some) else batch
                    outputs[cold].session(ref).give(left)
                if len(some):
                    part = batch.take(some) if len(some) < len(batch) else batch
                    outputs[hot].session(ref).give(part)

        return step

    streams = builder.build(build, notify="never")
    return streams[cold], streams[hot]


class HotKeys:
    """Which records have a key that occurs often, by counts of hashes among the latest records.

    A key that shares the lower bits of its hash with a hot one counts as hot too.

    >>> keys = HotKeys(["k"], workers=2)
    >>> batch = Batch({"k": [1, 2] * 50 + list(range(100, 200))}, times=[0] * 200)
    >>> keys.find(batch)[50:].sum(), HotKeys(["k"], workers=1).find(batch).sum()
    (np.int64(50), np.int64(0))
    """

    def __init__(self, key: Sequence[str], workers: int) -> None:
        self._key = tuple(key)
        self._workers = workers
        # So many that keys of equal shares are far from hot.
        self._counts = np.zeros(max(4096, 1 << (64 * workers - 1).bit_length()), dtype=np.int64)
        self._total = 0

    def find(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Count the records, and say which are hot."""
        if self._workers == 1:
            return np.zeros(len(batch), dtype=bool)
        columns = [batch.column(name) for name in self._key]
        hashes = hash_columns(columns) if columns else np.zeros(len(batch), dtype=np.uint64)
        hot: npt.NDArray[np.bool_]
        hot, self._total = _hot(hashes, self._counts, self._total, HOT * self._workers, RECENT)
        return hot


@nb.njit(cache=True)
def _hot(hashes, counts, total, parts, recent):  # type: ignore[no-untyped-def]
    hot = np.empty(len(hashes), np.bool_)
    mask = np.uint64(len(counts) - 1)
    for i in range(len(hashes)):
        at = hashes[i] & mask
        counts[at] += 1
        total += 1
        hot[i] = counts[at] * parts > total
        if total >= recent:
            counts //= 2
            total //= 2
    return hot, total


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


class PartialWindows(OpenWindows):
    """The windows of some of the hot records, whose memory is sent to be combined."""

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
    """The windows of all records of their keys: of records, and of partial windows."""

    def combine(self, right: TokenRef, batch: Batch) -> None:
        """Add partial windows to those there, opening new ones."""
        ends = batch.times + 1 if self._assigner.inclusive else batch.times
        slots, new = self._groups.absorb(batch, self._words(ends))
        self._open(right, ends[new], slots[new])
