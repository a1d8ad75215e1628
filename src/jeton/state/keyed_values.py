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
from jeton.state.key_place import KeyPlace
from jeton.state.python_values import StateCodec, brought_back, require_codec, stored
from jeton.state.snapshot import BIN, bins_of

V = TypeVar("V")


class KeyedValues(MutableMapping[Any, V], Generic[V]):
    """A dictionary from keys to values that takes part in snapshots.

    A key is an integer, a floating-point number, text, bytes, a boolean or ``None``; a tuple of
    them stands for several columns. As in a column, all keys are of one type.
    After a restart on any number of workers an entry is where ``Exchange`` with those columns
    sends the records of its key; so these columns must be the key of the operator's ``Exchange``.
    Behind ``Gather()`` all entries are on the first worker. Values are plain Python values:
    numbers, text, bytes, lists, tuples, dictionaries, sets, times and similar. With ``type=``, an
    Arrow type, they are stored as such, which takes less room and time. For other objects,
    ``state_codec=`` says how they are stored: an object with ``encode(value)`` and
    ``decode(bytes)``, or ``"pickle"``, which docs/security.md explains.

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

    __slots__ = ("_codec", "_kinds", "_place", "_type", "_values")

    def __init__(
        self, *, type: pa.DataType | None = None, state_codec: StateCodec = "plain"
    ) -> None:
        self._codec = require_codec(state_codec)
        self._kinds = KeyKinds()
        self._values: dict[Any, V] = {}
        self._type = type
        self._place = KeyPlace()

    def get_or(self, key: Any, make: Callable[[], V]) -> V:
        """The value of ``key``, made if there is none."""
        try:
            return self[key]
        except KeyError:
            value = self[key] = make()
            return value

    def __getitem__(self, key: Any) -> V:
        if not self._kinds.fits(key):
            raise KeyError(key)
        return self._values[one_nan(key)]

    def __setitem__(self, key: Any, value: V) -> None:
        if not self._values:
            self._kinds.reset()
        found = one_nan(key)
        if found not in self._values or not self._kinds.fits(key):
            self._kinds.admit(key)
        self._values[found] = value

    def __delitem__(self, key: Any) -> None:
        if not self._kinds.fits(key):
            raise KeyError(key)
        del self._values[one_nan(key)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"KeyedValues({self._values!r})"

    def placed_at(self, place: KeyPlace) -> None:
        """Say where this container is, and how records come there: `keep` does."""
        self._place = place

    def snapshot(self) -> pa.Table:
        """All entries, with the bins of their keys."""
        keys, values = list(self._values), list(self._values.values())
        table = entries_table(keys, values, self._type, self._codec)
        return self._place.placed(table)

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The entries again."""
        self._place.require_known(state)
        for key, value in zip(*entries(state, self._type, self._codec), strict=True):
            self[key] = value


_NAN: Final = float("nan")


def one_nan(key: Any) -> Any:
    """A key in which every NaN is the same, as it is for ``Exchange``."""
    if isinstance(key, tuple):
        return tuple(map(one_nan, key)) if any(part != part for part in key) else key
    return _NAN if key != key else key


