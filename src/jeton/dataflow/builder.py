"""The general way to add an operator: any inputs, any outputs, declared connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from jeton.columns.schema import SchemaLike, as_schema
from jeton.core.checks import described
from jeton.core.errors import GraphError
from jeton.core.summaries import IDENTITY, Summary, SummaryLike, summary
from jeton.dataflow.column_use import ColumnUse
from jeton.dataflow.hints import require_stream
from jeton.dataflow.pacts import Exchange, Pact, Pipeline
from jeton.dataflow.plan import (
    Build,
    InputPlan,
    Notify,
    OperatorPlan,
    SourcePort,
    require_same_flow,
)

if TYPE_CHECKING:
    from jeton.dataflow.scope import Scope
    from jeton.dataflow.stream import Stream
    from jeton.dataflow.stream_base import StreamBase

Connections = Mapping[int, "SummaryLike | list[SummaryLike]"]


class OperatorBuilder:
    """Builds one operator: declare inputs, then outputs, then its logic.

    >>> import jeton as jt
    >>> flow = jt.Flow("split")
    >>> numbers = flow.input("numbers")
    >>> op = flow.operator("by parity")
    >>> left = op.input(numbers)
    >>> even, odd = op.output(), op.output()
    >>> def build(tokens, info):
    ...     for token in tokens:
    ...         token.drop()
    ...
    ...     def step(inputs, outputs):
    ...         for ref, batch in inputs[left]:
    ...             for parity, output in enumerate(outputs):
    ...                 with output.session(ref) as session:
    ...                     session.give(batch.filter(batch["n"] % 2 == parity))
    ...
    ...     return step
    >>> streams = op.build(build, notify="never")
    >>> flow.output("odd", streams[odd])
    >>> flow.run({"numbers": {"time": [0, 0, 0], "n": [1, 2, 3]}})["odd"]["n"].to_pylist()
    [1, 3]
    """

    def __init__(self, scope: Scope, name: str, time: str, *, named: bool = False) -> None:
        self._scope = scope
        self._name = name
        self._named = named
        self._time = time
        self._streams: list[StreamBase] = []
        self._inputs: list[InputPlan] = []
        self._outputs: list[Connections | None] = []
        self._schemas: list[pa.Schema | None] = []

    @property
    def name(self) -> str:
        """The operator's name, before a number is added if there are several of that name."""
        return self._name

    def input(self, stream: StreamBase, pact: Pact | None = None, *, observes: bool = False) -> int:
        """Add an input and return its number. An input that ``observes`` only sees the frontier.

        That is the frontier of all workers; the one of any other input is about its own worker.
        """
        require_stream(stream, f"operator {self._name!r}")
        if stream.scope is not self._scope:
            require_same_flow([stream, _Placed(self._scope)])
        if pact is not None and not isinstance(pact, Pact):
            raise GraphError(
                f"the pact of operator {self._name!r} is jt.Exchange('column'), jt.Gather(), "
                f"jt.Broadcast() or jt.Pipeline(), not {described(pact)}"
            )
        if isinstance(pact, Exchange):
            for key in pact.key:
                if isinstance(key, str):
                    stream.require_columns(key, operator=self._name)
                else:
                    stream.learn(key, operator=self._name)
        self._streams.append(stream)
        self._inputs.append(
            InputPlan(list(stream.sources), pact or Pipeline(), stream.time_name, observes)
        )
        return len(self._inputs) - 1

    def output(
        self, connections: Connections | None = None, *, schema: SchemaLike | None = None
    ) -> int:
        """Add an output and return its number.

        ``connections`` says for each input that leads here what happens to times on the way:
        a step, a tuple of steps, a summary, or a list of incomparable ones. Inputs that are not
        named do not lead here. By default all inputs do, with times unchanged. ``schema`` says
        which columns come out, if that is known.
        """
        if connections is not None:
            unknown = [port for port in connections if not 0 <= port < len(self._inputs)]
            if unknown:
                raise GraphError(f"operator {self._name!r} has no inputs {unknown}")
        self._outputs.append(connections)
        self._schemas.append(None if schema is None else as_schema(schema, self._time))
        return len(self._outputs) - 1

    def build(
        self,
        build: Build,
        *,
        notify: Notify = "held",
        use: ColumnUse | None = None,
        waits: bool = False,
    ) -> tuple[Stream, ...]:
        """Add the operator; returns a stream for each output.

        ``build(tokens, info)`` is called once for each worker and returns
        ``step(inputs, outputs)``. ``notify`` says whether a moved frontier wakes the operator,
        ``use`` which columns it reads, if not all, and ``waits`` that it answers records only once
        their times are complete.
        """
        if self._named:
            self._scope.require_free(self._name)
        plan = self._scope.flow.add(
            OperatorPlan(
                index=-1,
                name=self._scope.unique_name(self._name),
                kind=self._scope.kind,
                time_name=self._time,
                inputs=self._inputs,
                outputs=len(self._outputs),
                summaries=[
                    [_summaries(connections, port) for connections in self._outputs]
                    for port in range(len(self._inputs))
                ],
                build=build,
                notify=notify,
                label=self._scope.full_name(self._name),
                named=self._named,
                schemas=tuple(self._schemas),
                use=use,
                waits=waits,
            )
        )
        return tuple(
            self._scope.stream([SourcePort(plan.index, output)], self._time, schema)
            for output, schema in enumerate(self._schemas)
        )


class _Placed:
    """Something with a scope, for comparing scopes."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope


def _summaries(connections: Connections | None, port: int) -> tuple[Summary, ...]:
    if connections is None:
        return (IDENTITY,)
    declared = connections.get(port)
    specs: Sequence[SummaryLike] = declared if isinstance(declared, list) else [declared]
    found = (summary(spec) for spec in specs)
    return tuple(one for one in found if one is not None)
