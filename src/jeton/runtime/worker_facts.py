"""Worker facts: what only a worker knows about the things that hold frontiers.

They are collected when someone asks why, and cost nothing before. The tracker has the counts of
all workers; a worker adds the lines of its tokens, its queues, the partitions of its inputs, and
whatever keeps it from going on. `BusyWatch` speaks for a worker that is busy and cannot answer.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from heapq import nsmallest
from threading import get_ident
from time import monotonic
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from jeton.columns.column import to_arrow
from jeton.core.source_lines import SourceLine, is_users
from jeton.core.times import Product, Time, nested_key
from jeton.core.tokens import HeldToken, held_tokens
from jeton.dataflow.inputs import InputHandle
from jeton.dataflow.pacts import Exchange
from jeton.runtime.worker import Worker

if TYPE_CHECKING:
    from jeton.runtime.agent import Agent
    from jeton.runtime.operator import Operator

log = logging.getLogger(__name__)

MOST: Final = 1000
"""Pointstamps, and kinds of tokens, that an answer has at most for each location: the least."""
LOOK: Final = 0.5
"""Seconds between looks at a worker."""
LOOKS: Final = 20
"""Looks that are remembered."""
BUSY: Final = 1.0
"""Seconds that one turn takes from which on a worker counts as busy."""
DEPTH: Final = 40
"""Lines of a stack that are reported."""
SAMPLE: Final = 32
"""Batches of a queue that are searched for a frequent key."""

_AGENT: Final = "jeton.runtime.agent"
_RUNNING: Final = (_AGENT, "jeton.runtime.worker")
"""The modules whose functions invoke operators; where they are compiled they have no frames."""

T = TypeVar("T")
Heads = dict[int, tuple[Any, float]]
"""For each input with a queue its first message, and when a `BusyWatch` first saw it there."""


@dataclass(slots=True)
class TokenFact:
    """Tokens of one location and time that one line made."""

    location: int
    time: Time
    count: int
    line: SourceLine | None
    """The user's line; none for initial tokens and those that the library retained."""
    seconds: float
    """For how long the oldest of them has been there."""


@dataclass(slots=True)
class QueueFact:
    """Messages that wait in an input of an operator."""

    location: int
    stamps: list[tuple[Time, int]]
    """Their times and counts."""
    rows: int
    frequent: str = ""
    """The key that most of the rows have, if one stands out."""
    seconds: float | None = None
    """For how long the first of them has waited, as far as that is known."""
    on_disk: bool = False
    """Whether they wait for state that is on disk."""


@dataclass(slots=True)
class PartitionFact:
    """A partition of an input's source."""

    key: str
    floor: Time
    idle: bool
    seconds: float | None
    """Since its last record, as far as that is known."""
    latest: int | None = None
    """The greatest time of its records since it was opened."""


@dataclass(slots=True)
class InputFact:
    """A worker's end of an input that is still open."""

    location: int
    time: Time
    rows: int
    """Records that were sent so far."""
    lateness: int | None
    partitions: list[PartitionFact]
    latest: int | None = None
    """The greatest time of these records."""


@dataclass(slots=True)
class BusyFact:
    """The present act of a worker's thread."""

    doing: str
    seconds: float | None
    """For how long, if that is known: a simulated clock stands still meanwhile."""
    operator: str | None = None
    line: SourceLine | None = None
    """The innermost line of the user's own code."""
    stack: list[str] = field(default_factory=list)


