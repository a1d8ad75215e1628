"""cogroup: a function of the records that two streams have at one key and one time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns.batch import Batch, concat
from jeton.columns.column import Column, as_column
from jeton.columns.ordering import order_by
from jeton.columns.schema import SchemaLike, as_schema
from jeton.columns.time_arithmetic import Integers
from jeton.columns.time_columns import Times, as_times
from jeton.core.antichain import Antichain
from jeton.core.errors import BatchError
from jeton.core.times import Time, TimeKind
from jeton.core.tokens import TimestampToken
from jeton.dataflow.operators import joined as joins
from jeton.dataflow.operators.binary import add_binary
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.key_ids import KeyTypes
from jeton.state.key_slots import KeySlots
from jeton.state.record_queue import RecordQueue
from jeton.state.shapes import shape_of
from jeton.state.sorted_runs import sort_order

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

Made: TypeAlias = "Batch | Mapping[str, Any] | Iterable[Mapping[str, Any]] | None"
"""The result of a function: columns, a row, rows, or nothing."""

GroupFunction: TypeAlias = Callable[[dict[str, Any], Batch, Batch], Made]
"""From a key and both sides' records to results."""


def add_cogroup(
    keyed: KeyedStream, other: KeyedStream, function: GroupFunction, *, schema: SchemaLike | None
) -> Stream:
    """Add the operator of `KeyedStream.cogroup`."""
    mine, others = joins.pacts(keyed, other, "cogroup")
    known = None if schema is None else _with_key(keyed, other, schema)

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Input, Output], None]:
        types = KeyTypes()
        sides = [_Side(side, info.kind) for side in (keyed, other)]
        for side, name, of in zip(sides, ("left", "right"), (keyed, other), strict=True):
            info.keep(side.waiting, token, name=name, shape=shape_of("records", of.key), lazy=True)
        token.drop()

        def step(left: Input, right: Input, output: Output) -> None:
            for name, side, input in zip(("left", "right"), sides, (left, right), strict=True):
                for ref, batch in input:
                    types.learn(name, side.key, [batch.column(one) for one in side.key])
                    side.waiting.push(ref, batch)
            frontier = Antichain([*left.frontier, *right.frontier])
            for groups in _complete(sides, frontier, info.kind, keyed.key):
                groups.emit(function, known, output)
            for side in sides:
                side.waiting.settle()

        return step

    return add_binary(
        keyed.stream,
        other.stream,
        build,
        pact=mine,
        other_pact=others,
        name="cogroup",
        notify="held",
        schema=known,
    )


class _Side:
    """The records of one side that are not complete yet."""

    def __init__(self, keyed: KeyedStream, kind: TimeKind) -> None:
        self.key = keyed.key
        self.waiting = RecordQueue(kind, keyed.key)
        schema = keyed.stream.schema
        types = {} if schema is None else dict(zip(schema.names, schema.types, strict=True))
        self.empty = Batch(
            {name: pa.array([], type) for name, type in types.items()},
            as_times(kind, []),
            time_name=keyed.stream.time_name,
            kind=kind,
        )

    def keys(self, batch: Batch) -> list[Column]:
        """The key columns of a batch."""
        return [batch.column(name) for name in self.key if len(batch)]


def _complete(
    sides: Sequence[_Side], frontier: Antichain, kind: TimeKind, names: tuple[str, ...]
) -> list[_Groups]:
    """All groups that are complete: integer times together, others time by time."""
    found: dict[Time, list[Batch]] = {}
    for number, side in enumerate(sides):
        for time, batch in side.waiting.pop(frontier):
            parts = found.setdefault(0 if kind.total else time, [side.empty for side in sides])
            parts[number] = batch
    return [_Groups(sides, parts, kind, names) for parts in found.values()]


