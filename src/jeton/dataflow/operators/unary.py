"""unary, unary_frontier: an operator with one input and one output, in the user's own words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jeton.columns.schema import SchemaLike
from jeton.core.summaries import SummaryLike
from jeton.core.tokens import TimestampToken
from jeton.dataflow.pacts import Pact
from jeton.dataflow.plan import Notify, OperatorInfo, Step
from jeton.dataflow.ports import Input, Output
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream

UnaryBuild = Callable[[TimestampToken, OperatorInfo], Callable[[Input, Output], None]]


class Unary(StreamBase):
    """Adds `unary` and `unary_frontier` to streams."""

    def unary(
        self,
        build: UnaryBuild,
        *,
        pact: Pact | None = None,
        name: str = "unary",
        step: SummaryLike = 0,
        schema: SchemaLike | None = None,
    ) -> Stream:
        """An operator that answers messages as they come and ignores the frontier.

        ``build(token, info)`` is called once for each worker, with the initial token, and
        returns ``step(input, output)``. ``step=`` declares by how much times advance inside,
        ``schema=`` which columns come out, if downstream shall be checked against them.

        >>> import jeton as jt
        >>> def double(token, info):
        ...     token.drop()
        ...
        ...     def step(input, output):
        ...         for ref, batch in input:
        ...             with output.session(ref) as session:
        ...                 session.give(batch.with_columns({"n": batch["n"] * 2}))
        ...
        ...     return step
        >>> flow = jt.Flow("double")
        >>> flow.output("doubled", flow.input("numbers").unary(double))
        >>> flow.run({"numbers": {"time": [0, 1], "n": [3, 4]}})["doubled"].to_pylist()
        [{'time': 0, 'n': 6}, {'time': 1, 'n': 8}]
        """
        return self._unary(build, pact, name, step, "never", schema)

    def unary_frontier(
        self,
        build: UnaryBuild,
        *,
        pact: Pact | None = None,
        name: str = "unary_frontier",
        step: SummaryLike = 0,
        notify: Notify = "held",
        schema: SchemaLike | None = None,
    ) -> Stream:
        """An operator that is also invoked when its input's frontier has moved.

        That happens while it holds a token, since without one it could not say anything;
        ``notify="always"`` asks to be told in any case.

        >>> import jeton as jt
        >>> def count_per_time(token, info):
        ...     token.drop()
        ...     counts = jt.state.TimeMap()
        ...
        ...     def step(input, output):
        ...         for ref, batch in input.by_time():
        ...             entry = counts.get_or(ref.time, lambda: [ref.retain(), 0])
        ...             entry[1] += len(batch)
        ...         for time, (token, count) in counts.pop_before(input.frontier):
        ...             with token, output.session(token) as session:
        ...                 session.give(count=count)
        ...
        ...     return step
        >>> flow = jt.Flow("count")
        >>> flow.output("counts", flow.input("words").unary_frontier(count_per_time))
        >>> flow.run({"words": {"time": [0, 0, 1], "word": list("aba")}})["counts"].to_pylist()
        [{'time': 0, 'count': 2}, {'time': 1, 'count': 1}]
        """
        return self._unary(build, pact, name, step, notify, schema)

    def _unary(
        self,
        build: UnaryBuild,
        pact: Pact | None,
        name: str,
        step: SummaryLike,
        notify: Notify,
        schema: SchemaLike | None,
    ) -> Stream:
        builder = self.operator(name)
        builder.input(self, pact)
        builder.output({0: step}, schema=schema)

        def build_all(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
            logic = build(tokens.pop(), info)

            def run(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
                logic(inputs[0], outputs[0])

            return run

        return builder.build(build_all, notify=notify)[0]
