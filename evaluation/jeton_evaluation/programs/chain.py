"""A chain of operators that do nothing, by any mechanism: the paper's second benchmark.

It measures the cost of passing a time through operators that have nothing to do with it. Each link
is an operator in user code. With tokens and notifications it is not even invoked; watermarks have
to be passed on by every one of them, and over exchanges to all workers. In a pipeline that is a
call for each link, as in Flink's chains of operators; at an exchange it is a message.
"""

from __future__ import annotations

from collections.abc import Callable

import jeton as jt
from jeton.idioms.notifications import Notificator, distinct_times
from jeton.idioms.watermark_sources import marks_from_frontier
from jeton.idioms.watermarks import (
    Forward,
    ForwardLink,
    unmarked,
    watermark_chain,
    watermark_operator,
)
from jeton_evaluation.programs.mechanisms import Mechanism, check_mechanism

Step = Callable[[jt.Input, jt.Output], None]


def chain(
    stream: jt.Stream, length: int, *, mechanism: Mechanism = "tokens", key: str | None = None
) -> jt.Stream:
    """The same records, after ``length`` operators that hand them on.

    With a ``key``, records are exchanged by it at every link, with any mechanism. Without
    one they stay where they are; only ``"watermarks-x"``, which is about exchanges, deals them
    out by their times.

    >>> flow = jt.Flow("chain")
    >>> flow.output("out", chain(flow.input("in"), 3, mechanism="watermarks-x"))
    >>> flow.run({"in": {"time": [1, 2], "n": [10, 20]}}, workers=2)["out"]["n"].to_pylist()
    [10, 20]
    """
    check_mechanism(mechanism)
    pact = None if key is None else jt.Exchange(key)
    schema = stream.schema
    if mechanism in ("watermarks-x", "watermarks-p"):
        if mechanism == "watermarks-x":
            pact = pact or jt.Exchange(stream.time_name)
        marked = marks_from_frontier(stream)
        if pact is None and length:
            links = [ForwardLink] * length
            return unmarked(watermark_chain(marked, links, late="pass", schema=schema))
        for _ in range(length):
            marked = watermark_operator(
                [marked], Forward, pacts=[pact], late="pass", schema=schema, name="link"
            )
        return unmarked(marked)
    for _ in range(length):
        if mechanism == "tokens":
            stream = stream.unary(_hand_on, pact=pact, name="link", schema=schema)
        else:
            stream = stream.unary_frontier(_hand_on_and_ask, pact=pact, name="link", schema=schema)
    return stream


def _hand_on(token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
    """Holds nothing, and is invoked by data only."""
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            output.session(ref).give(batch)

    return step


def _hand_on_and_ask(token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
    """Asks for a notification at each time at which there was data, and has nothing to say then."""
    token.drop()
    info.keep_nothing()
    notificator = Notificator(info, mode="strict")

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            output.session(ref).give(batch)
            for time in distinct_times(batch):
                notificator.notify_at(ref, time)
        with notificator.together(input.frontier):
            pass

    return step
