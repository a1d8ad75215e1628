"""partition: split a stream in several by a number for each record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.column import as_column, plain
from jeton.columns.keys import group_order
from jeton.core.errors import BatchError, GraphError
from jeton.core.tokens import TimestampToken
from jeton.dataflow.column_use import ColumnUse, use_of
from jeton.dataflow.operators.stateless import require_type
from jeton.dataflow.plan import OperatorInfo, Step
from jeton.dataflow.ports import Input, Output
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_partition(
    stream: StreamBase, parts: int, to: Callable[[Batch], Any] | str, *, name: str
) -> tuple[Stream, ...]:
    """Add the operator of `Stream.partition`."""
    if parts < 1:
        raise GraphError(f"partition needs at least one part, not {parts}").located(operator=name)
    if isinstance(to, str):
        column = to
        require_type(stream, column, pa.types.is_integer, "integers", name)
        number: Callable[[Batch], Any] = lambda batch: batch.column(column)  # noqa: E731
    else:
        number = to
        stream.learn(number, operator=name)
    return split(
        stream,
        parts,
        lambda batch: _numbers(number(batch), parts, len(batch)),
        name=name,
        use=use_of(to),
    )


def split(
    stream: StreamBase,
    parts: int,
    numbers: Callable[[Batch], npt.NDArray[np.int64]],
    *,
    name: str,
    use: ColumnUse | None = None,
) -> tuple[Stream, ...]:
    """Add an operator that sends each record to the output of its number."""
    builder = stream.operator(name)
    builder.input(stream)
    for _ in range(parts):
        builder.output(schema=stream.schema)

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        while tokens:
            tokens.pop().drop()

        def step(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            for ref, batch in inputs[0]:
                order, starts = group_order(numbers(batch), parts)
                for part, output in enumerate(outputs):
                    start, stop = int(starts[part]), int(starts[part + 1])
                    if stop - start == len(batch):
                        output.session(ref).give(batch)
                    elif start < stop:
                        output.session(ref).give(batch.take(order[start:stop]))

        return step

    return builder.build(build, notify="never", use=use)


def _numbers(values: Any, parts: int, length: int) -> npt.NDArray[np.int64]:
    column = as_column(values)
    if len(column) != length:
        raise BatchError(f"partition got {len(column)} numbers for {length} records")
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "iu":
        kind = column.dtype if isinstance(column, np.ndarray) else column.type
        nulls = 0 if isinstance(column, np.ndarray) else column.null_count
        what = f"{nulls} nulls among them" if nulls else f"values of type {kind}"
        raise BatchError(f"partition needs integers from 0 to {parts - 1}, and got {what}")
    if length and not 0 <= column.min() <= column.max() < parts:
        raise BatchError(
            f"partition needs integers from 0 to {parts - 1}, and got some from {column.min()} "
            f"to {column.max()}: take them modulo {parts}"
        )
    return plain(column.astype(np.int64, copy=False))
