"""Columns of times: one time for each record, for any kind of time.

Integer times are an ``int64`` array; products of integers a two-dimensional one, a row for each
record; times of the user's own an array of objects. The first axis is always the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.core.antichain import Antichain
from jeton.core.errors import TimeError
from jeton.core.summaries import Advance, Summary
from jeton.core.times import (
    END_OF_TIME,
    START_OF_TIME,
    IntegerTimes,
    Product,
    ProductTimes,
    Time,
    TimeKind,
    UserTimes,
)

Times: TypeAlias = npt.NDArray[Any]


def constant(kind: TimeKind, time: Time, length: int) -> Times:
    """The same time for each of ``length`` records.

    >>> constant(IntegerTimes(), 7, 2)
    array([7, 7])
    """
    if type(time) is int:
        return np.full(length, time, dtype=np.int64)
    if _plain_product(kind):
        return np.tile(np.array(time, dtype=np.int64), (length, 1))
    times = np.empty(length, dtype=object)
    times[:] = [time] * length
    return times


def as_times(kind: TimeKind, values: Any) -> Times:
    """Times of ``kind`` from an array or a list, checked.

    >>> as_times(ProductTimes(IntegerTimes()), [Product(1, 2), Product(3, 4)])
    array([[1, 2],
           [3, 4]])
    >>> as_times(IntegerTimes(), np.array([7, 2**63], np.uint64))
    Traceback (most recent call last):
    jeton.core.errors.TimeError: time 9223372036854775808 is outside ...
    """
    if isinstance(kind, IntegerTimes):
        array = np.asarray(values)
        if array.dtype.kind in "fO" and array.ndim == 1 and array is not values:
            # NumPy makes floats or objects of Python's integers if some are beyond 64 bits.
            array = np.fromiter(map(kind.check, values), np.int64, len(values))
        return _as_integers(kind, array)
    if _plain_product(kind):
        array = np.asarray(values, dtype=np.int64)
        if array.size == 0:
            array = array.reshape(0, kind.depth + 1)
        if array.ndim != 2 or array.shape[1] != kind.depth + 1:
            raise TimeError(f"times must have {kind.depth + 1} coordinates for each record")
        return array
    times = np.empty(len(values), dtype=object)
    times[:] = [kind.check(value) for value in values]
    return times


def _as_integers(kind: IntegerTimes, array: npt.NDArray[Any]) -> Times:
    """Times as 64-bit integers; values that are not times of this kind are refused, not wrapped."""
    if array.ndim != 1:
        raise TimeError(f"times have one dimension, not {array.ndim}: one for each record")
    if array.dtype.kind in "mM":
        if np.isnat(array).any():
            raise TimeError("a time is missing (NaT): every record needs a time")
        array = array.view(np.int64)
    elif array.dtype.kind not in "iu" and array.size:
        what = "text" if array.dtype.kind in "US" else str(array.dtype)
        remedy = (
            ": make integers of them, values.astype('int64'), or timestamps, as in "
            "pandas.to_datetime(values, unit='s')"
        )
        raise TimeError(
            f"times are integers or timestamps, one for each record, not {what}"
            f"{remedy if array.dtype.kind == 'f' else ''}"
        )
    if array.dtype == np.uint64 and array.size and int(array.max()) > END_OF_TIME:
        kind.check(array.max())
    times = array.astype(np.int64, copy=False)
    if kind.minimum > START_OF_TIME and times.size and times.min() < kind.minimum:
        kind.check(times.min())
    return times


def one(times: Times, index: int) -> Time:
    """The time of one record, as a Python value."""
    if times.ndim == 2:
        return Product.of(tuple(times[index].tolist()))
    value = times[index]
    return int(value) if times.dtype != object else value


def lower_bound(times: Times, floor: Time) -> Time:
    """A lower bound of the times that is ``>= floor``, or ``None`` if some time is not.

    >>> lower_bound(np.array([5, 3, 9]), 2), lower_bound(np.array([5, 3, 9]), 4)
    (3, None)
    """
    if len(times) == 0:
        return floor
    if times.dtype == object:
        return floor if all(floor <= time for time in times) else None
    least = int(times.min()) if times.ndim == 1 else Product.of(tuple(times.min(axis=0).tolist()))
    return least if floor <= least else None


def earlier(before: Times, after: Times) -> list[int]:
    """The records whose time ``after`` is not ``>=`` their time ``before``.

    >>> earlier(np.array([1, 5]), np.array([2, 4]))
    [1]
    """
    if before.dtype == object:
        pairs = zip(before, after, strict=True)
        return [index for index, (old, new) in enumerate(pairs) if not old <= new]
    back = after < before
    indices: list[int] = np.flatnonzero(back.any(axis=1) if back.ndim == 2 else back).tolist()
    return indices


def first_below(times: Times, floor: Time) -> Time:
    """Some time that is not ``>= floor``, for an error's text."""
    for index in range(len(times)):
        time = one(times, index)
        if not floor <= time:
            return time
    raise LookupError


