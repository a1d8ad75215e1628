"""Scopes: parts of a flow with a name of their own, and loops, whose times have a round more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from jeton.columns.schema import SchemaLike, as_schema
from jeton.core.errors import GraphError
from jeton.core.summaries import SummaryLike, summary
from jeton.core.times import Time, TimeKind
from jeton.dataflow.builder import OperatorBuilder
from jeton.dataflow.operators.feedback import Feedback, add_feedback
from jeton.dataflow.operators.source import SourceBuild, add_source
from jeton.dataflow.plan import SourcePort
from jeton.dataflow.stream import Stream

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow


_INTERNAL: Final = frozenset(
    ("full_name", "is_loop", "kind", "parent", "path", "require_free", "stream", "unique_name")
)
"""Names for the library's own use, which completions leave out."""


class Scope:
    """A part of a flow. Streams come in by ``stream.enter(scope)``, out by ``stream.leave()``."""

    is_loop = False

    def __init__(self, flow: Flow | None, parent: Scope | None, name: str, kind: TimeKind) -> None:
        self._flow = flow
        self.parent = parent
        self.name = name
        self.kind = kind
        self._names: dict[str, int] = {}

    @property
    def flow(self) -> Flow:
        """The flow that this scope is a part of."""
        assert self._flow is not None
        return self._flow

    @property
    def path(self) -> str:
        """The names of the scopes around, outermost first, and this one's."""
        return self.name if self.parent is None else f"{self.parent.path}.{self.name}"

    def scope(self, name: str) -> Scope:
        """A scope inside this one, with the same times: a name for a part of the graph."""
        return Scope(self.flow, self, self._unique(name), self.kind)

    def loop(self, name: str = "loop") -> Loop:
        """A loop inside this scope. See `Loop`."""
        return Loop(self.flow, self, self._unique(name), self.kind.looped())

    def operator(self, name: str, *, time: str = "time", named: bool = False) -> OperatorBuilder:
        """Start building an operator with any number of inputs and outputs.

        If it is ``named``, the name is for it alone: another one of that name is an error.
        """
        return OperatorBuilder(self, name, time, named=named)

    def source(
        self,
        build: SourceBuild,
        *,
        name: str = "source",
        time: str = "time",
        start: Time | None = None,
    ) -> Stream:
        """An operator of your own without inputs: ``build(token, info)`` returns ``step(output)``.

        It is invoked once at the start, and then whenever it asks for that with
        ``info.activator``. It ends by dropping its token, which is at ``start``: by default at 0
        (or at the least time of a kind of your own). A source of earlier times says so, with
        ``start=jt.START_OF_TIME`` if it may send at any.

        >>> import jeton as jt
        >>> flow = jt.Flow("count down")
        >>> def build(token, info):
        ...     def step(output):
        ...         if token.time == 3:
        ...             token.drop()
        ...             return
        ...         with output.session(token) as session:
        ...             session.give(left=3 - token.time)
        ...         token.downgrade(token.time + 1)
        ...         info.activator.activate()
        ...
        ...     return step
        >>> flow.output("numbers", flow.source(build))
        >>> flow.run()["numbers"].to_pylist()
        [{'time': 0, 'left': 3}, {'time': 1, 'left': 2}, {'time': 2, 'left': 1}]
        """
        return add_source(self, build, name=name, time=time, start=start)

    def feedback(
        self, step: SummaryLike = 1, *, name: str = "feedback", schema: SchemaLike | None = None
    ) -> Feedback:
        """A stream whose source is connected later: times advance by ``step`` on the way.

        ``schema`` says which columns will come round, so that they are known before it is.

        >>> import jeton as jt
        >>> flow = jt.Flow("ring")
        >>> again = flow.feedback(step=1)
        >>> again.connect(again.stream.concat(flow.input("start")))
        """
        advance = summary(step)
        if advance is None or not advance.advances:
            raise GraphError("a feedback must advance times: step must be at least 1")
        return add_feedback(self, advance, name, None if schema is None else as_schema(schema))

    def stream(
        self, sources: Sequence[SourcePort], time: str, schema: pa.Schema | None = None
    ) -> Stream:
        """A stream of this scope, fed by some outputs."""
        return Stream(self, sources, time, schema)

    def unique_name(self, name: str) -> str:
        """A full name for an operator: the scopes' names, its own, and a number if taken."""
        return self.full_name(self._unique(name))

    def full_name(self, name: str) -> str:
        """A name with those of the scopes around, but for the flow's."""
        return name if self.parent is None else f"{self._inner_path}.{name}"

    def require_free(self, name: str) -> None:
        """Refuse a name that an operator of this scope has already."""
        if self._names.get(name):
            raise GraphError(
                f"there is an operator {self.full_name(name)!r} already: name each differently"
            )

    @property
    def _inner_path(self) -> str:
        """The path without the flow's own name."""
        if self.parent is None or self.parent.parent is None:
            return self.name
        return f"{self.parent._inner_path}.{self.name}"

    def _unique(self, name: str) -> str:
        taken = self._names.get(name, 0)
        self._names[name] = taken + 1
        return self._unique(f"{name}-{taken + 1}") if taken else name

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}>"


class Loop(Scope):
    """A scope whose times count rounds: ``Product(outer, round)``.

    Records come in at round 0, come round through a `feedback`, which adds a round, and come out
    at their outer time. Loops nest.

    >>> import jeton as jt
    >>> flow = jt.Flow("halve until odd")
    >>> loop = flow.loop()
    >>> again = loop.feedback()
    >>> numbers = flow.input("numbers").enter(loop).concat(again.stream)
    >>> even, odd = numbers.branch(lambda batch: batch["n"] % 2 == 1)
    >>> again.connect(even.map(lambda batch: {"n": batch["n"] // 2}))
    >>> flow.output("odd", odd.leave())
    >>> result = flow.run({"numbers": {"time": [0, 0], "n": [12, 7]}})
    >>> sorted(result["odd"]["n"].to_pylist())
    [3, 7]
    """

    is_loop = True
