"""Calls under way: a worker's side of an asynchronous operator, which holds the tokens."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, TypeAlias

import pyarrow as pa

import jeton as jt
from jeton.errors import JetonError, OperatorFailed, SnapshotError
from jeton.idioms.answers import Records
from jeton.idioms.asked import Asked, Times, kept, last_time, restored, shape_of, sorted_by_time
from jeton.idioms.event_loop import GRACE, AsyncOutput, Client, Event, EventLoop, Logic

Order: TypeAlias = Literal["by time", "as they come"]
"""Whether answers wait until all earlier ones are there, or go out as soon as they are known."""


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
    pact: jt.Pact | None
    time_name: str
    schemas: Sequence[pa.Schema | None]


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
        self._numbers = count()
        self._left: deque[Asked] = deque()
        """Taken from the input, in whole messages, but not handed over yet."""
        self._asked: dict[int, Asked] = {}
        """Handed over and not answered."""
        self._times = Times(self._total)
        """Those of both, for which answers may still come."""
        self._answers = [
            jt.state.RecordQueue(info.kind, [], output=n) for n in range(settings.outputs)
        ]
        self._loop: EventLoop | None = None
        self._until_over: jt.TimestampToken | None = None
        """A token at the last of all times, since coroutines still run when all is answered."""
        self._give_up: Callable[[], object] = lambda: None
        self._awaited: Any = None
        self._woken = False
        self._called = False
        self._turn = False
        info.keep(self, *tokens, name="asked", shape=shape_of(settings.pact))
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
            or (self._left and self._has_room)
            or (self._loop is not None and self._loop.done)
            or any(map(len, self._answers))
            or input.frontier.is_empty
        )

    def _take_turn(self) -> None:
        self._turn = True
        self._info.activator.activate()

    def _work(self, input: jt.Input, outputs: Sequence[jt.Output]) -> None:
        """Take answers and input, ask as far as there is room, and send what may go out."""
        self._woken = False
        self._hear()
        self._take(input)
        events: list[Event] = []
        while self._left and self._has_room:
            events.append(self._next_event())
        ended = input.frontier.is_empty and not self._left
        self._expect_answers(ended)
        if events:
            self._loop = self._loop or self._open()
            self._loop.hand_over(events)
        self._send(input.frontier, outputs)
        if ended:
            self._end()

    # From the input to the loop

    @property
    def _has_room(self) -> bool:
        """Whether to ask for more: as long as somebody is free, and as many again wait."""
        asked = len(self._asked)
        if asked and sum(map(len, self._answers)) >= self._settings.waiting:
            return False
        return asked < 2 * self._settings.concurrency

    def _take(self, input: jt.Input) -> None:
        """Take all messages, the records of each in order of time.

        They wait here for their turn, rather than in the input, where no snapshot would find them.
        """
        for ref, batch in input:
            if self._total:
                batch = sorted_by_time(batch)
                self._let_wait(self._held(ref, int(batch.times[0])), batch)
            else:
                for time, part in batch.by_time():
                    self._let_wait(self._held(ref, time), part)

    def _held(self, ref: jt.TokenRef, time: Any) -> list[jt.TimestampToken]:
        return [ref.retain(time, output=n) for n in range(self._settings.outputs)]

    def _let_wait(self, tokens: list[jt.TimestampToken], batch: jt.Batch) -> None:
        self._left.append(Asked(tokens, batch))
        self._times.add(tokens[0].time)

    def _next_event(self) -> Event:
        """Cut the next event off what is left."""
        first = self._left[0]
        rows = self._settings.rows or len(first.batch)
        if rows >= len(first.batch):
            asked = self._left.popleft()
        else:
            asked = Asked([token.clone() for token in first.tokens], first.batch.slice(0, rows))
            first.batch = first.batch.slice(rows, len(first.batch))
            if self._total:
                for token in first.tokens:
                    token.downgrade(int(first.batch.times[0]))
            self._times.add(first.time)
        number = next(self._numbers)
        self._asked[number] = asked
        return Event(number, asked.time, asked.batch)

    def _open(self) -> EventLoop:
        """Begin the thread: with the first event, since many operators on many workers get none."""
        settings, info = self._settings, self._info
        last = last_time(info.kind)
        if last is not None:
            self._until_over = next(iter(self._asked.values())).tokens[0].clone()
            self._until_over.downgrade(last)
        # The loop must not keep the operator alive: forgotten, it ends the thread.
        wake = weakref.WeakMethod(self._wake)
        loop = EventLoop(
            f"{info.name} on worker {info.worker}",
            settings.logic,
            [
                AsyncOutput(index, settings.time_name, info.kind, schema)
                for index, schema in enumerate(settings.schemas)
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
        heard: list[tuple[Asked, Event]] = []
        done = self._loop.done if self._loop is not None else ()
        while done:
            event, error = done.popleft()
            if error is not None:
                raise _failure(error, event)
            assert event is not None
            asked = self._asked.pop(event.number)
            self._times.remove(asked.time)
            heard.append((asked, event))
        records = [Records() for _ in self._answers]
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

    def _push(self, records: Sequence[Records]) -> None:
        settings = self._settings
        for queue, together, schema in zip(self._answers, records, settings.schemas, strict=True):
            if together.token is not None:
                batch = together.batch(settings.time_name, self._info.kind, schema)
                queue.push(together.token, batch)
                together.clear()

    def _expect_answers(self, ended: bool) -> None:
        """Have the host wait for the loop's thread while calls are under way, or it ends."""
        expects = bool(self._asked) or (ended and self._loop is not None)
        if expects and self._awaited is None:
            self._awaited = self._info.activator.for_thread()
        elif not expects:
            self._expect_nothing()

    def _expect_nothing(self) -> None:
        if self._awaited is not None:
            self._awaited.close()
            self._awaited = None

    def _send(self, frontier: jt.Antichain, outputs: Sequence[jt.Output]) -> None:
        limit = jt.Antichain()
        if self._settings.order == "by time":
            limit.extend(frontier)
            limit.extend(self._times.least())
        for output, queue in zip(outputs, self._answers, strict=True):
            for time, batch in queue.pop(limit):
                output.session(queue.right_for(time)).give(batch)
            queue.settle()

    # The end

    def _end(self) -> None:
        """The input is complete: let the coroutines return, and hear how that went.

        The worker goes on meanwhile: it is woken when they have.
        """
        loop = self._loop
        if loop is None:
            return
        loop.end()
        # Without a last time to hold a token at, nothing but the worker makes the flow wait.
        if not self._asked and (loop.over or self._until_over is None):
            loop.join()
            self._hear()
            self._loop = None
            self._expect_nothing()
            if self._until_over is not None:
                self._until_over.drop()

    def _close(self) -> None:
        """The run is over, whatever was under way."""
        self._expect_nothing()
        self._give_up()
        if self._loop is not None:
            self._loop.join(GRACE)

    # What is kept

    def snapshot(self) -> pa.Table:
        """The records that were taken but not answered: they will be asked again."""
        waiting = [asked.batch for asked in (*self._asked.values(), *self._left)]
        if waiting and not self._total:
            raise SnapshotError("records inside a loop wait: a snapshot needs loops at rest")
        return kept(waiting, self._settings.pact)

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Let the records be asked again."""
        if state.num_rows:
            batch = sorted_by_time(restored(state))
            held = [token.clone() for token in tokens]
            for token in held:
                token.downgrade(int(batch.times[0]))
            self._let_wait(held, batch)


def _nobody() -> None:
    """Wakes nobody: the operator has been forgotten."""


def _failure(error: BaseException, event: Event | None) -> JetonError:
    """What to fail the flow with; the worker adds the operator's name."""
    if not isinstance(error, JetonError):
        error = OperatorFailed.because(error)
    return error.located(time=None if event is None else event.time)
