"""concat, union: several streams as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from jeton.columns import schema as schemas
from jeton.dataflow.hints import require_stream
from jeton.dataflow.operators.stateless import stateless
from jeton.dataflow.plan import require_same_flow
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_concat(stream: StreamBase, *others: StreamBase) -> Stream:
    """A stream of all sources of several; see `Stream.concat`."""
    for other in others:
        require_stream(other, "concat")
    streams = [stream, *others]
    require_same_flow(streams)
    schema = stream.schema
    for other in others:
        schema = schemas.unify(schema, other.schema, f"{stream!r} and {other!r}")
    sources = [source for each in streams for source in _conformed(each, schema).sources]
    return stream.scope.stream(sources, stream.time_name, schema)


def _conformed(stream: StreamBase, common: pa.Schema | None) -> StreamBase:
    """A stream with columns of the types of a schema that has the same names."""
    if common is None or stream.schema is None:
        return stream
    pairs = zip(stream.schema, common, strict=True)
    if all(own.name == new.name and own.type in (new.type, pa.null()) for own, new in pairs):
        return stream
    what = f"{stream!r}, beside others"
    return stateless(stream, lambda batch: batch.conform(common, what), "cast", schema=common)
