"""Choices: one generator of cases, driven by Hypothesis or by a seed.

Under Hypothesis a failing case shrinks. A seed is quicker, and names a case of a long campaign.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Choices(ABC):
    """Source of the decisions that make a case."""

    @abstractmethod
    def integer(self, least: int, most: int) -> int:
        """An integer between two bounds, both included."""

    def one_of(self, options: Sequence[T]) -> T:
        """One of several options; the first is the simplest."""
        return options[self.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        """True with a probability."""
        return self.integer(0, 99) >= 100 - percent

    def some_of(self, options: Sequence[T], least: int, most: int) -> list[T]:
        """Several different options, in their own order."""
        size = self.integer(least, min(most, len(options)))
        rest = list(range(len(options)))
        for _ in range(len(options) - size):
            rest.pop(self.integer(0, len(rest) - 1))
        return [options[index] for index in rest]

    def shuffled(self, values: Sequence[T]) -> list[T]:
        """The values in some order."""
        found = list(values)
        for index in range(len(found) - 1, 0, -1):
            other = index - self.integer(0, index)
            found[index], found[other] = found[other], found[index]
        return found


class Seeded(Choices):
    """Choices that follow from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def integer(self, least: int, most: int) -> int:
        return self._random.randint(least, most)


class Drawn(Choices):
    """Choices that Hypothesis makes."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def integer(self, least: int, most: int) -> int:
        found: int = self._draw(st.integers(least, most))
        return found
