"""filter: keep the records for which a condition holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jeton.dataflow.column_use import filter_use
from jeton.dataflow.operators.stateless import Condition, mask_function, stateless
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_filter(stream: StreamBase, condition: Condition, *, name: str) -> Stream:
    """Add the operator of `Stream.filter`."""
    mask = mask_function(stream, condition, name)
    return stateless(
        stream,
        lambda batch: batch.filter(mask(batch)),
        name,
        schema=stream.schema,
        use=filter_use(condition),
    )
