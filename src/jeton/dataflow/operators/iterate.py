"""iterate: send records around a loop until none is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jeton.dataflow.operators.concat import add_concat
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_iterate(
    stream: StreamBase, body: Callable[[Stream], tuple[Stream, Stream]], *, name: str
) -> Stream:
    """Add the loop of `Stream.iterate`."""
    loop = stream.scope.loop(name)
    again = loop.feedback(schema=stream.schema)
    back, out = body(add_concat(stream.enter(loop), again.stream))
    again.connect(back)
    return out.leave()
