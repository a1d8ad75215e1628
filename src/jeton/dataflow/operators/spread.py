"""Spread keys: the records of hot keys on several workers, combined when windows are complete.

Three operators. The first one receives records at the owner of their key, except for some of a hot
key, which other workers have as guests: see `SpreadExchange`. It passes them on, on the same
worker. The second one keeps partial windows of the guests, and sends what it remembers of them at
their last times to the owner of the key. There the third one keeps the windows of all other
records, adds the partial ones, and emits results at the windows' ends, as without ``spread``.
Results do not depend on which records are guests, nor where: partial windows may be restored on any
worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from jeton.core.antichain import Antichain
from jeton.core.checks import described
from jeton.core.errors import GraphError
from jeton.core.tokens import TimestampToken
from jeton.dataflow.operators.binary import add_binary
from jeton.dataflow.operators.collecting import add_collecting
from jeton.dataflow.operators.partial_windows import (
    CombinedWindows,
    PartialWindows,
    require_partial,
    reserved,
)
from jeton.dataflow.operators.windows import Assigner, BoundedAssigner, LastTimes, with_bounds
from jeton.dataflow.pacts import GUEST, Pipeline, SpreadExchange
from jeton.dataflow.plan import OperatorInfo, Step
from jeton.dataflow.ports import Input, Output
from jeton.state.aggregates import Aggregate
from jeton.state.shapes import shape_of

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def checked_spread(spread: object) -> int:
    """The number of workers for a hot key, if there can be as many.

    >>> checked_spread(1)
    Traceback (most recent call last):
    jeton.core.errors.GraphError: spread= is the number of workers for a hot key, an integer from...
    """
    if not isinstance(spread, int | np.integer) or isinstance(spread, bool) or spread < 2:
        raise GraphError(
            "spread= is the number of workers for a hot key, an integer from 2 on, not "
            f"{described(spread)}"
        ).located(operator="key_by")
    return int(spread)


def add_spread_windows(
    keyed: KeyedStream,
    assigner: Assigner,
    aggregates: Mapping[str, Aggregate],
    *,
    name: str,
    schema: pa.Schema | None,
    bounds: BoundedAssigner | None = None,
) -> Stream:
    """Add the operators of windows whose keys are spread; see `add_windows`."""
    key, stream = keyed.key, keyed.stream
    require_partial(keyed, aggregates, name=name, why="spread=")
    if GUEST in (*key, *(aggregate.column for aggregate in aggregates.values())):
        raise reserved(GUEST, "spread=").located(operator=name)
    windows = str(assigner)
    own = stream.next_name
    # Where an aggregate is cheap, sending records costs more than it. One in plain Python is worth
    # dividing evenly, also if one worker reads all records.
    stays = not any(aggregate.by_record for aggregate in aggregates.values())
    split = keyed if own is None else keyed.named(f"{own}-split")
    records, guests = _add_split(split, name, stays=stays)
    if own is not None:
        records, guests = records.named(own), guests.named(f"{own}-partial")
    partial = add_collecting(
        guests.key_by(*key),
        lambda kind: PartialWindows(key, aggregates, LastTimes(assigner), kind, None),
        name=f"{name}-partial",
        shape=shape_of(f"partial {windows}", key, aggregates),
        schema=None,
        pact=Pipeline(local_frontier=True),
    )

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Input, Output], None]:
        combined = CombinedWindows(key, aggregates, assigner, info.kind, bounds)
        # The same shape as without spread, so that a query can go on with it.
        info.keep(combined, token, shape=shape_of(windows, key, aggregates))
        token.drop()

        def step(records: Input, partials: Input, output: Output) -> None:
            for ref, batch in records:
                combined.add(ref, batch)
            for ref, batch in partials:
                combined.combine(ref, batch)
            combined.emit(Antichain([*records.frontier, *partials.frontier]), output)

        return step

    return add_binary(
        records,
        partial,
        build,
        pact=Pipeline(),
        other_pact=partial.key_by(*key).pact,
        name=name,
        notify="held",
        schema=schema if bounds is None else with_bounds(schema, keyed),
    )


def _add_split(keyed: KeyedStream, name: str, *, stays: bool) -> tuple[Stream, Stream]:
    """Add the operator that receives records; its outputs are those of own keys, and guests."""
    stream = keyed.stream
    builder = stream.operator(f"{name}-split")
    assert keyed.spread is not None
    builder.input(stream, SpreadExchange(*keyed.key, spread=keyed.spread, stays=stays))
    own, guests = (builder.output(schema=stream.schema) for _ in range(2))

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        for token in tokens:
            token.drop()

        def step(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            for ref, batch in inputs[0]:
                outputs[guests if GUEST in batch else own].session(ref).give(batch)

        return step

    streams = builder.build(build, notify="never")
    return streams[own], streams[guests]
