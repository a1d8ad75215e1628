"""The base of streams: where a stream's records come from, and how operators attach to it.

Operators know this much of a stream; `Stream` has all of them as methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from jeton.columns import schema as schemas
from jeton.columns.batch import Batch
from jeton.columns.expressions import Expr
from jeton.core.checks import described
from jeton.core.errors import ColumnTypeError, GraphError, MissingColumn
from jeton.dataflow.plan import Crossing, SourcePort

if TYPE_CHECKING:
    from jeton.core.times import TimeKind
    from jeton.dataflow.builder import OperatorBuilder
    from jeton.dataflow.flow import Flow
    from jeton.dataflow.scope import Scope
    from jeton.dataflow.stream import Stream

T = TypeVar("T")


_INTERNAL: Final = frozenset(
    ("kind", "learn", "next_name", "require_columns", "scope", "sources", "time_name")
)
"""Names for the library's own use, which completions leave out."""


class StreamBase:
    """Records with times, produced by one or more outputs, in one scope."""

    def __init__(
        self,
        scope: Scope,
        sources: Sequence[SourcePort],
        time_name: str,
        schema: pa.Schema | None = None,
    ) -> None:
        self.scope = scope
        self.sources = tuple(sources)
        self.time_name = time_name
        self.next_name: str | None = None
        """The name of the operator that comes next, if it has one of its own."""
        self.schema = schema
        """The value columns and their types, as far as known (``pa.null()`` stands for a type that
        is not known); ``None`` if the columns are not known."""

    @property
    def flow(self) -> Flow:
        """The flow that this stream belongs to."""
        return self.scope.flow

    @property
    def kind(self) -> TimeKind:
        """The kind of this stream's times."""
        return self.scope.kind

    def operator(self, name: str) -> OperatorBuilder:
        """Start building an operator in this stream's scope: see `OperatorBuilder`."""
        if self.next_name is not None:
            return self.scope.operator(self.next_name, time=self.time_name, named=True)
        return self.scope.operator(name, time=self.time_name)

    def named(self, name: str) -> Stream:
        """This stream, with a name of its own for the operator that comes next.

        State is found again by operators' names after a restart. Operators without a name of
        their own have that of their kind, with a number if there are several: which number is
        whose may change when the code does.

        >>> import jeton as jt
        >>> flow = jt.Flow("purchases")
        >>> bought = flow.input("orders").named("bought").key_by("item").running().count()
        >>> bought
        <Stream of bought[0]>
        """
        stream = self._like(self.scope, self.sources)
        stream.next_name = name
        return stream

    def require_columns(self, *names: str, operator: str) -> None:
        """Refuse to build ``operator`` if this stream is known to lack a column that it needs."""
        given: tuple[object, ...] = names
        for name in given:
            if not isinstance(name, str):
                hint = ": name it by with_columns(name=…) before" if isinstance(name, Expr) else ""
                raise GraphError(
                    f"{operator} needs names of columns, each as a text of its own, not "
                    f"{described(name)}{hint}"
                ).located(operator=operator)
        schemas.require_columns(names, self.schema, self.time_name, operator, repr(self))

    def learn(self, function: Callable[[Batch], T], *, operator: str) -> T | None:
        """The result of a function of ``operator`` on an empty batch of this stream's columns.

        ``None`` if the schema is not known or the function needs data. A column that is known
        to be missing, or types that do not go together, are an error.
        """
        if self.schema is None:
            return None
        try:
            unit = self.flow.domain.known
            empty = schemas.sample(self.schema, self.time_name, self.kind, unit)
            return schemas.learn(function, empty)
        except (MissingColumn, ColumnTypeError) as error:
            raise GraphError(f"{error.message} in {self!r}").located(operator=operator) from error

    def enter(self, scope: Scope) -> Stream:
        """This stream inside a scope or loop of its scope; entering a loop, round 0 is added.

        >>> import jeton as jt
        >>> flow = jt.Flow("outside")
        >>> inside = flow.input("n").enter(flow.loop())
        >>> inside.kind.origin
        Product(0, 0)
        """
        if scope.parent is not self.scope:
            raise GraphError(
                f"a stream of scope {self.scope.path!r} cannot enter {scope.path!r}: "
                "enter one scope at a time, from the one around it"
            )
        if not scope.is_loop:
            return self._like(scope, self.sources)
        return self._like(scope, [source.cross(Crossing.ENTER) for source in self.sources])

    def leave(self) -> Stream:
        """This stream outside its scope; leaving a loop, the round is forgotten.

        >>> import jeton as jt
        >>> flow = jt.Flow("there and back")
        >>> flow.output("n", flow.input("n").enter(flow.loop()).leave())
        >>> flow.run({"n": {"time": [4], "n": [1]}})["n"].to_pylist()
        [{'time': 4, 'n': 1}]
        """
        scope = self.scope
        if scope.parent is None:
            raise GraphError("this stream is in the outermost scope: there is nothing to leave")
        if not scope.is_loop:
            return self._like(scope.parent, self.sources)
        return self._like(scope.parent, [source.cross(Crossing.LEAVE) for source in self.sources])

    def _like(self, scope: Scope, sources: Sequence[SourcePort]) -> Stream:
        return scope.stream(sources, self.time_name, self.schema)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __repr__(self) -> str:
        operators = self.scope.flow.operators
        names = ", ".join(
            f"{operators[source.operator].name}[{source.output}]" for source in self.sources
        )
        return f"<Stream of {names}>"
