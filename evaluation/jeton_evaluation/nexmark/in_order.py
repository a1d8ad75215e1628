"""Folds in order: what has happened, as it happened, into what is known of each key."""

from __future__ import annotations

from typing import Protocol

import numpy as np

import jeton as jt
from jeton.idioms.waiting import Waiting
from jeton_evaluation.nexmark.stages import Times


class Fold(jt.state.Stateful, Protocol):
    """What is known so far."""

    def fold(self, batch: jt.Batch) -> jt.Batch:
        """Add records, which come after all others; returns what is to be told of them."""
        ...


class InOrder:
    """A stage that folds records once their time is complete: by time, then by a column.

    Records belong to the worker of their ``key``.
    """

    inclusive = False

    def __init__(self, fold: Fold, *, key: str, by: str) -> None:
        self._fold = fold
        self._waiting = Waiting([key])
        self._by = by
        self.parts: dict[str, jt.state.Stateful] = {"waiting": self._waiting, "fold": fold}

    def add(self, port: int, batch: jt.Batch) -> Times:
        """Let records wait for their time."""
        self._waiting.add(batch)
        return batch.times

    def take(self, limit: int | None) -> jt.Batch | None:
        """Fold what is complete."""
        batch = self._waiting.take(limit)
        if batch is None:
            return None
        return self._fold.fold(batch.take(np.lexsort((batch.column(self._by), batch.times))))

    @property
    def least(self) -> int | None:
        """The first time that is waited for."""
        return self._waiting.least

    @property
    def pending(self) -> Times:
        """All times that are waited for."""
        return np.array(self._waiting.times, dtype=np.int64)
