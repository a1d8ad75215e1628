"""Registers: about how many different values each group has, in little memory (HyperLogLog).

Each value is hashed; a register keeps the longest run of zeros among the hashes that belong to it.
Equal values change nothing, and the greater of two registers is that of both groups, so that the
result does not depend on order, batches or workers. The number is estimated as in O. Ertl, "New
cardinality estimation algorithms for HyperLogLog sketches" (2017), which needs no tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from jeton.columns import compiled as nb
from jeton.columns.column import Column, to_arrow
from jeton.columns.keys import Hashes, hash_columns, key_family
from jeton.core.errors import BatchError, SnapshotError
from jeton.state.accumulators import Accumulator, Values, roomy, valid_mask
from jeton.state.slot_pool import Slots

_SEED = 1
"""Independent of the hashes by which records are dealt out to workers."""


def hash_family(kind: pa.DataType) -> object:
    """The property of types whose equal values have equal hashes, and no others.

    >>> hash_family(pa.int8()) == hash_family(pa.int64()) != hash_family(pa.float64())
    True
    """
    # The greater half of these has the words of negative numbers.
    return "uint64" if pa.types.is_uint64(kind) else key_family(kind)


class Registers(Accumulator):
    """The estimated number of different values; one byte for each of a group's registers."""

    def __init__(self, rsd: float) -> None:
        self._bits = max(4, math.ceil(2 * math.log2(1.04 / rsd)))
        self._registers = np.zeros((0, 1 << self._bits), dtype=np.uint8)
        self._family: str | None = None
        """Of the values that were hashed, if there were any."""

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Note the values."""
        hashes = self._hashes(column)
        self._registers = roomy(self._registers, size)
        _add(self._registers, self._bits, slots, hashes, valid_mask(column))

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Note the values; returns the estimate after each record."""
        hashes = self._hashes(column)
        self._registers = roomy(self._registers, size)
        found = np.full(size, -1, dtype=np.int64)
        out: Values = _roll(self._registers, self._bits, slots, hashes, valid_mask(column), found)
        return out

    def _hashes(self, column: Column | None) -> Hashes:
        assert column is not None, "distinct values name a column"
        if len(column):
            kind = to_arrow(column[:0]).type
            if not pa.types.is_null(kind):
                self._learn(str(hash_family(kind)))
        return hash_columns([column], seed=_SEED)

    def _learn(self, family: str) -> None:
        """Refuse values whose hashes differ although the values may be equal."""
        if self._family is None:
            self._family = family
        elif family != self._family:
            raise BatchError(
                f"values are {family}, but they were {self._family} before: cast them to one type, "
                "or give the input a schema=…"
            )

    def result(self, slots: Slots) -> Column:
        """The estimates."""
        found: Values = _estimates(self._registers, self._bits, slots)
        return found

    def clear(self, slots: Slots) -> None:
        """Back to nothing."""
        self._registers[slots] = 0

    def save(self, slots: Slots) -> dict[str, Column]:
        """The registers of each group, as bytes, and the family of values that were hashed."""
        data = pa.py_buffer(self._registers[slots].tobytes())
        kind = pa.binary(1 << self._bits)
        registers = pa.Array.from_buffers(kind, len(slots), [None, data])
        return {"value": registers, "family": pa.array([self._family] * len(slots), pa.string())}

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The same again."""
        column = saved["value"]
        assert isinstance(column, pa.Array)
        width = column.type.byte_width
        if width != 1 << self._bits:
            raise SnapshotError(
                f"the snapshot has {width} registers for each group, but this aggregate has "
                f"{1 << self._bits}: give it the same rsd as before"
            )
        self._registers = roomy(self._registers, size)
        self._registers[slots] = _stored(column)
        families = saved.get("family")
        for family in () if families is None else to_arrow(families).unique().to_pylist():
            if family is not None:
                self._learn(family)

    def merge(self, into: Slots, others: Slots) -> None:
        """The greater register of two."""
        np.maximum.at(self._registers, into, self._registers[others])


def estimates(column: pa.Array) -> Values:
    """The estimates of stored registers.

    >>> registers = Registers(0.05)
    >>> registers.add(np.array([0, 0, 1]), np.array([7, 8, 9]), 2)
    >>> estimates(registers.save(np.array([0, 1]))["value"])
    array([2, 1])
    """
    bits = column.type.byte_width.bit_length() - 1
    found: Values = _estimates(_stored(column), bits, np.arange(len(column)))
    return found


def _stored(column: pa.Array) -> Values:
    """The registers in a column of bytes, a row for each group."""
    width = column.type.byte_width
    data = np.frombuffer(column.buffers()[1], dtype=np.uint8)
    start = column.offset * width
    return data[start : start + len(column) * width].reshape(len(column), width)


@nb.njit(cache=True, inline="always")
def _note(registers, bits, slot, word):  # type: ignore[no-untyped-def]
    """Raise a value's register; returns whether it was lower."""
    register = word & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
    rest = word >> np.uint64(bits)
    zeros = 1
    while zeros <= 64 - bits and rest & np.uint64(1) == np.uint64(0):
        rest >>= np.uint64(1)
        zeros += 1
    if registers[slot, register] < zeros:
        registers[slot, register] = zeros
        return True
    return False


@nb.njit(cache=True)
def _add(registers, bits, slots, hashes, valid):  # type: ignore[no-untyped-def]
    every = len(valid) == 0
    for i in range(len(slots)):
        if every or valid[i]:
            _note(registers, bits, slots[i], hashes[i])


@nb.njit(cache=True)
def _roll(registers, bits, slots, hashes, valid, found):  # type: ignore[no-untyped-def]
    every = len(valid) == 0
    out = np.empty(len(slots), np.int64)
    for i in range(len(slots)):
        slot = slots[i]
        if (every or valid[i]) and _note(registers, bits, slot, hashes[i]):
            found[slot] = -1
        if found[slot] < 0:
            found[slot] = _estimate(registers[slot], bits)
        out[i] = found[slot]
    return out


@nb.njit(cache=True)
def _estimates(registers, bits, slots):  # type: ignore[no-untyped-def]
    out = np.empty(len(slots), np.int64)
    for i in range(len(slots)):
        out[i] = _estimate(registers[slots[i]], bits)
    return out


@nb.njit(cache=True)
def _estimate(registers, bits):  # type: ignore[no-untyped-def]
    """The number of different values that such registers are most typical of."""
    size = len(registers)
    most = 64 - bits
    counts = np.zeros(most + 2, np.int64)
    for register in registers:
        counts[register] += 1
    if counts[0] == size:
        return np.int64(0)
    # Registers that are full, where hashes have no more bits.
    share = 1.0 - counts[most + 1] / size
    full = 0.0
    if 0.0 < share < 1.0:
        full, step, before = 1.0 - share, 1.0, -1.0
        while full != before:
            share = math.sqrt(share)
            before = full
            step *= 0.5
            full -= (1.0 - share) ** 2 * step
        full /= 3.0
    total = size * full
    for zeros in range(most, 0, -1):
        total = 0.5 * (total + counts[zeros])
    # Registers that are empty: few values.
    share = counts[0] / size
    empty, step, before = share, 1.0, -1.0
    while empty != before:
        share *= share
        before = empty
        empty += share * step
        step += step
    total += size * empty
    return np.int64(np.rint(size * size / (2.0 * math.log(2.0) * total)))
