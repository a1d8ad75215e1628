"""Timing of alternating rounds, for all benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any


def in_turn(rounds: int, *acts: Callable[[], Any]) -> list[float]:
    """The median seconds of each act, or its own measurement; the first round warms up."""
    times: list[list[float]] = [[] for _ in acts]
    for _ in range(rounds + 1):
        for act, measured in zip(acts, times, strict=True):
            start = perf_counter()
            own = act()
            measured.append(own if isinstance(own, float) else perf_counter() - start)
    return [median(measured[1:]) for measured in times]
