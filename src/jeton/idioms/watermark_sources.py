"""Where watermarks come from: plain streams in, streams with marks among their data out."""

from __future__ import annotations

from collections.abc import Callable

import jeton as jt
from jeton.errors import GraphError
from jeton.idioms.watermark_ports import CLOSED, IDLE, MarkWriter
from jeton.idioms.watermarks import MarkedStream

_Step = Callable[[jt.Input, jt.Output], None]


def marks_from_frontier(
    stream: jt.Stream, *, pact: jt.Pact | None = None, name: str = "marks from frontier"
) -> MarkedStream:
    """A stream with marks wherever its frontier moves: exact, so that nothing is ever late.

    With a ``pact``, records are moved first: marks are made behind the exchange, not in front.

    >>> from jeton.idioms.watermarks import unmarked
    >>> flow = jt.Flow("there and back")
    >>> flow.output("n", unmarked(marks_from_frontier(flow.input("n"))))
    >>> flow.run({"n": {"time": [2, 1], "n": [20, 10]}})["n"].to_pylist()
    [{'time': 1, 'n': 10}, {'time': 2, 'n': 20}]
    """

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> _Step:
        writer = MarkWriter(token, info)
        info.keep_nothing()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                output.session(ref).give(batch)
            if writer.status == CLOSED:
                return
            mark = input.frontier.only
            if mark is None:
                writer.close(output)
            elif mark > writer.mark:
                writer.advance(output, mark)

        return step

    return MarkedStream(stream.unary_frontier(build, pact=pact, name=name, schema=stream.schema))


def marks_from_times(
    stream: jt.Stream,
    disorder: int,
    *,
    idle_after: float | None = None,
    name: str = "marks from times",
) -> MarkedStream:
    """A stream with marks that trail its greatest time so far by ``disorder``, on each worker.

    A worker that has had no data for ``idle_after`` seconds is marked idle until its next record:
    then the others' marks no longer wait for it, and what it sends later may be late. Its token
    stays, so the system's frontiers do not run ahead of such records. The end of an input is known
    once it is at its end on *all* workers: one that has finished long before the others holds them
    back like any that has nothing to say, unless there is an ``idle_after``.

    >>> from jeton.idioms.watermarks import unmarked
    >>> flow = jt.Flow("trailing")
    >>> flow.output("n", unmarked(marks_from_times(flow.input("n"), disorder=5)))
    >>> flow.run({"n": {"time": [9, 3], "n": [90, 30]}})["n"].to_pylist()
    [{'time': 3, 'n': 30}, {'time': 9, 'n': 90}]
    """
    if disorder < 0:
        raise GraphError(f"marks cannot trail the data by {disorder}")

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> _Step:
        writer = MarkWriter(token, info)
        info.keep_nothing()
        patience = None if idle_after is None else _Patience(info, idle_after)
        latest = writer.mark

        def step(input: jt.Input, output: jt.Output) -> None:
            nonlocal latest
            if writer.status == CLOSED:
                return
            if patience is not None:
                if input:
                    patience.renew()
                    if writer.status == IDLE:
                        writer.resume(output)
                elif patience.is_over() and writer.status != IDLE:
                    writer.idle(output)
            for ref, batch in input:
                output.session(ref).give(batch)
                latest = max(latest, int(batch.times.max()))
            if input.frontier.is_empty:
                writer.close(output)
            elif latest - disorder > writer.mark:
                writer.advance(output, latest - disorder)

        return step

    return MarkedStream(stream.unary_frontier(build, name=name, schema=stream.schema))


class _Patience:
    """Whether nothing has come for a while; has the operator invoked when that may be so."""

    def __init__(self, info: jt.OperatorInfo, seconds: float) -> None:
        self._activator = info.activator
        self._seconds = seconds
        self._until = self._alarm = info.activator.now() + seconds
        info.activator.after(seconds)

    def renew(self) -> None:
        """Something has come."""
        now = self._activator.now()
        if self._alarm <= now:
            self._alarm = now + self._seconds
            self._activator.after(self._seconds)
        self._until = now + self._seconds

    def is_over(self) -> bool:
        """Whether nothing has come for long enough; if not, asks to be invoked when it may be."""
        now = self._activator.now()
        if now >= self._until:
            return True
        if self._alarm <= now:
            self._alarm = self._until
            self._activator.after(self._until - now)
        return False