@dataclass(slots=True)
class WorkerFacts:
    """One worker's answer to the question why."""

    worker: int
    pid: int
    host: str
    unit: str | None
    """The unit of the flow's times, if the worker knows it."""
    pointstamps: list[tuple[int, Time, int]]
    """Of all workers, as far as this one knows: location, time and count."""
    tokens: list[TokenFact]
    queues: list[QueueFact]
    inputs: list[InputFact]
    notes: dict[str, str]
    """For operators what they wait for themselves: calls under way, timers."""
    full: str = ""
    """The sink that takes no more rows now."""
    uncommitted: dict[str, int] = field(default_factory=dict)
    """For outputs how many rows wait for the next checkpoint."""
    held_up: str = ""
    """The reason why sources are not read, if a peer does not keep up."""
    command: str = ""
    """The command of the driver that the worker rests for."""
    breakpoints: dict[str, int] = field(default_factory=dict)
    """For inputs and sources that a breakpoint holds its time."""
    paused_since: str = ""
    """The reason for the breakpoint, if it is not that a user asked for it."""
    busy: BusyFact | None = None
    looks: list[str] = field(default_factory=list)
    """Its act at each of the last looks; empty if it waited."""

    def to_json(self) -> dict[str, Any]:
        """The facts as they travel to the driver."""
        found: dict[str, Any] = _encoded(self)
        return found

    @classmethod
    def from_json(cls, header: Mapping[str, Any]) -> WorkerFacts:
        """The facts that a worker has sent.

        >>> import jeton as jt
        >>> from jeton.runtime.agent import Agent
        >>> flow = jt.Flow("echo")
        >>> flow.output("out", flow.input("in"))
        >>> facts = collect([Agent(flow)])[0]
        >>> WorkerFacts.from_json(facts.to_json()) == facts
        True
        """
        found = dict(_decoded(header))
        return cls(
            **found
            | {
                "pointstamps": [tuple(each) for each in found["pointstamps"]],
                "tokens": [TokenFact(**_lined(each)) for each in found["tokens"]],
                "queues": [
                    QueueFact(**each | {"stamps": [tuple(stamp) for stamp in each["stamps"]]})
                    for each in found["queues"]
                ],
                "inputs": [
                    InputFact(**each | {"partitions": _partitions(each["partitions"])})
                    for each in found["inputs"]
                ],
                "busy": None if found["busy"] is None else BusyFact(**_lined(found["busy"])),
            }
        )


def collect(agents: Sequence[Agent]) -> list[WorkerFacts]:
    """The facts of workers of this process."""
    tokens: dict[int, list[HeldToken]] = {}
    for token in held_tokens():
        tokens.setdefault(id(token.book.owner), []).append(token)
    return [_facts(agent, tokens.get(id(agent.worker), ())) for agent in agents]


def _facts(agent: Agent, tokens: Iterable[HeldToken]) -> WorkerFacts:
    worker = agent.worker
    stamps = _retried(worker.tracker.pointstamps)
    return WorkerFacts(
        worker=worker.index,
        pid=os.getpid(),
        host=socket.gethostname(),
        unit=worker.units.unit,
        pointstamps=_least(
            ((location, time, count) for (location, time), count in stamps.items() if count > 0),
            key=lambda stamp: (stamp[0], stamp[1]),
        ),
        tokens=_tokens(tokens, worker.now()),
        queues=[fact for operator in worker.operators for fact in _queues(operator, agent.heads)],
        inputs=_inputs(agent),
        notes=_notes(worker),
        full=agent.sink.waits_for,
        uncommitted=dict(agent.sink.uncommitted),
        held_up=agent.held_up_by,
        command=agent.rests_for,
        breakpoints=agent.breakpoints.held_inputs,
        paused_since=agent.breakpoints.reason,
        busy=_busy(agent, None),
        looks=list(agent.looks),
    )


def _tokens(tokens: Iterable[HeldToken], now: float) -> list[TokenFact]:
    facts: dict[tuple[int, Time, SourceLine | None], TokenFact] = {}
    for token in tokens:
        # A line of the library says nothing to the user: the line that added the operator does.
        line = token.line
        if line is not None and not is_users(line.file):
            line = None
        key = token.book.location, token.time, line
        fact = facts.get(key)
        if fact is None:
            shown = None if line is None else line.with_code()
            fact = facts[key] = TokenFact(token.book.location, token.time, 0, shown, 0.0)
        fact.count += 1
        fact.seconds = max(fact.seconds, round(now - token.made, 3))
    return _least(facts.values(), key=lambda fact: (fact.location, fact.time))


def _least(facts: Iterable[T], key: Callable[[T], tuple[int, Time]]) -> list[T]:
    """The facts of each location at its least times: many at one place must not hide another."""
    by_location: dict[int, list[T]] = {}
    for fact in facts:
        by_location.setdefault(key(fact)[0], []).append(fact)
    return [
        fact
        for found in by_location.values()
        for fact in nsmallest(MOST, found, key=lambda each: nested_key(key(each)[1]))
    ]


def _queues(operator: Operator, heads: Heads) -> Iterable[QueueFact]:
    for port, plan in zip(operator.inputs, operator.plan.inputs, strict=True):
        waiting = _retried(port.waiting)
        if waiting:
            times = Counter(time for time, _ in waiting)
            rows = sum(len(batch) for _, batch in waiting)
            least = nsmallest(MOST, times.items(), key=lambda stamp: nested_key(stamp[0]))
            fact = QueueFact(port.location, least, rows)
            head, seen = heads.get(port.location, (None, 0.0))
            if head is waiting[0]:
                fact.seconds = round(monotonic() - seen, 3)
            if isinstance(plan.pact, Exchange):
                batches = [batch for _, batch in waiting[:SAMPLE] if len(batch)]
                fact.frequent = _frequent(plan.pact.key, batches)
            yield fact
    if operator.spill is not None:
        for location, bounds, held in _retried(operator.spill.waits) or ():
            stamps: list[tuple[Time, int]] = nsmallest(MOST, Counter(bounds).items())
            yield QueueFact(location, stamps, held, on_disk=True)


