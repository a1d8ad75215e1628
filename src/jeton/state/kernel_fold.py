"""KernelFold: reduce and fold with a kernel of the user's, compiled into loops over slots."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numba.core.errors import NumbaError
from numba.np.numpy_support import as_dtype, from_dtype

from jeton.columns import column as cols
from jeton.columns import compiled as nb
from jeton.columns.column import Column, plain
from jeton.columns.kernel import Kernel, SlowKernel
from jeton.state.accumulators import Accumulator, Mask, Values, filled, pylist, roomy, valid_mask
from jeton.state.slot_pool import Slots


class NotCompiled(Exception):
    """A kernel cannot be compiled for some values; the text says why."""


class KernelFold(Accumulator):
    """A state for each group, a number, which a compiled function moves on.

    Without an initial state, the first value is the state (`reduce`). Nulls are passed over.
    """

    def __init__(
        self,
        kernel: Kernel,
        column: Column | None,
        *,
        initial: Any = None,
        finish: Callable[[Any], Any] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._kernel = kernel
        self._initial = initial
        self._finish = finish
        self._merge = merge
        values = _dense(column)
        start = values.dtype if initial is None else np.asarray(initial).dtype
        if start.kind not in "biuf":
            raise NotCompiled(f"its initial state {initial!r} is not a number")
        self._value: Values = np.empty(0, dtype=_wide(start))
        self._seen = np.zeros(0, dtype=np.int64)
        self._known: set[np.dtype[Any]] = set()
        self._fit(values.dtype)

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Fold the values in."""
        values, valid = self._prepare(column, size)
        _add(self._kernel.compiled, self._folding, self._value, self._seen, slots, values, valid)

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Fold the values in; returns the result after each record."""
        values, valid = self._prepare(column, size)
        out = np.empty(len(slots), dtype=self._value.dtype)
        known = np.empty(len(slots), dtype=bool)
        _roll(
            self._kernel.compiled, self._folding, self._value, self._seen, slots, values, valid,
            out, known,
        )  # fmt: skip
        return self._show(out, known)

    def result(self, slots: Slots) -> Column:
        """The states, finished."""
        return self._show(self._value[slots], self._seen[slots] > 0)

    def clear(self, slots: Slots) -> None:
        """Back to the start."""
        self._value[slots] = 0 if self._initial is None else self._initial
        self._seen[slots] = 0

    def save(self, slots: Slots) -> dict[str, Column]:
        """The states, and how many values went into each."""
        return {"value": self._value[slots], "seen": self._seen[slots]}

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The same again."""
        self._grow(size)
        # Groups of a worker that had seen nothing but nulls have none.
        values, seen = (
            column if isinstance(column, np.ndarray) else np.asarray(filled(column))
            for column in (saved["value"], saved["seen"])
        )
        self._value = self._value.astype(
            np.promote_types(self._value.dtype, values.dtype), copy=False
        )
        self._value[slots] = values
        self._seen[slots] = seen

    def merge(self, into: Slots, others: Slots) -> None:
        """Fold groups into groups."""
        merge = self._kernel if self._initial is None else self._merge
        if isinstance(merge, Kernel):
            _merge(merge.compiled, self._value, self._seen, into, others)
            return
        assert merge is not None, "sessions refuse folds that cannot merge"
        for slot, other in zip(into.tolist(), others.tolist(), strict=True):
            if self._seen[other]:
                mine, state = self._value[slot].item(), self._value[other].item()
                self._value[slot] = merge(mine, state) if self._seen[slot] else state
                self._seen[slot] += self._seen[other]

    @property
    def _folding(self) -> bool:
        return self._initial is not None

    def _prepare(self, column: Column | None, size: int) -> tuple[Values, Mask]:
        values = _dense(column)
        if values.dtype not in self._known:
            self._fit(values.dtype)
        self._grow(size)
        return plain(values), valid_mask(column)

    def _fit(self, dtype: np.dtype[Any]) -> None:
        """Make states of a type that the function keeps to, given values of ``dtype``."""
        state = self._value.dtype
        if self._initial is None and dtype not in self._known:
            state = np.promote_types(state, dtype)
        for _ in range(3):
            moved = np.promote_types(state, _returned(self._kernel, state, dtype))
            if self._initial is None:
                moved = np.promote_types(moved, _returned(self._kernel, moved, moved))
            if moved == state:
                break
            state = moved
        self._value = self._value.astype(state, copy=False)
        self._known.add(dtype)

    def _grow(self, size: int) -> None:
        before = len(self._seen)
        self._value, self._seen = roomy(self._value, size), roomy(self._seen, size)
        if self._initial is not None:
            self._value[before:] = self._initial

    def _show(self, values: Values, known: Mask) -> Column:
        if self._initial is None:
            return values if known.all() else pa.array(values, mask=~known)
        if isinstance(self._finish, Kernel):
            finished: Column = self._finish(values)
            return finished
        if self._finish is not None:
            return cols.as_column([self._finish(value) for value in pylist(values)])
        return values


