"""Groups: keyed aggregates in columns, with or without a time at which each group is due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns.batch import Batch
from jeton.columns.column import Column
from jeton.columns.keys import Hashes
from jeton.columns.time_columns import Times
from jeton.core.errors import BatchError, ColumnTypeError, SnapshotError
from jeton.state.accumulators import (
    NO_FOLDING,
    Accumulator,
    Folding,
    Unrepresentable,
    filled,
    is_unknown,
)
from jeton.state.aggregates import Aggregate
from jeton.state.changes import NONE, Changes, Cut, Guard, Rows
from jeton.state.dense_index import DirectIndex, Grid, PanedIndex
from jeton.state.key_slots import KeySlots
from jeton.state.python_fold import NullFold
from jeton.state.slot_pool import Slots
from jeton.state.snapshot import BIN, bins_of
from jeton.state.spilled import OVERHEAD

TYPES: Final = pa.dictionary(pa.int8(), pa.binary())
"""The type of columns that say of which type values were: see `_written`."""
_SAMPLE: Final = 256
_VALUE, _REAL = "value", "real"
"""The parts of memory that have values. In tables, floating-point numbers have a column of their
own, since another worker may have integers that these cannot hold."""


class Groups:
    """Aggregates of groups, each known by key columns and, if wanted, one word more (its time).

    With ``unique``, and without key columns, each time makes a group of its own.
    """

    def __init__(
        self,
        key: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        *,
        timed: bool = False,
        unique: bool = False,
    ) -> None:
        self.key = tuple(key)
        self.aggregates = dict(aggregates)
        self._only = next(iter(aggregates.items())) if len(aggregates) == 1 else None
        """The name of the aggregate and itself, if there is no other."""
        self._only_key = self.key[0] if len(self.key) == 1 else ""
        """The key column, if there is no other."""
        self._keys = KeySlots(len(self.key), timed=timed, unique=unique)
        self._memory: dict[str, Accumulator] = {}
        self._types: dict[str, Any] = {}
        """The type of the last values of each aggregate, as NumPy or Arrow has it."""
        self._sent: dict[str, Any] = {}
        """The same of the last values in groups from elsewhere."""
        self._known: dict[str, pa.DataType] = {}
        """The first type that was not null."""
        self._kinds: pa.Schema | None = None
        """The types of what the last cut has, or of what was loaded before the first."""
        self.changes = Changes(self._keys)
        """The groups that have changed since the last checkpoint."""
        self._row_bytes = 0.0
        self._sampled = 0
        """How many groups there were when the bytes of a row were looked at."""
        self._asked = 0

    def find(self, batch: Batch, times: Hashes | None = None) -> tuple[Slots, Slots]:
        """The group of each record, and the rows that opened a new one."""
        columns = [batch.column(name) for name in self.key]
        slots, new = self._keys.find(columns, len(batch), times)
        if self.changes.are_noted and len(new):
            self.changes.made(slots[new])
        return slots, new

    def fold_in_windows(self, batch: Batch, grid: Grid) -> tuple[int, Slots, Times]:
        """Find the groups of records in their windows and fold them in, in one loop if possible.

        Returns how many of the first records are done, which may be none, and the slots and times
        of the groups that they opened.
        """
        index, changes = self._keys.index, self.changes
        if type(index) is not PanedIndex or (changes.are_noted and changes.is_open):
            return 0, NONE, NONE
        words = self._keys.quick_words(batch.columns.get(self._only_key))
        if words is None:
            return 0, NONE, NONE
        folding = self._only_folding(batch)
        done, slots, opened, times = self._fold(index, batch, grid, words, folding)
        if folding is None:
            self.add(slots, batch if done == len(batch) else batch.slice(0, done))
        return done, opened, times

    def absorb_in_windows(self, batch: Batch, grid: Grid) -> tuple[int, Slots, Times]:
        """Add groups from elsewhere to those of their windows, in one loop if possible.

        Each is at the last time of its window. Returns the same as `fold_in_windows`.
        """
        index = self._keys.index
        if type(index) is not PanedIndex or self.changes.is_open or self._only is None:
            return 0, NONE, NONE
        name, _ = self._only
        words = self._keys.quick_words(batch.columns.get(self._only_key))
        memory = self._memory.get(name)
        if words is None or memory is None:
            return 0, NONE, NONE
        folding = memory.absorbing(_parts_of(name, batch.columns))
        if folding is None:
            return 0, NONE, NONE
        done, _, opened, times = self._fold(index, batch, grid, words, folding)
        return done, opened, times

    def _fold(
        self, index: PanedIndex, batch: Batch, grid: Grid, words: Hashes, folding: Folding | None
    ) -> tuple[int, Slots, Slots, Times]:
        """How many rows are done, their slots (if they are needed), and the groups they opened."""
        noted = folding is None or self.changes.are_noted
        done, slots, opened = index.fold(
            grid, cols.plain(batch.times), words, folding or NO_FOLDING, noted=noted
        )
        times = NONE
        if len(opened):
            times = index.stored[0].take(opened).view(np.int64)
            self.changes.made(opened)
        if folding is not None and noted:
            self.changes.touch(slots)
        return done, slots, opened, times

    def _only_folding(self, batch: Batch) -> Folding | None:
        """The fold of the only aggregate, if a fused loop can do it."""
        if self._only is None:
            return None
        name, aggregate = self._only
        memory = self._memory.get(name)
        if memory is None:
            return None
        return memory.folding(self._values(name, aggregate, batch))

    def roll_up(self, batch: Batch) -> tuple[int, dict[str, Column]]:
        """Find the groups of records and fold them in, in a loop for each aggregate if possible.

        Returns how many of the first records are done, which may be none, and the results after
        each of them.
        """
        index, changes = self._keys.index, self.changes
        noted = changes.are_noted
        if type(index) is not DirectIndex or (noted and changes.is_open):
            return 0, {}
        words = self._keys.quick_words(batch.columns.get(self._only_key))
        if words is None:
            return 0, {}
        rows, size = len(words), index.slots_made
        folds = []
        for name, aggregate in self.aggregates.items():
            column = None if aggregate.column is None else self._values(name, aggregate, batch)
            memory = self._memory.get(name)
            rolling = None if memory is None else memory.rolling(column, rows, size)
            if memory is None or rolling is None:
                return 0, {}
            folds.append((name, memory, rolling))
        done, rolled = 0, {}
        for name, memory, (folding, out) in folds:
            # The first loop finds the keys that are new, and all of them end at the same row.
            done, new = index.roll_up(words, folding, out)
            if noted and len(new):
                changes.made(words[new].view(np.int64))
            rolled[name] = memory.rolled(out if done == rows else out[:done])
        if noted:
            changes.touch(words[:done].view(np.int64))
        return done, rolled

    def add(self, slots: Slots, batch: Batch) -> None:
        """Fold records into their groups."""
        self.changes.touch(slots)
        size = self._keys.slots_made
        for name, aggregate in self.aggregates.items():
            column = self._values(name, aggregate, batch)
            memory = self._accumulator(name, column)
            if aggregate.by_time:
                memory.note_times(_plain_times(batch))
            memory.add(slots, column, size)

    def roll(self, slots: Slots, batch: Batch) -> dict[str, Column]:
        """Fold records into their groups; the results after each record."""
        self.changes.touch(slots)
        size = self._keys.slots_made
        rolled = {}
        for name, aggregate in self.aggregates.items():
            column = self._values(name, aggregate, batch)
            memory = self._accumulator(name, column)
            if aggregate.by_time:
                memory.note_times(_plain_times(batch))
            try:
                rolled[name] = memory.roll(slots, column, size)
            except Unrepresentable as error:
                keys = {key: batch.column(key) for key in self.key}
                raise error.of_group(name, keys, batch.times) from None
        return rolled

    def columns(self, slots: Slots, times: Times | None = None) -> dict[str, Column]:
        """Keys and results of some groups; their times are for the text of errors."""
        keys = dict(zip(self.key, self._keys.values(slots), strict=True))
        results: dict[str, Column] = {}
        for name in self.aggregates:
            try:
                results[name] = self._memory[name].result(slots)
            except Unrepresentable as error:
                raise error.of_group(name, keys, times) from None
        return keys | results

    def remove(self, slots: Slots, filled: Slots | None = None) -> None:
        """Forget groups, of which the ``filled`` ones have had records (``None``: all)."""
        self.changes.removed(slots)
        for memory in self._memory.values():
            memory.clear(slots if filled is None else filled)
        self._keys.remove(slots)

    def merge(self, into: Slots, others: Slots) -> None:
        """Fold groups into groups, pair by pair."""
        self.changes.touch(into)
        self.changes.touch(others)
        for memory in self._memory.values():
            memory.merge(into, others)

    def times(self, slots: Slots) -> Hashes:
        """The word that stands for the time of some groups."""
        return self._keys.times(slots)

    def in_bins(self, chosen: npt.NDArray[np.bool_]) -> Slots:
        """The groups whose keys are in some bins."""
        return self._keys.in_bins(chosen)

    def changed(self, after: str | None, guard: Guard, rows: Rows) -> Cut:
        """The groups that have changed: see `Changes.cut`."""
        kinds = self.save(NONE).schema
        if self._kinds is not None and kinds != self._kinds:
            # All groups are kept in another way: sums of integers as floating-point numbers.
            after = None
        self._kinds = kinds
        cut = self.changes.cut(after, guard, rows)
        if any(memory.has_objects for memory in self._memory.values()):
            return cut.read_now()
        return cut

    def memory(self, rows: Rows) -> int:
        """About how many bytes of memory all groups take; ``rows`` makes a table of some."""
        count = len(self._keys)
        self._asked += 1
        # Values may grow too.
        if count > 2 * self._sampled or self._asked % _SAMPLE == 0:
            some = self._keys.some(_SAMPLE)
            if len(some):
                self._row_bytes = rows(some).nbytes / len(some)
                self._sampled = count
        return int(OVERHEAD * self._row_bytes * count)

    def stay_compact(self) -> None:
        """Take no more memory than the groups need that are there."""
        self._keys.stay_compact()

    def live(self) -> Slots:
        """All groups."""
        return self._keys.live()

    def __len__(self) -> int:
        """How many groups there are."""
        return len(self._keys)

    def save(self, slots: Slots) -> pa.Table:
        """Groups as a table, with the bins of their keys."""
        keys = self._keys.values(slots)
        bins = bins_of(keys or [np.zeros(len(slots), dtype=np.int64)])
        arrays: dict[str, Any] = {BIN: bins}
        arrays |= {f"key.{n}": column for n, column in zip(self.key, keys, strict=True)}
        arrays |= {_stored_name(n, column): column for n, column in self._saved(slots).items()}
        arrays |= self.stored_types(len(slots))
        return pa.table({name: cols.to_arrow(column) for name, column in arrays.items()})

    def stored_types(self, rows: int) -> dict[str, pa.Array]:
        """The types of values that are known, in columns of a number of rows."""
        return {
            f"type.{name}": pa.DictionaryArray.from_arrays(
                np.zeros(rows, dtype=np.int8), pa.array([_written(kind)], pa.binary())
            )
            for name, kind in self._known.items()
        }

    def learn_stored_types(self, columns: Mapping[str, Column]) -> None:
        """Learn the types of values that the columns of a table have."""
        for name, aggregate in self.aggregates.items():
            # Snapshots of earlier versions have none, and groups with nothing but nulls are null.
            column = columns.get(f"type.{name}")
            for written in () if column is None else cols.to_arrow(column).unique().to_pylist():
                if written is not None:
                    self._learn_type(name, aggregate, _read(written))

    def load(self, table: pa.Table, times: Hashes | None = None) -> Slots:
        """Groups from a table; returns their slots."""
        found = self._columns_of(table)
        self.learn_stored_types(found)
        keys = {name: found[f"key.{name}"] for name in self.key}
        none = np.zeros(table.num_rows, dtype=np.int64)
        slots, new = self.find(Batch.trusted(keys, none, ""), times)
        if len(new) != len(slots):
            raise SnapshotError("the snapshot has a group twice")
        self.changes.touch(slots)
        self._remember(slots, found, self._keys.slots_made)
        if not self.changes.are_noted:
            self._kinds = self.save(NONE).schema
        self.changes.loaded(slots)
        return slots

    def fill(self, slots: Slots, table: pa.Table) -> None:
        """Fill the memory of new groups from a table."""
        self._remember(slots, self._columns_of(table), self._keys.slots_made)

    def read(self, table: pa.Table) -> Batch:
        """The groups of a table as a batch for `absorb`, whose times are all zero."""
        found = self._columns_of(table)
        self.learn_stored_types(found)
        columns = {name: found[f"key.{name}"] for name in self.key}
        columns |= {name: column for name, column in found.items() if name.startswith("of.")}
        return Batch.trusted(columns, np.zeros(table.num_rows, dtype=np.int64), "")

    def _columns_of(self, table: pa.Table) -> dict[str, Column]:
        """The columns of a table that was saved, which must be those of these groups."""
        found = {name: cols.as_column(table.column(name)) for name in table.column_names}
        missing = [name for name in self.key if f"key.{name}" not in found]
        if missing:
            raise SnapshotError(f"the snapshot's groups have no key columns {missing}")
        known = {"key": set(self.key), "of": set(self.aggregates), "type": set(self.aggregates)}
        other = [name for name in found if name != BIN and not _is_known(name, known)]
        if other:
            raise SnapshotError(
                f"the snapshot's groups have columns {other}, but this operator has the key "
                f"{list(self.key)} and the aggregates {list(self.aggregates)}"
            )
        return found

    def partial(self, slots: Slots) -> dict[str, Column]:
        """Keys, memory and types of some groups: a batch for `learn_types` and `absorb`."""
        saved = self._saved(slots)
        types: dict[str, Column] = {}
        for name in self.aggregates:
            value, kind = saved.get(f"of.{name}.value"), self._known.get(name)
            # The type of most values is also that in which they are kept, and need not be sent.
            if kind != (None if value is None else _type_of(value)):
                types[f"type.{name}"] = pa.nulls(len(slots), kind)
        return dict(zip(self.key, self._keys.values(slots), strict=True)) | saved | types

    def learn_types(self, batch: Batch) -> None:
        """Learn the types of the values that groups from elsewhere were made of: see `partial`."""
        for name, aggregate in self.aggregates.items():
            sent = batch.columns.get(f"type.{name}", batch.columns.get(f"of.{name}.value"))
            if sent is not None and aggregate.family is not None:
                kind = sent.dtype if isinstance(sent, np.ndarray) else sent.type
                if kind is not self._sent.get(name):
                    self._learn_type(name, aggregate, _type_of(sent))
                    self._sent[name] = kind

    def absorb(self, batch: Batch, times: Hashes | None = None) -> tuple[Slots, Slots]:
        """Add groups from elsewhere to those with the same keys; returns the same as `find`."""
        slots, new = self.find(batch, times)
        if len(batch) == 0:
            return slots, new
        self.changes.touch(slots)
        size = self._keys.slots_made
        parts = {name: column for name, column in batch.columns.items() if name.startswith("of.")}
        if len(new):
            self._remember(slots[new], _taken(parts, new), size)
        if len(new) < len(slots):
            known = np.ones(len(slots), dtype=bool)
            known[new] = False
            rows = np.flatnonzero(known)
            self._remember(slots[rows], _taken(parts, rows), size, new=False)
        return slots, new

    def _saved(self, slots: Slots) -> dict[str, Column]:
        """The memory of some groups, as columns."""
        return {
            f"of.{name}.{part}": column
            for name, memory in self._memory.items()
            for part, column in memory.save(slots).items()
        }

    def _remember(
        self, slots: Slots, saved: Mapping[str, Column], size: int, *, new: bool = True
    ) -> None:
        """Fill the memory of new groups with what was saved, or add that to the memory of others.

        There are ``size`` slots.
        """
        by_aggregate: dict[str, dict[str, Column]] = {name: {} for name in self.aggregates}
        for column, values in saved.items():
            if column.startswith("of."):
                # The names of aggregates may have dots, those of parts have none.
                name, _, part = column.removeprefix("of.").rpartition(".")
                by_aggregate[name][part] = values
        for name, parts in by_aggregate.items():
            seen = parts.get("seen")
            if seen is not None and not isinstance(seen, np.ndarray):
                # Groups of a worker that had seen nothing but nulls, beside those of others.
                parts["seen"] = filled(seen)
            for rows, some in _of_one_type(parts):
                memory = self._accumulator(name, some.get(_VALUE, some.get("state")))
                theirs = slots if rows is None else slots[rows]
                (memory.load if new else memory.absorb)(theirs, some, size)
            if not parts:
                # Nothing but nulls. Where other groups have more, there must be room for these.
                memory = self._memory.setdefault(name, NullFold())
                memory.add(slots[:0], pa.nulls(0), size)

    def _values(self, name: str, aggregate: Aggregate, batch: Batch) -> Column | None:
        """The column that an aggregate is of, whose type has to fit those of earlier batches."""
        if aggregate.column is None:
            return None
        column = batch.column(aggregate.column)
        if aggregate.family is not None and len(column):
            kind = column.dtype if isinstance(column, np.ndarray) else column.type
            before = self._types.get(name)
            if kind is not before and (type(kind) is not type(before) or kind != before):
                self._learn_type(name, aggregate, cols.to_arrow(column[:0]).type)
                self._types[name] = kind
        return column

    def _learn_type(self, name: str, aggregate: Aggregate, kind: pa.DataType) -> None:
        if pa.types.is_null(kind):
            return
        assert aggregate.family is not None
        before = self._known.setdefault(name, kind)
        if aggregate.family(kind) != aggregate.family(before):
            raise BatchError(
                f"column {aggregate.column!r}: its values are of type {kind}, but they were "
                f"{before} before: cast them to one type, or give the input a schema=…"
            )

    def _accumulator(self, name: str, column: Column | None) -> Accumulator:
        memory = self._memory.get(name)
        if memory is None or (isinstance(memory, NullFold) and not is_unknown(column)):
            aggregate = self.aggregates[name]
            try:
                memory = self._memory[name] = aggregate.make(column)
            except ColumnTypeError as error:
                raise ColumnTypeError(f"column {aggregate.column!r}: {error.message}") from None
        return memory


def _plain_times(batch: Batch) -> Times:
    """The times of records; in a loop, where those of a group are equal, zeros."""
    times = batch.times
    if times.ndim == 1 and times.dtype != object:
        return times
    return np.zeros(len(batch), dtype=np.int64)


def _parts_of(name: str, columns: Mapping[str, Column]) -> dict[str, Column]:
    """The memory of one aggregate among columns of groups."""
    start = f"of.{name}."
    return {part[len(start) :]: c for part, c in columns.items() if part.startswith(start)}


def _type_of(column: Column) -> pa.DataType:
    """The type of a column, as Arrow has it."""
    return column.type if isinstance(column, pa.Array) else cols.to_arrow(column[:0]).type


def _written(kind: pa.DataType) -> bytes:
    """A type as bytes: its name, or a schema of one field if it has none.

    >>> _written(pa.int64()), _read(_written(pa.timestamp("s", "UTC")))
    (b'int64', TimestampType(timestamp[s, tz=UTC]))
    """
    name = str(kind)
    if _named(name) == kind:
        return name.encode()
    written: bytes = pa.schema([pa.field("", kind)]).serialize().to_pybytes()
    return written


def _read(written: bytes) -> pa.DataType:
    """The input of `_written`."""
    named = _named(written.decode(errors="replace"))
    return named or pa.ipc.read_schema(pa.py_buffer(written)).field(0).type


def _named(name: str) -> pa.DataType | None:
    """The type of that name, if there is one."""
    try:
        return pa.type_for_alias(name)
    except ValueError:
        return None


def _is_real(column: Column) -> bool:
    """Whether a column has floating-point numbers, or lists of them."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind == "f"
    kind = column.type.value_type if pa.types.is_large_list(column.type) else column.type
    return bool(pa.types.is_floating(kind))


