"""map_async: a service's answer for each record, with retries, and a way out for failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton.errors import BatchError, GraphError, OperatorFailed
from jeton.idioms.asynchronous import Schema, async_operator, require_coroutine
from jeton.idioms.event_loop import AsyncInput, AsyncOutput, Client, Event
from jeton.idioms.pending_calls import Order

T = TypeVar("T")

ERROR: Final = "error"
"""The column of rejected records that has the last error, as text."""
ATTEMPTS: Final = "attempts"
"""The column of rejected records that says how many times they were asked for."""

Ask = Callable[..., Awaitable[Any]]
"""``async def ask(row)`` or ``async def ask(batch)``, with the client if there is one."""


def map_async(
    stream: jt.Stream,
    ask: Ask,
    *,
    rows: int | None = None,
    retries: int = 0,
    timeout: float | None = None,
    backoff: float = 0.1,
    concurrency: int = 64,
    order: Order = "by time",
    client: Client | None = None,
    waiting: int = 65_536,
    pact: jt.Pact | None = None,
    schema: Schema | None = None,
    name: str = "map_async",
) -> jt.Stream:
    """The answer of ``ask`` for each record; if it fails repeatedly, so does the flow.

    The options are those of `try_map_async`.

    >>> import asyncio
    >>> import jeton as jt
    >>> async def ask(row):
    ...     await asyncio.sleep(0)  # in real life, a call
    ...     return {**row, "city": "Zürich" if row["user"] == 7 else None}
    >>> flow = jt.Flow("cities")
    >>> flow.output("cities", map_async(flow.input("users"), ask))
    >>> flow.run({"users": {"time": [3, 5], "user": [7, 8]}})["cities"].to_pylist()
    [{'time': 3, 'user': 7, 'city': 'Zürich'}, {'time': 5, 'user': 8, 'city': None}]
    """
    (answered,) = _map(
        stream,
        ask,
        rejects=False,
        rows=rows,
        retries=retries,
        timeout=timeout,
        backoff=backoff,
        concurrency=concurrency,
        order=order,
        client=client,
        waiting=waiting,
        pact=pact,
        schema=schema,
        name=name,
    )
    return answered


def try_map_async(
    stream: jt.Stream,
    ask: Ask,
    *,
    rows: int | None = None,
    retries: int = 0,
    timeout: float | None = None,
    backoff: float = 0.1,
    concurrency: int = 64,
    order: Order = "by time",
    client: Client | None = None,
    waiting: int = 65_536,
    pact: jt.Pact | None = None,
    schema: Schema | None = None,
    name: str = "map_async",
) -> tuple[jt.Stream, jt.Stream]:
    """The answers of ``ask``, and the records for which it failed, as a second stream.

    ``ask`` is a coroutine function. It gets a record as a dictionary with its time, and returns
    one like it, several, or ``None``, as for ``map_rows``. With ``rows=n`` it gets a batch of up
    to ``n`` records, and returns a batch or columns of that length.

    ``retries`` says how many times to try again, ``backoff`` how many seconds to wait before, at
    first: twice as many each time. A call that takes longer than ``timeout`` seconds has failed.
    Each rejected record has the last ``error``, as text, and the number of ``attempts`` in two
    columns more; if records have columns of those names already, an underscore is added. An answer
    that ``ask`` may not return is not a failed call: it fails the flow.

    ``schema`` says which columns answers have, as for ``map_rows``. The other options are those of
    `async_operator`: ``concurrency``, ``order``, ``client``, ``waiting``, ``pact``, ``name``.

    >>> import jeton as jt
    >>> async def ask(row):
    ...     return {"inverse": 1 / row["n"]}
    >>> flow = jt.Flow("inverses")
    >>> inverses, rejected = try_map_async(flow.input("n"), ask, retries=1, backoff=0.0)
    >>> flow.output("inverses", inverses)
    >>> flow.output("rejected", rejected)
    >>> result = flow.run({"n": {"time": [0, 1], "n": [0, 4]}})
    >>> result["inverses"].to_pylist()
    [{'time': 1, 'inverse': 0.25}]
    >>> result["rejected"].to_pylist()
    [{'time': 0, 'n': 0, 'error': 'ZeroDivisionError: division by zero', 'attempts': 2}]
    """
    answered, rejected = _map(
        stream,
        ask,
        rejects=True,
        rows=rows,
        retries=retries,
        timeout=timeout,
        backoff=backoff,
        concurrency=concurrency,
        order=order,
        client=client,
        waiting=waiting,
        pact=pact,
        schema=schema,
        name=name,
    )
    return answered, rejected


async def retrying(
    ask: Callable[[], Awaitable[T]],
    *,
    retries: int = 0,
    timeout: float | None = None,
    backoff: float = 0.1,
) -> T:
    """Await ``ask()``, again if it fails or takes too long, and later each time.

    >>> import asyncio
    >>> answers = iter([OSError("busy"), 42])
    >>> async def ask():
    ...     answer = next(answers)
    ...     if isinstance(answer, OSError):
    ...         raise answer
    ...     return answer
    >>> asyncio.run(retrying(ask, retries=1, backoff=0.0))
    42
    """
    for attempt in range(retries + 1):
        try:
            return await _in_time(ask, timeout)
        except Exception:
            if attempt == retries:
                raise
        await asyncio.sleep(backoff * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


async def _in_time(ask: Callable[[], Awaitable[T]], timeout: float | None) -> T:
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await ask()
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"no answer within {timeout} seconds") from error
        raise


def _map(
    stream: jt.Stream,
    ask: Ask,
    *,
    rejects: bool,
    rows: int | None,
    retries: int,
    timeout: float | None,
    backoff: float,
    schema: Schema | None,
    name: str,
    **others: Any,
) -> tuple[jt.Stream, ...]:
    if retries < 0:
        raise GraphError(f"operator {name!r} cannot have {retries} retries")
    require_coroutine(ask, operator=name)

    async def logic(input: AsyncInput, answered: AsyncOutput, *others: Any) -> None:
        rejected, client = others[:rejects], others[rejects:]
        async for event in input:
            batch = event.batch
            asked = _record(event) if rows is None else batch
            try:
                answer = await retrying(
                    lambda asked=asked: ask(asked, *client),  # type: ignore[misc]
                    retries=retries,
                    timeout=timeout,
                    backoff=backoff,
                )
            except Exception as error:
                if not rejected:
                    raise
                text = OperatorFailed.because(error).message
                reasons = ([text] * len(batch), [retries + 1] * len(batch))
                names = _free_names((*batch.names, batch.time_name))
                rejected[0].give(event, batch.with_columns(dict(zip(names, reasons, strict=True))))
            else:
                (_give_rows if rows is None else _give_batch)(answered, event, answer)

    return async_operator(
        stream,
        logic,
        outputs=1 + rejects,
        rows=1 if rows is None else rows,
        schemas=[schema, _rejected_schema(stream)][: 1 + rejects],
        name=name,
        **others,
    )


def _free_names(taken: Collection[str]) -> list[str]:
    """The names of the columns that rejected records have more, with underscores if need be."""
    found = []
    for name in (ERROR, ATTEMPTS):
        while name in taken:
            name += "_"
        found.append(name)
    return found


def _rejected_schema(stream: jt.Stream) -> pa.Schema | None:
    if stream.schema is None:
        return None
    error, attempts = _free_names((*stream.schema.names, stream.time_name))
    added = (pa.field(error, pa.string()), pa.field(attempts, pa.int64()))
    return pa.schema([*stream.schema, *added])


def _record(event: Event) -> dict[str, Any]:
    """The only record of an event, with plain values."""
    batch = event.batch
    record = {batch.time_name: event.time}
    for name, column in batch.columns.items():
        if not isinstance(column, np.ndarray):
            record[name] = column[0].as_py()
        elif column.dtype.kind in "biuf":
            record[name] = column[0].item()
        else:
            record[name] = batch.select(name).rows()[0][name]
    return record


def _give_rows(output: AsyncOutput, event: Event, answer: Any) -> None:
    if answer is None:
        return
    several = isinstance(answer, Iterable) and not isinstance(answer, Mapping | str | bytes)
    for row in answer if several else (answer,):
        if not isinstance(row, Mapping):
            raise _malformed(row, "return a record as a dictionary, several of them, or None")
        record = dict(row)
        time = record.pop(event.batch.time_name, None)
        output.give_record(event, record, time)


def _give_batch(output: AsyncOutput, event: Event, answer: Any) -> None:
    if isinstance(answer, jt.Batch):
        output.give(event, answer)
    elif isinstance(answer, Mapping):
        output.give(event, answer, times=event.batch.times)
    elif answer is not None:
        asked = len(event.batch)
        raise _malformed(answer, f"return a batch, columns with {asked} values each, or None")


def _malformed(answer: Any, expected: str) -> BatchError:
    found = repr(answer)
    found = found if len(found) <= 60 else f"{found[:60]}…"
    return BatchError(f"it was answered {found}, of type {type(answer).__name__}: {expected}")
