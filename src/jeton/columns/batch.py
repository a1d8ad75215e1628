"""Batches: columns of equal length, one row for each record, each record with its own time."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns import show, time_columns
from jeton.columns.column import Column, as_column, bare, is_text
from jeton.columns.keys import group_order, scatter
from jeton.columns.series import Series
from jeton.columns.time_arithmetic import extent
from jeton.columns.time_columns import Times
from jeton.columns.time_units import INTEGER, stamped, unit_of
from jeton.core.errors import BatchError, MissingColumn
from jeton.core.times import IntegerTimes, Time, TimeKind

_INTEGERS = IntegerTimes()

_WORDS = np.dtype(np.int64)
_FEW = 1024
"""Records of which all columns are gathered, since the loop that scatters has a fixed cost."""
_SCATTERED = 4
"""Columns of 8 bytes that are scattered together; more are gathered faster, one by one."""

_INTERNAL = frozenset(
    (
        *("at", "beside", "bound_from", "conform", "extent", "named", "plus", "scattered"),
        *("trusted", "unit"),
    )
)
"""Names for the library's own use, which completions leave out."""


class Batch:
    """Columns of equal length and a time for each record.

    The time column has a name, under which it can be read like any other: timestamps, if the times
    are. `times` are the same as integers, in the unit of the flow. They are changed only by sending
    records at other times.

    >>> batch = Batch({"value": [1.5, 2.5, 4.0]}, times=[3, 7, 12])
    >>> len(batch), batch["value"].sum(), batch["time"].to_list()
    (3, np.float64(8.0), [3, 7, 12])
    >>> batch.filter(batch["value"] > 2).rows()
    [{'time': 7, 'value': 2.5}, {'time': 12, 'value': 4.0}]
    """

    __slots__ = ("_bound", "columns", "time_name", "times", "unit")

    columns: dict[str, Column]
    times: Times
    time_name: str
    unit: str | None
    """The unit of times, if known: see `jeton.columns.time_units`."""

    def __init__(
        self,
        columns: Mapping[str, Any],
        times: Any,
        *,
        time_name: str = "time",
        kind: TimeKind = _INTEGERS,
    ) -> None:
        self.columns = {name: as_column(values) for name, values in columns.items()}
        self.unit = None
        if kind.integers:
            times, self.unit = _plain_stamps(times, time_name)
        self.times = time_columns.as_times(kind, times)
        self.time_name = time_name
        self._bound: Time | None = None
        for name, column in self.columns.items():
            if len(column) != len(self.times):
                raise BatchError(
                    f"column {name!r} has {len(column)} values, but there are "
                    f"{len(self.times)} times: all columns need one value for each record"
                )
        if time_name in self.columns:
            raise BatchError(f"{time_name!r} is the time column: it cannot be a value column too")

    @classmethod
    def trusted(
        cls,
        columns: dict[str, Column],
        times: Times,
        time_name: str = "time",
        bound: Time | None = None,
        unit: str | None = None,
    ) -> Batch:
        """A batch from parts that are known to fit: no checks, no copies."""
        batch = cls.__new__(cls)
        batch.columns = columns
        batch.times = times
        batch.time_name = time_name
        batch._bound = bound
        batch.unit = unit
        return batch

    @classmethod
    def from_arrow(
        cls, data: pa.Table | pa.RecordBatch, *, time: str = "time", kind: TimeKind = _INTEGERS
    ) -> Batch:
        """A batch from an Arrow table; ``time`` names its time column.

        >>> table = pa.table({"ts": [1, 2], "word": ["a", "b"]})
        >>> Batch.from_arrow(table, time="ts").names
        ('word',)
        """
        names = data.schema.names
        cols.require_unique(names, "this table")
        if data.num_rows == 0:
            # Arrow does not know the type of no values: an empty table has times of any kind.
            none = cls(
                {n: data.column(n) for n in names if n != time}, [], time_name=time, kind=kind
            )
            if time in names and kind.integers:
                none.unit = unit_of(data.schema.field(time).type)
            return none
        if time not in names:
            raise MissingColumn(_no_times(time, data.schema))
        stamps = data.column(time)
        batch = cls(
            {name: data.column(name) for name in names if name != time},
            stamps if kind.integers else _plain_stamps(stamps, time)[0],
            time_name=time,
            kind=kind,
        )
        batch.unit = unit_of(stamps.type) if kind.integers else None
        return batch

    def to_arrow(self) -> pa.Table:
        """An Arrow table: the time column first, then the others.

        >>> Batch({"word": ["a"]}, times=[3]).to_arrow().to_pylist()
        [{'time': 3, 'word': 'a'}]
        """
        times = stamped(self.times, self.unit)
        stamps = times if isinstance(times, pa.Array) else time_columns.to_arrow(times)
        arrays = {self.time_name: stamps}
        arrays |= {name: cols.to_arrow(column) for name, column in self.columns.items()}
        return pa.table(arrays)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the value columns."""
        return tuple(self.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns and the times.

        >>> Batch({"value": [1.5, 2.5]}, times=[3, 7]).nbytes
        32
        """
        return int(sum([each.nbytes for each in self.columns.values()], self.times.nbytes))

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, name: str) -> Series:
        return Series(self.column(name))

    if not TYPE_CHECKING:
        # Only for its message: type checkers must go on to refuse what is not there.
        def __getattr__(self, name: str) -> NoReturn:
            hint = ""
            if not name.startswith("_") and name not in Batch.__slots__ and name in self:
                hint = f": its columns are read by name, batch[{name!r}]"
            raise AttributeError(f"a batch has no attribute {name!r}{hint}")

    def column(self, name: str) -> Column:
        """A column as it is kept: a NumPy array, or Arrow's for text and where there are nulls."""
        column = self.columns.get(name)
        if column is None:
            if name == self.time_name:
                return stamped(self.times, self.unit)
            raise MissingColumn(missing(name, (*self.columns, self.time_name)))
        return column

    def __contains__(self, name: object) -> bool:
        return name in self.columns or name == self.time_name

    def select(self, *names: str) -> Batch:
        """Only these value columns; times stay."""
        return self._with({name: self.column(name) for name in names if name != self.time_name})

    def with_columns(self, columns: Mapping[str, Any]) -> Batch:
        """Value columns added or replaced.

        >>> Batch({"x": [1, 2]}, times=[0, 0]).with_columns({"y": [3, 4]}).names
        ('x', 'y')
        """
        added = {name: as_column(values) for name, values in columns.items()}
        for name, column in added.items():
            if name == self.time_name:
                raise BatchError(f"{name!r} is the time column: use delay() to change times")
            if len(column) != len(self):
                raise BatchError(
                    f"column {name!r} has {len(column)} values, but the batch has {len(self)}"
                )
        return self._with({**self.columns, **added})

    def plus(self, columns: dict[str, Column]) -> Batch:
        """More value columns, which are known to fit: no checks."""
        made = {**self.columns, **columns}
        return Batch.trusted(made, self.times, self.time_name, self._bound, self.unit)

    def beside(self, other: Batch, suffix: str = "_right") -> Batch:
        """The columns of another batch beside these, with a suffix where a name is taken.

        >>> left, right = Batch({"x": [1]}, times=[5]), Batch({"x": [2], "y": [3]}, times=[0])
        >>> left.beside(right).rows()
        [{'time': 5, 'x': 1, 'x_right': 2, 'y': 3}]
        """
        columns = dict(self.columns)
        for name, column in other.columns.items():
            new = name + suffix if name in self else name
            if new in columns or new == self.time_name:
                raise BatchError(
                    f"two columns of the join would be called {new!r}: use another suffix=…, or "
                    "select() and rename before"
                )
            columns[new] = column
        return self._with(columns)

    def conform(self, schema: pa.Schema, what: str) -> Batch:
        """Exactly the columns of a schema, in its order and of its types; ``what`` is for errors.

        >>> batch = Batch({"n": np.array([1, 2], dtype=np.int8)}, times=[0, 0])
        >>> batch.conform(pa.schema({"n": pa.int64()}), "input 'n'")["n"].dtype
        dtype('int64')
        """
        columns, names = self.columns, schema.names
        if len(columns) != len(names) or any(name not in columns for name in names):
            for name in names:
                if name not in columns:
                    raise BatchError(f"{what}: {missing(name, (*columns, self.time_name))}")
            extra = ", ".join(repr(name) for name in columns if name not in names)
            raise BatchError(
                f"{what} got columns that its schema does not have: {extra}. Leave them out, or "
                "add them to schema="
            )
        return self._with({f.name: cols.conform(columns[f.name], f, what) for f in schema})

    def take(self, indices: npt.NDArray[np.intp]) -> Batch:
        """The records at ``indices``, in that order."""
        taken = {name: cols.take(column, indices) for name, column in self.columns.items()}
        times = self.times.take(indices, axis=0)
        return Batch.trusted(taken, times, self.time_name, self._bound, self.unit)

    def scattered(self, to: npt.NDArray[np.uint16], starts: npt.NDArray[np.int64]) -> Batch:
        """The records grouped by place, each group in its original order.

        ``to`` has the place of each record, and ``starts`` where each place starts, and the end.

        >>> batch = Batch({"x": [1, 2], "y": ["a", "b"]}, times=[3, 4])
        >>> batch.scattered(np.array([1, 0], np.uint16), np.array([0, 1, 2])).rows()
        [{'time': 4, 'x': 2, 'y': 'b'}, {'time': 3, 'x': 1, 'y': 'a'}]
        """
        times, columns = self.times, self.columns
        words = [name for name, column in columns.items() if _has_words(column)]
        few = len(to) < _FEW or len(words) > _SCATTERED
        if few or times.ndim != 1 or times.dtype != _WORDS:
            return self.take(group_order(to, len(starts) - 1)[0])
        given = [cols.plain(times)]
        for name in words:
            column = cols.plain(columns[name])
            given.append(column if column.dtype is _WORDS else column.view(_WORDS))
        # Made here: the type of a compiled loop's arrays is equal to NumPy's own, but not the same.
        moved = [np.empty(len(to), _WORDS) for _ in given]
        scatter(tuple(given), to, starts, tuple(moved))
        taken: dict[str, Column] = dict.fromkeys(columns, moved[0])
        for name, column in zip(words, moved[1:], strict=True):
            kind = columns[name].dtype
            taken[name] = column if kind is _WORDS else column.view(kind)
        if len(words) < len(columns):
            order, _ = group_order(to, len(starts) - 1)
            for name, column in columns.items():
                if name not in words:
                    taken[name] = cols.take(column, order)
        return Batch.trusted(taken, moved[0], self.time_name, self._bound, self.unit)

    def filter(self, mask: Any) -> Batch:
        """The records for which ``mask`` is true (a null counts as false)."""
        mask = bare(mask)
        if type(mask) is not np.ndarray or mask.dtype.kind != "b":
            if isinstance(mask, pa.Array | pa.ChunkedArray):
                mask = mask.fill_null(False).to_numpy(zero_copy_only=False)
            mask = np.asarray(mask, dtype=bool)
        if len(mask) != len(self):
            raise BatchError(f"the mask has {len(mask)} values, but the batch has {len(self)}")
        # One look at the mask, then every column is gathered: a mask is slow to index by.
        kept = mask.ravel().nonzero()[0]
        return self if len(kept) == len(self) else self.take(kept)

    def slice(self, start: int, stop: int) -> Batch:
        """The records from ``start`` up to ``stop``, uncopied."""
        part = {
            name: column[start:stop]
            if type(column) is np.ndarray
            else cols.cut(column, start, stop)
            for name, column in self.columns.items()
        }
        times = self.times[start:stop]
        return Batch.trusted(part, times, self.time_name, self._bound, self.unit)

    def split_by(self, of_times: Callable[[Times], Any]) -> Iterator[tuple[Any, Batch]]:
        """Parts with equal ``of_times(times)``, in ascending order of that value.

        ``of_times`` maps the whole time column at once, so window ends cost one pass:

        >>> batch = Batch({"v": [1, 2, 3]}, times=[3, 7, 12])
        >>> [(end, part.rows()) for end, part in batch.split_by(lambda t: (t // 10 + 1) * 10)]
        ... # doctest: +NORMALIZE_WHITESPACE
        [(10, [{'time': 3, 'v': 1}, {'time': 7, 'v': 2}]), (20, [{'time': 12, 'v': 3}])]
        """
        values = np.asarray(of_times(self.times))
        if len(values) != len(self):
            raise BatchError("split_by needs a function that gives one value for each time")
        if len(values) and (values[0] == values).all():
            yield _plain(values[0]), self
            return
        for value, indices in time_columns.groups(values):
            yield value, self.take(np.asarray(indices))

    def by_time(self) -> Iterator[tuple[Time, Batch]]:
        """Parts with one exact time each, in order."""
        for time, indices in time_columns.groups(self.times):
            part = self.take(np.asarray(indices))
            part._bound = time
            yield time, part

    def rows(self) -> list[dict[str, Any]]:
        """The records as dictionaries: for tests, for people, not for speed."""
        rows: list[dict[str, Any]] = self.to_arrow().to_pylist()
        return rows

    def bound_from(self, floor: Time) -> Time | None:
        """A lower bound of all times that is ``>= floor``; ``None`` if some time is not."""
        known = self._bound
        if known is not None and floor <= known:
            return known
        known = time_columns.lower_bound(self.times, floor)
        if known is not None:
            self._bound = known
        return known

    def extent(self) -> tuple[int, int]:
        """The least and the greatest time of records at integer times, of which there are some."""
        least, most = extent(cols.plain(self.times))
        self._bound = least
        return least, most

    def at(self, times: Times, bound: Time | None = None) -> Batch:
        """The same values at other times."""
        return Batch.trusted(self.columns, times, self.time_name, bound, self.unit)

    def named(self, time_name: str) -> Batch:
        """The same records with the time column under another name."""
        if time_name == self.time_name:
            return self
        return Batch.trusted(self.columns, self.times, time_name, self._bound, self.unit)

    def _with(self, columns: dict[str, Column]) -> Batch:
        return Batch.trusted(columns, self.times, self.time_name, self._bound, self.unit)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __str__(self) -> str:
        return show.as_text(self.to_arrow())

    def __repr__(self) -> str:
        return f"Batch of {show.rows(len(self))}\n{show.as_typed_text(self.to_arrow())}"

    def _repr_html_(self) -> str:
        return show.as_html(self.to_arrow(), f"Batch of {show.rows(len(self))}")