def _stored_name(name: str, column: Column) -> str:
    """The name of a column of memory in a table.

    >>> _stored_name("of.sum.value", np.array([0.5])), _stored_name("of.sum.value", np.array([1]))
    ('of.sum.real', 'of.sum.value')
    """
    is_real = name.endswith(f".{_VALUE}") and _is_real(column)
    return name.removesuffix(_VALUE) + _REAL if is_real else name


def _of_one_type(parts: dict[str, Column]) -> list[tuple[Slots | None, dict[str, Column]]]:
    """The memory of an aggregate, in parts that have one type of values each, and their rows.

    Rows are ``None`` if a part has all of them: it is the only one, unless workers have seen
    values of different types.
    """
    if _REAL not in parts:
        return [(None, parts)] if parts else []
    others = {part: column for part, column in parts.items() if part != _REAL}
    reals = {**others, _VALUE: parts[_REAL]}
    if _VALUE not in others:
        return [(None, reals)]
    if cols.to_arrow(parts[_REAL]).null_count == len(parts[_REAL]):
        return [(None, others)]
    known = cols.to_arrow(others[_VALUE]).is_valid().to_numpy(zero_copy_only=False)
    if not known.any():
        return [(None, reals)]
    rows, rest = np.flatnonzero(known), np.flatnonzero(~known)
    return [(rows, _taken(others, rows)), (rest, _taken(reals, rest))]


def _taken(columns: Mapping[str, Column], rows: Slots) -> dict[str, Column]:
    """Some rows of columns."""
    return {name: cols.as_column(cols.take(column, rows)) for name, column in columns.items()}


def _is_known(column: str, known: Mapping[str, set[str]]) -> bool:
    """Whether a column of a snapshot belongs to a key or an aggregate of that name."""
    what, _, name = column.partition(".")
    return name in known.get(what, ()) or (
        what == "of" and any(name.startswith(f"{aggregate}.") for aggregate in known[what])
    )
