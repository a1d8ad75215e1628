"""A thread with an event loop: where the coroutines of an asynchronous operator wait for others.

Only plain data crosses over: batches one way, answers the other. Tokens stay with the worker.
"""

from __future__ import annotations

import asyncio
import linecache
import logging
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock, Thread, current_thread
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

import jeton as jt
from jeton.errors import TokenError

log = logging.getLogger(__name__)

GRACE: Final = 10.0
"""Seconds to wait for a cancelled thread: what does not heed a cancellation may take longer."""

PATIENCE: Final = 10.0
"""Seconds that coroutines may take to return before a warning says that the flow waits for them."""

SWITCH_INTERVAL: Final = 0.0002
"""Seconds after which a busy thread has to let another one run.

A thread that wants Python's interpreter gets it at once from one that waits for something, but from
one that is busy only after a switch interval, by default 5 ms. An event loop wants it back after
each of its system calls, some eight of them for a call to a service: beside a busy worker it would
make hardly more than 100 calls a second.
"""

_OTHERS: Final = (jt.__path__[0], asyncio.__path__[0])
"""Where code is that is not the user's."""

_lock = Lock()
_intervals_before: list[float] = []
"""The interval before, once for each event loop that still needs the short one."""

Logic: TypeAlias = Callable[..., Coroutine[Any, Any, None]]
"""An operator's coroutine: ``async def logic(input, *outputs)``, and the client if there is one."""

Client: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens what the coroutines of one worker share, such as a pool of connections."""


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Let all threads of this process take turns soon, until no event loop needs it any more.

    >>> import sys
    >>> with short_switch_interval():
    ...     sys.getswitchinterval() <= SWITCH_INTERVAL
    True
    """
    with _lock:
        before = _intervals_before
        before.append(before[0] if before else sys.getswitchinterval())
        if sys.getswitchinterval() > SWITCH_INTERVAL:
            sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        with _lock:
            interval = _intervals_before.pop()
            if not _intervals_before:
                sys.setswitchinterval(interval)


@dataclass(slots=True, eq=False)
class Event:
    """Records, and the right to answer them, in the hands of a coroutine.

    It is good for its own step of the loop: when the coroutine asks for the next one, all that
    was given for this one goes out together.
    """

    number: int
    time: Any
    """A lower bound of the records' times, from which on answers may be given."""
    batch: jt.Batch
    answers: list[Answer] = field(default_factory=list)
    over: bool = False


class Answer(NamedTuple):
    """An answer on an output: a batch, or one record, which is cheapest as it is."""

    output: int
    batch: jt.Batch | None
    time: Any = None
    record: Mapping[str, Any] | None = None


class Done(NamedTuple):
    """The outcome of an event: its answers, or the error that ended everything."""

    event: Event | None
    error: BaseException | None


class AsyncOutput:
    """Where a coroutine gives its answers."""

    def __init__(
        self, index: int, time_name: str, kind: Any, schema: pa.Schema | None = None
    ) -> None:
        self._index = index
        self._time_name = time_name
        self._kind = kind
        self._schema = schema

    def give(
        self,
        event: Event,
        data: jt.Batch | Mapping[str, Any] | None = None,
        *,
        times: Any = None,
        **values: Any,
    ) -> None:
        """Answer an event: with a batch, with columns, or with the values of one record.

        The records of a batch keep their times. Columns are sent at ``times``, a single record at
        one; without them, at the event's time.
        """
        if data is None:
            self.give_record(event, values, times)
            return
        self._require(event, over=event.over)
        if not isinstance(data, jt.Batch):
            if times is None:
                times = [event.time] * len(next(iter(data.values()), ()))
            data = jt.Batch(data, times, time_name=self._time_name, kind=self._kind)
        self._require(event, early=data.bound_from(event.time) is None)
        if self._schema is not None:
            data = data.conform(self._schema, "the answer")
        if len(data):
            event.answers.append(Answer(self._index, data))

    def give_record(self, event: Event, record: Mapping[str, Any], time: Any = None) -> None:
        """Answer with one record, at the event's time or at ``time``."""
        if time is None:
            time = event.time
        self._require(event, over=event.over, early=not event.time <= time)
        event.answers.append(Answer(self._index, None, time, record))

    @staticmethod
    def _require(event: Event, *, over: bool = False, early: bool = False) -> None:
        if over:
            raise TokenError(
                "this event is over: answer it before asking for the next one. To have several "
                "in hand at a time, leave it to concurrency="
            )
        if early:
            raise TokenError(f"an answer to an event at {event.time} cannot be earlier than it")


