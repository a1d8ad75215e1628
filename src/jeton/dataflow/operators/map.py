"""map: columns to columns, a whole batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jeton.columns.batch import Batch
from jeton.columns.kernel import Kernel
from jeton.core.checks import type_name
from jeton.core.errors import BatchError
from jeton.dataflow.column_use import use_of
from jeton.dataflow.operators.stateless import require_function, schema_after, stateless
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_map(
    stream: StreamBase,
    function: Callable[[Batch], Mapping[str, Any] | Batch] | Kernel,
    *,
    name: str,
) -> Stream:
    """Add the operator of `Stream.map`."""
    require_function(function, name, "columns")

    def change(batch: Batch) -> Batch:
        made = function(batch)
        if isinstance(made, Batch):
            return made
        if isinstance(function, Kernel):
            made = {function.__name__: made}
        if not isinstance(made, Mapping):
            raise BatchError(
                f"map needs a function that returns columns by name, and this one returned "
                f"{type_name(made)}: return {{'name': values}}, or use with_columns(name=…) to "
                "add a column to those that there are"
            )
        return batch.select().with_columns(made)

    use = use_of(function, passes=False) if isinstance(function, Kernel) else None
    return stateless(stream, change, name, schema=schema_after(stream, change, name), use=use)