def _has_words(column: Column) -> bool:
    """Whether the values of a column have 8 bytes each."""
    return type(column) is np.ndarray and column.itemsize == 8


def concat(batches: Sequence[Batch]) -> Batch:
    """Batches with the same columns, one after the other.

    >>> len(concat([Batch({"x": [1]}, times=[0]), Batch({"x": [2]}, times=[5])]))
    2
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    names = first.columns.keys()
    for other in batches[1:]:
        if other.columns.keys() != names:
            raise BatchError(
                f"batches with columns {list(other.columns)} and {list(first.columns)} "
                "cannot be put together"
            )
    return Batch.trusted(
        {name: cols.join([b.columns[name] for b in batches], f"column {name!r}") for name in names},
        np.concatenate([batch.times for batch in batches]),
        first.time_name,
        unit=next((batch.unit for batch in batches if batch.unit is not None), None),
    )


def missing(name: str, present: tuple[str, ...], what: str = "column") -> str:
    """The message for a column that does not exist."""
    close = difflib.get_close_matches(name, present, n=1)
    hint = f": did you mean {close[0]!r}?" if close else ""
    return f"there is no {what} {name!r}{hint} (there are: {', '.join(map(repr, present))})"


def _no_times(name: str, schema: pa.Schema) -> str:
    """The message for a table without its time column, which names one that may be meant."""
    kinds = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_integer)
    likely = [field.name for is_kind in kinds for field in schema if is_kind(field.type)]
    text = missing(name, tuple(schema.names), "time column")
    if not likely or "did you mean" in text:
        return text
    return f"{text}: name the one that has the times, as in time={likely[0]!r}"


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _plain_stamps(times: Any, name: str) -> tuple[Any, str | None]:
    """Times without Arrow and Python's own types of them, and their unit if they have one."""
    times = bare(times)
    if isinstance(times, np.ndarray):
        return times, unit_of(times.dtype) if times.dtype.kind == "M" else None
    if isinstance(times, list) and times and isinstance(times[0], date):
        times = as_column(times)
    elif not isinstance(times, pa.Array | pa.ChunkedArray):
        return times, None
    unit = unit_of(times.dtype if isinstance(times, np.ndarray) else times.type)
    column = as_column(times)
    if not isinstance(column, np.ndarray):
        column = _plain_times(column, name)
    return column, None if unit == INTEGER else unit


def _plain_times(column: pa.Array, name: str) -> npt.NDArray[np.int64]:
    """Times from an Arrow column that is not plain NumPy: with a time zone, or dates."""
    if column.null_count:
        raise BatchError(
            f"the time column {name!r} has nulls ({column.null_count}): every record needs a time"
        )
    if pa.types.is_timestamp(column.type) or pa.types.is_date64(column.type):
        values: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
        return values
    if pa.types.is_date32(column.type):
        days: npt.NDArray[np.int64] = column.cast(pa.int32()).to_numpy().astype(np.int64)
        return days
    remedy = (
        "parse it first, as in pandas.to_datetime(…)" if is_text(column.type) else "cast it first"
    )
    raise BatchError(
        f"the time column {name!r} is of type {column.type}, and times are integers, timestamps or "
        f"dates: {remedy}"
    )
