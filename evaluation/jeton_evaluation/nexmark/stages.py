"""Stages: state that waits for times to be complete, by whichever mechanism.

A query is one stage or two. What a stage keeps and tells is its own affair and the same for all
mechanisms; by what it learns that a time is complete is written here, once for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.idioms.mechanisms import Mechanism
from jeton.idioms.notifications import Notificator
from jeton.idioms.watermark_sources import marks_from_frontier
from jeton.idioms.watermarks import MarkedStream, unmarked, watermark_operator
from jeton.idioms.window_sums import window_ends

Times: TypeAlias = npt.NDArray[np.int64]
Step: TypeAlias = Callable[[Sequence[jt.Input], Sequence[jt.Output]], None]
Between: TypeAlias = "jt.Stream | MarkedStream"
"""What is between stages: with watermarks, a stream that has them among its data."""


class Stage(Protocol):
    """What an operator keeps on one worker, and tells when times are complete."""

    inclusive: bool
    """Whether something is told at its time as soon as all times *before* it are complete."""

    @property
    def parts(self) -> Mapping[str, jt.state.Stateful]:
        """All that it keeps, for snapshots."""
        ...

    def add(self, port: int, batch: jt.Batch) -> Times:
        """Take in what has come on an input; returns the times at which it has something told."""
        ...

    def take(self, limit: int | None) -> jt.Batch | None:
        """What is to be told, now that nothing before ``limit`` comes (``None``: nothing at all).

        It is in order of time.
        """
        ...

    @property
    def least(self) -> int | None:
        """The first time at which something is to be told, if there is any."""
        ...

    @property
    def pending(self) -> Times:
        """All times at which something is to be told."""
        ...


def begin(stream: jt.Stream, mechanism: Mechanism) -> Between:
    """A stream as the first stage wants it."""
    return marks_from_frontier(stream) if mechanism == "watermarks-x" else stream


def end(stream: Between, schema: pa.Schema | None = None) -> jt.Stream:
    """What comes out of the last stage, as a plain stream; a ``schema`` says what it has."""
    return unmarked(stream, schema=schema) if isinstance(stream, MarkedStream) else stream


def add_stage(
    inputs: Sequence[Between],
    make: Callable[[], Stage],
    *,
    pacts: Sequence[jt.Pact | None],
    mechanism: Mechanism,
    name: str,
    schema: pa.Schema,
) -> Between:
    """An operator that keeps what ``make`` makes on each worker.

    - ``"tokens"``: one token, for the least time at which something is to be told; whatever the
      frontiers have passed is told in one piece.
    - ``"notifications"``: one for each time at which something is to be told, and one such time
      for each invocation.
    - ``"watermarks-x"``: what the least of all marks has passed is told in one piece; marks are
      broadcast wherever data is exchanged.
    - ``"watermarks-p"``: the same, but no marks go between workers. So data is exchanged without
      them, and marks are made anew behind.
    """
    if mechanism == "watermarks-p":
        inputs = [_marked_behind(s, pact) for s, pact in zip(inputs, pacts, strict=True)]
        pacts = [None] * len(inputs)
    marked = [stream for stream in inputs if isinstance(stream, MarkedStream)]
    if marked:
        return watermark_operator(
            marked, lambda info: _AtMarks(info, make()), pacts=pacts, name=f"{name}, {mechanism}"
        )
    start = _with_tokens if mechanism == "tokens" else _with_notifications
    plain = [stream for stream in inputs if isinstance(stream, jt.Stream)]
    op = plain[0].operator(f"{name}, {mechanism}")
    for stream, pact in zip(plain, pacts, strict=True):
        op.input(stream, pact)
    op.output(schema=schema)
    return op.build(lambda tokens, info: start(tokens.pop(), info, make()))[0]


def _marked_behind(stream: Between, pact: jt.Pact | None) -> MarkedStream:
    """A stream with marks that were made behind its exchange, if there is one."""
    if pact is None and isinstance(stream, MarkedStream):
        return stream
    return marks_from_frontier(end(stream), pact=pact)


def by_window(batch: jt.Batch, size: int) -> Iterator[tuple[int, jt.Batch]]:
    """Parts of a batch by tumbling windows, each with the window's end.

    >>> batch = jt.Batch({"n": [1, 2, 3]}, times=[3, 7, 12])
    >>> [(end, len(part)) for end, part in by_window(batch, 10)]
    [(10, 2), (20, 1)]
    """
    # Most batches lie in one window: two times tell that sooner than a division for each record.
    first, last = int(batch.times.min()) // size, int(batch.times.max()) // size
    if first == last:
        yield (first + 1) * size, batch
    else:
        yield from batch.split_by(lambda times: window_ends(times, size))


def _with_tokens(token: jt.TimestampToken, info: jt.OperatorInfo, stage: Stage) -> Step:
    _keep(info, stage)
    held = jt.state.TokenSet()
    if stage.least is not None:
        held.insert(token.clone())
        held.downgrade([stage.least])
    token.drop()

    def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
        for port, input in enumerate(inputs):
            for ref, batch in input:
                times = stage.add(port, batch)
                if len(times) and not held.covers(first := int(times.min())):
                    held.insert(ref.retain(first))
        told = stage.take(_least(inputs))
        if told is not None:
            outputs[0].session(*held).give(told)
        # Also if there was nothing to say of what is over.
        least = () if stage.least is None else (stage.least,)
        if held.times != least:
            held.downgrade(least)

    return step


def _with_notifications(token: jt.TimestampToken, info: jt.OperatorInfo, stage: Stage) -> Step:
    _keep(info, stage)
    notificator = Notificator(info, mode="strict")
    # The last time that must be complete: before what is told, unless it waits for its own.
    before = int(stage.inclusive)
    for time in np.unique(stage.pending).tolist():
        notificator.notify_at(token.clone(), time - before)
    token.drop()

    def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
        for port, input in enumerate(inputs):
            for ref, batch in input:
                for time in np.unique(stage.add(port, batch)).tolist():
                    notificator.notify_at(ref, time - before)
        for token in notificator.ready(*(input.frontier for input in inputs)):
            told = stage.take(token.time + 1)
            if told is not None:
                outputs[0].session(token).give(told)

    return step


class _AtMarks:
    """A stage that waits for the watermark."""

    def __init__(self, info: jt.OperatorInfo, stage: Stage) -> None:
        self._stage = stage
        _keep(info, stage)

    def take(self, port: int, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
        self._stage.add(port, batch)

    def tell(self, mark: int | None, token: jt.TimestampToken, output: jt.Output) -> None:
        told = self._stage.take(mark)
        if told is not None:
            output.session(token).give(told)


def _keep(info: jt.OperatorInfo, stage: Stage) -> None:
    for name, part in stage.parts.items():
        info.keep(part, name=name)


def _least(inputs: Sequence[jt.Input]) -> int | None:
    """The least time that may still come on any input."""
    open_ = [time for input in inputs if (time := input.frontier.only) is not None]
    return min(open_, default=None)