def _frequent(key: Sequence[Any], batches: Sequence[Any]) -> str:
    """The key that more than half of some records have, in words."""
    names = [name for name in key if isinstance(name, str)]
    if len(names) < len(key) or not batches:
        return ""
    with suppress(Exception):  # no column of that name, or of a type that cannot be counted
        columns = [
            pa.chunked_array([to_arrow(batch.column(name)) for batch in batches]) for name in names
        ]
        table = pa.table(columns, names=names)
        counts = table.group_by(names).aggregate([([], "count_all")])
        most = counts.sort_by([("count_all", "descending")]).slice(0, 1).to_pylist()[0]
        share = most.pop("count_all") / table.num_rows
        if share > 0.5:
            values = ", ".join(f"{name}={value!r}" for name, value in most.items())
            return f"{share:.0%} of their rows have {values}"
    return ""


def _inputs(agent: Agent) -> list[InputFact]:
    worker, flow, now = agent.worker, agent.flow, agent.worker.now()
    facts = []
    for what, name in flow.handles():
        handle = worker.handles[flow.handle(what, name)] if what == "input" else None
        if isinstance(handle, InputHandle) and not handle.closed:
            partitions = [
                PartitionFact(
                    str(each.key),
                    each.floor,
                    each.idle,
                    None if each.heard_at == -math.inf else round(now - each.heard_at, 3),
                    each.latest,
                )
                for each in handle.partitions
                if not each.ended
            ]
            sent, lateness = handle.sent_count, handle.lateness
            latest = handle.furthest
            # Late records have an output of their own.
            facts += [
                InputFact(location, handle.time, sent, lateness, partitions, latest)
                for location in worker.graph.nodes[flow.handle(what, name)].outputs
            ]
    return facts


def _notes(worker: Worker) -> dict[str, str]:
    """For operators what they wait for, as containers that they keep can say, and timers."""
    notes: dict[str, list[str]] = {}
    for operator in worker.operators:
        for kept in operator.kept.values():
            waits_for = getattr(kept.state, "waits_for", None)
            text = None if waits_for is None else _retried(waits_for)
            if text:
                notes.setdefault(operator.plan.name, []).append(text)
    for index, seconds in _retried(lambda: worker.timers.pending(worker.now())).items():
        name = worker.operators[index].plan.name
        notes.setdefault(name, []).append(f"its timer is due in {max(seconds, 0.0):.1f} s")
    return {name: "; ".join(texts) for name, texts in notes.items()}


# Busy workers


def _busy(
    agent: Agent,
    seconds: float | None,
    elsewhere: str = "",
    within: CodeType | None = None,
) -> BusyFact | None:
    """The present act of an agent's thread, unless it is the one that asks, or waits.

    ``elsewhere`` says what the thread does if it is not in the agent. The stack has the calls from
    the agent on, or from the function ``within`` which its turns are taken.
    """
    thread = agent.thread
    frame = None if thread == get_ident() else sys._current_frames().get(thread)
    if frame is None:
        return None
    act, running = agent.act, agent.worker.running
    stack: list[str] = []
    line: SourceLine | None = None
    name: str | None = None
    ends = (_AGENT,) if running is None else _RUNNING
    while frame is not None and frame.f_code is not within:
        line = _note(frame, stack, line)
        if frame.f_globals.get("__name__") in ends:
            break
        # The output and the input are in the frames: nothing has to note them.
        name = _end_named(agent, frame) or name
        frame = frame.f_back
    if running is not None:
        operator = running.plan.name
        return BusyFact(f"runs {operator!r}", seconds, operator, line, stack[::-1])
    if act is None:
        return BusyFact(elsewhere, seconds, None, line, stack[::-1]) if elsewhere else None
    of = f" of {name!r}" if name else ""
    return BusyFact(f"{act}{of}", seconds, name, line, stack[::-1]) if act else None


