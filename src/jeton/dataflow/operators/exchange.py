"""exchange: move records to the worker that owns their key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jeton.columns.batch import Batch
from jeton.dataflow.column_use import ColumnUse
from jeton.dataflow.operators.stateless import stateless
from jeton.dataflow.pacts import Exchange
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_exchange(stream: StreamBase, *key: str | Callable[[Batch], Any], name: str) -> Stream:
    """Add the operator of `Stream.exchange`."""
    return stateless(
        stream,
        lambda batch: batch,
        name,
        pact=Exchange(*key),
        schema=stream.schema,
        use=ColumnUse(),
    )
