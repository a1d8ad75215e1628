"""Asynchronous operators: ask other services, holding tokens, while the worker goes on.

Tokens cover the records that an asynchronous operator has taken and not answered yet. So no
operator downstream sees a time as complete while a call for it is under way, no matter how long
that takes and in which order answers come. The worker only passes batches to an event loop in
another thread and is woken for the answers: it never waits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, get_args

import pyarrow as pa

import jeton as jt
from jeton.errors import GraphError
from jeton.idioms.event_loop import Client, Logic
from jeton.idioms.pending_calls import Order, PendingCalls, Settings

Schema: TypeAlias = "pa.Schema | Mapping[str, Any]"
"""An Arrow schema, or names with Arrow, NumPy or Python types."""


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
    schemas: Sequence[Schema | None] | None = None,
    name: str = "async",
) -> tuple[jt.Stream, ...]:
    """An operator written as a coroutine; returns a stream for each of its outputs.

    Up to ``concurrency`` copies of ``logic(input, *outputs)`` run side by side on each worker, and
    share the input: each event goes to one of them, with no more than ``rows`` records if that is
    said. An event is answered by ``output.give(event, …)``, and over when its coroutine asks for
    the next. All that was given for it goes out then, at once; had the flow failed or been
    snapshotted before, it would be asked again from the start.

    As many events as there are copies are handed over and wait their turn; the rest of the input
    waits until some are answered. Answers that wait for earlier ones do not pile up either: with
    ``waiting`` records of them, nothing new is asked until the calls that they wait for are over.

    ``client`` opens something that all copies on a worker share, in their event loop, and that is
    passed to ``logic`` as the last argument: a pool of connections, as a rule.

    ``schemas`` says for each output which columns come out, or ``None``. Answers are then made to
    fit; single records may leave out columns that are null.

    An exception of ``logic`` fails the flow. When the input has ended, the flow waits until all
    copies have returned, and the worker goes on meanwhile.

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
    if outputs < 1 or concurrency < 1 or (rows is not None and rows < 1):
        raise GraphError(f"operator {name!r} needs outputs, a concurrency and rows of at least 1")
    if order not in get_args(Order):
        known = " or ".join(map(repr, get_args(Order)))
        raise GraphError(f"operator {name!r} has order={order!r}: it must be {known}")
    require_coroutine(logic, operator=name)
    promised = [None] * outputs if schemas is None else list(schemas)
    if len(promised) != outputs:
        raise GraphError(
            f"operator {name!r} has {outputs} outputs, but schemas= has {len(promised)}"
        )
    builder = stream.operator(name)
    builder.input(stream, pact)
    for schema in promised:
        builder.output(schema=schema)

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Callable[..., None]:
        return PendingCalls(settings, tokens, info).step

    # The end of the input has to be heard even if nothing is held: the coroutines end by it.
    streams = builder.build(build, notify="always")
    settings = Settings(
        logic=logic,
        outputs=outputs,
        concurrency=concurrency,
        order=order,
        rows=rows,
        client=client,
        waiting=waiting,
        pact=pact,
        time_name=stream.time_name,
        schemas=[made.schema for made in streams],
    )
    return streams


def async_unary(
    stream: jt.Stream,
    logic: Logic,
    *,
    concurrency: int = 64,
    order: Order = "by time",
    rows: int | None = None,
    client: Client | None = None,
    waiting: int = 65_536,
    pact: jt.Pact | None = None,
    schema: Schema | None = None,
    name: str = "async",
) -> jt.Stream:
    """An operator with one output, written as a coroutine: see `async_operator`.

    >>> import asyncio
    >>> import jeton as jt
    >>> async def enrich(input, output):
    ...     async for event in input:  # records, and the right to answer them
    ...         await asyncio.sleep(0)
    ...         names = [f"user {n}" for n in event.batch["user"]]
    ...         output.give(event, event.batch.with_columns({"name": names}))
    >>> flow = jt.Flow("names")
    >>> named = async_unary(flow.input("users"), enrich, schema={"user": int, "name": str})
    >>> flow.output("named", named)
    >>> flow.run({"users": {"time": [3, 5], "user": [7, 8]}})["named"].to_pylist()
    [{'time': 3, 'user': 7, 'name': 'user 7'}, {'time': 5, 'user': 8, 'name': 'user 8'}]
    """
    (only,) = async_operator(
        stream,
        logic,
        concurrency=concurrency,
        order=order,
        rows=rows,
        client=client,
        waiting=waiting,
        pact=pact,
        schemas=[schema],
        name=name,
    )
    return only


def require_coroutine(function: Any, *, operator: str) -> None:
    """Refuse a function that cannot be awaited: with data, each of its calls would fail.

    >>> require_coroutine(len, operator="ask")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: <built-in function len> is not a coroutine function...
    """
    called = function
    while isinstance(called, partial):
        called = called.func
    by_type = type(called).__call__ if callable(called) else None
    if not (inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(by_type)):
        raise GraphError(
            f"{function!r} is not a coroutine function: write it with 'async def', and without "
            "'yield'. What a plain function returns to be awaited can be awaited in it"
        ).located(operator=operator)
