"""Calls under way: a worker's side of an asynchronous operator, which holds the tokens."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton.idioms.event_loop import GRACE, AsyncOutput, Client, Event, EventLoop, Logic

Order: TypeAlias = Literal["by time", "as they come"]
"""Whether answers wait until all earlier ones are there, or go out as soon as they are known."""

_BIN: Final = "bin"


@dataclass(frozen=True)
class Settings:
    """What an asynchronous operator was asked to be."""

    logic: Logic
    outputs: int
    concurrency: int
    order: Order
    rows: int | None
    client: Client | None
    waiting: int
    time_name: str


class Calls:
    """What one worker has asked and not heard yet; it neither waits nor asks itself.

    `step` hands events to the loop and takes answers back; an answer that comes activates it.
    """

    def __init__(
        self, settings: Settings, tokens: list[jt.TimestampToken], info: jt.OperatorInfo
    ) -> None:
        self._settings = settings
        self._info = info
        self._total = info.kind.total
        self._sorts = self._total and settings.order == "by time"
        self._numbers = count()
        self._left: deque[_Asked] = deque()
        """Taken from the input, in whole messages, but not handed over yet."""
        self._asked: dict[int, _Asked] = {}
        """Handed over and not answered."""
        self._least: list[tuple[Any, int]] = []
        """Times and numbers of events, a heap, if answers wait for the least that was asked."""
        self._answers = [jt.RecordQueue(info.kind, output=n) for n in range(settings.outputs)]
        self._loop: EventLoop | None = None
        self._give_up: Callable[[], object] = lambda: None
        self._awaited: Any = None
        self._woken = False
        self._called = False
        self._turn = False
        info.keep(self, *tokens, name="asked")
        for number, queue in enumerate(self._answers):
            info.keep(queue, *tokens, name=f"answers {number}")
        for token in tokens:
            token.drop()
        info.at_end(self._close)

    def step(self, inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
        """Let neighbours go first, who wait for nobody; go to work in the worker's next step."""
        (input,) = inputs
        if self._turn:
            self._turn = self._called = False
            self._work(input, outputs)
        elif not self._called:
            # First of all: whatever is done from now on wakes it again.
            self._woken = False
            if self._has_work(input):
                self._called = True
                self._info.post(self._take_turn)

    def _has_work(self, input: jt.Input) -> bool:
        """Whether there is more to it than a frontier that moved, and that nobody waits for."""
        return bool(
            input
            or self._left
            or (self._loop is not None and self._loop.done)
            or any(map(len, self._answers))
            or input.frontier.is_empty
        )

    def _take_turn(self) -> None:
        self._turn = True
        self._info.activator.activate()

    def _work(self, input: jt.Input, outputs: Sequence[jt.Output]) -> None:
        """Take answers, take input as far as there is room, and send what may go out."""
        self._woken = False
        self._hear()
        events: list[Event] = []
        while self._has_room and (self._left or self._take(input)):
            events.append(self._next_event())
        self._expect_answers()
        if events:
            self._loop = self._loop or self._open()
            self._loop.hand_over(events)
        self._send(input.frontier, outputs)
        if input.frontier.is_empty and not input and not self._left:
            self._end()

    # From the input to the loop

    @property
    def _has_room(self) -> bool:
        """Whether to ask for more: as long as somebody is free, and as many again wait."""
        asked = len(self._asked)
        if asked and sum(map(len, self._answers)) >= self._settings.waiting:
            return False
        return asked < 2 * self._settings.concurrency

    def _take(self, input: jt.Input) -> bool:
        """Take one message, its records in order of time."""
        for ref, batch in input:
            if self._total:
                batch = _sorted(batch)
                self._left.append(self._held(ref, int(batch.times[0]), batch))
            else:
                for time, part in batch.by_time():
                    self._left.append(self._held(ref, time, part))
            return True
        return False

    def _held(self, ref: jt.TokenRef, time: Any, batch: jt.Batch) -> _Asked:
        return _Asked([ref.retain(time, output=n) for n in range(self._settings.outputs)], batch)

    def _next_event(self) -> Event:
        """Cut the next event off what is left."""
        first = self._left[0]
        rows = self._settings.rows or len(first.batch)
        if rows >= len(first.batch):
            asked = self._left.popleft()
        else:
            asked = _Asked([token.clone() for token in first.tokens], first.batch.slice(0, rows))
            first.batch = first.batch.slice(rows, len(first.batch))
            if self._total:
                for token in first.tokens:
                    token.downgrade(int(first.batch.times[0]))
        number, time = next(self._numbers), asked.time
        self._asked[number] = asked
        if self._sorts:
            heappush(self._least, (time, number))
        return Event(number, time, asked.batch)

    def _open(self) -> EventLoop:
        """Begin the thread: with the first event, since many operators on many workers get none."""
        settings, info = self._settings, self._info
        # The loop must not keep the operator alive: forgotten, it ends the thread.
        wake = weakref.WeakMethod(self._wake)
        loop = EventLoop(
            f"{info.name} on worker {info.worker}",
            settings.logic,
            [
                AsyncOutput(index, settings.time_name, info.kind)
                for index in range(settings.outputs)
            ],
            concurrency=settings.concurrency,
            client=settings.client,
            wake=lambda: (wake() or _nobody)(),
        )
        self._give_up = weakref.finalize(self, loop.cancel)
        return loop

    # From the loop to the outputs

    def _wake(self) -> None:
        """Something is done: called in the loop's thread, once for many answers."""
        if not self._woken:
            self._woken = True
            awaited = self._awaited
            if awaited is not None:
                awaited.activate()

    def _hear(self) -> None:
        """Take what the loop has done: answers wait from now on, with tokens of their own."""
        heard: list[tuple[_Asked, Event]] = []
        done = self._loop.done if self._loop is not None else ()
        while done:
            event, error = done.popleft()
            if error is not None:
                raise _failure(error, event)
            assert event is not None
            heard.append((self._asked.pop(event.number), event))
        records = [_Records() for _ in self._answers]
        for asked, event in heard:
            for output, batch, time, record in event.answers:
                token, queue = asked.tokens[output], self._answers[output]
                if batch is not None:
                    queue.push(token, batch)
                elif record is not None:
                    records[output].add(token, time, record)
            if not self._total:
                self._push(records)  # tokens of other events may not do for these
        self._push(records)
        for asked, _ in heard:
            for token in asked.tokens:
                token.drop()

    def _push(self, records: Sequence[_Records]) -> None:
        for queue, together in zip(self._answers, records, strict=True):
            if together.token is not None:
                batch = together.batch(self._settings.time_name, self._info.kind)
                queue.push(together.token, batch)
                together.clear()

    def _expect_answers(self) -> None:
        """Have the host wait for the loop's thread while calls are under way, and only then."""
        if self._asked and self._awaited is None:
            self._awaited = self._info.activator.for_thread()
        elif not self._asked and self._awaited is not None:
            self._awaited.close()
            self._awaited = None

    def _send(self, frontier: jt.Antichain, outputs: Sequence[jt.Output]) -> None:
        limit = jt.Antichain()
        if self._settings.order == "by time":
            limit.extend(frontier)
            limit.extend(asked.time for asked in self._left)
            limit.extend(self._under_way())
        for output, queue in zip(outputs, self._answers, strict=True):
            for time, batch in queue.pop(limit):
                output.session(queue.right_for(time)).give(batch)
            queue.settle()

    def _under_way(self) -> Iterable[Any]:
        """Lower bounds of the times of all events that were handed over and not answered."""
        if not self._sorts:
            return [asked.time for asked in self._asked.values()]
        least = self._least
        while least and least[0][1] not in self._asked:
            heappop(least)
        return [time for time, _ in least[:1]]

    # The end

    def _end(self) -> None:
        """The input is complete: let the coroutines return, and hear how that went."""
        loop = self._loop
        if loop is not None:
            loop.end()
            if not self._asked:
                loop.join()
                self._hear()
                self._loop = None

    def _close(self) -> None:
        """The run is over, whatever was under way."""
        self._give_up()
        if self._loop is not None:
            self._loop.join(GRACE)

    # What is kept

    def snapshot(self) -> pa.Table:
        """The records that were taken but not answered: they will be asked again."""
        waiting = [asked.batch for asked in (*self._asked.values(), *self._left)]
        if not waiting:
            return pa.table({_BIN: pa.array([], pa.uint16())})
        if not self._total:
            raise jt.SnapshotError("records inside a loop wait: a snapshot needs loops at rest")
        whole = jt.concat(waiting)
        table = whole.to_arrow()
        # Prefixed, since a column of the user's may well be called "bin".
        table = table.rename_columns([f"value.{name}" for name in table.column_names])
        return table.append_column(_BIN, pa.array(jt.bins_of([whole.times])))

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Let the records be asked again."""
        if state.num_rows:
            table = state.drop_columns([_BIN])
            table = table.rename_columns([n.removeprefix("value.") for n in table.column_names])
            batch = _sorted(jt.Batch.from_arrow(table, time=table.column_names[0]))
            held = [token.clone() for token in tokens]
            for token in held:
                token.downgrade(int(batch.times[0]))
            self._left.append(_Asked(held, batch))


@dataclass(slots=True)
class _Asked:
    """Records that wait for an answer, and the tokens to give it with."""

    tokens: list[jt.TimestampToken]
    batch: jt.Batch

    @property
    def time(self) -> Any:
        return self.tokens[0].time


class _Records:
    """Single records on their way to become a batch, and the least token among theirs."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin again."""
        self.token: jt.TimestampToken | None = None
        self._times: list[Any] = []
        self._records: list[Mapping[str, Any]] = []

    def add(self, token: jt.TimestampToken, time: Any, record: Mapping[str, Any]) -> None:
        """One more."""
        if self.token is None or token.time <= self.token.time:
            self.token = token
        self._times.append(time)
        self._records.append(record)

    def batch(self, time_name: str, kind: Any) -> jt.Batch:
        """All of them as columns."""
        names = self._records[0].keys()
        for record in self._records:
            if record.keys() != names:
                raise jt.BatchError(
                    f"answers with columns {list(names)} and {list(record)}: give the same for all"
                )
        columns = {name: [record[name] for record in self._records] for name in names}
        return jt.Batch(columns, self._times, time_name=time_name, kind=kind)


def _nobody() -> None:
    """Wakes nobody: the operator has been forgotten."""


def _sorted(batch: jt.Batch) -> jt.Batch:
    times = batch.times
    if (times[1:] >= times[:-1]).all():
        return batch
    return batch.take(np.argsort(times, kind="stable"))


def _failure(error: BaseException, event: Event | None) -> jt.JetonError:
    """What to fail the flow with; the worker adds the operator's name."""
    if not isinstance(error, jt.JetonError):
        failed = jt.OperatorFailed(f"{type(error).__name__} in its coroutine: {error}")
        failed.__cause__ = error
        error = failed
    return error.located(time=None if event is None else event.time)