def kernel_fold(
    kernel: Kernel,
    column: Column | None,
    slow: Callable[[], Accumulator],
    **options: Any,
) -> Accumulator:
    """A compiled fold over the values of a column; else a ``slow`` one, and a warning why."""
    try:
        return KernelFold(kernel, column, **options)
    except NotCompiled as obstacle:
        warnings.warn(
            f"{kernel!r} runs as plain Python, some hundred times slower than compiled, because "
            f"{obstacle}",
            SlowKernel,
            stacklevel=2,
        )
        return slow()


def _dense(column: Column | None) -> Values:
    """The values of a numeric column as an array, whatever where there is none."""
    if column is None:
        raise NotCompiled("it has no column to read")
    if not isinstance(column, np.ndarray):
        kind = column.type
        if pa.types.is_null(kind):
            return np.zeros(len(column), dtype=np.int64)
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not number and not pa.types.is_boolean(kind):
            raise NotCompiled(f"it reads a column of type {kind}")
        found = cols.from_arrow(column.fill_null(pa.scalar(0).cast(kind)))
        assert isinstance(found, np.ndarray)
        column = found
    if column.dtype.kind not in "biuf":
        raise NotCompiled(f"it reads a column of type {column.dtype}")
    return column.astype(_wide(column.dtype), copy=False)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Few types, so that few loops are compiled."""
    if dtype.kind == "f":
        return np.dtype(np.float64)
    return dtype if dtype.kind == "b" or dtype == np.uint64 else np.dtype(np.int64)


def _returned(kernel: Kernel, state: np.dtype[Any], value: np.dtype[Any]) -> np.dtype[Any]:
    """The type of what a kernel makes of a state and a value."""
    arguments = (from_dtype(state), from_dtype(value))
    try:
        kernel.compiled.compile(arguments)
        dtype = as_dtype(kernel.compiled.overloads[arguments].signature.return_type)
    except (NumbaError, NotImplementedError, TypeError) as error:
        text = " ".join(str(error).split())
        raise NotCompiled(f"Numba cannot compile it: {text[:200]}") from error
    if dtype.kind not in "biuf":
        raise NotCompiled(f"its results are of type {dtype}")
    return _wide(dtype)


# Not cached on disk: the cache would never find a loop again whose function is an argument.


@nb.njit()
def _add(scalar, folding, value, seen, slots, values, valid):  # type: ignore[no-untyped-def]
    every = len(valid) == 0
    for i in range(len(slots)):
        if every or valid[i]:
            slot = slots[i]
            if folding or seen[slot]:
                value[slot] = scalar(value[slot], values[i])
            else:
                value[slot] = values[i]
            seen[slot] += 1


@nb.njit()
def _roll(scalar, folding, value, seen, slots, values, valid, out, known):  # type: ignore[no-untyped-def]
    every = len(valid) == 0
    for i in range(len(slots)):
        slot = slots[i]
        if every or valid[i]:
            if folding or seen[slot]:
                value[slot] = scalar(value[slot], values[i])
            else:
                value[slot] = values[i]
            seen[slot] += 1
        out[i] = value[slot]
        known[i] = seen[slot] > 0


@nb.njit()
def _merge(scalar, value, seen, into, others):  # type: ignore[no-untyped-def]
    for i in range(len(into)):
        slot, other = into[i], others[i]
        if seen[other]:
            if seen[slot]:
                value[slot] = scalar(value[slot], value[other])
            else:
                value[slot] = value[other]
            seen[slot] += seen[other]