def stack_of(
    thread: int | None, within: CodeType | None = None
) -> tuple[SourceLine | None, tuple[str, ...]]:
    """The innermost line of the user's own code that a thread is in, and its stack.

    With ``within``, the stack has the calls from that function on.

    >>> line, stack = stack_of(get_ident())
    >>> line.code, stack[-2].endswith("in <module>: line, stack = stack_of(get_ident())")
    ('line, stack = stack_of(get_ident())', True)
    """
    stack: list[str] = []
    line: SourceLine | None = None
    frame = None if thread is None else sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not within:
        line = _note(frame, stack, line)
        frame = frame.f_back
    return line, tuple(stack[::-1])


def _note(frame: FrameType, stack: list[str], line: SourceLine | None) -> SourceLine | None:
    """Add a frame to a stack; the line of the user's own code, if it is known by now."""
    code = frame.f_code
    where = SourceLine(code.co_filename, frame.f_lineno or code.co_firstlineno).with_code()
    if len(stack) < DEPTH:
        stack.append(f"{where.file}:{where.number} in {code.co_name}: {where.code}")
    return where if line is None and is_users(where.file) else line


def _end_named(agent: Agent, frame: FrameType) -> str | None:
    """The input or output that a function of the library is called for."""
    if is_users(frame.f_code.co_filename):
        return None
    found = frame.f_locals
    name = found.get("output", getattr(found.get("reader"), "name", None))
    known = (*agent.flow.outputs, *agent.flow.inputs)
    return name if isinstance(name, str) and name in known else None


class BusyWatch:
    """A thread that looks at a worker twice a second, and answers if it is busy when asked.

    A worker answers the driver between its turns. If a turn takes longer than a second, and a
    command waits to be read, this thread sends a frame of kind ``busy`` in its place. A worker
    whose process is stopped, or that is in a call which holds Python's interpreter, sends nothing.
    """

    def __init__(self, agent: Agent, every: float = LOOK, elsewhere: str = "") -> None:
        """``elsewhere`` says what its thread does if it is not in the agent."""
        self._agent = agent
        self._every = every
        self._elsewhere = elsewhere
        self._within: CodeType | None = None
        """The function that takes the agent's turns."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="jeton-watch", daemon=True)

    def __enter__(self) -> BusyWatch:
        self._within = sys._getframe(1).f_code
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(BUSY)

    def _watch(self) -> None:
        agent = self._agent
        turns, began = -1, monotonic()
        while not self._over.wait(self._every):
            if agent.turns_taken != turns:
                turns, began = agent.turns_taken, monotonic()
            try:
                self._look(round(monotonic() - began, 3))
            except Exception:
                # It may be about to hang up, or what was looked at has changed meanwhile.
                log.debug("a look at worker %d failed", agent.worker.index, exc_info=True)

    def _look(self, seconds: float) -> None:
        agent = self._agent
        busy = _busy(agent, seconds, self._elsewhere, self._within)
        agent.looks = [*agent.looks[1 - LOOKS :], "" if busy is None else busy.doing]
        agent.heads = _heads(agent)
        waits = busy is not None and seconds >= BUSY
        if waits and agent.driver is not None and agent.driver.has_news():
            facts = collect([agent])[0]
            facts.busy = busy
            agent.driver.send("busy", facts=facts.to_json())


def _heads(agent: Agent) -> Heads:
    """The first message of each queue, and when a look first saw it there."""
    found: Heads = {}
    for operator in agent.worker.operators:
        for port in operator.inputs:
            waiting = _retried(port.waiting)
            if waiting:
                head, seen = agent.heads.get(port.location, (None, 0.0))
                same = head is waiting[0]
                found[port.location] = (waiting[0], seen if same else monotonic())
    return found


# Small things


def _retried(read: Callable[[], T]) -> T:
    """Read something that another thread may be changing."""
    for _ in range(10):
        with suppress(RuntimeError):  # it changed during the iteration
            return read()
    return read()


def _encoded(value: Any) -> Any:
    """A value as JSON; products of times are marked, times of the user's own become text."""
    if isinstance(value, Product):
        return {"product": list(value)}
    if is_dataclass(value):
        return {each.name: _encoded(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {key: _encoded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"product"}:
            return Product.of(tuple(value["product"]))
        return {key: _decoded(each) for key, each in value.items()}
    return [_decoded(each) for each in value] if isinstance(value, list) else value


def _lined(fact: dict[str, Any]) -> dict[str, Any]:
    line = fact["line"]
    return fact | {"line": None if line is None else SourceLine(**line)}


def _partitions(facts: Iterable[dict[str, Any]]) -> list[PartitionFact]:
    return [PartitionFact(**fact) for fact in facts]
