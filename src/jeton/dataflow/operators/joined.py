"""Joined: which columns the records of a join have, and how they are put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns.batch import Batch
from jeton.columns.column import Column, known_rows
from jeton.columns.keys import is_float, same_values
from jeton.columns.schema import sample, schema_of
from jeton.columns.time_columns import Times
from jeton.columns.time_units import INTEGER
from jeton.core.errors import BatchError, GraphError
from jeton.core.times import Time
from jeton.dataflow.operators.binary import BinaryBuild, add_binary
from jeton.dataflow.pacts import Exchange, Gather, Pact
from jeton.dataflow.stream_base import StreamBase
from jeton.state.key_ids import require_comparable

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

How: TypeAlias = Literal["inner", "left", "right", "full"]
"""The sides whose records come with nulls if they have no partner; those of others are left out."""

AsofHow: TypeAlias = Literal["inner", "left"]
"""The same where only left records ask for a partner."""


class Joined:
    """The shape of a join: the left columns, then the right ones that are not keys.

    A right column whose name the left side has too gets a suffix. Keys have the left side's names
    and types. Where right records may come alone, their types hold the keys of both sides.
    """

    def __init__(
        self,
        left: KeyedStream,
        right: KeyedStream,
        how: How,
        suffix: str,
        operator: str,
        *,
        hows: Sequence[str] = get_args(How),
    ) -> None:
        self._operator = operator
        self._pacts = pacts(left, right, operator)
        if how not in hows:
            raise GraphError(f"how={how!r} is not known: there are {hows}").located(
                operator=operator
            )
        self.left_key = left.key
        self.right_key = right.key
        self.left_outer = how in ("left", "full")
        """Whether left records without a partner come out."""
        self.right_outer = how in ("right", "full")
        """The same for right records."""
        self._time_name, self._kind = left.stream.time_name, left.stream.kind
        self._suffix = suffix
        self._left = left.stream.schema
        known = right.stream.schema
        self._wider: dict[str, pa.Field] = {}
        """The left keys that come out in another type than they have."""
        if self.right_outer and self._left is not None:
            widened = with_key_types(self._left, left.key, known, right.key)
            self._wider = {f.name: f for f in widened if f != self._left.field(f.name)}
            self._left = widened
        for outer, columns, side in (
            (self.left_outer, known, "right"),
            (self.right_outer, self._left, "left"),
        ):
            if outer and columns is None:
                raise GraphError(
                    f"a {how} join must know the columns of its {side} side, to fill them with "
                    "nulls: give that input a schema=…, or use how='inner'"
                ).located(operator=operator)
        self._values = None if known is None else _without(known, right.key)
        self._schema = self._known_schema()
        self._names: dict[tuple[str | None, ...], tuple[str, ...]] = {}
        """The columns that come out, by those of both sides."""

    def add(self, left: StreamBase, right: StreamBase, build: BinaryBuild) -> Stream:
        """Add the operator of a join; ``build`` makes its logic."""
        mine, others = self._pacts
        # Records that wait for partners hold no token: only the frontier shows when to drop them.
        return add_binary(
            left,
            right,
            build,
            pact=mine,
            other_pact=others,
            name=self._operator,
            notify="always",
            schema=self._schema,
        )

    def _known_schema(self) -> pa.Schema | None:
        """The columns that come out, if those of both sides are known."""
        if self._left is None or self._values is None:
            return None
        sides = [
            sample(schema, self._time_name, self._kind, INTEGER)
            for schema in (self._left, self._values)
        ]
        try:
            return schema_of(sides[0].beside(sides[1], self._suffix))
        except BatchError as error:
            raise GraphError(error.message).located(operator=self._operator) from error

    def values(self, right: Batch) -> list[str]:
        """The columns of a right batch that come out."""
        return [name for name in right.names if name not in self.right_key]

    def side_by_side(
        self, left: dict[str, Column], right: dict[str, Column], times: Times, bound: Time
    ) -> Batch:
        """The same as `pair`, of columns where only pairs come out: keys are as they were.

        ``bound`` is a lower bound of the times.
        """
        names = self._names.get((*left, None, *right))
        if names is None:
            one, other = (Batch.trusted(side, times, self._time_name) for side in (left, right))
            both = one.beside(other, self._suffix)
            names = self._names[(*left, None, *right)] = both.names
        columns = dict(zip(names, (*left.values(), *right.values()), strict=True))
        return Batch.trusted(columns, times, self._time_name, bound)

    def pair(self, left: Batch, right: Batch, times: Times) -> Batch:
        """Left and right records side by side; ``right`` has no key columns."""
        if self._wider:
            wider = {
                name: exact_key(left.column(name), field, self._operator)
                for name, field in self._wider.items()
            }
            left = left.with_columns(wider)
        both = left.named(self._time_name).beside(right, self._suffix)
        return Batch.trusted(both.columns, times, self._time_name)

    def left_alone(self, left: Batch) -> Batch:
        """Left records with nulls instead of a partner."""
        assert self._values is not None
        nulls = {field.name: pa.nulls(len(left), field.type) for field in self._values}
        return self.pair(left, Batch.trusted(nulls, left.times), left.times)

    def right_alone(self, right: Batch) -> Batch:
        """Right records with nulls instead of a partner, and their keys under the left names."""
        assert self._left is not None
        keys = dict(zip(self.left_key, self.right_key, strict=True))
        columns: dict[str, Column] = {
            field.name: exact_key(right.column(keys[field.name]), field, self._operator)
            if field.name in keys
            else pa.nulls(len(right), field.type)
            for field in self._left
        }
        left = Batch.trusted(columns, right.times, self._time_name)
        return self.pair(left, right.select(*self.values(right)), right.times)


def pacts(left: KeyedStream, right: KeyedStream, operator: str) -> tuple[Pact, Pact]:
    """How the records of two keyed streams meet, after a check that their keys can.

    Every worker learns the types of all keys, so that each can refuse those that never meet.
    """
    given: object = right
    if isinstance(given, StreamBase):
        raise GraphError(
            f"{operator}() needs the other stream keyed too: {operator}(other.key_by(…))"
        ).located(operator=operator)
    if len(left.key) != len(right.key):
        raise GraphError(
            f"the keys {list(left.key)} and {list(right.key)} are of different lengths"
        ).located(operator=operator)
    schemas = left.stream.schema, right.stream.schema
    if schemas[0] is not None and schemas[1] is not None:
        for one, other in zip(left.key, right.key, strict=True):
            try:
                require_comparable(one, _type(schemas[0], one), other, _type(schemas[1], other))
            except BatchError as error:
                raise GraphError(error.message).located(operator=operator) from error
    if not left.key:
        return Gather(), Gather()
    return Exchange(*left.key, announce=True), Exchange(*right.key, announce=True)


def with_key_types(
    left: pa.Schema, key: Sequence[str], right: pa.Schema | None, right_key: Sequence[str]
) -> pa.Schema:
    """The left columns, with keys of the types that hold the keys of both sides."""
    if right is None:
        return left
    for name, its in zip(key, right_key, strict=True):
        at = left.get_field_index(name)
        if at >= 0 and its in right.names:
            field = left.field(at)
            common = cols.common_type(field.type, right.field(its).type)
            left = left if common is None else left.set(at, field.with_type(common))
    return left


def exact_key(column: Column, field: pa.Field, operator: str) -> Column:
    """A key column as the type that comes out, in which no value may become another one."""
    made = cols.conform(column, field, operator)
    if made is not column and is_float(made) and not same_values(made, column).all():
        have = cols.to_arrow(column).type
        raise BatchError(
            f"{operator}: the key {field.name!r} comes out as {field.type}, and the other side has "
            f"keys of type {have} that do not fit: cast one of them, or give both inputs a schema=…"
        )
    return made


def split_known(batch: Batch, key: Sequence[str]) -> tuple[Batch, Batch | None]:
    """Records whose keys have no nulls, and the others if there are any."""
    known = known_rows([batch.column(name) for name in key])
    if known is None:
        return batch, None
    return batch.filter(known), batch.filter(~known)


def _type(schema: pa.Schema, name: str) -> pa.DataType:
    # The time column may be a key too: its type is known when data come.
    return schema.field(name).type if name in schema.names else pa.null()


def _without(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    gone = set(names)
    return pa.schema([field for field in schema if field.name not in gone])
