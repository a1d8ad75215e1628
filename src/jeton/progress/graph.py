"""The graph as progress sees it: locations, and the summaries of the steps between them.

A *location* is an operator's input (a target) or output (a source). A step leads from a source
to the targets that it feeds, and inside an operator from an input to the outputs it is connected
to; each step has a summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from jeton.core.errors import GraphError, ZeroCycleError
from jeton.core.summaries import IDENTITY, Advance, Enter, Identity, Leave, Summary, parts
from jeton.core.times import IntegerTimes, TimeKind


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: its ports, and how its inputs lead to its outputs."""

    name: str
    kind: TimeKind
    inputs: tuple[int, ...]
    """The locations of its inputs."""
    outputs: tuple[int, ...]
    """The locations of its outputs."""
    summaries: tuple[tuple[tuple[Summary, ...], ...], ...]
    """For each input and each output the summaries of the path inside; none: not connected."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step from a location to the next."""

    to: int
    summary: Summary


@dataclass(slots=True)
class ProgressGraph:
    """Operators, their locations and the steps between locations.

    >>> graph = ProgressGraph()
    >>> a = graph.add("a", inputs=0, outputs=1)
    >>> b = graph.add("b", inputs=1, outputs=0)
    >>> graph.connect(a.outputs[0], b.inputs[0])
    >>> graph.check()
    >>> graph.describe(b.inputs[0])
    "input 0 of 'b'"
    """

    nodes: list[Node] = field(default_factory=list)
    steps: list[list[Step]] = field(default_factory=list)
    """For each location the steps that lead on from it."""
    kinds: list[TimeKind] = field(default_factory=list)
    """For each location the kind of its times."""
    owner: list[int] = field(default_factory=list)
    """For each location the index of its operator."""
    exchanged: list[bool] = field(default_factory=list)
    """For each location whether other workers may send to it, or advance what is seen there."""

    def add(
        self,
        name: str,
        *,
        inputs: int,
        outputs: int,
        kind: TimeKind | None = None,
        summaries: Sequence[Sequence[Sequence[Summary]]] | None = None,
    ) -> Node:
        """Add an operator; by default every input leads to every output with the identity."""
        kind = kind or IntegerTimes()
        if summaries is None:
            summaries = [[[IDENTITY]] * outputs for _ in range(inputs)]
        if len(summaries) != inputs or any(len(row) != outputs for row in summaries):
            raise GraphError(f"operator {name!r} needs a summary for each input and output")
        first = len(self.steps)
        node = Node(
            name=name,
            kind=kind,
            inputs=tuple(range(first, first + inputs)),
            outputs=tuple(range(first + inputs, first + inputs + outputs)),
            summaries=tuple(tuple(tuple(map(_normal, cell)) for cell in row) for row in summaries),
        )
        index = len(self.nodes)
        self.nodes.append(node)
        for _ in range(inputs + outputs):
            self.steps.append([])
            self.kinds.append(kind)
            self.owner.append(index)
            self.exchanged.append(False)
        for location, row in zip(node.inputs, node.summaries, strict=True):
            for output, cell in zip(node.outputs, row, strict=True):
                self.steps[location].extend(Step(output, s) for s in cell)
        return node

    def connect(
        self, source: int, target: int, summary: Summary = IDENTITY, *, exchanged: bool = False
    ) -> None:
        """Let an output feed an input. A summary that changes times enters or leaves a loop.

        An input that is ``exchanged`` is fed by all workers, any other one by its own worker only.
        """
        self.steps[source].append(Step(target, _normal(summary)))
        self.exchanged[target] = exchanged

    @property
    def locations(self) -> range:
        """All locations."""
        return range(len(self.steps))

    def sources(self) -> Iterable[int]:
        """The locations that are outputs, where tokens are held."""
        for node in self.nodes:
            yield from node.outputs

    def describe(self, location: int) -> str:
        """A location in words."""
        node = self.nodes[self.owner[location]]
        if location in node.inputs:
            return f"input {node.inputs.index(location)} of {node.name!r}"
        return f"output {node.outputs.index(location)} of {node.name!r}"

    def check(self) -> None:
        """Refuse a cycle around which times do not advance, naming the operators on it.

        Leaving a loop forgets its round, so a cycle through locations outside a loop must
        advance a coordinate that those locations have: rounds of the loop do not count.
        """
        ways = self._ways()
        for depth in range(1 + max(ways.depths, default=0)):
            cycle = ways.still_cycle(depth)
            if cycle:
                names = list(dict.fromkeys(self.nodes[ways.owner[at]].name for at in cycle))
                raise ZeroCycleError(
                    "the cycle through "
                    + " → ".join(repr(name) for name in [*names, names[0]])
                    + " does not advance times, so its frontiers could never move: "
                    "put a feedback with a step of at least 1 on it"
                )

    def _ways(self) -> _Ways:
        """The steps, one border at a time: leaving a loop and entering it again goes outside."""
        ways = _Ways(
            [kind.depth for kind in self.kinds], list(self.owner), [[] for _ in self.steps]
        )
        for start, steps in enumerate(self.steps):
            for step in steps:
                at = start
                *before, last = parts(step.summary)
                for part in before:
                    at = ways.add(at, part)
                ways.steps[at].append(Step(step.to, last))
        return ways


@dataclass(slots=True)
class _Ways:
    """Locations, and places between them where a step crosses several borders."""

    depths: list[int]
    owner: list[int]
    steps: list[list[Step]]

    def add(self, at: int, summary: Summary) -> int:
        """A place that one step leads to."""
        crossed = isinstance(summary, Enter) - isinstance(summary, Leave)
        self.depths.append(self.depths[at] + crossed)
        self.owner.append(self.owner[at])
        self.steps.append([])
        self.steps[at].append(Step(len(self.steps) - 1, summary))
        return len(self.steps) - 1

    def still_cycle(self, depth: int) -> list[int] | None:
        """A cycle that comes out to ``depth``, no further, and advances nothing there."""
        here = [at for at, own in enumerate(self.depths) if own == depth]
        reached = {at: self._reached(at, depth) for at in here}
        try:
            TopologicalSorter(
                {at: [to for to in reached[at] if self.depths[to] == depth] for at in here}
            ).prepare()
        except CycleError as error:
            # Each is reached from the next one, perhaps through loops inside.
            cycle: list[int] = []
            for to, start in pairwise(error.args[1]):
                cycle.append(to)
                while (at := reached[start][cycle[-1]]) != start:
                    cycle.append(at)
            return cycle[::-1]
        return None

    def _reached(self, start: int, depth: int) -> dict[int, int]:
        """The places that still steps reach through loops inside, each with the one before it."""
        reached: dict[int, int] = {}
        work = [start]
        while work:
            at = work.pop()
            for step in self.steps[at]:
                to, deep = step.to, self.depths[step.to]
                if to in reached or deep < depth or _moves(step.summary, self.depths[at], depth):
                    continue
                reached[to] = at
                if deep > depth:
                    work.append(to)
        return reached


def _normal(summary: Summary) -> Summary:
    """An advance by nothing is the identity, of which there is one."""
    if isinstance(summary, Identity) or (isinstance(summary, Advance) and not summary.advances):
        return IDENTITY
    return summary


def _moves(summary: Summary, here: int, depth: int) -> bool:
    """Whether a step from depth ``here`` advances one of the coordinates 0 … ``depth``."""
    if isinstance(summary, Advance):
        if len(summary.steps) == 1:
            return summary.advances and here <= depth
        return any(summary.steps[: depth + 1])
    return summary.advances
