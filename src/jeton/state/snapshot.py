"""Snapshots: a flow's state at rest, as a value, divided into bins.

A snapshot holds one Arrow table for each container of each operator. Each row has a ``bin``, which
its key hashes to; restoring deals the rows out to the workers that own their bins, however many
there are then. Some tables are for all workers instead. Tokens are not stored: a container
takes those that it needs from the operator's initial token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import column as cols
from jeton.columns.column import Column
from jeton.columns.keys import hash_columns
from jeton.core.errors import BatchError, SnapshotError
from jeton.core.tokens import TimestampToken
from jeton.state.bins import BINS, MOST_BINS, Placement

VERSION: Final = 1
BIN: Final = "bin"
_EVERYONE: Final = b"jeton.everyone"
_HELD: Final = "held by a breakpoint"


@runtime_checkable
class Stateful(Protocol):
    """The methods by which a container, or a hand-written operator, takes part in snapshots."""

    def snapshot(self) -> pa.Table:
        """The state as a table with a ``bin`` column: what `bins_of` gives for each row's key."""
        ...

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """Take the state over. ``tokens`` are the initial ones: clone and downgrade for rights."""
        ...


@runtime_checkable
class Movable(Protocol):
    """A container from which the state of some bins can be taken, and that takes more over.

    Its `restore` adds to what there is. Other containers, and all inside loops, move by a snapshot
    of everything that they have.
    """

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """Take out the state of some bins, with a ``bin`` column; ``chosen`` has all bins."""
        ...


def bins_of(columns: Sequence[Column]) -> npt.NDArray[np.uint16]:
    """The bin of each key, as state is kept with it: an integer below 65,536.

    With fewer bins, it is this number modulo their number.

    >>> bins_of([np.array([1, 1])])[0] == bins_of([np.array([1])])[0]
    np.True_
    """
    return (hash_columns(columns) % np.uint64(MOST_BINS)).astype(np.uint16)


def held_by_breakpoint(port: int) -> str:
    """The name of the records that a breakpoint holds back at a port, beside an operator's state.

    Any operator may have them, without keeping a container of that name.
    """
    return f"{_HELD}, {port}"


def is_held_by_breakpoint(name: str) -> bool:
    """Whether this is the name of records that a breakpoint holds back."""
    return name.startswith(_HELD)


def require_binned(table: object, what: str) -> pa.Table:
    """A table that can be divided by its bins; an error if it is not one.

    >>> require_binned(pa.table({"bin": ["a"]}), "Seen")
    Traceback (most recent call last):
    jeton.core.errors.SnapshotError: the column 'bin' of the state of Seen is of type string...
    """
    if not isinstance(table, pa.Table):
        raise SnapshotError(
            f"snapshot() of {what} must return a pyarrow.Table, not {type(table).__name__}"
        )
    if BIN not in table.column_names:
        raise SnapshotError(
            f"the state of {what} has no column {BIN!r}, so that it cannot be divided: give it one "
            "with jt.state.bins_of([key columns])"
        )
    bins = table.column(BIN)
    wrong = None
    if not pa.types.is_integer(bins.type):
        wrong = f"is of type {bins.type}"
    elif bins.null_count:
        wrong = "has nulls"
    elif bins.type != pa.uint16() and len(bins):
        ends = pc.min_max(bins).as_py()
        outside = [end for end in ends.values() if not 0 <= end < MOST_BINS]
        wrong = f"has {outside[0]}" if outside else None
    if wrong is not None:
        raise SnapshotError(
            f"the column {BIN!r} of the state of {what} {wrong}, not integers from 0 to "
            f"{MOST_BINS - 1}: make it with jt.state.bins_of([key columns])"
        )
    return table


def for_everyone(table: pa.Table) -> pa.Table:
    """The same table, all of which goes to every worker, whatever the bins of its rows.

    >>> table = for_everyone(pa.table({"bin": pa.array([0], pa.uint16())}))
    >>> share_of(table, 3, Placement.even(workers=4)).num_rows
    1
    """
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _EVERYONE: b""})


def is_for_everyone(table: pa.Table) -> bool:
    """Whether all of a table goes to every worker."""
    return _EVERYONE in (table.schema.metadata or {})


def share_of(table: pa.Table, worker: int, placement: Placement) -> pa.Table:
    """The rows of a table that belong to one worker."""
    if is_for_everyone(table):
        return table
    return rows_where(table, placement.owners[bin_numbers(table, placement.bins)] == worker)


def bin_numbers(table: pa.Table, bins: int) -> npt.NDArray[np.uint16]:
    """The bin of each row of a table, of a number of bins."""
    numbers: npt.NDArray[np.uint16] = table.column(BIN).to_numpy() & np.uint16(bins - 1)
    return numbers