def apply(times: Times, summary: Summary) -> Times:
    """Each time moved on by a summary; times past the end of time are refused."""
    if times.dtype != object and isinstance(summary, Advance):
        steps = np.zeros(times.shape[-1] if times.ndim == 2 else 1, dtype=np.uint64)
        steps[-len(summary.steps) :] = summary.steps
        step = steps if times.ndim == 2 else steps[0]
        # Unsigned, the way to the end of time always fits, and so does each step.
        if (step > (END_OF_TIME - times).view(np.uint64)).any():
            raise TimeError(f"{summary!r} takes some records past the end of time")
        moved: Times = (times.view(np.uint64) + step).view(np.int64)
        return moved
    result = np.empty(len(times), dtype=object)
    for index, time in enumerate(times):
        later = summary.apply(time if times.ndim == 1 else Product.of(tuple(time.tolist())))
        if later is None:
            raise TimeError(f"{summary!r} takes the time {time} past the end of time")
        result[index] = later
    return result


def to_arrow(times: Times) -> pa.Array:
    """Times as an Arrow array: integers, lists of coordinates, or the text of the user's own.

    >>> to_arrow(np.array([[1, 2]])).to_pylist()
    [[1, 2]]
    """
    if times.dtype == object:
        return pa.array([str(time) for time in times], pa.string())
    return pa.array(times if times.ndim == 1 else times.tolist())


def enter(times: Times) -> Times:
    """Times on entering a loop: a round of 0 is added.

    >>> enter(np.array([7, 8]))
    array([[7, 0],
           [8, 0]])
    """
    if times.dtype == object:
        entered = np.empty(len(times), dtype=object)
        entered[:] = [Product(time, 0) for time in times]
        return entered
    wide = times.reshape(len(times), -1)
    return np.hstack([wide, np.zeros((len(times), 1), dtype=np.int64)])


def leave(times: Times) -> Times:
    """Times on leaving a loop: the round is forgotten.

    >>> leave(np.array([[7, 3], [8, 1]]))
    array([7, 8])
    """
    if times.dtype == object:
        left = np.empty(len(times), dtype=object)
        left[:] = [time.outer for time in times]
        return left
    outer = times[:, :-1]
    return np.ascontiguousarray(outer[:, 0] if outer.shape[1] == 1 else outer)


def passed(times: Times, frontier: Antichain, *, inclusive: bool = False) -> npt.NDArray[np.bool_]:
    """Which times a frontier has passed; with ``inclusive``, also those on the frontier itself.

    >>> passed(np.array([3, 5, 7]), Antichain([5]))
    array([ True, False, False])
    """
    waiting = np.zeros(len(times), dtype=bool)
    ahead: npt.NDArray[np.bool_]
    same: npt.NDArray[np.bool_]
    for least in frontier:
        if times.dtype == object:
            ahead = np.fromiter((least <= time for time in times), bool, len(times))
            same = np.fromiter((least == time for time in times), bool, len(times))
        elif times.ndim == 2:
            ahead = np.all(times >= np.array(least), axis=1)
            same = np.all(times == np.array(least), axis=1)
        else:
            ahead = times >= least
            same = times == least
        waiting |= ahead & ~same if inclusive else ahead
    return ~waiting


def groups(times: Times) -> Iterator[tuple[Time, npt.NDArray[np.intp] | slice]]:
    """Each distinct time, in a linear extension of its order, with the records that bear it."""
    if len(times) == 0:
        return
    if times.dtype == object:
        members: dict[Any, list[int]] = {}
        for index, time in enumerate(times):
            members.setdefault(time, []).append(index)
        for time in sorted(members, key=lambda t: t.sort_key()):
            yield time, np.array(members[time])
        return
    order = np.lexsort(times.T[::-1]) if times.ndim == 2 else np.argsort(times, kind="stable")
    ordered = times[order]
    differs = ordered[1:] != ordered[:-1]
    edges = np.flatnonzero(differs.any(axis=1) if times.ndim == 2 else differs) + 1
    bounds = [0, *edges.tolist(), len(times)]
    for start, stop in pairwise(bounds):
        at = ordered[start].tolist()
        yield (at if times.ndim == 1 else Product.of(tuple(at))), order[start:stop]


def _plain_product(kind: TimeKind) -> bool:
    """Whether all coordinates are integers."""
    while isinstance(kind, ProductTimes):
        kind = kind.outer
    return not isinstance(kind, UserTimes)
