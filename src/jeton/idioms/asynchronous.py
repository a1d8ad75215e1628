"""Asynchronous operators: ask other services, holding tokens, while the worker goes on.

What an asynchronous operator has taken and not answered yet is covered by tokens. So nothing
downstream believes that a time is complete while a call for it is under way, however long that
takes and in whatever order answers come; and the worker, which only hands batches to an event loop
in another thread and is woken for the answers, never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jeton as jt
from jeton.idioms.calls import Calls, Order, Settings
from jeton.idioms.event_loop import Client, Logic


def async_operator(
    stream: jt.Stream,
    logic: Logic,
    *,
    outputs: int = 1,
    concurrency: int = 64,
    order: Order = "by time",
    rows: int | None = None,
    client: Client | None = None,
    waiting: int = 65_536,
    pact: jt.Pact | None = None,
    name: str = "async",
) -> tuple[jt.Stream, ...]:
    """An operator written as a coroutine; returns a stream for each of its outputs.

    Up to ``concurrency`` copies of ``logic(input, *outputs)`` run side by side on each worker, and
    share the input: each event goes to one of them, with no more than ``rows`` records if that is
    said. An event is answered by ``output.give(event, …)``, and over when its coroutine asks for
    the next. All that was given for it goes out then, at once; had the flow failed or been
    snapshotted before, it would be asked again from the start.

    As many events as there are copies wait their turn; then the operator leaves its input alone.
    Answers that wait for earlier ones do not pile up either: with ``waiting`` records of them,
    nothing new is asked until the calls that they wait for are over.

    ``client`` opens something that all copies on a worker share, in their event loop, and that is
    passed to ``logic`` as the last argument: a pool of connections, as a rule.

    An exception of ``logic`` fails the flow.

    >>> import asyncio
    >>> import jeton as jt
    >>> async def halve(input, even, odd):
    ...     async for event in input:
    ...         n = int(event.batch["n"][0])
    ...         await asyncio.sleep(0)  # in real life, something that takes long
    ...         (odd if n % 2 else even).give(event, n=n // 2)
    >>> flow = jt.Flow("halves")
    >>> even, odd = async_operator(flow.input("n"), halve, outputs=2, rows=1)
    >>> flow.output("even", even)
    >>> flow.output("odd", odd)
    >>> result = flow.run({"n": {"time": [0, 1, 2], "n": [12, 7, 4]}})
    >>> result["even"].to_pylist(), result["odd"].to_pylist()
    ([{'time': 0, 'n': 6}, {'time': 2, 'n': 2}], [{'time': 1, 'n': 3}])
    """
    if concurrency < 1 or (rows is not None and rows < 1):
        raise jt.GraphError(f"operator {name!r} needs a concurrency and rows of at least 1")
    settings = Settings(logic, outputs, concurrency, order, rows, client, waiting, stream.time_name)
    builder = stream.operator(name)
    builder.input(stream, pact)
    for _ in range(outputs):
        builder.output()

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Callable[..., None]:
        return Calls(settings, tokens, info).step

    # The end of the input has to be heard even if nothing is held: the coroutines end by it.
    return builder.build(build, notify="always")


def async_unary(stream: jt.Stream, logic: Logic, **options: Any) -> jt.Stream:
    """An operator with one output, written as a coroutine: see `async_operator`.

    >>> import asyncio
    >>> import jeton as jt
    >>> async def enrich(input, output):
    ...     async for event in input:  # records, and the right to answer them
    ...         await asyncio.sleep(0)
    ...         names = [f"user {n}" for n in event.batch["user"]]
    ...         output.give(event, event.batch.with_columns({"name": names}))
    >>> flow = jt.Flow("names")
    >>> flow.output("named", async_unary(flow.input("users"), enrich))
    >>> flow.run({"users": {"time": [3, 5], "user": [7, 8]}})["named"].to_pylist()
    [{'time': 3, 'user': 7, 'name': 'user 7'}, {'time': 5, 'user': 8, 'name': 'user 8'}]
    """
    (only,) = async_operator(stream, logic, **options)
    return only
