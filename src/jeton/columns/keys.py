"""Keys: a stable 64-bit hash of one or more columns, the same in every process and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import compiled as nb
from jeton.columns.column import Column, as_key, is_text, plain
from jeton.core.errors import BatchError

Hashes = npt.NDArray[np.uint64]

_NULL = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 1024
"""Keys that are hashed before their places are looked up: few enough for the fastest cache."""


def hash_columns(columns: Sequence[Column], seed: int = 0) -> Hashes:
    """One hash for each record. Nulls are equal to each other and to nothing else.

    Hashes with different seeds are independent of each other.

    >>> bool((hash_columns([np.array([1, 2])]) == hash_columns([np.array([1, 2])])).all())
    True
    """
    start = np.uint64(seed * 0x9E3779B97F4A7C15 & 0xFFFF_FFFF_FFFF_FFFF)
    combined: Hashes | None = None
    for column in columns:
        hashes = _hash_column(as_key(column), start)
        if combined is None:
            combined = hashes
        else:
            require_rows(len(combined), len(hashes))
            combined = _combine(combined, hashes)
    if combined is None:
        raise BatchError("a key needs at least one column")
    return combined


def require_rows(rows: int, found: int) -> None:
    """Refuse a key column that does not have as many rows as there are keys."""
    if found != rows:
        raise BatchError(f"a key column has {found} rows, but there are {rows} keys")


def _not_keys(kind: object) -> BatchError:
    """The error for values of a type that keys cannot have."""
    return BatchError(
        f"values of type {kind} cannot be keys: keys are integers, floating-point numbers, "
        "decimals, booleans, text, bytes, dates, times or durations. Make columns of such a type "
        "from the parts of these values, or text of the whole, and use them as the key"
    )


def _hash_column(column: Column, start: np.uint64) -> Hashes:
    if isinstance(column, np.ndarray):
        mixed: Hashes = _mix(plain(_as_words(column)), start)
        return mixed
    if len(column) == 0:  # of a type that is perhaps not known
        return np.empty(0, dtype=np.uint64)
    if pa.types.is_dictionary(column.type):
        return _hash_column(column.dictionary_decode(), start)
    if pa.types.is_null(column.type):
        return np.full(len(column), _NULL ^ start, dtype=np.uint64)
    if not column.null_count:
        return _hash_values(column, start)
    hashes = np.full(len(column), _NULL ^ start, dtype=np.uint64)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if valid.any():
        hashes[valid] = _hash_values(column.drop_null(), start)
    return hashes


def _hash_values(column: pa.Array, start: np.uint64) -> Hashes:
    """Hashes of an Arrow array without nulls."""
    kind = column.type
    if is_bytes(kind):
        return _hash_text(column, start)
    if pa.types.is_decimal(kind):
        return _hash_text(pc.cast(column, pa.string()), start)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        column = column.cast(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise _not_keys(kind)
    mixed: Hashes = _mix(plain(_as_words(column.to_numpy(zero_copy_only=False))), start)
    return mixed


def _as_words(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """The values as 64-bit words: equal values of any width become equal words."""
    kind = values.dtype.kind
    if kind == "f":
        # -0.0 equals 0.0, and every NaN is the same key.
        wide = values.astype(np.float64) + 0.0
        wide[np.isnan(wide)] = np.nan
        return wide.view(np.uint64)
    if kind in "mM":
        return values.view(np.int64).view(np.uint64)
    if kind in "iub":
        return plain(values.astype(np.int64, copy=False)).view(np.uint64)
    raise _not_keys(values.dtype)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values of a type are text or binary: equal if their bytes are."""
    return bool(
        is_text(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def key_family(kind: pa.DataType) -> object:
    """The property that comparable keys share: all integers do, timestamps only of one unit.

    >>> key_family(pa.int8()) == key_family(pa.uint32())
    True
    >>> key_family(pa.int64()) == key_family(pa.float64())
    False
    """
    types = pa.types
    if types.is_dictionary(kind):
        return key_family(kind.value_type)
    if types.is_integer(kind):
        return "integers"
    if types.is_floating(kind):
        return "floating-point numbers"
    if is_text(kind):
        return "text"
    if is_bytes(kind):
        return "bytes"
    if types.is_decimal(kind):
        return f"decimals with {kind.scale} digits"
    return str(kind)


def _hash_text(column: pa.Array, start: np.uint64) -> Hashes:
    hashes: Hashes = _hash_bytes(*bytes_of(column), start)
    return hashes


def bytes_of(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """The bytes of text or binary values, and where each value starts; at the end, the end.

    >>> ends, letters = bytes_of(pa.array(["to", "be"]))
    >>> ends, letters.tobytes()
    (array([0, 2, 4]), b'tobe')
    """
    wide = column.cast(pa.large_binary())
    _, offsets, data = wide.buffers()
    ends, letters = np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.uint8)
    if offsets is not None and len(wide):
        ends = np.frombuffer(offsets, dtype=np.int64)[wide.offset : wide.offset + len(wide) + 1]
    if data:
        letters = np.frombuffer(data, dtype=np.uint8)
    # Always read-only, so that compiled loops have one version.
    ends.flags.writeable = letters.flags.writeable = False
    return ends, letters


def same_values(left: Column, right: Column) -> npt.NDArray[np.bool_]:
    """Which values of two columns are the same key, row by row.

    Nulls are equal to each other, and so are NaN; -0.0 equals 0.0.

    >>> same_values(pa.array([1.0, None, 2.0]), pa.array([1.0, None, None])).tolist()
    [True, True, False]
    """
    require_rows(len(left), len(right))
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        same = left == right
        if left.dtype.kind == "f" and right.dtype.kind == "f":
            same |= np.isnan(left) & np.isnan(right)
        return np.asarray(same, dtype=np.bool_)
    one, other = _plain_arrow(left), _plain_arrow(right)
    nulls = one.is_null().to_numpy(zero_copy_only=False)
    same = nulls & other.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_null(one.type) or pa.types.is_null(other.type):
        return np.asarray(same, dtype=np.bool_)
    if one.type != other.type:
        fields = [pa.schema([("key", array.type)]) for array in (one, other)]
        try:
            common = pa.unify_schemas(fields, promote_options="permissive").field(0).type
            one, other = one.cast(common), other.cast(common)
        except pa.ArrowException:
            return np.asarray(same, dtype=np.bool_)
    equal = pc.equal(one, other)
    if pa.types.is_floating(one.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    same |= equal.fill_null(False).to_numpy(zero_copy_only=False)
    return np.asarray(same, dtype=np.bool_)


def is_float(column: Column) -> bool:
    """Whether a column has floating-point numbers, of which some are equal but not the same."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind == "f"
    return bool(pa.types.is_floating(column.type))


def one_form(column: Column) -> Column:
    """A column in which values that are the same key look the same: 0.0 has one sign.

    >>> one_form(np.array([-0.0, 1.0]))
    array([0., 1.])
    """
    if isinstance(column, np.ndarray):
        if column.dtype.kind != "f":
            return column
        numbers: npt.NDArray[Any] = column + column.dtype.type(0)
        numbers[np.isnan(numbers)] = np.nan
        return numbers
    if not pa.types.is_floating(column.type):
        return column
    unknown = column.is_null().to_numpy(zero_copy_only=False)
    wide = one_form(column.cast(pa.float64()).fill_null(0.0).to_numpy())
    return pa.array(wide, mask=unknown).cast(column.type)


def _plain_arrow(column: Column) -> pa.Array:
    array = pa.array(column) if isinstance(column, np.ndarray) else column
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_float16(array.type):
        return array.cast(pa.float32())
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(array.type) else array


@nb.njit(cache=True, inline="always")
def _mix_word(word: np.uint64) -> np.uint64:
    """Scatter a word's bits over all 64 (multiply, shift, twice)."""
    word = (word ^ (word >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    word = (word ^ (word >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return word ^ (word >> np.uint64(32))


@nb.njit(cache=True)
def _mix(words: Hashes, start: np.uint64) -> Hashes:
    out = np.empty(len(words), np.uint64)
    for i in range(len(words)):
        out[i] = _mix_word(words[i] + start)
    return out


@nb.njit(cache=True)
def rows_in_bins(
    words: Hashes, chosen: npt.NDArray[np.bool_], *, mixed: bool
) -> npt.NDArray[np.int64]:
    """The rows whose bins are chosen: words are hashes if they are ``mixed``, else integer keys."""
    mask = np.uint64(len(chosen) - 1)
    rows = np.empty(len(words), np.int64)
    found = 0
    for i in range(len(words)):
        word = words[i]
        if chosen[(word if mixed else _mix_word(word)) & mask]:
            rows[found] = i
            found += 1
    return rows[:found].copy()


@nb.njit(cache=True)
def _combine(left: Hashes, right: Hashes) -> Hashes:
    out = np.empty(len(left), np.uint64)
    for i in range(len(left)):
        out[i] = _mix_word(left[i] * np.uint64(31) + right[i])
    return out


@nb.njit(cache=True, inline="always")
def eight_bytes(data, at):  # type: ignore[no-untyped-def]
    """Eight bytes as one word, the first one highest: a single load, as it is compiled."""
    return (
        (np.uint64(data[at]) << np.uint64(56))
        | (np.uint64(data[at + np.uint64(1)]) << np.uint64(48))
        | (np.uint64(data[at + np.uint64(2)]) << np.uint64(40))
        | (np.uint64(data[at + np.uint64(3)]) << np.uint64(32))
        | (np.uint64(data[at + np.uint64(4)]) << np.uint64(24))
        | (np.uint64(data[at + np.uint64(5)]) << np.uint64(16))
        | (np.uint64(data[at + np.uint64(6)]) << np.uint64(8))
        | np.uint64(data[at + np.uint64(7)])
    )


@nb.njit(cache=True)
def _hash_bytes(
    ends: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], start: np.uint64
) -> Hashes:
    out = np.empty(len(ends) - 1, np.uint64)
    for i in range(len(out)):
        at, end = np.uint64(ends[i]), np.uint64(ends[i + 1])
        state = (end - at) + start
        while at + np.uint64(8) <= end:
            state = _mix_word(state * np.uint64(31) + eight_bytes(data, at))
            at += np.uint64(8)
        word = np.uint64(0)
        while at < end:
            word = (word << np.uint64(8)) | np.uint64(data[at])
            at += np.uint64(1)
        out[i] = _mix_word(state * np.uint64(31) + word)
    return out


@nb.njit(cache=True)
def _two_groups(
    numbers: npt.NDArray[Any],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`group_order` of two groups, in a third of the time: both ends are kept in registers."""
    second = np.uint64(0)
    for i in range(len(numbers)):
        second += np.uint64(numbers[i])
    order = np.empty(len(numbers), np.int64)
    first_end, second_end = np.uint64(0), np.uint64(len(numbers)) - second
    counts = np.empty(3, np.int64)
    counts[0], counts[1], counts[2] = 0, second_end, len(numbers)
    for i in range(len(numbers)):
        number = np.uint64(numbers[i])
        # A choice of places, without a branch, which could not be predicted.
        order[second_end if number else first_end] = i
        first_end += np.uint64(1) - number
        second_end += number
    return order, counts


@nb.njit(cache=True)
def group_order(
    numbers: npt.NDArray[Any], groups: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Records grouped by number, each group in its original order.

    Returns the order and, for each group, where it starts (and the total at the end).
    """
    if groups == 2:
        halves: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] = _two_groups(numbers)
        return halves
    counts = np.zeros(groups + 1, np.int64)
    for i in range(len(numbers)):
        counts[numbers[i] + 1] += 1
    for group in range(groups):
        counts[group + 1] += counts[group]
    order = np.empty(len(numbers), np.int64)
    at = counts.copy()
    for i in range(len(numbers)):
        group = numbers[i]
        order[at[group]] = i
        at[group] += 1
    return order, counts


@nb.njit(cache=True)
def scatter(
    columns: tuple[npt.NDArray[np.int64], ...],
    to: npt.NDArray[np.uint16],
    starts: npt.NDArray[np.int64],
    out: tuple[npt.NDArray[np.int64], ...],
) -> None:
    """Fill in the values of columns grouped by place: those of all columns in one pass.

    ``to`` has the place of each record, and ``starts`` where each place starts: see `deal_words`.
    """
    rows = len(to)
    if len(starts) == 3:
        # Of two places, counting the records of one is enough: without a branch or a table.
        second, start = np.uint64(0), np.uint64(starts[1])
        for i in range(rows):
            place = np.uint64(to[i])
            at = start + second if place else np.uint64(i) - second
            second += place
            for j in range(len(columns)):
                out[j][at] = columns[j][i]
        return
    next_at = starts.astype(np.uint64)
    for i in range(rows):
        at = next_at[to[i]]
        next_at[to[i]] = at + np.uint64(1)
        for j in range(len(columns)):
            out[j][at] = columns[j][i]


@nb.njit(cache=True)
def _starts(to: npt.NDArray[np.uint16], places: int) -> npt.NDArray[np.int64]:
    """Where the records of each place start, and their number at the end."""
    starts = np.zeros(places + 1, np.int64)
    if places == 2:
        second = np.uint64(0)
        for i in range(len(to)):
            second += np.uint64(to[i])
        starts[1], starts[2] = len(to) - second, len(to)
        return starts
    for i in range(len(to)):
        starts[np.uint64(to[i]) + np.uint64(1)] += 1
    for place in range(places):
        starts[place + 1] += starts[place]
    return starts


@nb.njit(cache=True)
def deal_hashes(
    hashes: Hashes, owners: npt.NDArray[np.uint16], places: int
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """The place of each record, which owns its bin, and where each starts among all in order.

    The number of bins is a power of two.
    """
    mask = np.uint64(len(owners) - 1)
    to = np.empty(len(hashes), np.uint16)
    for i in range(len(hashes)):
        to[i] = owners[hashes[i] & mask]
    return to, _starts(to, places)


@nb.njit(cache=True)
def deal_words(
    words: npt.NDArray[np.int64], owners: npt.NDArray[np.uint16], places: int
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """The same for a single column of integers, hashed on the way: see `deal_hashes`."""
    mask = np.uint64(len(owners) - 1)
    to = np.empty(len(words), np.uint16)
    bins = np.empty(_BLOCK, np.uint32)
    for start in range(0, len(words), _BLOCK):
        some, found = words[start : start + _BLOCK], to[start : start + _BLOCK]
        # A loop of its own: where nothing is looked up, many words are hashed at a time.
        for i in range(len(some)):
            bins[i] = _mix_word(np.uint64(some[i])) & mask
        for i in range(len(some)):
            found[i] = owners[bins[i]]
    return to, _starts(to, places)


@nb.njit(cache=True)
def deal_spread(
    hashes: Hashes,
    owners: npt.NDArray[np.uint16],
    workers: int,
    spread: int,
    turn: int,
    counts: npt.NDArray[np.int64],
    total: int,
    hot: int,
    recent: int,
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64], int]:
    """The same, with two places for each worker: for records of bins that it owns, and for guests.

    Guests have a hot key, and go to one of the ``spread - 1`` workers after its owner. A key is
    hot if ``hot`` times its count is more than the total. ``counts`` has the latest records by the
    lower bits of their hashes; there are ``total``, and all are halved at ``recent``. The choice is
    scattered by the number of a record, of which ``turn`` is the first, so that no pattern in the
    order of records meets it. Returns also the new total.
    """
    mask, lower = np.uint64(len(owners) - 1), np.uint64(len(counts) - 1)
    to = np.empty(len(hashes), np.uint16)
    for i in range(len(hashes)):
        word = hashes[i]
        owner = np.int64(owners[word & mask])
        count = counts[word & lower] + 1
        counts[word & lower] = count
        total += 1
        # The upper half of a scattered word: from 0 to 2**32, scaled to the number of workers.
        number = _mix_word(np.uint64(turn + i + 1) * np.uint64(0x9E3779B97F4A7C15))
        salt = np.int64(((number >> np.uint64(32)) * np.uint64(spread)) >> np.uint64(32))
        # Without branches, since which records are hot cannot be predicted.
        salt *= np.int64(count * hot > total)
        worker = owner + salt
        worker -= workers * np.int64(worker >= workers)
        to[i] = worker + workers * np.int64(salt > 0)
        if total >= recent:
            counts //= 2
            total //= 2
    return to, _starts(to, 2 * workers), total
