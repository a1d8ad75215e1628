"""Mechanisms: one program, run by tokens, by notifications or by watermarks.

A program is written once, as a `Stage`: state that waits until times are complete. `add_stage` runs
it by any mechanism, so that programs which are compared differ in their mechanism alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.errors import GraphError
from jeton.idioms.notifications import Notificator
from jeton.idioms.watermark_sources import marks_from_frontier
from jeton.idioms.watermarks import MarkedStream, unmarked, watermark_operator

Mechanism: TypeAlias = Literal["tokens", "notifications", "watermarks-x", "watermarks-p"]
"""Tokens and frontiers; Naiad's notifications, a request and a token for each time; Flink's
watermarks in-band, broadcast at every exchange (x) or passed down pipelines on each worker (p)."""

MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)

Times: TypeAlias = npt.NDArray[np.int64]
Step: TypeAlias = Callable[[Sequence[jt.Input], Sequence[jt.Output]], None]
Between: TypeAlias = "jt.Stream | MarkedStream"
"""A stream between stages: with watermarks, one that has marks among its data."""


def check_mechanism(name: str) -> None:
    """Refuse a name that is not a mechanism.

    >>> check_mechanism("tokens")
    >>> check_mechanism("barriers")
    Traceback (most recent call last):
        ...
    jeton.core.errors.GraphError: there is no mechanism 'barriers': choose one of tokens, ...
    """
    if name not in MECHANISMS:
        raise GraphError(f"there is no mechanism {name!r}: choose one of {', '.join(MECHANISMS)}")


class Stage(Protocol):
    """The state of a program on one worker, and its results as times are complete."""

    inclusive: bool
    """Whether a result is due as soon as all times *before* its own are complete."""

    @property
    def parts(self) -> Mapping[str, jt.state.Stateful]:
        """Everything that it keeps, for snapshots."""
        ...

    def add(self, port: int, batch: jt.Batch) -> Times:
        """Add a batch of an input; returns the times of the results that it leads to."""
        ...

    def take(self, limit: int | None) -> jt.Batch | None:
        """Take out the results that are due, in order of time.

        Nothing before ``limit`` can arrive any more; nothing at all if it is ``None``.
        """
        ...

    @property
    def least(self) -> int | None:
        """The time of the first result that is pending."""
        ...

    @property
    def pending(self) -> Times:
        """The times of all pending results."""
        ...


def marked_for(stream: jt.Stream, mechanism: Mechanism) -> Between:
    """A stream as the first stage takes it."""
    return marks_from_frontier(stream) if mechanism == "watermarks-x" else stream


def plain_stream(stream: Between, schema: pa.Schema | None = None) -> jt.Stream:
    """The output of the last stage as a plain stream, with the columns of ``schema`` if given."""
    return unmarked(stream, schema=schema) if isinstance(stream, MarkedStream) else stream


def add_stage(
    inputs: Sequence[Between],
    make: Callable[[], Stage],
    *,
    pacts: Sequence[jt.Pact | None],
    mechanism: Mechanism,
    name: str,
    schema: pa.Schema | None,
    shape: str = "",
    due: Callable[[Times], Times] | None = None,
) -> Between:
    """An operator that runs the stage which ``make`` makes on each worker.

    - ``"tokens"``: one token, for the least pending time; everything that the frontiers have passed
      is emitted in one piece.
    - ``"notifications"``: one for each pending time; those that complete together are delivered
      together.
    - ``"watermarks-x"``: everything that the least of all marks has passed is emitted in one piece;
      marks are broadcast wherever data is exchanged.
    - ``"watermarks-p"``: the same without marks between workers: data is exchanged first, and marks
      are made behind the exchange.

    With marks, a record is late once the watermark has reached what ``due`` makes of its time. A
    stream that has marks already is processed by them, for any watermark mechanism.
    """
    check_mechanism(mechanism)
    if mechanism == "watermarks-p":
        inputs = [_marked_behind(s, pact) for s, pact in zip(inputs, pacts, strict=True)]
        pacts = [None] * len(inputs)
    marked = [stream for stream in inputs if isinstance(stream, MarkedStream)]
    if marked:
        return watermark_operator(
            marked,
            lambda info: _WithMarks(info, make(), shape),
            pacts=pacts,
            due=due,
            name=f"{name}, {mechanism}",
            schema=schema,
        )
    start = _with_tokens if mechanism == "tokens" else _with_notifications
    plain = [stream for stream in inputs if isinstance(stream, jt.Stream)]
    op = plain[0].operator(f"{name}, {mechanism}")
    for stream, pact in zip(plain, pacts, strict=True):
        op.input(stream, pact)
    op.output(schema=schema)

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Step:
        stage = make()
        _keep(info, stage, shape)
        with tokens.pop() as token:
            return start(token, info, stage)

    return op.build(build)[0]


def _marked_behind(stream: Between, pact: jt.Pact | None) -> MarkedStream:
    """A stream with marks that were made behind its exchange, if there is one."""
    if pact is None and isinstance(stream, MarkedStream):
        return stream
    return marks_from_frontier(plain_stream(stream), pact=pact)


def _with_tokens(token: jt.TimestampToken, info: jt.OperatorInfo, stage: Stage) -> Step:
    held = jt.state.TokenSet()
    if stage.least is not None:
        held.insert(token.clone())
        held.downgrade([stage.least])

    def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
        for port, input in enumerate(inputs):
            for ref, batch in input:
                stage.add(port, batch)
                least = stage.least
                if least is not None and not held.covers(least):
                    held.insert(ref.retain(least))
        least, limit = stage.least, _least(inputs)
        if least is None or (limit is not None and limit < least):
            return
        results = stage.take(limit)
        if results is not None:
            outputs[0].session(*held).give(results)
        # Also if what is complete led to no result.
        least = stage.least
        held.downgrade(() if least is None else (least,))

    return step


def _with_notifications(token: jt.TimestampToken, info: jt.OperatorInfo, stage: Stage) -> Step:
    notificator = Notificator(info)
    # The last time that must be complete: that of the result, or the one before.
    before = int(stage.inclusive)
    for time in np.unique(stage.pending).tolist():
        notificator.notify_at(token.clone(), time - before)

    def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
        for port, input in enumerate(inputs):
            for ref, batch in input:
                for time in np.unique(stage.add(port, batch)).tolist():
                    notificator.notify_at(ref, time - before)
        with notificator.together(*(input.frontier for input in inputs)) as tokens:
            results = stage.take(tokens[-1].time + 1) if tokens else None
            if results is not None:
                outputs[0].session(tokens[0]).give(results)

    return step


class _WithMarks:
    """A stage that waits for the watermark."""

    def __init__(self, info: jt.OperatorInfo, stage: Stage, shape: str) -> None:
        self._stage = stage
        _keep(info, stage, shape)

    def on_data(self, port: int, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
        self._stage.add(port, batch)

    def on_mark(self, mark: int | None, token: jt.TimestampToken, output: jt.Output) -> None:
        results = self._stage.take(mark)
        if results is not None:
            output.session(token).give(results)


def _keep(info: jt.OperatorInfo, stage: Stage, shape: str) -> None:
    for name, part in stage.parts.items():
        info.keep(part, name=name, shape=shape)


def _least(inputs: Sequence[jt.Input]) -> int | None:
    """The least time that may still arrive on any input."""
    if len(inputs) == 1:
        return inputs[0].frontier.only
    open_ = [time for input in inputs if (time := input.frontier.only) is not None]
    return min(open_, default=None)


def plain(array: Any, dtype: type[np.number[Any]] = np.int64) -> npt.NDArray[Any]:
    """An array as compiled loops take it: contiguous and writable, as Arrow's are not.

    Each loop is compiled for one kind of array then.

    >>> plain(pa.array([1, 2]).to_numpy()).flags.writeable
    True
    """
    made: npt.NDArray[Any] = np.require(array, dtype, ["C", "W"])
    return made
