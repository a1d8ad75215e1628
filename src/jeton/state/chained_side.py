"""ChainedSide: a side of a join in chains of rows by key, or in sorted runs where these are better.

Chains are for the usual case: one key of integers, plain columns, and records of both sides that
come roughly in order of time. `JoinSide` is for all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.time_arithmetic import LEAST
from jeton.state.join_side import Clock, Expiry, JoinSide
from jeton.state.key_ids import KeyIds, KeyTypes
from jeton.state.row_chains import IntegerKeys, RowChains
from jeton.state.slot_pool import Slots


class Chaining:
    """The chains of both sides of a join, which are in use together or not at all."""

    def __init__(self) -> None:
        self.keys = IntegerKeys()
        self.sides: list[ChainedSide] = []
        self.is_on = True

    def give_up(self) -> None:
        """Have sorted runs in place of chains from now on."""
        if self.is_on:
            self.is_on = False
            for side in self.sides:
                side.leave_chains()

    def slots(self, keys: npt.NDArray[Any]) -> Slots:
        """The slots of keys."""
        left, right = self.sides
        return self.keys.slots(keys, left.chains, right.chains)

    def sweep(self) -> None:
        """Forget keys without rows, if there are many."""
        left, right = self.sides
        self.keys.sweep(left.chains, right.chains)


class ChainedSide(JoinSide):
    """Records of one side; each serves positions of the other side up to ``step`` after it."""

    def __init__(
        self,
        key: Sequence[str],
        types: KeyTypes,
        ids: KeyIds,
        clock: Clock,
        expiry: Expiry,
        step: int,
        chaining: Chaining,
    ) -> None:
        super().__init__(key, types, ids, clock, expiry)
        self.chains = RowChains()
        self._step = step
        self._chaining = chaining
        chaining.sides.append(self)

    def slots(self, batch: Batch) -> Slots | None:
        """The slots of a batch's keys, if chains can have its rows."""
        chains = self.chains
        if not self._chaining.is_on or not chains.fits(batch):
            return None
        column = batch.columns.get(self._key[0])
        if chains.names is None:
            if not isinstance(column, np.ndarray) or not _is_chainable(column.dtype):
                return None
            self.learn(batch)
        assert isinstance(column, np.ndarray)
        return self._chaining.slots(column)

    def chain(self, slots: Slots, batch: Batch) -> bool:
        """Keep rows in chains; returns whether these are good for them."""
        good = self.chains.add(slots, batch, self._chaining.keys.slots_made)
        self._changes.added(batch, len(self.chains))
        return good

    def leave_chains(self) -> None:
        """Have all rows in sorted runs."""
        chains, self.chains = self.chains, RowChains()
        if len(chains):
            made = self._made(self.run(chains.batch()))
            if len(made):
                self.runs.append(made)
                self._tidy()

    def expire(self, limit: int | None) -> None:
        """Drop rows that serve only positions before ``limit`` (``None``: all)."""
        if self._chaining.is_on and limit is not None:
            if limit > LEAST:
                self._limit = max(limit, self._limit)
                self.chains.drop_before(limit - self._step)
            return
        super().expire(limit)
        if limit is None:
            self.chains = RowChains()

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The rows of some bins, which are dropped here."""
        if not len(self.chains):
            return super().take_bins(chosen)
        batch = self.chains.batch()
        leaves = self.in_bins(batch, chosen)
        if not leaves.any():
            return self._table([])
        self._changes.lost()
        self.chains.keep(np.flatnonzero(~leaves))
        return self._table([batch.filter(leaves)])

    def memory_bytes(self) -> int:
        """About how many bytes of memory all rows take."""
        return super().memory_bytes() + 2 * self.chains.nbytes

    def __len__(self) -> int:
        """The number of rows."""
        return super().__len__() + len(self.chains)

    def _blocks(self) -> list[Batch]:
        return [*super()._blocks(), *([self.chains.batch()] if len(self.chains) else ())]

    def _put_back(self, batch: Batch) -> None:
        slots = self.slots(batch)
        if slots is None or not self.chain(slots, batch):
            self._chaining.give_up()
        if slots is None:
            super()._put_back(batch)


def _is_chainable(dtype: np.dtype[Any]) -> bool:
    """Whether all values of a type are 64-bit integers with a sign: keys that are words."""
    return dtype.kind == "i" or (dtype.kind == "u" and dtype.itemsize < 8)
