"""binary, binary_frontier: an operator with two inputs and one output, in the user's own words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jeton.columns.schema import SchemaLike
from jeton.core.tokens import TimestampToken
from jeton.dataflow.pacts import Pact
from jeton.dataflow.plan import Notify, OperatorInfo, Step
from jeton.dataflow.ports import Input, Output
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream

BinaryBuild = Callable[[TimestampToken, OperatorInfo], Callable[[Input, Input, Output], None]]


class Binary(StreamBase):
    """Adds `binary` and `binary_frontier` to streams."""

    def binary(
        self,
        other: StreamBase,
        build: BinaryBuild,
        *,
        pact: Pact | None = None,
        other_pact: Pact | None = None,
        name: str = "binary",
        schema: SchemaLike | None = None,
    ) -> Stream:
        """An operator on two streams that answers messages and ignores frontiers.

        ``build(token, info)`` returns ``step(left, right, output)``. ``other_pact`` is
        ``pact`` unless given. ``schema`` declares the columns that come out.
        """
        return self._binary(other, build, pact, other_pact, name, "never", schema)

    def binary_frontier(
        self,
        other: StreamBase,
        build: BinaryBuild,
        *,
        pact: Pact | None = None,
        other_pact: Pact | None = None,
        name: str = "binary_frontier",
        notify: Notify = "held",
        schema: SchemaLike | None = None,
    ) -> Stream:
        """An operator on two streams that is also invoked when a frontier has moved.

        >>> import jeton as jt
        >>> def pair_up(token, info):  # sums of both sides, time by time
        ...     token.drop()
        ...     sums = jt.state.TimeMap()
        ...
        ...     def step(left, right, output):
        ...         for side in (left, right):
        ...             for ref, batch in side.by_time():
        ...                 entry = sums.get_or(ref.time, lambda: [ref.retain(), 0])
        ...                 entry[1] += int(batch["n"].sum())
        ...         for time, (token, total) in sums.pop_before(left.frontier, right.frontier):
        ...             with token, output.session(token) as session:
        ...                 session.give(total=total)
        ...
        ...     return step
        >>> flow = jt.Flow("pairs")
        >>> left, right = flow.input("left"), flow.input("right")
        >>> flow.output("totals", left.binary_frontier(right, pair_up))
        >>> rows = {"time": [0, 1], "n": [1, 2]}
        >>> flow.run({"left": rows, "right": rows})["totals"]["total"].to_pylist()
        [2, 4]
        """
        return self._binary(other, build, pact, other_pact, name, notify, schema)

    def _binary(
        self,
        other: StreamBase,
        build: BinaryBuild,
        pact: Pact | None,
        other_pact: Pact | None,
        name: str,
        notify: Notify,
        schema: SchemaLike | None,
    ) -> Stream:
        builder = self.operator(name)
        builder.input(self, pact)
        builder.input(other, other_pact or pact)
        builder.output(schema=schema)

        def build_all(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
            logic = build(tokens.pop(), info)

            def run(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
                logic(inputs[0], inputs[1], outputs[0])

            return run

        return builder.build(build_all, notify=notify)[0]
