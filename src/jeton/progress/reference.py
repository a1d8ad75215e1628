"""The obvious way to derive frontiers, from nothing, at every location: slow and plain.

The simulation's checker compares the tracker with it at every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import count

from jeton.core.antichain import Antichain
from jeton.core.times import nested_key
from jeton.progress.graph import ProgressGraph
from jeton.progress.protocol import WorkerPointstamp
from jeton.progress.tracker import Pointstamp


def frontiers(graph: ProgressGraph, pointstamps: Mapping[Pointstamp, int]) -> list[Antichain]:
    """The frontier at each location that the pointstamps with a count above zero imply.

    >>> graph = ProgressGraph()
    >>> a = graph.add("a", inputs=0, outputs=1)
    >>> b = graph.add("b", inputs=1, outputs=0)
    >>> graph.connect(a.outputs[0], b.inputs[0])
    >>> frontiers(graph, {(a.outputs[0], 3): 1})[b.inputs[0]]
    Antichain([3])
    """
    [found] = worker_frontiers(graph, {(0, stamp): n for stamp, n in pointstamps.items()}, 1)
    return found


def worker_frontiers(
    graph: ProgressGraph, pointstamps: Mapping[WorkerPointstamp, int], workers: int
) -> list[list[Antichain]]:
    """For each worker the frontier at each of its locations: each worker has the whole graph.

    From an output there is a way to an input of the same worker, and of all others if the input is
    exchanged.

    >>> graph = ProgressGraph()
    >>> a = graph.add("a", inputs=0, outputs=1)
    >>> b = graph.add("b", inputs=1, outputs=0)
    >>> graph.connect(a.outputs[0], b.inputs[0])
    >>> held = {(0, (a.outputs[0], 3)): 1, (1, (a.outputs[0], 5)): 1}
    >>> [found[b.inputs[0]] for found in worker_frontiers(graph, held, 2)]
    [Antichain([3]), Antichain([5])]
    """
    found = [[Antichain() for _ in graph.locations] for _ in range(workers)]
    tie = count()
    work = [
        (nested_key(time), next(tie), worker, at, time)
        for (worker, (at, time)), n in pointstamps.items()
        if n > 0
    ]
    heapify(work)
    while work:
        _, _, worker, at, time = heappop(work)
        if found[worker][at].insert(time):
            for step in graph.steps[at]:
                later = step.summary.apply(time)
                if later is not None:
                    for to in range(workers) if graph.exchanged[step.to] else (worker,):
                        heappush(work, (nested_key(later), next(tie), to, step.to, later))
    return found
