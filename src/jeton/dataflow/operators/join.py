"""join: pairs of records with equal keys and equal times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jeton.dataflow.operators.interval_join import pairing
from jeton.dataflow.operators.joined import How, Joined

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def add_join(keyed: KeyedStream, other: KeyedStream, *, how: How, suffix: str) -> Stream:
    """Add the operator of `KeyedStream.join`."""
    joined = Joined(keyed, other, how, suffix, "join")
    return joined.add(keyed.stream, other.stream, pairing(joined, 0, 0))
