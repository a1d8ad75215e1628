"""broadcast: every record to every worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jeton.dataflow.column_use import ColumnUse
from jeton.dataflow.operators.stateless import stateless
from jeton.dataflow.pacts import Broadcast
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_broadcast(stream: StreamBase, *, name: str) -> Stream:
    """Add the operator of `Stream.broadcast`."""
    return stateless(
        stream,
        lambda batch: batch,
        name,
        pact=Broadcast(),
        schema=stream.schema,
        use=ColumnUse(),
    )
