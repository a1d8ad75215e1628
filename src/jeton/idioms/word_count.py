"""Word count in order of time, by whichever mechanism: the paper's first benchmark.

Records go to the worker of their key and wait until their time is complete; then each comes out,
at its own time, with how often its key has occurred until then.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

import jeton as jt
from jeton.idioms.keyed_state import KeyedCounts
from jeton.idioms.mechanisms import Mechanism, check_mechanism
from jeton.idioms.notifications import Notificator, distinct_times
from jeton.idioms.waiting import Waiting
from jeton.idioms.watermark_sources import marks_from_frontier
from jeton.idioms.watermarks import (
    MarkedStream,
    unmarked,
    watermark_operator,
)

Step = Callable[[jt.Input, jt.Output], None]


def word_count(
    words: jt.Stream, *, mechanism: Mechanism = "tokens", key: str = "word"
) -> jt.Stream:
    """Each record with the running ``count`` of its key, in order of time.

    - ``"tokens"``: one least token for all that waits; what the frontier has passed is counted
      and retired in one piece.
    - ``"notifications"``: one notification for each distinct time, one time for each invocation.
    - ``"watermarks-x"``: marks are made in front of the exchange and broadcast over it.
    - ``"watermarks-p"``: there are no marks between workers, so keys must be where they belong
      before the first mark is made: an exchange without marks, then marks in a pipeline.

    >>> flow = jt.Flow("words")
    >>> words = flow.input("words")
    >>> for mechanism in ("tokens", "notifications", "watermarks-x", "watermarks-p"):
    ...     flow.output(mechanism, word_count(words, mechanism=mechanism))
    >>> result = flow.run({"words": {"time": [3, 1, 2], "word": ["a", "b", "a"]}}, workers=2)
    >>> [result[name]["count"].to_pylist() for name in result]
    [[1, 1, 2], [1, 1, 2], [1, 1, 2], [1, 1, 2]]
    """
    check_mechanism(mechanism)
    words.require_columns(key, operator="word count")
    if mechanism in ("watermarks-x", "watermarks-p"):
        pact = jt.Exchange(key) if mechanism == "watermarks-x" else None
        marked = marks_from_frontier(words, pact=None if pact else jt.Exchange(key))
        return unmarked(marked_word_count(marked, key=key, pact=pact))
    make = _with_tokens if mechanism == "tokens" else _with_notifications
    return words.unary_frontier(
        lambda token, info: make(token, info, key),
        pact=jt.Exchange(key),
        name=f"word count, {mechanism}",
        schema=_counted(words.schema),
    )


def marked_word_count(
    words: MarkedStream, *, key: str = "word", pact: jt.Pact | None = None
) -> MarkedStream:
    """The same for a stream that has marks already; without a pact, keys stay where they are.

    Records that come before the watermark are not counted: they are in the result's ``late``.

    >>> from jeton.idioms.watermark_sources import marks_from_times
    >>> flow = jt.Flow("words")
    >>> words = marks_from_times(flow.input("words"), disorder=5)
    >>> counts = marked_word_count(words, pact=jt.Exchange("word"))
    >>> flow.output("counts", unmarked(counts))
    >>> flow.output("late", counts.late)
    >>> result = flow.run({"words": {"time": [3, 1], "word": ["a", "a"]}}, workers=2)
    >>> result["counts"]["count"].to_pylist(), result["late"].num_rows
    ([1, 2], 0)
    """
    words.stream.require_columns(key, operator="word count")
    return watermark_operator(
        [words],
        lambda info: _AtMarks(info, key),
        pacts=[pact],
        schema=_counted(words.stream.schema),
        name="word count, watermarks",
    )


def _counted(schema: pa.Schema | None) -> pa.Schema | None:
    """The columns that come out, if those that go in are known."""
    if schema is None:
        return None
    kept = [field for field in schema if field.name != "count"]
    return pa.schema([*kept, pa.field("count", pa.int64())])


def _with_tokens(token: jt.TimestampToken, info: jt.OperatorInfo, key: str) -> Step:
    counts, waiting = KeyedCounts(key), jt.state.RecordQueue(info.kind, [key])
    info.keep(counts, shape=f"counts by {key}")
    info.keep(waiting, token, name="waiting", shape=f"records by {key}")
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            waiting.push(ref, batch)
        for time, batch in waiting.pop(input.frontier):
            output.session(waiting.right_for(time)).give(counts.counted(batch))
        waiting.settle()

    return step


def _with_notifications(token: jt.TimestampToken, info: jt.OperatorInfo, key: str) -> Step:
    counts, waiting = KeyedCounts(key), Waiting([key])
    notificator = Notificator(info, mode="strict")
    info.keep(counts, shape=f"counts by {key}")
    info.keep(waiting, name="waiting", shape=f"records by {key}")
    for time in waiting.times:
        notificator.notify_at(token.clone(), time)
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            waiting.add(batch)
            for time in distinct_times(batch):
                notificator.notify_at(ref, time)
        for token in notificator.ready(input.frontier):
            complete = waiting.take(token.time, inclusive=True)
            assert complete is not None, "a notification was asked for by its records"
            output.session(token).give(counts.counted(complete))

    return step


class _AtMarks:
    """Records wait for the watermark, then are counted in one piece."""

    def __init__(self, info: jt.OperatorInfo, key: str) -> None:
        self._counts = KeyedCounts(key)
        self._waiting = Waiting([key])
        info.keep(self._counts, shape=f"counts by {key}")
        info.keep(self._waiting, name="waiting", shape=f"records by {key}")

    def take(self, port: int, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
        self._waiting.add(batch)

    def tell(self, mark: int | None, token: jt.TimestampToken, output: jt.Output) -> None:
        batch = self._waiting.take(mark)
        if batch is not None:
            output.session(token).give(self._counts.counted(batch))
