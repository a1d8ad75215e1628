"""Pending calls: a worker's side of an asynchronous operator, which holds the tokens."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.errors import JetonError, OperatorFailed, SnapshotError
from jeton.idioms.event_loop import GRACE, AsyncOutput, Client, Event, EventLoop, Logic
from jeton.idioms.result_batches import RecordBuffer

_BIN: Final = "bin"

Order: TypeAlias = Literal["by time", "as they come"]
"""Whether answers wait until all earlier ones are there, or are sent as soon as they come."""


@dataclass(frozen=True)
class Settings:
    """The arguments of an asynchronous operator."""

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


@dataclass(slots=True)
class PendingCall:
    """Records that wait for an answer, and the tokens to send it with."""

    tokens: list[jt.TimestampToken]
    batch: jt.Batch

    @property
    def time(self) -> Any:
        """A lower bound of the records' times."""
        return self.tokens[0].time


class PendingCalls:
    """The calls of one worker that are not answered yet; it neither waits nor calls itself.

    `step` hands events to the loop and takes answers back; an answer that comes activates it.
    """

    def __init__(
        self, settings: Settings, tokens: list[jt.TimestampToken], info: jt.OperatorInfo
    ) -> None:
        self._settings = settings
        self._info = info
        self._total = info.kind.total
        self._numbers = count()
        self._left: deque[PendingCall] = deque()
        """Taken from the input, in whole messages, but not handed over yet."""
        self._asked: dict[int, PendingCall] = {}
        """Handed over and not answered."""
        self._times: jt.state.TimeMap[int] = jt.state.TimeMap()
        """The number of both at each time for which answers may still come."""
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
        info.keep(self, *tokens, name="asked", shape=_shape_of(settings.pact))
        for number, queue in enumerate(self._answers):
            info.keep(queue, *tokens, name=f"answers {number}")
        for token in tokens:
            token.drop()
        info.at_end(self._close)

    def step(self, inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
        """Let neighbours that need not wait run first; go to work in the worker's next step."""
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
        """Whether there is more to do than to note a moved frontier."""
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
        self._collect()
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
        """Whether to start more calls: there may be twice as many as run at a time."""
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
                batch = _sorted_by_time(batch)
                self._let_wait(self._held(ref, int(batch.times[0])), batch)
            else:
                for time, part in batch.by_time():
                    self._let_wait(self._held(ref, time), part)

    def _held(self, ref: jt.TokenRef, time: Any) -> list[jt.TimestampToken]:
        return [ref.retain(time, output=n) for n in range(self._settings.outputs)]

    def _let_wait(self, tokens: list[jt.TimestampToken], batch: jt.Batch) -> None:
        self._left.append(PendingCall(tokens, batch))
        self._count(tokens[0].time, +1)

    def _count(self, time: Any, delta: int) -> None:
        self._times[time] = self._times.get_or(time, int) + delta
        if not self._times[time]:
            del self._times[time]

    def _next_event(self) -> Event:
        """Cut the next event off what is left."""
        first = self._left[0]
        rows = self._settings.rows or len(first.batch)
        if rows >= len(first.batch):
            asked = self._left.popleft()
        else:
            asked = PendingCall(
                [token.clone() for token in first.tokens], first.batch.slice(0, rows)
            )
            first.batch = first.batch.slice(rows, len(first.batch))
            if self._total:
                for token in first.tokens:
                    token.downgrade(int(first.batch.times[0]))
            self._count(first.time, +1)
        number = next(self._numbers)
        self._asked[number] = asked
        return Event(number, asked.time, asked.batch)

    def _open(self) -> EventLoop:
        """Begin the thread: with the first event, since many operators on many workers get none."""
        settings, info = self._settings, self._info
        last = _last_time(info.kind)
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
            wake=lambda: (wake() or _do_nothing)(),
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

    def _collect(self) -> None:
        """Take the outcomes of calls: answers wait from now on, with tokens of their own."""
        answered: list[tuple[PendingCall, Event]] = []
        done = self._loop.done if self._loop is not None else ()
        while done:
            event, error = done.popleft()
            if error is not None:
                raise _failure(error, event)
            assert event is not None
            asked = self._asked.pop(event.number)
            self._count(asked.time, -1)
            answered.append((asked, event))
        records = [RecordBuffer() for _ in self._answers]
        for asked, event in answered:
            for output, batch, time, record in event.answers:
                token, queue = asked.tokens[output], self._answers[output]
                if batch is not None:
                    queue.push(token, batch)
                elif record is not None:
                    records[output].add(token, time, record)
            if not self._total:
                self._push(records)  # tokens of other events may not do for these
        self._push(records)
        for asked, _ in answered:
            for token in asked.tokens:
                token.drop()

    def _push(self, records: Sequence[RecordBuffer]) -> None:
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
        """The input is complete: let the coroutines return, and collect the outcome.

        The worker goes on meanwhile: it is woken when they have.
        """
        loop = self._loop
        if loop is None:
            return
        loop.end()
        # Without a last time to hold a token at, nothing but the worker makes the flow wait.
        if not self._asked and (loop.over or self._until_over is None):
            loop.join()
            self._collect()
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

    def waits_for(self) -> str:
        """The calls that are under way, and the lines where they wait: for ``run.why``."""
        asked = len(self._asked)
        if not asked:
            return ""
        lines = dict.fromkeys(self._loop.lines() if self._loop is not None else ())
        at = f", at {' and at '.join(list(lines)[:3])}" if lines else ""
        return f"{asked:,} call{'s' if asked > 1 else ''} not answered yet{at}"

    # Snapshots

    def snapshot(self) -> pa.Table:
        """The records that were taken but not answered: they will be asked again."""
        waiting = [asked.batch for asked in (*self._asked.values(), *self._left)]
        if waiting and not self._total:
            raise SnapshotError("records inside a loop wait: a snapshot needs loops at rest")
        return _to_table(waiting, self._settings.pact)

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Let the records be asked again."""
        if state.num_rows:
            batch = _sorted_by_time(_from_table(state))
            held = [token.clone() for token in tokens]
            for token in held:
                token.downgrade(int(batch.times[0]))
            self._let_wait(held, batch)


def _do_nothing() -> None:
    """Wake no operator: it has been freed."""


def _failure(error: BaseException, event: Event | None) -> JetonError:
    """The error to fail the flow with; the worker adds the operator's name."""
    if not isinstance(error, JetonError):
        error = OperatorFailed.because(error)
    return error.located(time=None if event is None else event.time)


def _last_time(kind: Any) -> Any:
    """The last of all times of a kind, at which nothing is sent; the user's own have none.

    >>> _last_time(jt.IntegerTimes(minimum=-5)) == jt.END_OF_TIME
    True
    """
    least = kind.minimum
    if isinstance(least, jt.Product) and type(least[0]) is int:
        return jt.Product.of((jt.END_OF_TIME,) * len(least))
    return jt.END_OF_TIME if type(least) is int else None


def _sorted_by_time(batch: jt.Batch) -> jt.Batch:
    """A batch in order of time; those at one time stay as they are."""
    times = batch.times
    if (times[1:] >= times[:-1]).all():
        return batch
    return batch.take(np.argsort(times, kind="stable"))


def _to_table(waiting: Sequence[jt.Batch], pact: jt.Pact | None) -> pa.Table:
    """Batches as a part of a snapshot."""
    if not waiting:
        return pa.table({_BIN: pa.array([], pa.uint16())})
    whole = jt.concat(waiting)
    table = whole.to_arrow()
    # Prefixed, since a column of the user's may well be called "bin".
    table = table.rename_columns([f"value.{name}" for name in table.column_names])
    return table.append_column(_BIN, pa.array(_bins(whole, pact)))


def _from_table(state: pa.Table) -> jt.Batch:
    """The records of a snapshot's part: there must be some."""
    table = state.drop_columns([_BIN])
    table = table.rename_columns([name.removeprefix("value.") for name in table.column_names])
    return jt.Batch.from_arrow(table, time=table.column_names[0])


def _bins(batch: jt.Batch, pact: jt.Pact | None) -> npt.NDArray[np.uint16]:
    """The bins of records, by which they go to the workers that the pact chooses."""
    if isinstance(pact, jt.Exchange):
        return jt.state.bins_of(
            [
                batch.column(key) if isinstance(key, str) else np.asarray(key(batch))
                for key in pact.key
            ]
        )
    if isinstance(pact, jt.Gather):
        return np.zeros(len(batch), np.uint16)
    return jt.state.bins_of([batch.times])


def _shape_of(pact: jt.Pact | None) -> str:
    """The shape of a snapshot's part: the key that has brought records to their workers.

    >>> _shape_of(jt.Exchange("user", "item"))
    'asked by user, item'
    """
    key = pact.key if isinstance(pact, jt.Exchange) else ()
    names = [name if isinstance(name, str) else "a function" for name in key]
    return f"asked by {', '.join(names)}" if names else "asked"
