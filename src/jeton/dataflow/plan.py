"""The plan: the parts of a flow before any worker runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from jeton.columns import time_columns
from jeton.core.errors import GraphError, JetonError, SnapshotError, TokenError, summary
from jeton.core.source_lines import SourceLine
from jeton.core.summaries import IDENTITY, Enter, Leave, Summary
from jeton.core.times import TimeKind
from jeton.core.token_set import missing_token
from jeton.core.tokens import TimestampToken, output_of
from jeton.dataflow.activator import Activator
from jeton.dataflow.column_use import ColumnUse
from jeton.dataflow.pacts import Pact
from jeton.dataflow.ports import Input, Output
from jeton.progress.graph import ProgressGraph
from jeton.state.bins import BINS, Placement
from jeton.state.key_place import KeyPlace
from jeton.state.snapshot import Stateful
from jeton.state.spilled import Compactable
from jeton.state.tagged_state import NoState, Origin, TaggedState

if TYPE_CHECKING:
    from jeton.columns.time_columns import Times

T = TypeVar("T")

Step: TypeAlias = Callable[[Sequence[Input], Sequence[Output]], None]
"""An operator's logic: called whenever there is something to do."""

Build: TypeAlias = "Callable[[list[TimestampToken], OperatorInfo], Step | None]"
"""Makes an operator's logic, once for each worker, from its initial tokens."""

Notify: TypeAlias = Literal["never", "held", "always"]
"""Whether a moved frontier wakes an operator: never, while it holds a token, or always."""


class Crossing(Enum):
    """A border between scopes that an edge crosses."""

    ENTER = Enter()
    LEAVE = Leave()

    def __reduce_ex__(self, protocol: object) -> Any:
        """Travel by name: the values are found by identity, which no copy has."""
        return getattr, (Crossing, self.name)

    @property
    def summary(self) -> Summary:
        """The effect of the crossing on times."""
        summary: Summary = self.value
        return summary

    def translate(self, times: Times) -> Times:
        """The same for a column of times."""
        return time_columns.enter(times) if self is Crossing.ENTER else time_columns.leave(times)


@dataclass(frozen=True, slots=True)
class SourcePort:
    """An output that feeds a stream, and the borders that lie between them."""

    operator: int
    output: int
    crossings: tuple[Crossing, ...] = ()

    @property
    def summary(self) -> Summary:
        """The effect on times of the path from the output into the stream."""
        whole: Summary = IDENTITY
        for crossing in self.crossings:
            longer = whole.then(crossing.summary)
            assert longer is not None, "crossings never run past the end of time"
            whole = longer
        return whole

    def cross(self, crossing: Crossing) -> SourcePort:
        """The same output seen from behind one more border."""
        if crossing is Crossing.LEAVE and self.crossings[-1:] == (Crossing.ENTER,):
            return SourcePort(self.operator, self.output, self.crossings[:-1])
        return SourcePort(self.operator, self.output, (*self.crossings, crossing))


@dataclass(slots=True)
class InputPlan:
    """One input of an operator: its sources and how messages travel."""

    sources: list[SourcePort]
    pact: Pact
    time_name: str = "time"
    observes: bool = False
    """Whether it only watches the frontier, so that no data is delivered."""


@dataclass(slots=True)
class OperatorPlan:
    """One operator: ports, connections, and how to build its logic on a worker."""

    index: int
    name: str
    kind: TimeKind
    time_name: str
    inputs: list[InputPlan]
    outputs: int
    """How many outputs it has at least: an input has another one if a stream reads it."""
    summaries: list[list[tuple[Summary, ...]]]
    build: Build
    notify: Notify
    label: str = ""
    """Its name without the number that distinguishes it from others of that name."""
    named: bool = False
    """Whether the user chose the name for this one operator."""
    defined: SourceLine | None = None
    """The user's line that added it."""
    schemas: Sequence[pa.Schema | None] = ()
    """The columns of each output, as far as they are known."""
    use: ColumnUse | None = None
    """The columns of its inputs that it uses; ``None`` if it may use any."""
    waits: bool = False
    """Whether it is known to answer records only once their times are complete."""


