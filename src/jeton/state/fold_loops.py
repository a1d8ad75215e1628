"""Compiled loops of accumulators: values folded into slots, one record after the other."""

from __future__ import annotations

import numpy as np

from jeton.columns import compiled as nb

HOW = {"sum": 0, "min": 1, "max": 2, "mean": 3}
"""The numbers by which loops know what to do."""


@nb.njit(cache=True)
def add_count(count, slots, valid):  # type: ignore[no-untyped-def]
    """Count the records of each slot, or those that are valid."""
    if len(valid) == 0:
        for i in range(len(slots)):
            count[slots[i]] += 1
    else:
        for i in range(len(slots)):
            if valid[i]:
                count[slots[i]] += 1


@nb.njit(cache=True)
def roll_count(count, slots, valid, out):  # type: ignore[no-untyped-def]
    """The same, and the count after each record."""
    every = len(valid) == 0
    for i in range(len(slots)):
        slot = slots[i]
        if every or valid[i]:
            count[slot] += 1
        out[i] = count[slot]


@nb.njit(cache=True, inline="always")
def combine(how, left, right):  # type: ignore[no-untyped-def]
    """What is folded so far, and one value more."""
    # NaN, which differs from itself, is greater than all others.
    if how == 1:
        return right if right < left or left != left else left
    if how == 2:
        return right if right > left or right != right else left
    return left + right


@nb.njit(cache=True)
def add(how, value, seen, slots, values, valid):  # type: ignore[no-untyped-def]
    """Fold values into their slots."""
    every = len(valid) == 0
    for i in range(len(slots)):
        if every or valid[i]:
            slot = slots[i]
            if seen[slot]:
                value[slot] = combine(how, value[slot], values[i])
            else:
                value[slot] = values[i]
            seen[slot] += 1


@nb.njit(cache=True)
def roll(how, value, seen, slots, values, valid, out, counts):  # type: ignore[no-untyped-def]
    """The same, and what there is after each record."""
    every = len(valid) == 0
    for i in range(len(slots)):
        slot = slots[i]
        if every or valid[i]:
            if seen[slot]:
                value[slot] = combine(how, value[slot], values[i])
            else:
                value[slot] = values[i]
            seen[slot] += 1
        out[i] = value[slot]
        counts[i] = seen[slot]


@nb.njit(cache=True)
def clear(value, seen, slots):  # type: ignore[no-untyped-def]
    """Have nothing in some slots."""
    for i in range(len(slots)):
        value[slots[i]] = 0
        seen[slots[i]] = 0


@nb.njit(cache=True)
def fold(how, value, seen, into, others):  # type: ignore[no-untyped-def]
    """Fold slots into slots."""
    for i in range(len(into)):
        slot, other = into[i], others[i]
        if seen[other]:
            if seen[slot]:
                value[slot] = combine(how, value[slot], value[other])
            else:
                value[slot] = value[other]
            seen[slot] += seen[other]


@nb.njit(cache=True)
def bits_of(values):  # type: ignore[no-untyped-def]
    """The bits of the magnitudes of integers, or-ed."""
    bits = np.int64(0)
    for i in range(len(values)):
        bits |= values[i] ^ (values[i] >> np.int64(63))
    return np.uint64(bits)


@nb.njit(cache=True)
def add_wrapping(value, seen, slots, values, valid):  # type: ignore[no-untyped-def]
    """Add integers to their slots modulo 2**64; returns the bits of their magnitudes, or-ed."""
    every = len(valid) == 0
    bits = np.uint64(0)
    for i in range(len(slots)):
        if every or valid[i]:
            slot, number = slots[i], values[i]
            value[slot] = np.uint64(value[slot]) + np.uint64(number)
            seen[slot] += 1
            bits |= np.uint64(number if number >= 0 else ~number)
    return bits


@nb.njit(cache=True)
def roll_wrapping(value, seen, slots, values, valid, out, counts):  # type: ignore[no-untyped-def]
    """The same, and the sums after each record."""
    every = len(valid) == 0
    bits = np.uint64(0)
    for i in range(len(slots)):
        slot = slots[i]
        if every or valid[i]:
            number = values[i]
            value[slot] = np.uint64(value[slot]) + np.uint64(number)
            seen[slot] += 1
            bits |= np.uint64(number if number >= 0 else ~number)
        out[i] = value[slot]
        counts[i] = seen[slot]
    return bits


@nb.njit(cache=True)
def take_back(value, seen, slots, values, valid):  # type: ignore[no-untyped-def]
    """Undo `add_wrapping`."""
    every = len(valid) == 0
    for i in range(len(slots)):
        if every or valid[i]:
            slot = slots[i]
            value[slot] = np.uint64(value[slot]) - np.uint64(values[i])
            seen[slot] -= 1


@nb.njit(cache=True, inline="always")
def _plus(value, carry, slot, number):  # type: ignore[no-untyped-def]
    """Add to a sum of integers, with or without a sign, noting when it wraps around.

    Added without a sign, since Numba takes it that integers with one never wrap.
    """
    before = value[slot]
    value[slot] = np.uint64(before) + np.uint64(number)
    if (value[slot] < before) != (number < 0):
        carry[slot] += -1 if number < 0 else 1


@nb.njit(cache=True)
def add_exactly(value, carry, seen, slots, values, valid):  # type: ignore[no-untyped-def]
    """Add integers to their slots."""
    every = len(valid) == 0
    for i in range(len(slots)):
        if every or valid[i]:
            _plus(value, carry, slots[i], values[i])
            seen[slots[i]] += 1


@nb.njit(cache=True)
def roll_exactly(value, carry, seen, slots, values, valid, out, carries, counts):  # type: ignore[no-untyped-def]
    """The same, and the sums after each record."""
    every = len(valid) == 0
    for i in range(len(slots)):
        slot = slots[i]
        if every or valid[i]:
            _plus(value, carry, slot, values[i])
            seen[slot] += 1
        out[i] = value[slot]
        carries[i] = carry[slot]
        counts[i] = seen[slot]


@nb.njit(cache=True)
def fold_exactly(value, carry, seen, into, others):  # type: ignore[no-untyped-def]
    """Add slots to slots."""
    for i in range(len(into)):
        slot, other = into[i], others[i]
        _plus(value, carry, slot, value[other])
        carry[slot] += carry[other]
        seen[slot] += seen[other]
