"""Means over tumbling windows by key, by whichever mechanism."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

import jeton as jt
from jeton.errors import GraphError
from jeton.idioms.mechanisms import Mechanism, check_mechanism
from jeton.idioms.notifications import Notificator
from jeton.idioms.watermark_sources import marks_from_frontier
from jeton.idioms.watermarks import (
    MarkedStream,
    unmarked,
    watermark_operator,
)
from jeton.idioms.window_sums import WindowSums, window_ends

Step = Callable[[jt.Input, jt.Output], None]


def window_mean(
    stream: jt.Stream,
    size: int,
    *,
    key: str = "key",
    value: str = "value",
    mechanism: Mechanism = "tokens",
) -> jt.Stream:
    """The ``mean`` of a column by key over windows ``[n * size, (n + 1) * size)``, at their ends.

    How each mechanism moves records and learns of complete windows is as in `word_count`.

    >>> flow = jt.Flow("means")
    >>> rows = flow.input("rows")
    >>> flow.output("means", window_mean(rows, 10, mechanism="notifications"))
    >>> table = {"time": [3, 7, 12], "key": [1, 1, 1], "value": [1.0, 2.0, 4.0]}
    >>> flow.run({"rows": table}, workers=2)["means"].to_pylist()
    [{'time': 10, 'key': 1, 'mean': 1.5}, {'time': 20, 'key': 1, 'mean': 4.0}]
    """
    check_mechanism(mechanism)
    _check(stream, size, key, value)
    if mechanism in ("watermarks-x", "watermarks-p"):
        pact = jt.Exchange(key) if mechanism == "watermarks-x" else None
        marked = marks_from_frontier(stream, pact=None if pact else jt.Exchange(key))
        return unmarked(marked_window_mean(marked, size, key=key, value=value, pact=pact))
    make = _with_tokens if mechanism == "tokens" else _with_notifications
    return stream.unary_frontier(
        lambda token, info: make(token, info, WindowSums(size, key, value)),
        pact=jt.Exchange(key),
        name=f"window mean, {mechanism}",
        schema=_means(stream.schema, key),
    )


def marked_window_mean(
    marked: MarkedStream,
    size: int,
    *,
    key: str = "key",
    value: str = "value",
    pact: jt.Pact | None = None,
) -> MarkedStream:
    """The same for a stream that has marks already; without a pact, keys stay where they are.

    Records whose window the watermark has closed are in the result's ``late``.

    >>> flow = jt.Flow("means")
    >>> rows = marks_from_frontier(flow.input("rows"))
    >>> flow.output("means", unmarked(marked_window_mean(rows, 10, pact=jt.Exchange("key"))))
    >>> table = {"time": [3, 7], "key": [1, 1], "value": [1.0, 2.0]}
    >>> flow.run({"rows": table}, workers=2)["means"].to_pylist()
    [{'time': 10, 'key': 1, 'mean': 1.5}]
    """
    _check(marked.stream, size, key, value)
    return watermark_operator(
        [marked],
        lambda info: _AtMarks(info, WindowSums(size, key, value)),
        pacts=[pact],
        due=lambda times: window_ends(times, size),
        schema=_means(marked.stream.schema, key),
        name="window mean, watermarks",
    )


def _check(stream: jt.Stream, size: int, key: str, value: str) -> None:
    """Refuse what makes no sense before anything runs."""
    stream.require_columns(key, value, operator="window mean")
    WindowSums(size, key, value)
    if key == stream.time_name:
        raise GraphError(
            f"{key!r} is when windows end in the result, so it cannot be their key too: add a "
            "column with the times, and use that"
        ).located(operator="window mean")


def _means(schema: pa.Schema | None, key: str) -> pa.Schema | None:
    """The columns that come out, if those that go in are known."""
    if schema is None:
        return None
    kind = schema.field(key).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.schema([(key, kind), ("mean", pa.float64())])


def _with_tokens(token: jt.TimestampToken, info: jt.OperatorInfo, sums: WindowSums) -> Step:
    info.keep(sums, shape=sums.shape)
    held = jt.state.TokenSet()
    if sums.least is not None:
        held.insert(token.clone())
        held.downgrade([sums.least])
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            opened = sums.add(batch)
            if len(opened) and not held.covers(first := int(opened[0])):
                held.insert(ref.retain(first))
        means = sums.take(input.frontier.only, time_name=output.time_name)
        if means is not None:
            output.session(*held).give(means)
            held.downgrade(() if sums.least is None else (sums.least,))

    return step


def _with_notifications(token: jt.TimestampToken, info: jt.OperatorInfo, sums: WindowSums) -> Step:
    """Asks for the last time inside each window: once that is complete, so is the window."""
    info.keep(sums, shape=sums.shape)
    notificator = Notificator(info, mode="strict")
    for end in sums.ends:
        notificator.notify_at(token.clone(), end - 1)
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            for end in sums.add(batch).tolist():
                notificator.notify_at(ref, end - 1)
        for token in notificator.ready(input.frontier):
            means = sums.take(token.time + 1, time_name=output.time_name)
            assert means is not None, "a notification was asked for by its records"
            output.session(token).give(means)

    return step


class _AtMarks:
    """Windows wait for the watermark."""

    def __init__(self, info: jt.OperatorInfo, sums: WindowSums) -> None:
        self._sums = sums
        info.keep(sums, shape=sums.shape)

    def take(self, port: int, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
        self._sums.add(batch)

    def tell(self, mark: int | None, token: jt.TimestampToken, output: jt.Output) -> None:
        means = self._sums.take(mark, time_name=output.time_name)
        if means is not None:
            output.session(token).give(means)