def rows_where(table: pa.Table, mask: npt.NDArray[np.bool_]) -> pa.Table:
    """Some rows of a table."""
    return table if mask.all() else table.filter(pa.array(mask))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a whole flow at rest."""

    flow: str
    operators: Mapping[str, Mapping[str, pa.Table]]
    """For each operator and each of its containers, a table with a ``bin`` column."""
    version: int = VERSION
    bins: int = BINS
    placement: Placement | None = None
    """The owners of bins, for the same number of workers, if some bins had been moved."""

    def placed_on(self, workers: int) -> Placement:
        """The owners of bins for a number of workers that go on from it."""
        if self.placement is None:
            return Placement.even(workers, self.bins)
        return self.placement.on(workers)

    def share(self, operator: str, name: str, worker: int, placement: Placement) -> pa.Table | None:
        """One worker's part of a container, or nothing if there is none of it."""
        table = self.operators.get(operator, {}).get(name)
        if table is None:
            return None
        return share_of(table, worker, placement)

    def check(self, flow: str, operators: Sequence[str]) -> None:
        """Refuse a snapshot that does not fit a flow."""
        if self.version != VERSION:
            raise SnapshotError(
                f"this snapshot has version {self.version}, but this Jeton reads {VERSION}"
            )
        gone = [
            name
            for name, kept in self.operators.items()
            if name not in operators and any(table.num_rows for table in kept.values())
        ]
        if gone:
            raise SnapshotError(
                f"flow {flow!r} has no operators {gone}, which the snapshot has state of: give "
                f"operators their old names back with named(…), or say "
                f"snapshot.without({', '.join(map(repr, gone))})"
            )

    def without(self, *names: str) -> Snapshot:
        """The same without the state of some operators, or of some of their containers.

        A container is named after its operator and a slash: ``"count/waiting"``.

        >>> empty = pa.table({"bin": pa.array([], pa.uint16())})
        >>> snapshot = Snapshot("f", {"count": {"state": empty, "waiting": empty}})
        >>> list(snapshot.without("count/waiting").operators["count"])
        ['state']
        """
        kept = {
            operator: {
                name: table for name, table in kept.items() if f"{operator}/{name}" not in names
            }
            for operator, kept in self.operators.items()
            if operator not in names
        }
        return replace(self, operators=kept)

    def require_taken(self, operator: str, kept: Collection[str]) -> None:
        """Refuse state of an operator that it no longer keeps: it would be lost unseen."""
        for name, table in self.operators.get(operator, {}).items():
            if name not in kept and table.num_rows and not is_held_by_breakpoint(name):
                whole = f"{operator}/{name}"
                raise SnapshotError(
                    f"the snapshot has {table.num_rows} rows of {name!r}, which this operator no "
                    f"longer keeps (it keeps {sorted(kept) or 'nothing'}). If they may be lost, "
                    f"say allow_removed=[{whole!r}], or snapshot.without({whole!r}) in process"
                )

    def __repr__(self) -> str:
        rows = sum(t.num_rows for kept in self.operators.values() for t in kept.values())
        return f"<Snapshot of {self.flow!r}: {len(self.operators)} operators, {rows} rows>"


def merge(
    flow: str, parts: Sequence[Mapping[str, Mapping[str, pa.Table]]], placement: Placement
) -> Snapshot:
    """One snapshot from the parts of all workers."""
    tables: dict[str, dict[str, list[pa.Table]]] = {}
    for part in parts:
        for operator, kept in part.items():
            for name, table in kept.items():
                tables.setdefault(operator, {}).setdefault(name, []).append(table)
    return Snapshot(
        flow,
        {
            operator: {name: concatenated(operator, name, found) for name, found in kept.items()}
            for operator, kept in tables.items()
        },
        bins=placement.bins,
        placement=None if placement.is_even else placement,
    )


def concatenated(operator: str, name: str, parts: Sequence[pa.Table]) -> pa.Table:
    """The state of all workers in one table, of types that hold what each of them has."""
    try:
        return joined(parts)
    except pa.ArrowException as error:
        raise misfit(operator, name, error) from error


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one below the other, of types that hold what each of them has.

    >>> text = pa.array(["a"])
    >>> joined([pa.table({"n": text}), pa.table({"n": text.dictionary_encode()})])["n"].to_pylist()
    ['a', 'a']
    """
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        # The same as of batches in memory, such as text beside text with a dictionary.
        names = dict.fromkeys(name for table in tables for name in table.column_names)
        columns = {name: _joined_column(name, tables) for name in names}
        return pa.table(columns).replace_schema_metadata(tables[0].schema.metadata)


def _joined_column(name: str, tables: Sequence[pa.Table]) -> pa.Array:
    found = [
        table.column(name) if name in table.column_names else pa.nulls(table.num_rows)
        for table in tables
    ]
    if len({column.type for column in found}) > 1:
        found = [column.cast(_without_dictionaries(column.type)) for column in found]
    try:
        return cols.to_arrow(cols.join([cols.as_column(column) for column in found], name))
    except BatchError as error:
        raise pa.ArrowTypeError(error.message) from error


def _without_dictionaries(kind: pa.DataType) -> pa.DataType:
    """The type of the same values, in lists too, that are not in a dictionary."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_large_list(kind):
        return pa.large_list(_without_dictionaries(kind.value_type))
    return kind


def misfit(operator: str, name: str, error: pa.ArrowException) -> SnapshotError:
    """The error about state of several types, of which Arrow has none for all."""
    return SnapshotError(
        f"the parts of state {name!r} do not fit together: {error}. Give the inputs a "
        "schema=…, so that their columns have the same types on all workers"
    ).located(operator=operator)
