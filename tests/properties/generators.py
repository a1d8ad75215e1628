"""Strategies of the property tests: times, summaries, graphs and histories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

import jeton as jt
from jeton.core.summaries import SummaryLike
from jeton.core.times import IntegerTimes, ProductTimes, TimeKind, UserTimes
from jeton.dataflow.plan import progress_graph
from jeton.dataflow.scope import Loop
from jeton.progress.graph import ProgressGraph

Changes = list[tuple[tuple[int, Any], int]]


class Subset(frozenset[int]):
    """A time of the user's own: sets by inclusion."""

    @classmethod
    def minimum(cls) -> Subset:
        return cls()

    def sort_key(self) -> Any:
        return (len(self), sorted(self))


@dataclass(frozen=True)
class Include:
    """A summary of the user's own: the time includes some elements from here on."""

    elements: frozenset[int]
    advances = False

    def apply(self, time: Any, /) -> Any:
        return Subset(time | self.elements)

    def then(self, following: jt.Summary, /) -> jt.Summary | None:
        if isinstance(following, Include):
            return Include(self.elements | following.elements)
        return self


INTEGERS = IntegerTimes()
PAIRS = ProductTimes(INTEGERS)
TRIPLES = ProductTimes(PAIRS)
SUBSETS = UserTimes(Subset)
ROUNDS_OF_SUBSETS = ProductTimes(SUBSETS)

looping_kinds = st.sampled_from([INTEGERS, PAIRS, TRIPLES, ROUNDS_OF_SUBSETS])
kinds = looping_kinds | st.just(SUBSETS)


@cache
def times(kind: TimeKind) -> st.SearchStrategy[Any]:
    """Times of a kind, close together so that they meet; now and then near the end of time."""
    if isinstance(kind, ProductTimes):
        pair = st.tuples(times(kind.outer), st.integers(0, 4))
        return pair.map(lambda both: jt.Product(*both))
    if isinstance(kind, UserTimes):
        return st.frozensets(st.integers(0, 2)).map(Subset)
    return st.integers(0, 9) | st.integers(jt.END_OF_TIME - 1, jt.END_OF_TIME)


def later_times(kind: TimeKind, time: Any) -> st.SearchStrategy[Any]:
    """Times of a kind that are ``>= time``."""
    if isinstance(kind, ProductTimes):
        pair = st.tuples(later_times(kind.outer, time.outer), st.integers(0, 2))
        return pair.map(lambda both: jt.Product(both[0], time.inner + both[1]))
    if isinstance(kind, UserTimes):
        return st.frozensets(st.integers(0, 2)).map(lambda more: Subset(time | more))
    return st.integers(0, 3).map(lambda step: min(time + step, jt.END_OF_TIME))


@cache
def advances(kind: TimeKind) -> st.SearchStrategy[jt.Advance]:
    """Summaries that advance times of a kind, by one coordinate or several."""
    single = st.integers(1, 3).map(jt.Advance)
    if kind.depth == 0 or kind is ROUNDS_OF_SUBSETS:
        return single
    steps = st.tuples(*[st.integers(0, 2)] * (kind.depth + 1))
    return single | steps.map(lambda steps: jt.Advance(*steps) if any(steps) else jt.Advance(1))


@cache
def summaries(kind: TimeKind) -> st.SearchStrategy[jt.Summary]:
    """Summaries for times of a kind, the identity first."""
    identity: st.SearchStrategy[jt.Summary] = st.just(jt.IDENTITY)
    if kind is SUBSETS:
        return identity | st.frozensets(st.integers(0, 2)).map(Include)
    return identity | advances(kind)


@cache
def _cells(kind: TimeKind) -> st.SearchStrategy[tuple[jt.Summary, ...]]:
    """How one input leads to one output: most often unchanged, or not, or in several ways."""
    some = summaries(kind)
    unchanged: st.SearchStrategy[tuple[jt.Summary, ...]] = st.just((jt.IDENTITY,))
    return unchanged | unchanged | st.just(()) | st.tuples(some) | st.tuples(some, some)


@st.composite
def flat_graphs(draw: st.DrawFn, *, advancing: bool = True) -> ProgressGraph:
    """Operators of one kind of time, joined at random, with parallel edges and cycles.

    If ``advancing``, every edge that leads backwards advances times.
    """
    kind = draw(kinds)
    cyclic = kind is not SUBSETS
    graph = ProgressGraph()
    for index in range(draw(st.integers(1, 5))):
        inputs, outputs = draw(st.sampled_from([(1, 1), (1, 1), (0, 1), (2, 1), (1, 2), (2, 2)]))
        cells = [[draw(_cells(kind)) for _ in range(outputs)] for _ in range(inputs)]
        graph.add(f"op{index}", inputs=inputs, outputs=outputs, kind=kind, summaries=cells)
    feeds = st.lists(st.sampled_from(list(graph.sources())), max_size=2)
    for target in [at for node in graph.nodes for at in node.inputs]:
        for source in draw(feeds):
            forward = graph.owner[source] < graph.owner[target]
            if not forward and not cyclic:
                continue
            if forward or not advancing:
                graph.connect(source, target, draw(_mostly_identity(kind)))
            elif draw(st.booleans()):
                graph.connect(source, target, draw(advances(kind)))
            else:
                step = draw(advances(kind))
                back = graph.add("feedback", inputs=1, outputs=1, kind=kind, summaries=[[[step]]])
                graph.connect(source, back.inputs[0])
                graph.connect(back.outputs[0], target)
    return graph


