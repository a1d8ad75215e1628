"""Shared parts of stateless operators: each batch becomes another, no record earlier."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import time_columns
from jeton.columns.batch import Batch
from jeton.columns.column import as_column
from jeton.columns.schema import SchemaLike, schema_of
from jeton.columns.time_columns import Times
from jeton.columns.time_units import given_times, in_words
from jeton.core.errors import ColumnTypeError, GraphError, TimeError
from jeton.core.times import TimeKind
from jeton.core.tokens import TimestampToken
from jeton.dataflow.column_use import ColumnUse
from jeton.dataflow.operators.unary import add_unary
from jeton.dataflow.pacts import Pact
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream

Condition: TypeAlias = "Callable[[Batch], Any] | str"
"""A function from a batch to one boolean for each record, or the name of a boolean column."""


def stateless(
    stream: StreamBase,
    change: Callable[[Batch], Batch],
    name: str,
    *,
    pact: Pact | None = None,
    schema: SchemaLike | None = None,
    use: ColumnUse | None = None,
) -> Stream:
    """Add an operator that applies one function to each batch."""

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        token.drop()

        def step(input: Input, output: Output) -> None:
            for ref, batch in input:
                output.session(ref).give(change(batch))

        return step

    return add_unary(stream, build, name=name, notify="never", pact=pact, schema=schema, use=use)


def schema_after(
    stream: StreamBase, change: Callable[[Batch], Batch], name: str
) -> pa.Schema | None:
    """The schema that ``change`` produces, if an empty batch can show it."""
    made = stream.learn(change, operator=name)
    return None if made is None else schema_of(made)


def mask_function(
    stream: StreamBase, condition: Condition, operator: str
) -> Callable[[Batch], npt.NDArray[np.bool_]]:
    """A condition as a function to masks, checked against the stream's schema; null is false."""
    if isinstance(condition, str):
        known = stream.schema is None or condition in stream.schema.names
        if any(sign in condition for sign in "<>=") and not known:
            raise GraphError(
                f"{operator} needs an expression, such as jt.col('price') > 3, or the name of a "
                f"column of booleans, not {condition!r}"
            ).located(operator=operator)
        require_type(stream, condition, pa.types.is_boolean, "booleans", operator)
        column = condition
        return lambda batch: as_mask(batch.column(column), f"column {column!r}")
    require_function(condition, operator, "booleans")
    function = condition

    def mask(batch: Batch) -> npt.NDArray[np.bool_]:
        return as_mask(function(batch), "the condition")

    stream.learn(mask, operator=operator)
    return mask


def require_function(function: object, operator: str, what: str) -> None:
    """Refuse a value that cannot be called with a batch."""
    if not callable(function):
        raise GraphError(
            f"{operator} needs a function from a batch to {what}, not {function!r}"
        ).located(operator=operator)


def require_type(
    stream: StreamBase,
    column: str,
    fits: Callable[[pa.DataType], bool],
    what: str,
    operator: str,
) -> None:
    """Refuse to build an operator on a column that is known to be missing or of another type."""
    stream.require_columns(column, operator=operator)
    if stream.schema is None or column == stream.time_name:
        return
    kind = stream.schema.field(column).type
    if not pa.types.is_null(kind) and not fits(kind):
        raise GraphError(f"column {column!r} of {stream!r} is {kind}, not {what}").located(
            operator=operator
        )


def later_times(batch: Batch, before: Times, given: Any, kind: TimeKind, operator: str) -> Times:
    """The times that a function of a batch gave; none may be earlier than ``before``."""
    times = given_times(kind, given, batch.unit, f"the times of {operator}")
    if len(times) != len(before):
        raise TimeError(f"{operator} gave {len(times)} times for {len(before)} records")
    for index in time_columns.earlier(before, times)[:1]:
        was, would_be = (
            in_words(time_columns.one(some, index), batch.unit) for some in (before, times)
        )
        raise TimeError(f"{operator} would move a record from {was} back to {would_be}")
    return times


def as_mask(values: Any, what: str) -> npt.NDArray[np.bool_]:
    """Values as booleans, of which null is false; an error if they are anything else.

    >>> as_mask(pa.array([True, None]), "the condition").tolist()
    [True, False]
    """
    column = as_column(values)
    if isinstance(column, np.ndarray):
        if column.dtype == np.bool_:
            return column
    elif pa.types.is_boolean(column.type) or pa.types.is_null(column.type):
        plain = column.cast(pa.bool_()).fill_null(False)
        mask: npt.NDArray[np.bool_] = plain.to_numpy(zero_copy_only=False)
        return mask
    kind = column.dtype if isinstance(column, np.ndarray) else column.type
    raise ColumnTypeError(f"{what} is of type {kind}, not boolean: compare it with something")
