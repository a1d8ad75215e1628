"""KeyedValues: a dictionary for hand-written operators whose entries follow their keys' bins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns.column import as_column
from jeton.core.errors import SnapshotError
from jeton.core.tokens import TimestampToken
from jeton.state.python_values import brought_back, stored
from jeton.state.snapshot import BIN, bins_of

V = TypeVar("V")

_KEY_TYPES: Final = (int, str, float, bytes, bool, np.integer, np.floating, np.bool_, type(None))


class KeyedValues(MutableMapping[Any, V], Generic[V]):
    """A dictionary from keys to values that takes part in snapshots.

    A key is an integer, text or another plain value; a tuple of them stands for several columns.
    After a restart on any number of workers an entry is where ``Exchange`` with those columns
    sends the records of its key. Values can be anything that can be pickled; with ``type=``, an
    Arrow type, they are stored as such, which takes less room and time.

    >>> import jeton as jt
    >>> def only_new_maxima(token, info):  # passes on what is greater than all before of its key
    ...     token.drop()
    ...     greatest = jt.state.KeyedValues()
    ...     info.keep(greatest)
    ...
    ...     def step(input, output):
    ...         for ref, batch in input:
    ...             for row in batch.rows():
    ...                 if row["n"] > greatest.get(row["key"], 0):
    ...                     greatest[row["key"]] = row["n"]
    ...                     output.session(ref, row.pop("time")).give(row)
    ...
    ...     return step
    >>> flow = jt.Flow("maxima")
    >>> rows = flow.input("rows")
    >>> flow.output("maxima", rows.unary(only_new_maxima, pact=jt.Exchange("key")))
    >>> with flow.open(workers=2) as run:
    ...     run.input("rows").send({"time": [0, 0], "key": ["a", "b"], "n": [5, 7]})
    ...     run.run_to_rest()
    ...     snapshot = run.snapshot()
    >>> with flow.open(workers=3, restore=snapshot) as run:
    ...     run.input("rows").send({"time": [1, 1], "key": ["a", "b"], "n": [6, 6]})
    ...     run.finish()["maxima"].to_pylist()
    [{'time': 1, 'key': 'a', 'n': 6}]
    """

    __slots__ = ("_type", "_values")

    def __init__(self, *, type: pa.DataType | None = None) -> None:
        self._values: dict[Any, V] = {}
        self._type = type

    def get_or(self, key: Any, make: Callable[[], V]) -> V:
        """The value of ``key``, made if there is none."""
        try:
            return self[key]
        except KeyError:
            value = self[key] = make()
            return value

    def __getitem__(self, key: Any) -> V:
        return self._values[one_nan(key)]

    def __setitem__(self, key: Any, value: V) -> None:
        key = one_nan(key)
        if key not in self._values:
            check_key(key)
        self._values[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._values[one_nan(key)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"KeyedValues({self._values!r})"

    def snapshot(self) -> pa.Table:
        """All entries, with the bins of their keys."""
        return entries_table(list(self._values), list(self._values.values()), self._type)

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The entries again."""
        for key, value in zip(*entries(state), strict=True):
            self._values[one_nan(key)] = value


_NAN: Final = float("nan")


def one_nan(key: Any) -> Any:
    """A key in which every NaN is the same, as it is for ``Exchange``."""
    if isinstance(key, tuple):
        return tuple(map(one_nan, key)) if any(part != part for part in key) else key
    return _NAN if key != key else key


def check_key(key: Any) -> None:
    """Refuse keys that have no bin, or another one than ``Exchange`` would give them."""
    parts = key if isinstance(key, tuple) else (key,)
    for part in parts:
        if not isinstance(part, _KEY_TYPES):
            raise SnapshotError(
                f"{key!r} cannot be a key here: use integers, text, or tuples of them"
            )


def entries_table(
    keys: Sequence[Any], values: Sequence[Any], type: pa.DataType | None = None
) -> pa.Table:
    """Keys, one column for each of their parts, values, and the keys' bins."""
    if not keys:
        return pa.table({BIN: pa.array([], pa.uint16())})
    single = not isinstance(keys[0], tuple)
    parts = [keys] if single else list(_columns(keys))
    try:
        columns = [pa.array([_plain(v) for v in part]) for part in parts]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SnapshotError(f"Arrow cannot hold these keys: {error}") from error
    names = ["key"] if single else [f"key.{index}" for index in range(len(parts))]
    return pa.table(
        {
            BIN: _bins(columns, len(keys)),
            **dict(zip(names, columns, strict=True)),
            "value": stored(values, type),
        }
    )


def entries(table: pa.Table) -> tuple[Iterable[Any], Iterable[Any]]:
    """The keys and values of such a table."""
    if table.num_rows == 0:
        return (), ()
    values = brought_back(table.column("value"))
    if "key" in table.column_names:
        return table.column("key").to_pylist(), values
    parts = [name for name in table.column_names if name.startswith("key.")]
    columns = [table.column(name).to_pylist() for name in parts]
    return (zip(*columns, strict=True) if columns else ((),) * len(values)), values


def _columns(keys: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    if any(not isinstance(key, tuple) or len(key) != len(keys[0]) for key in keys):
        raise SnapshotError("some keys are tuples of one length and some are not: use one kind")
    return zip(*keys, strict=True)


def _bins(columns: Sequence[pa.Array], rows: int) -> npt.NDArray[np.uint16]:
    if not columns:
        return bins_of([np.zeros(rows, dtype=np.int64)])
    return bins_of([as_column(column) for column in columns])


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
