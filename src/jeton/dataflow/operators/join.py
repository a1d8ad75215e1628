"""join: pairs of records with equal keys and equal times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jeton.dataflow.operators.binary import add_binary
from jeton.dataflow.operators.interval_join import pairing
from jeton.dataflow.operators.joined import How, Joined

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def add_join(keyed: KeyedStream, other: KeyedStream, *, how: How, suffix: str) -> Stream:
    """Add the operator of `KeyedStream.join`."""
    joined = Joined(keyed, other, how, suffix, "join")
    return add_binary(
        keyed.stream,
        other.stream,
        pairing(joined, 0, 0),
        pact=joined.pacts[0],
        other_pact=joined.pacts[1],
        name="join",
        # Records that wait hold no token: only the frontier shows when to drop them.
        notify="always",
        schema=joined.schema,
    )
