"""The best bid so far of each open auction: open addressing in compiled loops over whole batches.

A row of the table is a cache line: all that a bid is compared with, and what is known of the best
one. Auctions go when they close, which leaves no trace in the table, so it stays as small as the
number of auctions that are open at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.errors import BatchError
from jeton.idioms.keyed_state import plain
from jeton_evaluation.nexmark.slots import GOLDEN, shift_of

Integers = npt.NDArray[np.int64]

ID, START, EXPIRES, RESERVE, PRICE, BID_TIME, OTHERS = range(7)
"""What is in a row: nothing if it expires at 0, no bid yet if the price is -1."""

_FIRST_BITS: Final = 10


class BestBids:
    """Open auctions by id, each with the highest valid bid on it.

    A bid is valid from the auction's start up to its expiry, at the reserve or above. Of equal
    prices the earlier bid is better, then the one with lesser values in ``others``, the integer
    columns of the bid that are kept besides.

    >>> best = BestBids(others=["bidder"])
    >>> auctions = {"id": [7], "expires": [20], "reserve": [50]}
    >>> best.open(jt.Batch(auctions, times=[10]))
    >>> bids = {"auction": [7, 7, 7, 8], "price": [60, 70, 90, 90], "bidder": [1, 2, 3, 4]}
    >>> best.offer(jt.Batch(bids, times=[11, 19, 20, 20]))  # which are for others
    array([3])
    >>> best.close(np.array([7]))[:, [PRICE, BID_TIME, OTHERS]]
    array([[70, 19, 2]])
    """

    def __init__(self, others: Sequence[str] = ()) -> None:
        self._others = tuple(others)
        self._table = self._empty(_FIRST_BITS)
        self._used = 0

    def open(self, auctions: jt.Batch) -> None:
        """Take bids on auctions from now on."""
        rows = np.full((len(auctions), self._table.shape[1]), -1, np.int64)
        rows[:, ID] = auctions["id"]
        rows[:, START] = auctions.times
        rows[:, EXPIRES] = auctions["expires"]
        rows[:, RESERVE] = auctions["reserve"]
        self._put(rows)

    def offer(self, bids: jt.Batch) -> npt.NDArray[np.intp]:
        """Keep the bids that are the best; returns which are for auctions that are not open."""
        unknown = np.empty(len(bids), np.intp)
        others = np.empty((len(self._others), len(bids)), np.int64)
        for row, name in zip(others, self._others, strict=True):
            row[:] = bids[name]
        ids, prices = plain(bids["auction"]), plain(bids["price"])
        count = _offer(self._table, ids, plain(bids.times), prices, others, unknown)
        return unknown[:count]

    def close(self, ids: Integers) -> Integers:
        """Take out the rows of open auctions."""
        rows = np.empty((len(ids), self._table.shape[1]), np.int64)
        _close(self._table, plain(ids), rows)
        self._used -= len(ids)
        return rows

    def _put(self, rows: Integers) -> None:
        self._used += len(rows)
        if 2 * self._used > len(self._table):
            old = self._table
            self._table = self._empty((2 * self._used).bit_length())
            _put(self._table, old[old[:, EXPIRES] > 0])
        twice = _put(self._table, rows)
        if twice >= 0:
            raise BatchError(f"auction {rows[twice, ID]} is put up while it is open already")

    def _empty(self, bits: int) -> Integers:
        return np.zeros((1 << bits, OTHERS + len(self._others)), np.int64)

    def snapshot(self) -> pa.Table:
        """All open auctions."""
        rows = self._table[self._table[:, EXPIRES] > 0]
        columns = {str(n): np.ascontiguousarray(rows[:, n]) for n in range(rows.shape[1])}
        return pa.table({"bin": jt.state.bins_of([columns["0"]]), **columns})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Open them again."""
        values = [state.column(name).to_numpy() for name in state.column_names if name != "bin"]
        self._put(np.column_stack(values))


@jt.njit(cache=True, inline="always")
def _find(table: Any, id: Any, mask: Any, shift: Any) -> Any:
    """Where an auction is, or the empty row where it would be."""
    at = np.int64((np.uint64(id) * GOLDEN) >> shift)
    while table[at, EXPIRES] != 0 and table[at, ID] != id:
        at = (at + 1) & mask
    return at


@jt.njit(cache=True)
def _put(table: Any, rows: Any) -> int:
    """Put rows into a table that has room; returns one that is there already, or -1."""
    mask, shift = len(table) - 1, shift_of(table)
    for i in range(len(rows)):
        at = _find(table, rows[i, ID], mask, shift)
        if table[at, EXPIRES] != 0:
            return i
        table[at] = rows[i]
    return -1


@jt.njit(cache=True)
def _offer(table: Any, ids: Any, times: Any, prices: Any, others: Any, unknown: Any) -> int:
    """Keep what is best; writes which bids are for unknown auctions, and counts them."""
    mask, shift = len(table) - 1, shift_of(table)
    count = 0
    for i in range(len(ids)):
        at = _find(table, ids[i], mask, shift)
        if table[at, EXPIRES] == 0:
            unknown[count] = i
            count += 1
            continue
        price, time = prices[i], times[i]
        if price < table[at, PRICE] or price < table[at, RESERVE]:
            continue
        if time < table[at, START] or time >= table[at, EXPIRES]:
            continue
        better = price > table[at, PRICE]
        if not better:
            better = time < table[at, BID_TIME]
            equal = time == table[at, BID_TIME]
            for n in range(len(others)):
                better |= equal and others[n, i] < table[at, OTHERS + n]
                equal &= others[n, i] == table[at, OTHERS + n]
        if better:
            table[at, PRICE] = price
            table[at, BID_TIME] = time
            for n in range(len(others)):
                table[at, OTHERS + n] = others[n, i]
    return count


@jt.njit(cache=True)
def _close(table: Any, ids: Any, rows: Any) -> None:
    """Take rows out, and close the gaps that they leave behind."""
    mask, shift = len(table) - 1, shift_of(table)
    for i in range(len(ids)):
        gap = _find(table, ids[i], mask, shift)
        rows[i] = table[gap]
        at = gap
        while True:
            at = (at + 1) & mask
            if table[at, EXPIRES] == 0:
                break
            home = np.int64((np.uint64(table[at, ID]) * GOLDEN) >> shift)
            # A row may move back as far as its home, not further.
            if ((at - home) & mask) >= ((at - gap) & mask):
                table[gap] = table[at]
                gap = at
        table[gap, EXPIRES] = 0
