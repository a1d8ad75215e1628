"""Explain: the holders of a frontier, in words."""

from __future__ import annotations

from collections.abc import Mapping

from jeton.core.times import START_OF_TIME, nested_key
from jeton.progress.graph import ProgressGraph
from jeton.progress.tracker import Pointstamp


def holders(graph: ProgressGraph, pointstamps: Mapping[Pointstamp, int]) -> list[str]:
    """Who holds tokens, and where messages are under way, least times first.

    >>> graph = ProgressGraph()
    >>> window = graph.add("window", inputs=1, outputs=1)
    >>> holders(graph, {(window.outputs[0], 10): 1, (window.inputs[0], 3): 2})
    ["2 messages at 3 are under way to 'window'", "'window' holds 1 token at 10"]
    """
    lines = []
    for (location, time), count in sorted(
        pointstamps.items(), key=lambda item: (nested_key(item[0][1]), item[0][0])
    ):
        if count <= 0:
            continue
        node = graph.nodes[graph.owner[location]]
        plural = "s" if count > 1 else ""
        at = "the start of time" if time == START_OF_TIME else time
        if location in node.outputs:
            lines.append(f"{node.name!r} holds {count} token{plural} at {at}")
        else:
            are = "are" if count > 1 else "is"
            lines.append(f"{count} message{plural} at {at} {are} under way to {node.name!r}")
    return lines
