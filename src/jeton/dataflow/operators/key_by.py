"""key_by: group a stream's records by columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


class KeyBy(StreamBase):
    """Adds `key_by` to streams."""

    def key_by(self, *columns: str) -> KeyedStream:
        """Group records by the values of ``columns``: integers, text, several of them.

        Nulls are a key of their own, and so is NaN. Without columns, all records are one group,
        which one worker keeps. See `KeyedStream` for what can be done with groups.
        """
        from jeton.dataflow.keyed import KeyedStream

        self.require_columns(*columns, operator="key_by")
        return KeyedStream(cast("Stream", self), columns)