@dataclass(slots=True)
class OperatorInfo:
    """The context in which an operator's logic is built.

    `worker` is the worker it is built on, `workers` how many there are, and `activator` asks to
    be invoked again: now, after a delay, or from another thread.
    """

    name: str
    worker: int
    workers: int
    activator: Activator
    kind: TimeKind
    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    post: Callable[[Callable[[], None]], None] = lambda act: act()
    """Run an act in the worker's own step, later: for handles used from outside."""
    publish: Callable[[Any], None] = lambda handle: None
    """Make a handle of this operator known to the host."""
    restored: Callable[[str], Any] = lambda name: None
    """The state of that name to go on from (a table), or nothing."""
    at_end: Callable[[Callable[[], None]], None] = lambda act: None
    """Have an act called when the run is over, complete or not: to end threads, connections
    and similar things that must not outlive it."""
    kept: dict[str, TaggedState] = field(default_factory=dict)
    common: dict[Hashable, Any] = field(default_factory=dict)
    used: set[Hashable] = field(default_factory=set)
    """The keys of `shared` that this operator has asked for."""
    origin: Origin = field(default_factory=lambda: Origin(""))
    """Where the operator stands in the flow."""
    pacts: Sequence[Pact] = ()
    """How records come to its inputs."""
    arrivals: Callable[[], Sequence[Pact]] = lambda: ()
    """The pacts that decide on which workers its records are: see `arrivals`."""
    bins: int = BINS
    """Into how many bins keys are divided."""
    placement: Callable[[], Placement] | None = None
    """The owners of bins at the moment."""
    spill: Restoring | None = None
    """The budget that decides how much of the state begins in memory, where that is bounded."""

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """A value that operators of this worker share in this run; the first caller makes it.

        Operators of one worker never run at the same time, so it needs no lock. The others have
        one of their own, and so has the same flow in another run. An `object()` that all those
        operators know makes a key of their own.

        >>> import jeton as jt
        >>> def remember(token, info):
        ...     token.drop()
        ...     seen = info.shared("seen", set)
        ...
        ...     def step(input, output):
        ...         for ref, batch in input:
        ...             new = [n not in seen for n in batch["n"]]
        ...             seen.update(batch["n"])
        ...             output.session(ref).give(batch.filter(new))
        ...
        ...     return step
        >>> flow = jt.Flow("new to both")
        >>> flow.output("left", flow.input("left").unary(remember))
        >>> flow.output("right", flow.input("right").unary(remember))
        >>> rows = {"time": [0, 0], "n": [1, 2]}
        >>> result = flow.run({"left": rows, "right": rows})
        >>> result["left"].num_rows + result["right"].num_rows
        2
        """
        self.used.add(key)
        if key not in self.common:
            self.common[key] = make()
        made: T = self.common[key]
        return made

    def keep(
        self,
        state: Stateful,
        *tokens: TimestampToken,
        name: str = "state",
        shape: str = "",
        lazy: bool = False,
    ) -> None:
        """Make a container, or anything with its two methods, a part of snapshots.

        If the flow goes on from a snapshot, this restores it. Pass the operator's initial tokens,
        before they are dropped, if the state needs rights to speak. ``shape`` is text that says
        what the state depends on, such as keys and sizes: state of another shape is refused.
        A container that has a method ``placed_by`` learns from it how records come to the
        operator, and from ``kept_with`` which tokens it is kept with: see `RecordQueue`. With
        ``lazy``, nothing looks at it while the operator is built: where memory is bounded, what is
        restored may come in later.
        """
        if name in self.kept:
            raise SnapshotError(f"state {name!r} is kept already: give each its own name=…")
        if not isinstance(state, Stateful):
            raise SnapshotError(
                f"a {type(state).__name__} cannot be kept: it needs the methods snapshot() and "
                "restore(state, tokens), as the containers of jt.state have them"
            )
        dropped = [token for token in tokens if token.dropped]
        if dropped:
            raise TokenError(
                f"{dropped[0]!r} has been dropped: call info.keep(…) before token.drop(), since "
                f"state {name!r} needs the token to hold its rights again"
            )
        for hook, value in (("placed_by", self.pacts), ("kept_with", tokens)):
            method = getattr(state, hook, None)
            if method is not None:
                method(value)
        placed_at = getattr(state, "placed_at", None)
        if placed_at is not None:
            placed_at(
                KeyPlace(self.worker, self.workers, self.bins, self.arrivals(), self.placement)
            )
        if self.spill is not None and isinstance(state, Compactable):
            state.stay_compact()
        rights = [output_of(token) for token in tokens]
        tagged = self.kept[name] = TaggedState(state, self.origin, shape, rights)
        table = self.restored(name)
        if table is not None:
            try:
                if self.spill is None:
                    tagged.restore(table, _InitialTokens(tokens))
                else:
                    self.spill.restore(tagged, name, table, _InitialTokens(tokens), lazy=lazy)
            except JetonError:
                raise
            except Exception as error:
                raise SnapshotError(
                    f"state {name!r} is not what the snapshot has under this name, with the "
                    f"columns {table.column_names}: {summary(error)}"
                ) from error

    def keep_nothing(self) -> None:
        """Declare that there is nothing to keep, though the operator may hold tokens.

        Snapshots refuse an operator that holds tokens and keeps nothing, since as a rule it waits
        with something. One that does not begins anew, with its initial tokens.
        """
        self.kept["nothing"] = TaggedState(NoState(), self.origin, "")


