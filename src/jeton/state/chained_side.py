"""ChainedSide: a side of a join in chains of rows by key, or in sorted runs where these are better.

Chains are for the usual case: columns of the usual types, and records of both sides that come
roughly in order of time. `JoinSide` is for all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.column import Column, known_rows
from jeton.columns.time_arithmetic import LEAST
from jeton.state.join_side import Clock, Expiry, JoinRun, JoinSide
from jeton.state.key_columns import is_exact
from jeton.state.key_ids import KeyIds, KeyTypes, without_nulls
from jeton.state.row_chains import IntegerKeys, RowChains
from jeton.state.slot_pool import Slots


class Chaining:
    """The chains of both sides of a join, which are in use together or not at all."""

    def __init__(self, ids: KeyIds) -> None:
        self._integers = IntegerKeys()
        self._ids = ids
        self._are_integers: bool | None = None
        """Whether keys are integers, once there have been some."""
        self.sides: list[ChainedSide] = []
        self.is_on = True

    def give_up(self) -> None:
        """Have sorted runs in place of chains from now on."""
        if self.is_on:
            self.is_on = False
            for side in self.sides:
                side.leave_chains()

    def slots(self, keys: list[Column], rows: int) -> Slots | None:
        """The slots of keys, if these are of a kind with those before."""
        integers = is_exact(keys)
        if self._are_integers is None:
            self._are_integers = integers
        elif self._are_integers is not integers:
            return None
        if not integers:
            return self._ids.of(keys, rows)
        [words] = keys
        assert isinstance(words, np.ndarray)
        if words.dtype.kind == "u" and words.dtype.itemsize == 8:
            # These are not all words with a sign.
            return None
        return self.slots_of_integers(words)

    def slots_of_integers(self, keys: npt.NDArray[Any]) -> Slots:
        """The slots of keys that are words with a sign, as those before."""
        left, right = self.sides
        return self._integers.slots(keys, left.chains, right.chains)

    @property
    def has_integers(self) -> bool:
        """Whether keys are words with a sign."""
        return self._are_integers is True

    @property
    def slots_made(self) -> int:
        """One more than the greatest slot there may be."""
        return self._integers.slots_made if self._are_integers else self._ids.slots_made

    def sweep(self) -> None:
        """Forget keys without rows, if there are many."""
        left, right = (side.chains for side in self.sides)
        if self._are_integers:
            self._integers.sweep(left, right)
        else:
            self._ids.sweep((each.slots() for each in (left, right)), len(left) + len(right))


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
        self._is_over = False
        """Whether rows are not needed any more: the other side is complete."""
        self._usual: dict[str, np.dtype[Any]] = {}
        """The types of columns that need not be looked at more closely: none has nulls."""
        chaining.sides.append(self)

    def known(self, batch: Batch) -> Batch:
        """Records whose keys have no nulls; the others have no partners."""
        known = known_rows([batch.column(name) for name in self._key])
        if known is None:
            return batch
        self.learn(batch)
        return batch.filter(known)

    def usual_slots(self, batch: Batch) -> Slots | None:
        """The same as `slots`, of a batch whose columns are of the types of one before.

        Nothing, if they are not, or if that one had nulls or keys other than integers.
        """
        usual, columns = self._usual, batch.columns
        if not usual or len(usual) != len(columns) or not len(batch.times):
            return None
        for name, dtype in usual.items():
            column = columns.get(name)
            if type(column) is not np.ndarray or (
                column.dtype is not dtype and column.dtype != dtype
            ):
                return None
        keys = columns[self._key[0]]
        assert isinstance(keys, np.ndarray)
        return self._chaining.slots_of_integers(keys)

    def slots(self, batch: Batch) -> Slots | None:
        """The slots of a batch's keys, which have no nulls, if chains can have its rows.

        The first rows decide on the types of columns: none do not have any.
        """
        chains, columns = self.chains, batch.columns
        if not len(batch) or not all(name in columns for name in self._key):
            return None
        first = chains.is_new
        if not chains.fits(batch):
            return None
        if first:
            self.learn(batch)
        keys = [without_nulls(columns[name]) for name in self._key]
        slots = self._chaining.slots(keys, len(batch))
        if slots is not None and self._chaining.has_integers:
            plain = {n: c.dtype for n, c in columns.items() if isinstance(c, np.ndarray)}
            self._usual = plain if len(plain) == len(columns) else {}
        return slots

    def chain(self, slots: Slots, batch: Batch) -> bool:
        """Keep rows in chains, as long as they are needed; returns whether chains are good."""
        if self._is_over:
            return True
        good = self.chains.add(slots, batch, self._chaining.slots_made)
        self._changes.added(batch, len(self.chains))
        return good

    def add(self, run: JoinRun) -> None:
        """Keep a run, as long as rows are needed."""
        if not self._is_over:
            super().add(run)

    def leave_chains(self) -> None:
        """Have all rows in sorted runs."""
        chains, self.chains = self.chains, RowChains()
        self._usual = {}
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
        if limit is None and not self._is_over:
            self._is_over = True
            self.chains, self._usual = RowChains(), {}

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
        self._is_over = False
        slots = self.slots(batch) if self._chaining.is_on else None
        if slots is None or not self.chain(slots, batch):
            self._chaining.give_up()
        if slots is None:
            super()._put_back(batch)
