"""feedback: closes a cycle; times advance on the way round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from jeton.columns import time_columns
from jeton.columns.schema import unify
from jeton.core.errors import GraphError
from jeton.core.summaries import Summary
from jeton.core.tokens import TimestampToken
from jeton.dataflow.pacts import Pact, Pipeline
from jeton.dataflow.plan import InputPlan, OperatorInfo, OperatorPlan, SourcePort, Step
from jeton.dataflow.ports import Input, Output

if TYPE_CHECKING:
    from jeton.dataflow.scope import Scope
    from jeton.dataflow.stream import Stream
    from jeton.dataflow.stream_base import StreamBase


class Feedback:
    """A stream whose source is not known yet: use `stream`, then `connect` its source."""

    def __init__(
        self, scope: Scope, plan: OperatorPlan, time: str, schema: pa.Schema | None
    ) -> None:
        self._scope = scope
        self._plan = plan
        self.stream: Stream = scope.stream([SourcePort(plan.index, 0)], time, schema)

    def connect(self, stream: StreamBase, pact: Pact | None = None) -> None:
        """Close the cycle."""
        port = self._plan.inputs[0]
        if port.sources:
            raise GraphError(f"feedback {self._plan.name!r} is connected already")
        if stream.scope is not self._scope:
            raise GraphError(
                f"feedback {self._plan.name!r} of scope {self._scope.path!r} cannot be fed by a "
                f"stream of scope {stream.scope.path!r}"
            )
        ends = f"the two ends of feedback {self._plan.name!r}"
        unify(self.stream.schema, stream.schema, ends)
        port.sources = list(stream.sources)
        port.pact = pact or Pipeline()
        port.time_name = stream.time_name


def add_feedback(
    scope: Scope,
    summary: Summary,
    name: str,
    schema: pa.Schema | None = None,
    time: str = "time",
) -> Feedback:
    """Add the operator of `Scope.feedback`."""

    def build(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        tokens.pop().drop()

        def step(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            for ref, batch in inputs[0]:
                bound = summary.apply(ref.time)
                moved = batch.at(time_columns.apply(batch.times, summary), bound)
                with outputs[0].session(ref) as session:
                    session.give(moved)

        return step

    plan = OperatorPlan(
        index=-1,
        name=scope.unique_name(name),
        kind=scope.kind,
        time_name=time,
        inputs=[InputPlan([], Pipeline())],
        outputs=1,
        summaries=[[(summary,)]],
        build=build,
        notify="never",
    )
    return Feedback(scope, scope.flow.add(plan), time, schema)
