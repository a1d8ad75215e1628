"""The base of streams: where a stream's records come from, and how operators attach to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import pyarrow as pa

from jeton.columns import schema as schemas
from jeton.columns.batch import Batch
from jeton.core.errors import GraphError, MissingColumn
from jeton.dataflow.plan import Crossing, Source, require_same_flow

if TYPE_CHECKING:
    from jeton.core.times import TimeKind
    from jeton.dataflow.builder import OperatorBuilder
    from jeton.dataflow.flow import Flow
    from jeton.dataflow.scope import Scope
    from jeton.dataflow.stream import Stream

T = TypeVar("T")


class StreamBase:
    """Records with times, produced by one or more outputs, in one scope."""

    def __init__(
        self,
        scope: Scope,
        sources: Sequence[Source],
        time_name: str,
        schema: pa.Schema | None = None,
    ) -> None:
        self.scope = scope
        self.sources = tuple(sources)
        self.time_name = time_name
        self._next_name: str | None = None
        self.schema = schema
        """The value columns and their types, as far as known (``pa.null()`` is a type that is not
        known); ``None`` if the columns are not known."""

    @property
    def flow(self) -> Flow:
        """The flow that this stream belongs to."""
        return self.scope.flow

    @property
    def kind(self) -> TimeKind:
        """The kind of this stream's times."""
        return self.scope.kind

    def operator(self, name: str) -> OperatorBuilder:
        """Start building an operator in this stream's scope."""
        if self._next_name is not None:
            return self.scope.operator(self._next_name, time=self.time_name, named=True)
        return self.scope.operator(name, time=self.time_name)

    def named(self, name: str) -> Stream:
        """This stream, such that the operator that comes next has a name of its own.

        State is found again by operators' names after a restart. Those that are not named are
        called after what they do, with a number if there are several: which of them is which may
        change when code does.

        >>> import jeton as jt
        >>> flow = jt.Flow("purchases")
        >>> bought = flow.input("orders").named("bought").key_by("item").running().count()
        >>> bought
        <Stream of bought[0]>
        """
        stream = self._like(self.scope, self.sources)
        stream._next_name = name
        return stream

    def concat(self, *others: StreamBase) -> Stream:
        """This stream and others as one. Costs nothing where the types of columns agree.

        This is what other systems also call union: all records of all streams. The time column
        has this stream's name for it. Streams that are known to have different columns are
        refused; where only their types or their order differ, values are cast to a
        type that holds both, in this stream's order. Without schemas, ``select`` the same order in
        all of them where it decides between records, as in `stateful_map` and ``top_k``.

        >>> import jeton as jt
        >>> flow = jt.Flow("both")
        >>> flow.output("both", flow.input("left").concat(flow.input("right")))
        >>> inputs = {"left": {"time": [0], "n": [1]}, "right": {"time": [1], "n": [2]}}
        >>> flow.run(inputs)["both"]["n"].to_pylist()
        [1, 2]
        """
        require_same_flow([self, *others])
        schema = self.schema
        for other in others:
            schema = schemas.unify(schema, other.schema, f"{self!r} and {other!r}")
        streams = [stream._as(schema) for stream in (self, *others)]
        sources = [source for stream in streams for source in stream.sources]
        return self.scope.stream(sources, self.time_name, schema)

    def _as(self, common: pa.Schema | None) -> StreamBase:
        """This stream with columns of the types of a schema that has the same names."""
        if common is None or self.schema is None:
            return self
        pairs = zip(self.schema, common, strict=True)
        if all(own.name == new.name and own.type in (new.type, pa.null()) for own, new in pairs):
            return self
        what = f"{self!r}, beside others"
        return cast("Stream", self)._stateless(
            lambda batch: schemas.conform(batch, common, what), "cast", schema=common
        )

    def require_columns(self, *names: str, operator: str) -> None:
        """Refuse to build ``operator`` if this stream is known to lack a column that it needs."""
        schemas.require_columns(names, self.schema, self.time_name, operator, repr(self))

    def learn(self, function: Callable[[Batch], T], *, operator: str) -> T | None:
        """What a function of ``operator`` makes of an empty batch of this stream's columns.

        ``None`` if the schema is not known or the function needs data to tell. A column that
        is known to be missing is an error.
        """
        if self.schema is None:
            return None
        try:
            return schemas.learn(function, schemas.sample(self.schema, self.time_name, self.kind))
        except MissingColumn as error:
            raise GraphError(f"{error.message} in {self!r}").located(operator=operator) from error

    def enter(self, scope: Scope) -> Stream:
        """This stream inside a scope or loop of its scope; entering a loop, round 0 is added."""
        if scope.parent is not self.scope:
            raise GraphError(
                f"a stream of scope {self.scope.path!r} cannot enter {scope.path!r}: "
                "enter one scope at a time, from the one around it"
            )
        if not scope.is_loop:
            return self._like(scope, self.sources)
        return self._like(scope, [source.cross(Crossing.ENTER) for source in self.sources])

    def leave(self) -> Stream:
        """This stream outside its scope; leaving a loop, the round is forgotten."""
        scope = self.scope
        if scope.parent is None:
            raise GraphError("this stream is in the outermost scope: there is nothing to leave")
        if not scope.is_loop:
            return self._like(scope.parent, self.sources)
        return self._like(scope.parent, [source.cross(Crossing.LEAVE) for source in self.sources])

    def _like(self, scope: Scope, sources: Sequence[Source]) -> Stream:
        return scope.stream(sources, self.time_name, self.schema)

    def __repr__(self) -> str:
        operators = self.scope.flow.operators
        names = ", ".join(
            f"{operators[source.operator].name}[{source.output}]" for source in self.sources
        )
        return f"<Stream of {names}>"