class Restoring(Protocol):
    """Decides how much of the state that an operator begins with is in memory."""

    def restore(
        self,
        kept: TaggedState,
        name: str,
        state: pa.Table,
        tokens: Sequence[TimestampToken],
        *,
        lazy: bool,
    ) -> None:
        """Begin with state, of which some may come in later if it is ``lazy``."""
        ...


class _InitialTokens(tuple[TimestampToken, ...]):
    """The tokens that state was kept with; an error that says what to do where one is missing."""

    __slots__ = ()

    def __getitem__(self, at: Any) -> Any:
        try:
            return super().__getitem__(at)
        except IndexError:
            raise missing_token(at) from None


def arrivals(operators: Sequence[OperatorPlan], index: int) -> list[Pact]:
    """The pacts that decide on which workers an operator's records are.

    Those of its inputs; where records stay on their workers, those of the operators before.
    """
    found: dict[str, Pact] = {}
    seen, left = {index}, [operators[index]]
    while left:
        for port in (port for port in left.pop().inputs if not port.observes):
            before = [operators[source.operator] for source in port.sources]
            # Records that stay where a source made them are on any worker.
            if not port.pact.local or not all(plan.inputs for plan in before):
                found.setdefault(repr(port.pact), port.pact)
            if port.pact.local:
                left += [plan for plan in before if plan.index not in seen]
                seen.update(plan.index for plan in before)
    return list(found.values())


def waiting(operators: Sequence[OperatorPlan], inputs: Collection[int]) -> list[OperatorPlan]:
    """The operators behind some inputs that wait until times are complete.

    They ask to know when a frontier moves. Others need none, and act on records as they come.
    """
    behind = set(inputs)
    found = -1
    while len(behind) > found:
        # Once more for feedback, which leads back to operators that come before.
        found = len(behind)
        for plan in operators:
            if any(s.operator in behind for port in plan.inputs for s in port.sources):
                behind.add(plan.index)
    return [
        plan
        for plan in operators
        if plan.index in behind and plan.inputs and plan.notify != "never"
    ]


def answers_at_once(operators: Sequence[OperatorPlan], input: int) -> bool:
    """Whether records of an input may lead to results before all workers have come to their time.

    They may if a path from the input to its end has no operator that is known to wait for that.
    Late records are on a path of their own, which does not count.
    """
    edges = [
        (plan, port, {(source.operator, source.output) for source in port.sources})
        for plan in operators
        for port in plan.inputs
        if not port.observes
    ]
    read = {output for _, _, sources in edges for output in sources}
    behind = {(input, 0)}
    found = -1
    while len(behind) > found:
        found = len(behind)
        for plan, port, sources in edges:
            if sources & behind and (port.pact.local_frontier or not plan.waits):
                outputs = {output for output in read if output[0] == plan.index}
                if not outputs:
                    return True
                behind |= outputs
    return False


def origins(operators: Sequence[OperatorPlan]) -> list[Origin]:
    """Where each operator of a flow stands."""
    alike = Counter(plan.label for plan in operators)
    return [
        Origin(
            plan.name,
            plan.named,
            tuple(operators[s.operator].name for port in plan.inputs for s in port.sources),
            alike[plan.label],
        )
        for plan in operators
    ]


def progress_graph(operators: Sequence[OperatorPlan]) -> ProgressGraph:
    """The graph as progress sees it; operators keep their indices."""
    graph = ProgressGraph()
    read = Counter[int]()
    for source in (s for plan in operators for port in plan.inputs for s in port.sources):
        read[source.operator] = max(read[source.operator], source.output + 1)
    for plan in operators:
        graph.add(
            plan.name,
            inputs=len(plan.inputs),
            outputs=max(plan.outputs, read[plan.index]),
            kind=plan.kind,
            summaries=plan.summaries,
        )
    for plan, node in zip(operators, graph.nodes, strict=True):
        for port, location in zip(plan.inputs, node.inputs, strict=True):
            # An input that only observes sees how far all workers are.
            exchanged = port.observes or not port.pact.local_frontier
            for source in port.sources:
                output = graph.nodes[source.operator].outputs[source.output]
                graph.connect(output, location, source.summary, exchanged=exchanged)
    graph.check()
    return graph


def require_same_flow(streams: Sequence[Any]) -> None:
    """Refuse streams of different flows or scopes in one operator."""
    first = streams[0]
    for other in streams[1:]:
        if other.scope.flow is not first.scope.flow:
            raise GraphError("streams of different flows cannot meet in one operator")
        if other.scope is not first.scope:
            raise GraphError(
                f"streams of scopes {first.scope.path!r} and {other.scope.path!r} cannot meet: "
                "enter() or leave() first"
            )