class _Groups:
    """Records of both sides, numbered by the group of their key and time."""

    def __init__(
        self, sides: Sequence[_Side], parts: list[Batch], kind: TimeKind, names: tuple[str, ...]
    ) -> None:
        self._sides = sides
        self._names = names
        self._keys = _joined_keys([side.keys(p) for side, p in zip(sides, parts, strict=True)])
        ids, _ = KeySlots(len(self._keys)).find(self._keys, sum(map(len, parts)))
        self._times: Times = np.concatenate([part.times for part in parts])
        # Within one call, times that are not integers are all the same.
        at = self._times if kind.total else np.zeros(len(ids), dtype=np.int64)
        order = sort_order([at, ids], stable=False)
        if order is None:
            order = np.arange(len(ids))
        at, ids = at[order], ids[order]
        opens = np.concatenate([[True], (at[1:] != at[:-1]) | (ids[1:] != ids[:-1])])
        self._first: Integers = order[opens]
        """A row of each group."""
        group = np.empty(len(order), dtype=np.int64)
        group[order] = np.cumsum(opens) - 1
        self._parts = [
            _sorted_by(part, numbers, len(self._first))
            for part, numbers in zip(parts, np.split(group, [len(parts[0])]), strict=True)
        ]

    def emit(self, function: GroupFunction, schema: pa.Schema | None, output: Output) -> None:
        """Call the function for each group, and send its results."""
        values = [cols.to_arrow(cols.take(key, self._first)).to_pylist() for key in self._keys]
        made = _Results((*self._names, output.time_name))
        (left, ends), (right, right_ends) = self._parts
        for group in range(len(self._first)):
            key = {name: column[group] for name, column in zip(self._names, values, strict=True)}
            mine = left.slice(int(ends[group]), int(ends[group + 1]))
            others = right.slice(int(right_ends[group]), int(right_ends[group + 1]))
            made.add(group, function(key, mine, others))
        groups, columns = made.all()
        if len(groups) == 0:
            return
        rows = self._first[groups]
        keys = zip(self._names, self._keys, strict=True)
        whole = {n: cols.take(column, rows) for n, column in keys if n != output.time_name}
        whole |= columns
        batch = Batch.trusted(whole, self._times[rows], output.time_name)
        if schema is not None:
            for name in whole.keys() & set(self._names):
                whole[name] = joins.exact_key(whole[name], schema.field(name), "cogroup")
            batch = batch.conform(schema, "the result of the function of cogroup")
        # Groups are in order of time, and the side that has the first one has the right to it.
        least = int(groups[0])
        side = self._sides[0 if ends[least + 1] > ends[least] else 1]
        time = next(iter(batch.slice(0, 1).by_time()))[0]
        output.session(side.waiting.right_for(time)).give(batch)


class _Results:
    """The results of a function for group after group."""

    def __init__(self, taken: Sequence[str]) -> None:
        self._taken = frozenset(taken)
        self._parts: list[tuple[Integers, dict[str, Column]]] = []
        self._rows: list[dict[str, Any]] = []
        self._row_groups: list[int] = []

    def add(self, group: int, made: Made) -> None:
        """Add the result for a group."""
        if made is None:
            return
        if isinstance(made, Batch):
            made = made.columns
        if isinstance(made, Mapping):
            many = {name: value for name, value in made.items() if _is_column(value)}
            if many:
                self._add_columns(group, made, many)
                return
            made = [made]
        for row in made:
            if not isinstance(row, Mapping):
                raise BatchError(
                    f"the function of cogroup must return rows or columns, not {type(row).__name__}"
                )
            row = {name: value for name, value in row.items() if name not in self._taken}
            if self._rows and row.keys() != self._rows[0].keys():
                self._flush()
            self._rows.append(row)
            self._row_groups.append(group)

    def _add_columns(self, group: int, made: Mapping[str, Any], many: Mapping[str, Any]) -> None:
        self._flush()
        length = len(next(iter(many.values())))
        columns = {
            name: as_column(value if name in many else [value] * length)
            for name, value in made.items()
            if name not in self._taken
        }
        for name, column in columns.items():
            if len(column) != length:
                raise BatchError(f"column {name!r} has {len(column)} values, another {length}")
        self._parts.append((np.full(length, group), columns))

    def _flush(self) -> None:
        if self._rows:
            columns = {name: as_column([row[name] for row in self._rows]) for name in self._rows[0]}
            self._parts.append((np.array(self._row_groups), columns))
            self._rows, self._row_groups = [], []

    def all(self) -> tuple[Integers, dict[str, Column]]:
        """All rows, with their groups."""
        self._flush()
        parts = [Batch.trusted(columns, groups) for groups, columns in self._parts if len(groups)]
        if not parts:
            return np.empty(0, dtype=np.int64), {}
        whole = concat(parts)
        return whole.times, whole.columns


def _joined_keys(sides: Sequence[list[Column]]) -> list[Column]:
    """The key columns of both sides, one after the other; a side without records has none."""
    present = [keys for keys in sides if keys]
    return [cols.join(columns) for columns in zip(*present, strict=True)]


def _sorted_by(part: Batch, groups: Integers, count: int) -> tuple[Batch, Integers]:
    """A side's records in order of their groups, and where each group starts."""
    order = order_by(part, groups)
    starts = np.searchsorted(groups[order], np.arange(count + 1))
    return part.take(order), starts.astype(np.int64, copy=False)


def _is_column(value: Any) -> bool:
    return isinstance(value, np.ndarray | pa.Array | pa.ChunkedArray | list | tuple) or (
        hasattr(value, "__array__") and hasattr(value, "__len__")
    )


def _with_key(keyed: KeyedStream, other: KeyedStream, declared: SchemaLike) -> pa.Schema:
    """The declared columns with the key's before them, in types that hold both sides' keys."""
    stream = keyed.stream
    values = as_schema(declared, stream.time_name)
    known = stream.schema
    if known is not None:
        known = joins.with_key_types(known, keyed.key, other.stream.schema, other.key)
    types = {name: pa.null() if known is None else known.field(name).type for name in keyed.key}
    types |= {field.name: field.type for field in values if field.name not in types}
    return pa.schema(types)
