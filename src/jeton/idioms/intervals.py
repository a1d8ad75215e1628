"""Interval batching, as in differential dataflow: one batch for each advance of the frontier.

Every record may have a time of its own. Rather than report each of them to the system, an operator
holds the least tokens of the records that wait, and when the frontier has moved from ``lower`` to
``upper``, it seals all records of that interval into one batch and downgrades its tokens once. What
that costs depends on how often the frontier moves, not on how fine times are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import jeton as jt
from jeton.errors import BatchError, GraphError, TokenError
from jeton.idioms.grouping import grouping_by_value

_MOST: Final = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Sealed:
    """Records of an interval, complete: those with times at ``lower`` or later, not at ``upper``.

    With integer times an interval is one of these. With partially ordered ones it is one for each
    token that was held, since a message is sent with one token.
    """

    lower: jt.Antichain
    upper: jt.Antichain
    token: jt.TimestampToken
    """The right to speak of these records; it stays with the `Intervals`."""
    batch: jt.Batch


class Intervals(jt.state.RecordQueue):
    """Records that wait for the frontier, under the least tokens: `push`, `seal`, `settle`.

    For operators of your own; `batch_intervals` is one. It can be kept for snapshots.

    >>> import jeton as jt
    >>> def report(token, info):  # how many records each advance of the frontier completed
    ...     waiting = Intervals(info.kind)
    ...     token.drop()
    ...
    ...     def step(input, output):
    ...         for ref, batch in input:
    ...             waiting.push(ref, batch)
    ...         for sealed in waiting.seal(input.frontier):
    ...             with output.session(sealed.token) as session:
    ...                 session.give(upper=str(sealed.upper), records=len(sealed.batch))
    ...         waiting.settle()
    ...
    ...     return step
    >>> flow = jt.Flow("reports")
    >>> flow.output("reports", flow.input("n").unary_frontier(report))
    >>> with flow.open() as run:
    ...     run.input("n").send({"time": [1, 5, 3, 99], "n": [0, 0, 0, 0]})
    ...     run.input("n").advance_to(50)
    ...     run.run_to_rest()
    ...     run.finish()["reports"].to_pylist()
    [{'time': 1, 'upper': 'Antichain([50])', 'records': 3},
     {'time': 99, 'upper': 'Antichain([])', 'records': 1}]
    """

    def __init__(self, kind: Any, key: Sequence[str] | None = None) -> None:
        super().__init__(kind, key)
        self.lower = jt.Antichain.frozen([kind.minimum])
        """The upper end of the last interval: the lower one of the next."""

    def seal(self, frontier: jt.Antichain) -> list[Sealed]:
        """Records that are complete since the last call, in order of time; `settle` afterwards."""
        if frontier == self.lower and not len(self):
            # With records there may be some to answer: a migration brings those that became
            # complete while they were on their way.
            return []
        lower, self.lower = self.lower, jt.Antichain.frozen(frontier)
        parts: dict[jt.TimestampToken, list[jt.Batch]] = {}
        for time, batch in self.pop(frontier):
            parts.setdefault(self.right_for(time), []).append(batch)
        return [
            Sealed(lower, self.lower, token, jt.concat(batches)) for token, batches in parts.items()
        ]

    def waits(self, time: Any) -> bool:
        """Whether any record may wait that is not later than ``time``."""
        try:
            self.right_for(time)
        except TokenError:
            return False
        return True


def batch_intervals(
    stream: jt.Stream, *key: str, diff: str | None = None, name: str = "batch_intervals"
) -> jt.Stream:
    """One message for each advance of the frontier, its records sorted by key, then by time.

    Records of a key come together on one worker. With a ``diff`` column, which says how often a
    record is added (or removed, if negative), records that are equal in all else, time included,
    become one with the sum, and those that cancel out are gone. So a change that is taken back
    within an interval costs nothing downstream.

    >>> import jeton as jt
    >>> flow = jt.Flow("stock")
    >>> flow.output("changes", batch_intervals(flow.input("changes"), "item", diff="n"))
    >>> changes = {"time": [4, 2, 4, 3], "item": ["b", "b", "b", "a"], "n": [-1, 5, 1, 2]}
    >>> flow.run({"changes": changes})["changes"].to_pylist()
    [{'time': 2, 'item': 'b', 'n': 5}, {'time': 3, 'item': 'a', 'n': 2}]
    """
    if not key:
        raise GraphError("batch_intervals needs a key: one or more columns").located(operator=name)
    stream.require_columns(*key, *([] if diff is None else [diff]), operator=name)

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        waiting = Intervals(info.kind, key)
        info.keep(waiting, token, shape=f"records by {', '.join(key)}")
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                waiting.push(ref, batch)
            for sealed in waiting.seal(input.frontier):
                batch = sealed.batch if diff is None else consolidated(sealed.batch, diff)
                output.session(sealed.token).give(batch.take(sorting(batch, key)))
            waiting.settle()

        return step

    return stream.unary_frontier(build, pact=jt.Exchange(*key), name=name, schema=stream.schema)


def sorting(batch: jt.Batch, key: Sequence[str]) -> npt.NDArray[np.intp]:
    """The order by key, nulls last, then by time.

    >>> sorting(jt.Batch({"k": ["b", "a", "b"]}, times=[2, 9, 1]), ["k"]).tolist()
    [1, 2, 0]
    """
    columns = {f"key {at}": _in_order(batch.column(name), name) for at, name in enumerate(key)}
    columns |= {f"time {at}": column for at, column in enumerate(time_keys(batch.times))}
    order: npt.NDArray[np.intp] = pc.sort_indices(
        pa.table(columns), sort_keys=[(name, "ascending") for name in columns]
    ).to_numpy()
    return order.astype(np.intp, copy=False)


def consolidated(batch: jt.Batch, diff: str) -> jt.Batch:
    """Records that are equal but for ``diff`` as one with the sum; none where that is zero.

    >>> batch = jt.Batch({"x": [1, 1, 2], "n": [1, 2, 1]}, times=[0, 0, 0])
    >>> consolidated(batch, "n").rows()
    [{'time': 0, 'x': 1, 'n': 3}, {'time': 0, 'x': 2, 'n': 1}]
    """
    if not len(batch):
        return batch
    values = compared(batch, [name for name in batch.names if name != diff])
    keys = time_keys(batch.times)
    if values:
        keys = [jt.state.hash_columns(values), *keys]
    order, starts = grouping_by_value(keys, values)
    sums = np.add.reduceat(diffs_of(batch, diff)[order], starts)
    first = order[starts]
    kept = np.argsort(first)
    kept = kept[sums[kept] != 0]
    return batch.take(first[kept]).with_columns({diff: sums[kept]})


def diffs_of(batch: jt.Batch, diff: str) -> npt.NDArray[np.int64]:
    """The ``diff`` column, which must be of whole numbers."""
    column = batch.column(diff)
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "iu":
        raise BatchError(f"column {diff!r} must be of whole numbers, without nulls")
    if column.dtype == np.uint64 and len(column) and column.max() > _MOST:
        raise BatchError(f"column {diff!r} has {column.max()}, but {_MOST} is the most there is")
    return column.astype(np.int64, copy=False)


def compared(batch: jt.Batch, names: Sequence[str]) -> list[Any]:
    """Columns by whose values records are found to be equal: all of types that can be.

    >>> compared(jt.Batch({"x": [[1], [2]]}, times=[0, 0]), ["x"])
    Traceback (most recent call last):
        ...
    jeton.core.errors.BatchError: column 'x' is of type list<item: int64>, but with diff=…...
    """
    for name in names:
        column = batch.column(name)
        if isinstance(column, pa.Array) and pa.types.is_nested(column.type):
            raise BatchError(
                f"column {name!r} is of type {column.type}, but with diff=… records are compared "
                "by all their columns: drop it, or make it text before"
            )
    return [batch.column(name) for name in names]


def time_keys(times: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Arrays by which times can be sorted in an order that extends theirs, the first one first.

    >>> [key.tolist() for key in time_keys(np.array([[1, 7], [2, 8]]))]
    [[1, 2], [7, 8]]
    """
    if times.dtype == object:
        ranks = {time: rank for rank, time in enumerate(sorted(set(times), key=_sort_key))}
        return [np.array([ranks[time] for time in times], dtype=np.int64)]
    return [times] if times.ndim == 1 else list(times.T)


def _in_order(column: Any, name: str) -> Any:
    """A key column by which records can be sorted."""
    if isinstance(column, pa.Array):
        if pa.types.is_nested(column.type):
            raise BatchError(
                f"key column {name!r} is of type {column.type}, which has no order: no key here"
            )
        if pa.types.is_dictionary(column.type):
            return column.dictionary_decode()
    return column


def _sort_key(time: Any) -> Any:
    return time.sort_key()
