"""Joined: which columns the records of a join have, and how they are put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.time_columns import Times
from jeton.core.errors import BatchError, GraphError
from jeton.dataflow.pacts import Exchange, Gather, Pact
from jeton.dataflow.stream_base import StreamBase
from jeton.state.key_ids import known_keys, require_comparable

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream

How: TypeAlias = Literal["inner", "left"]
"""Whether left records without a partner are left out, or come with nulls."""


class Joined:
    """The shape of a join: the left columns, then the right ones that are not keys.

    A right column whose name the left side has too gets a suffix.
    """

    def __init__(
        self, left: KeyedStream, right: KeyedStream, how: How, suffix: str, operator: str
    ) -> None:
        self.pacts = pacts(left, right, operator)
        if how not in get_args(How):
            raise GraphError(f"how={how!r} is not known: there are {get_args(How)}").located(
                operator=operator
            )
        self.left_key = left.key
        self.right_key = right.key
        self.outer = how == "left"
        self._time_name = left.stream.time_name
        self._suffix = suffix
        self._names: dict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[str, str]]] = {}
        known = right.stream.schema
        if known is None and self.outer:
            raise GraphError(
                "a left join must know the columns of its right side, to fill them with nulls: "
                "give that input a schema=…, or use how='inner'"
            ).located(operator=operator)
        self._values = None if known is None else _without(known, right.key)
        self.schema = self._schema(left.stream.schema, operator)

    def _schema(self, left: pa.Schema | None, operator: str) -> pa.Schema | None:
        """The columns that come out, if those of both sides are known."""
        if left is None or self._values is None:
            return None
        try:
            renamed = self._renamed(tuple(left.names), tuple(self._values.names))
        except BatchError as error:
            raise GraphError(error.message).located(operator=operator) from error
        types = dict(zip(left.names, left.types, strict=True))
        return pa.schema(types | {new: self._values.field(name).type for name, new in renamed})

    def values(self, right: Batch) -> list[str]:
        """The columns of a right batch that come out."""
        return [name for name in right.names if name not in self.right_key]

    def pair(self, left: Batch, right: Batch, times: Times) -> Batch:
        """Left and right records side by side; ``right`` has no key columns."""
        columns = dict(left.columns)
        for name, new in self._renamed(left.names, right.names):
            columns[new] = right.columns[name]
        return Batch.trusted(columns, times, self._time_name)

    def alone(self, left: Batch) -> Batch:
        """Left records with nulls instead of a partner."""
        assert self._values is not None
        columns = dict(left.columns)
        for name, new in self._renamed(left.names, tuple(self._values.names)):
            columns[new] = pa.nulls(len(left), self._values.field(name).type)
        return Batch.trusted(columns, left.times, self._time_name)

    def _renamed(self, left: tuple[str, ...], right: tuple[str, ...]) -> list[tuple[str, str]]:
        """Each right column with the name under which it comes out."""
        names = self._names.get((left, right))
        if names is None:
            taken = {*left, self._time_name}
            names = [(name, name + self._suffix if name in taken else name) for name in right]
            made = [new for _, new in names]
            for new in made:
                if new in taken or made.count(new) > 1:
                    raise BatchError(
                        f"two columns of the join would be called {new!r}: "
                        "use another suffix=…, or select() and rename before"
                    )
            self._names[left, right] = names
        return names


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


def split_known(batch: Batch, key: Sequence[str]) -> tuple[Batch, Batch | None]:
    """Records whose keys have no nulls, and the others if there are any."""
    known = known_keys([batch.column(name) for name in key])
    if known is None:
        return batch, None
    return batch.filter(known), batch.filter(~known)


def _type(schema: pa.Schema, name: str) -> pa.DataType:
    # The time column may be a key too: its type is known when data come.
    return schema.field(name).type if name in schema.names else pa.null()


def _without(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    gone = set(names)
    return pa.schema([field for field in schema if field.name not in gone])
