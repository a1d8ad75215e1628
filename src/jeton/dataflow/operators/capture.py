"""capture, replay: a stream's data and progress as values, to be fed back later.

A captured stream is one list of events for each worker that captured it. Replaying it, with as
many workers or more or fewer, gives the same records and the same frontiers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from jeton.columns.batch import Batch
from jeton.core.antichain import MutableAntichain, frontier_changes
from jeton.core.times import Time
from jeton.core.token_set import TokenSet
from jeton.core.tokens import TimestampToken
from jeton.dataflow.operators.source import add_source
from jeton.dataflow.plan import OperatorInfo, Step
from jeton.dataflow.ports import Input, Output
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.scope import Scope
    from jeton.dataflow.stream import Stream

EVENTS_PER_STEP = 64
"""The number of events that a replay sends before other operators run."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """The frontier changed: times that left (``-1``) and entered (``+1``)."""

    changes: tuple[tuple[Time, int], ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """A message passed."""

    time: Time
    batch: Batch


Event: TypeAlias = Progressed | Sent
Captured: TypeAlias = "Sequence[Sequence[Event]]"
"""A list of events for each worker that captured."""


def add_capture(stream: StreamBase, name: str) -> None:
    """Add the operator of `Stream.capture`."""
    stream.flow.reserve("capture", name)
    builder = stream.operator(name)
    builder.input(stream)

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        shown: tuple[Time, ...] = (info.kind.minimum,)
        events: list[Event] = [Progressed(tuple((time, +1) for time in shown))]
        info.publish(events)

        def step(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            nonlocal shown
            # Messages first: the frontier cannot have passed those that are still queued.
            events.extend(Sent(ref.time, batch) for ref, batch in inputs[0])
            now = tuple(inputs[0].frontier)
            changes = frontier_changes(shown, now)
            if changes:
                events.append(Progressed(tuple(changes)))
                shown = now

        return step

    builder.build(build, notify="always")


def add_replay(scope: Scope, captured: Captured, name: str, time: str) -> Stream:
    """A source that replays captured events; each worker takes its share of the lists."""

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Output], None]:
        mine = [list(events) for events in captured[info.worker :: info.workers]]
        tokens = TokenSet([token])
        # Each list opens by saying where it starts; until then it may speak at any time.
        frontier = MutableAntichain([info.kind.minimum] * len(mine))
        opened = [False] * len(mine)
        positions = [0] * len(mine)

        def replay_one(index: int, output: Output) -> bool:
            if positions[index] == len(mine[index]):
                return False
            event = mine[index][positions[index]]
            positions[index] += 1
            if isinstance(event, Sent):
                output.session(tokens.token_for(event.time), event.time).give(event.batch)
            else:
                frontier.update(event.changes)
                if not opened[index]:
                    opened[index] = True
                    frontier.update([(info.kind.minimum, -1)])
            if positions[index] == len(mine[index]) and not opened[index]:
                frontier.update([(info.kind.minimum, -1)])
            return True

        def step(output: Output) -> None:
            left = False
            for _ in range(EVENTS_PER_STEP):
                left = False
                for index in range(len(mine)):
                    left = replay_one(index, output) or left
            tokens.downgrade(frontier.frontier)
            if left:
                info.activator.activate()

        return step

    return add_source(scope, build, name=name, time=time, start=scope.kind.minimum)