@st.composite
def on_workers(draw: st.DrawFn, graphs: st.SearchStrategy[ProgressGraph]) -> ProgressGraph:
    """Graphs with some inputs that all workers feed."""
    graph = draw(graphs)
    for node in graph.nodes:
        for at in node.inputs:
            graph.exchanged[at] = draw(st.booleans())
    return graph


@cache
def _mostly_identity(kind: TimeKind) -> st.SearchStrategy[jt.Summary]:
    identity: st.SearchStrategy[jt.Summary] = st.just(jt.IDENTITY)
    return identity | identity | summaries(kind)


def _idle(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> None:
    """These flows are only looked at, never run."""


class _Sketch:
    """A flow that grows at random: scopes, and the streams that each of them has."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.flow = jt.Flow("sketch")
        self.streams: dict[jt.Scope, list[jt.Stream]] = {self.flow: [self.flow.input("in")]}
        self.open: list[tuple[jt.Scope, Any]] = []
        self.loops: list[Loop] = []
        for around in draw(st.sampled_from([(0,), (0, 1), (0, 0), (0, 1, 2), (0, 1, 1)])):
            outer = list(self.streams)[around]
            self.loops.append(outer.loop())
            self.streams[self.loops[-1]] = [self.stream(outer).enter(self.loops[-1])]
            self.feedback(self.loops[-1])

    def grow(self) -> None:
        """Add one thing somewhere."""
        draw = self.draw
        loop = draw(st.sampled_from(self.loops))
        assert loop.parent is not None
        match draw(st.sampled_from(["operator", "enter", "leave", "feedback"])):
            case "operator":
                scope = draw(st.sampled_from([*self.loops, self.flow]))
                self.streams[scope] += self.operator(scope)
            case "enter":
                self.streams[loop].append(self.stream(loop.parent).enter(loop))
            case "leave":
                self.streams[loop.parent].append(self.stream(loop).leave())
            case _:
                self.feedback(draw(st.sampled_from([loop, self.flow])))

    def feedback(self, scope: jt.Scope) -> None:
        again = scope.feedback(self.draw(st.integers(1, 2)))
        self.open.append((scope, again))
        self.streams[scope].append(again.stream)

    def stream(self, scope: jt.Scope) -> jt.Stream:
        """One of a scope's streams, the latest first, or two of them as one."""
        one, *more = self.draw(
            st.lists(st.sampled_from(self.streams[scope][::-1]), min_size=1, max_size=2)
        )
        return one.concat(*more)

    def operator(self, scope: jt.Scope) -> tuple[jt.Stream, ...]:
        draw = self.draw
        builder = scope.operator("op")
        inputs = [builder.input(self.stream(scope)) for _ in range(draw(st.integers(1, 2)))]
        step: st.SearchStrategy[SummaryLike] = st.sampled_from([0, 0, 0, None, 1, 2])
        if scope.kind is not self.flow.kind:
            width = scope.kind.depth + 1
            step |= st.tuples(*[st.integers(0, 1)] * width)
        for _ in range(draw(st.integers(1, 2))):
            builder.output({port: draw(step) for port in inputs})
        return builder.build(_idle)

    def close(self) -> None:
        """Close the cycles."""
        for scope, again in self.open:
            again.connect(self.stream(scope))


@st.composite
def flow_graphs(draw: st.DrawFn) -> ProgressGraph:
    """The unchecked graph of a random flow: nested loops, entered, left and closed at random."""
    sketch = _Sketch(draw)
    for _ in range(draw(st.integers(1, 12))):
        sketch.grow()
    sketch.close()
    with patch.object(ProgressGraph, "check"):
        return progress_graph(sketch.flow.operators)


def pointstamps(graph: ProgressGraph) -> st.SearchStrategy[tuple[int, Any]]:
    """A location and a time that fits there."""

    def at(location: int) -> st.SearchStrategy[tuple[int, Any]]:
        return st.tuples(st.just(location), times(graph.kinds[location]))

    return st.sampled_from(list(graph.locations)).flatmap(at)


def histories(graph: ProgressGraph) -> st.SearchStrategy[list[Changes]]:
    """Atomic changes, one after the other; counts may well become negative on the way."""
    change = st.tuples(pointstamps(graph), st.sampled_from([1, 1, -1, 2, -2]))
    return st.lists(st.lists(change, min_size=1, max_size=4), max_size=8)


@contextmanager
def patience(limit: int = 20_000) -> Iterator[None]:
    """Fail, rather than hang, if times are moved on for ever: propagation must end."""
    real, left = jt.Advance.apply, count(limit, -1)

    def apply(self: jt.Advance, time: Any, /) -> Any:
        if next(left) < 0:
            raise AssertionError(f"propagation goes on and on: it has now reached {time}")
        return real(self, time)

    with patch.object(jt.Advance, "apply", apply):
        yield


def add(counts: dict[Any, int], changes: Iterable[tuple[Any, int]]) -> None:
    """The obvious way to count."""
    for key, delta in changes:
        counts[key] = counts.get(key, 0) + delta
        if not counts[key]:
            del counts[key]
