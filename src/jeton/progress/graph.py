"""The graph as progress sees it: locations, and the summaries of the steps between them.

A *location* is an operator's input (a target) or output (a source). A step leads from a source
to the targets that it feeds, and inside an operator from an input to the outputs it is connected
to; each step has a summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
        for location, row in zip(node.inputs, node.summaries, strict=True):
            for output, cell in zip(node.outputs, row, strict=True):
                self.steps[location].extend(Step(output, s) for s in cell)
        return node

    def connect(self, source: int, target: int, summary: Summary = IDENTITY) -> None:
        """Let an output feed an input. A summary that changes times enters or leaves a loop."""
        self.steps[source].append(Step(target, _normal(summary)))

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
        depths = self.depths
        follow = [
            [
                step.to
                for step in steps
                if depths[step.to] >= depth and not _moves(step.summary, depths[at], depth)
            ]
            if depths[at] >= depth
            else []
            for at, steps in enumerate(self.steps)
        ]
        for component in _cyclic_components(follow):
            if any(depths[at] == depth for at in component):
                return _cycle_in(component, follow)
        return None


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


def _cyclic_components(follow: list[list[int]]) -> Iterable[list[int]]:
    """Strongly connected components with a cycle (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_path: set[int] = set()
    path: list[int] = []
    for root in range(len(follow)):
        if root in index:
            continue
        work = [(root, iter(follow[root]))]
        index[root] = low[root] = len(index)
        path.append(root)
        on_path.add(root)
        while work:
            at, successors = work[-1]
            for to in successors:
                if to not in index:
                    index[to] = low[to] = len(index)
                    path.append(to)
                    on_path.add(to)
                    work.append((to, iter(follow[to])))
                    break
                if to in on_path:
                    low[at] = min(low[at], index[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[at])
                if low[at] == index[at]:
                    component = []
                    while True:
                        member = path.pop()
                        on_path.discard(member)
                        component.append(member)
                        if member == at:
                            break
                    if len(component) > 1 or at in follow[at]:
                        yield component


def _cycle_in(component: list[int], follow: list[list[int]]) -> list[int]:
    """One cycle inside a strongly connected component, in order."""
    members = set(component)
    at = component[0]
    seen: dict[int, int] = {}
    walk: list[int] = []
    while at not in seen:
        seen[at] = len(walk)
        walk.append(at)
        at = next(to for to in follow[at] if to in members)
    return walk[seen[at] :]
