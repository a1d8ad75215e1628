"""inspect: look at batches as they pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jeton.columns.batch import Batch
from jeton.dataflow.operators.stateless import stateless
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_inspect(stream: StreamBase, look: Callable[[Batch], Any] = print, *, name: str) -> Stream:
    """Add the operator of `Stream.inspect`."""

    def change(batch: Batch) -> Batch:
        look(batch)
        return batch

    return stateless(stream, change, name, schema=stream.schema)
