"""Shared part of operators that collect keyed records, and emit results once they are complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.core.antichain import Antichain
from jeton.core.times import TimeKind
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.column_use import ColumnUse
from jeton.dataflow.operators.unary import add_unary
from jeton.dataflow.pacts import KeyExchange, Pact
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.snapshot import Stateful

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


class Collector(Stateful, Protocol):
    """The state of such an operator, with the tokens for everything that is pending."""

    def add(self, right: TokenRef, batch: Batch) -> None:
        """Take records, holding the right to answer them."""
        ...

    def emit(self, frontier: Antichain, output: Output) -> None:
        """Send and forget the results that are complete."""
        ...


def add_collecting(
    keyed: KeyedStream,
    make: Callable[[TimeKind], Collector],
    *,
    name: str,
    shape: str,
    schema: pa.Schema | None,
    pact: Pact | None = None,
    use: ColumnUse | None = None,
) -> Stream:
    """Add an operator whose state is made by ``make``, once for each worker.

    Records come by the pact of the key unless there is another, with the columns that it reads.
    """

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        collector = make(info.kind)
        info.keep(collector, token, shape=shape, lazy=True)
        token.drop()

        def step(input: Input, output: Output) -> None:
            for ref, batch in input:
                collector.add(ref, batch)
            collector.emit(input.frontier, output)

        return step

    pact = pact or keyed.pact
    if type(pact) is KeyExchange and use is not None and not use.passes:
        pact = KeyExchange(*keyed.key, columns=use.reads)
    return add_unary(
        keyed.stream, build, name=name, notify="held", pact=pact, schema=schema, use=use, waits=True
    )
