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
    found = [Antichain() for _ in graph.locations]
    tie = count()
    work = [
        (nested_key(time), next(tie), at, time) for (at, time), n in pointstamps.items() if n > 0
    ]
    heapify(work)
    while work:
        _, _, at, time = heappop(work)
        if found[at].insert(time):
            for step in graph.steps[at]:
                later = step.summary.apply(time)
                if later is not None:
                    heappush(work, (nested_key(later), next(tie), step.to, later))
    return found
