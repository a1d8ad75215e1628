"""Latency: how long it takes from an input's advance until the results behind it are complete."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

from jeton.core.times import END_OF_TIME, START_OF_TIME
from jeton.dataflow.inputs import InputHandle
from jeton.runtime.operator import Operator

if TYPE_CHECKING:
    from jeton.runtime.worker import Worker

BOUNDS: Final = (
    *(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    *(1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
)
"""The upper bounds of a histogram's bins, in seconds; there is one more bin without a bound."""
MOST: Final = 1024
"""Advances of inputs that are waited for at a time."""


class Latencies:
    """Measures a worker: each advance of its inputs, until the frontier of an output gets there.

    An output waits for the inputs from which there is a way to it, and for no others. The results
    are histograms, one at each operator that sends nothing: outputs and probes. Inputs whose times
    are not integers are left out.

    >>> import jeton as jt
    >>> from jeton.runtime.metrics import measure
    >>> flow = jt.Flow("echo")
    >>> flow.output("out", flow.input("in"))
    >>> with flow.open() as run:
    ...     _ = measure(run.workers[0])
    ...     for time in (3, 7, 7, 9):
    ...         run.input("in").advance_to(time)
    ...         run.run_to_rest()
    ...     sum(run.workers[0].operators[1].latency)
    3
    """

    def __init__(self, worker: Worker) -> None:
        self._tracker = worker.tracker
        inputs = {
            index: handle
            for index, handle in worker.handles.items()
            if isinstance(handle, InputHandle) and handle.kind.integers
        }
        before = _inputs_before(worker.operators, inputs)
        groups: dict[frozenset[int], _Outputs] = {}
        for operator in worker.operators if inputs else ():
            if operator.inputs and not operator.outputs:
                operator.latency = [0] * (len(BOUNDS) + 1)
                names = before[operator.index]
                group = groups.setdefault(names, _Outputs([inputs[index] for index in names]))
                group.ends.append((operator, operator.inputs[0].location, deque()))
        self._groups = list(groups.values())

    def begin(self) -> None:
        """Take note of how far inputs are, before a step."""
        for group in self._groups:
            reached = group.least()
            if reached > group.reached:
                group.reached = reached
                now = perf_counter()
                for _, _, waiting in group.ends:
                    # If more wait than are kept, those that wait for longest are.
                    if len(waiting) < MOST:
                        waiting.append((reached, now))

    def end(self) -> None:
        """Take note of how far outputs are, after a step or news of another worker."""
        now = perf_counter()
        for group in self._groups:
            for operator, location, waiting in group.ends:
                if waiting:
                    self._look(operator, location, waiting, now)

    def _look(
        self, operator: Operator, location: int, waiting: deque[tuple[int, float]], now: float
    ) -> None:
        frontier = self._tracker.least_anywhere(location)
        least = frontier[0] if frontier else END_OF_TIME
        bins = operator.latency
        if not isinstance(least, int) or bins is None:
            return
        while waiting and waiting[0][0] <= least:
            seconds = now - waiting.popleft()[1]
            bins[bisect_left(BOUNDS, seconds)] += 1
            operator.latency_seconds += seconds


class _Outputs:
    """Outputs and probes that are behind the same inputs, and how far these are."""

    def __init__(self, inputs: list[InputHandle]) -> None:
        self.ends: list[tuple[Operator, int, deque[tuple[int, float]]]] = []
        self._inputs = inputs
        self.reached = self.least()

    def least(self) -> int:
        """The least time of all inputs that are open here."""
        least = END_OF_TIME
        for handle in self._inputs:
            if not handle.closed:
                least = min(least, handle.time)
        return least if self._inputs else START_OF_TIME


def _inputs_before(
    operators: Sequence[Operator], inputs: Collection[int]
) -> dict[int, frozenset[int]]:
    """For each operator the inputs from which there is a way to it."""
    found = {each.index: frozenset({each.index} & set(inputs)) for each in operators}
    changed = True
    while changed:
        changed = False
        for each in operators:
            sources = {source.operator for port in each.plan.inputs for source in port.sources}
            after = found[each.index].union(*(found[source] for source in sources))
            if after != found[each.index]:
                found[each.index], changed = after, True
    return found