class EventLoop:
    """Runs up to ``concurrency`` coroutines side by side, in a thread of its own.

    Each takes events from the same queue. The thread begins at once, and is over when the input
    has ended and all coroutines have returned, when one of them has failed, or on `cancel`.
    """

    def __init__(
        self,
        name: str,
        logic: Logic,
        outputs: Sequence[AsyncOutput],
        *,
        concurrency: int,
        client: Client | None,
        wake: Callable[[], None],
    ) -> None:
        self.done: deque[Done] = deque()
        """Outcomes for the worker to take out: after each, `wake` is called."""
        self.over = False
        """Whether the thread has nothing left to do: `wake` is called then, too."""
        self._name = name
        self._logic = logic
        self._outputs = outputs
        self._concurrency = concurrency
        self._client = client
        self._wake = wake
        self._shared: list[Any] = []
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._group: asyncio.TaskGroup | None = None
        self._ended = asyncio.Event()
        self._coroutines = 0
        self._free = 0
        """Coroutines that have no event in hand, and so will take one from the queue."""
        self._failed = False
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # From any thread

    def hand_over(self, events: Sequence[Event]) -> None:
        """Let coroutines take these events."""
        self._call(self._take, events)

    def end(self) -> None:
        """No more events will come: the coroutines' loops end."""
        self._call(self._end)

    def cancel(self) -> None:
        """Give up: whatever waits for an answer is cancelled."""
        self._call(self._cancel)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread to be over."""
        if self._thread is not current_thread():
            self._thread.join(timeout)

    def lines(self) -> list[str]:
        """The user's lines at which coroutines wait now."""
        found = []
        for task in asyncio.all_tasks(self._loop):
            awaited: Any = task.get_coro()
            line = None
            while (frame := getattr(awaited, "cr_frame", None)) is not None:
                file = frame.f_code.co_filename
                number = frame.f_lineno or frame.f_code.co_firstlineno
                if not file.startswith(_OTHERS):
                    line = f"{file}:{number}", linecache.getline(file, number)
                awaited = awaited.cr_await
            if line is not None:
                found.append(": ".join(text.strip() for text in line if text))
        return found

    def _call(self, act: Callable[..., None], *args: Any) -> None:
        # A loop that is closed has reported why, or has nothing left to do.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *args)

    # In the loop's own thread

    def _run(self) -> None:
        try:
            with short_switch_interval(), asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._fail(error, None)
        finally:
            self.over = True
            self._wake()

    async def _main(self) -> None:
        async with AsyncExitStack() as stack:
            if self._client is not None:
                self._shared.append(await stack.enter_async_context(self._client()))
            async with asyncio.TaskGroup() as self._group:
                self._start_coroutines()
                await self._ended.wait()

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            self._queue.put_nowait(event)
        self._start_coroutines()

    def _start_coroutines(self) -> None:
        """As many as are needed: each may come with some cost of the user's."""
        if self._group is not None:
            while self._coroutines < self._concurrency and self._free < self._queue.qsize():
                self._coroutines += 1
                self._free += 1
                self._group.create_task(self._coroutine())

    async def _coroutine(self) -> None:
        input = AsyncInput(self)
        try:
            await self._logic(input, *self._outputs, *self._shared)
            if not input.ended:
                raise RuntimeError("the coroutine returned before its input had ended")
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            self._fail(error, input.event)
            # Whatever it was, it ends the other coroutines too, and nothing beyond them.
            raise RuntimeError("a coroutine has failed") from error
        finally:
            self._coroutines -= 1

    async def next_event(self) -> Event | None:
        """The next event for a coroutine; ``None`` at the end."""
        event = await self._queue.get()
        if event is None:
            self._queue.put_nowait(None)
        else:
            self._free -= 1
        return event

    def finish(self, event: Event) -> None:
        """A coroutine has no more to say about an event."""
        event.over = True
        self._free += 1
        self.done.append(Done(event, None))
        self._wake()

    def _end(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._queue.put_nowait(None)
            self._loop.call_later(PATIENCE, self._warn_of_waiting)

    def _warn_of_waiting(self) -> None:
        """Warn that the flow waits for coroutines that may never return."""
        awaited = (
            f"{self._coroutines} of its coroutines to return, as they should when calls are "
            "answered and their 'async for' is over"
            if self._coroutines
            else "its client to be closed"
        )
        log.warning(
            "%s: its input ended %g s ago, and the flow waits for %s", self._name, PATIENCE, awaited
        )

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _fail(self, error: BaseException, event: Event | None) -> None:
        """Report the first failure: the others are its consequences."""
        if not self._failed:
            self._failed = True
            self.done.append(Done(event, error))
            self._wake()


class AsyncInput:
    """One coroutine's view of the events that all share: ``async for event in input``."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self.event: Event | None = None
        self.ended = False

    def __aiter__(self) -> AsyncInput:
        return self

    async def __anext__(self) -> Event:
        if self.event is not None:
            before, self.event = self.event, None
            self._loop.finish(before)
        self.event = None if self.ended else await self._loop.next_event()
        if self.event is None:
            self.ended = True
            raise StopAsyncIteration
        return self.event