class KeyKinds:
    """The kinds of values that keys have had: as in a column, one kind for each part of a key.

    Python takes 1, 1.0 and True for the same key, but they are not for ``Exchange``. So a key of
    another kind than those before is refused, and is never found.

    >>> kinds = KeyKinds()
    >>> kinds.admit(1)
    >>> kinds.fits(2), kinds.fits(True), kinds.fits(1.0)
    (True, False, False)
    """

    __slots__ = ("_admitted", "_fits", "_kinds", "_signs")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all kinds: there are no keys."""
        self._kinds: list[str | None] | None = None
        """Whether keys are tuples, and the kind of each part, ``None`` if it has only been null."""
        self._signs: dict[int, int] = {}
        """For parts with integers outside of 0 to 2**63 - 1, the first one of these."""
        self._fits: dict[Any, bool] = {}
        """Whether keys of Python types fit."""
        self._admitted: set[Any] = set()
        """The Python types of keys so far."""

    def fits(self, key: Any) -> bool:
        """Whether a key can be equal to one of those admitted."""
        types = _types(key)
        found = self._fits.get(types)
        if found is None:
            found = self._fits[types] = self._merged(key) is not None
        return found

    def admit(self, key: Any) -> None:
        """Take a key that was not there before, or refuse it."""
        types = _types(key)
        if types not in self._admitted:
            kinds = self._merged(key)
            if kinds is None:
                raise SnapshotError(
                    f"{key!r} cannot be a key beside others, which are {self._described()}: as in "
                    "a column, each part of a key has one type. Convert it first"
                )
            if kinds != self._kinds:
                self._kinds = kinds
                self._fits.clear()
            self._admitted.add(types)
        for at, part in enumerate(_parts(key)):
            if isinstance(part, str):
                _require_text(part)
            elif isinstance(part, (int, np.integer)):
                self._require_word(at, int(part))

    def _merged(self, key: Any) -> list[str | None] | None:
        """The kinds with those of a key, or ``None`` if it does not fit."""
        given: list[str | None] = ["tuples" if isinstance(key, tuple) else "values"]
        given += [_kind_of(key, part) for part in _parts(key)]
        if self._kinds is None:
            return given
        if len(given) != len(self._kinds):
            return None
        pairs = list(zip(given, self._kinds, strict=True))
        if any(one != other and one and other for one, other in pairs):
            return None
        return [one or other for one, other in pairs]

    def _require_word(self, at: int, number: int) -> None:
        """Refuse integers of which no type of 64 bits holds all."""
        if not -(2**63) <= number < 2**64:
            raise SnapshotError(f"{number} cannot be a key: integers have 64 bits at most")
        if number < 0 or number >= 2**63:
            other = self._signs.setdefault(at, number)
            if (other < 0) is not (number < 0):
                raise SnapshotError(
                    f"{number} cannot be a key beside {other}: no type of 64 bits holds both"
                )

    def _described(self) -> str:
        first, *parts = [kind or "null" for kind in self._kinds or ["values"]]
        return f"{first} of type {', '.join(parts)}"


_KINDS: Final[Sequence[tuple[tuple[type, ...], str | None]]] = (
    ((bool, np.bool_), "bool"),
    ((int, np.integer), "int"),
    ((float, np.floating), "float"),
    ((str,), "str"),
    ((bytes,), "bytes"),
    ((type(None),), None),
)


def _kind_of(key: Any, part: Any) -> str | None:
    """The kind of a part of a key; refused if it has no bin, or another than in ``Exchange``."""
    for types, kind in _KINDS:
        if isinstance(part, types):
            return kind
    raise SnapshotError(
        f"{key!r} cannot be a key here: {type(part).__name__} is not a type of keys. Use int, "
        "float, str, bytes, bool, None or tuples of them. Convert the column that Exchange names "
        "to one of these types before this operator, a date to text for example, and use its values"
    )


def _types(key: Any) -> Any:
    return tuple(map(type, key)) if isinstance(key, tuple) else type(key)


def _parts(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _require_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise SnapshotError(f"{text!r} cannot be a key: {error}") from error


def entries_table(
    keys: Sequence[Any],
    values: Sequence[Any],
    type: pa.DataType | None,
    codec: StateCodec,
) -> pa.Table:
    """Keys, one column for each of their parts, values, and the keys' bins."""
    if not keys:
        return pa.table({BIN: pa.array([], pa.uint16())})
    single = not isinstance(keys[0], tuple)
    parts = [keys] if single else list(zip(*keys, strict=True))
    try:
        columns = [_column(part) for part in parts]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SnapshotError(f"Arrow cannot hold these keys: {error}") from error
    names = ["key"] if single else [f"key.{index}" for index in range(len(parts))]
    return pa.table(
        {
            BIN: _bins(columns, len(keys)),
            **dict(zip(names, columns, strict=True)),
            "value": stored(values, type, codec),
        }
    )


def entries(
    table: pa.Table, type: pa.DataType | None, codec: StateCodec
) -> tuple[Iterable[Any], Iterable[Any]]:
    """The keys and values of such a table."""
    if table.num_rows == 0:
        return (), ()
    values = brought_back(table.column("value"), type, codec)
    if "key" in table.column_names:
        return table.column("key").to_pylist(), values
    parts = [name for name in table.column_names if name.startswith("key.")]
    columns = [table.column(name).to_pylist() for name in parts]
    return (zip(*columns, strict=True) if columns else ((),) * len(values)), values


def _bins(columns: Sequence[pa.Array], rows: int) -> npt.NDArray[np.uint16]:
    if not columns:
        return bins_of([np.zeros(rows, dtype=np.int64)])
    return bins_of([as_column(column) for column in columns])


def _column(values: Sequence[Any]) -> pa.Array:
    """A column of keys; Arrow does not find the type of integers beyond int64 by itself."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    beyond = any(type(value) is int and value >= 2**63 for value in plain)
    return pa.array(plain, pa.uint64() if beyond else None)
