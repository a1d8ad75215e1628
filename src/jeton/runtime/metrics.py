"""Metrics: one record of what a worker and its operators have done, for every host.

The counts of a worker are always kept. So are the invocations, tokens and queues of an operator,
which cost nothing. Time spent, and records and batches in and out, cost something for each message:
a worker that is *measured* keeps them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from time import perf_counter
from typing import Any

from jeton.columns.batch import Batch
from jeton.core.times import Time
from jeton.dataflow.ports import Edge
from jeton.runtime.operator import Operator
from jeton.runtime.worker import Worker


@dataclass(frozen=True, slots=True)
class OperatorMetrics:
    """One operator on one worker."""

    name: str
    invocations: int
    tokens: int
    """Tokens that it holds now."""
    queued: int
    """Messages that wait in its inputs."""
    frontier: tuple[Time, ...]
    """The least times that may still arrive at its first input; none if it is complete."""
    state_rows: int
    """Rows of its state in the latest snapshot."""
    state_bytes: int
    seconds: float
    """Time spent in it, if the worker is measured."""
    batches_in: int
    records_in: int
    batches_out: int
    """Batches that it sent, to one of those that read them."""
    records_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetrics:
    """One worker, since its agent was attached.

    >>> import jeton as jt
    >>> flow = jt.Flow("counts")
    >>> flow.output("counts", flow.input("words").key_by("word").running().count())
    >>> with flow.open() as run:
    ...     run.input("words").send({"word": ["a", "b"]})
    ...     result = run.finish()
    ...     metrics = run.agents[0].metrics()
    >>> metrics.rows_in, metrics.late, metrics.operators[1].name
    (2, 0, 'count')
    """

    worker: int
    rows_in: int
    """Records that were sent to inputs, the late ones included."""
    rows_out: int
    """Rows that the sink has handed on."""
    late: int
    messages: int
    """Messages that were sent to other workers."""
    progress_batches: int
    progress_bytes: int
    queued: int
    """Messages that wait in inputs of operators."""
    seconds: float
    cpu_seconds: float
    """Of the whole process, as its memory."""
    peak_rss_mb: int
    operators: tuple[OperatorMetrics, ...]

    def totals(self) -> dict[str, Any]:
        """The numbers that can be added up over workers, as reports have them."""
        apart = ("worker", "operators")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def operator_metrics(worker: Worker) -> tuple[OperatorMetrics, ...]:
    """The metrics of a worker's operators, in the order of the flow.

    >>> import jeton as jt
    >>> from jeton.runtime.agent import Agent
    >>> flow = jt.Flow("echo")
    >>> flow.output("out", flow.input("in").map(lambda batch: batch))
    >>> agent = Agent(flow, measured=True)
    >>> agent.worker.handles[flow.handle("input", "in")].send({"n": [1, 2, 3]})
    >>> while agent.turn():
    ...     pass
    >>> _, echo, _ = operator_metrics(agent.worker)
    >>> echo.name, echo.invocations, echo.records_in, echo.records_out, echo.seconds > 0
    ('map', 1, 3, 3, True)
    >>> agent.close()
    """
    return tuple(_of(worker, operator) for operator in worker.operators)


def _of(worker: Worker, operator: Operator) -> OperatorMetrics:
    inputs = operator.inputs
    return OperatorMetrics(
        operator.plan.name,
        operator.invocations,
        tokens=sum(book.held for book in operator.books),
        queued=sum(map(len, inputs)),
        frontier=tuple(worker.tracker.least(inputs[0].location)) if inputs else (),
        state_rows=operator.state_rows,
        state_bytes=operator.state_bytes,
        seconds=operator.seconds,
        batches_in=operator.batches_in,
        records_in=operator.records_in,
        batches_out=operator.batches_out,
        records_out=operator.records_out,
    )


class MeasuredWorker(Worker):
    """A worker that keeps the time spent in operators, and what goes in and out of them."""

    def receive_message(self, location: int, time: Time, batch: Batch) -> None:
        """A message has arrived at an input."""
        super().receive_message(location, time, batch)
        found = self._by_location[location]
        assert found is not None
        operator = self.operators[found[0]]
        operator.batches_in += len(batch) > 0  # the others announce types
        operator.records_in += len(batch)

    def _invoke(self, operator: Operator) -> None:
        began = perf_counter()
        try:
            super()._invoke(operator)
        finally:
            operator.seconds += perf_counter() - began

    def _edges(self, operator: Operator, edges: Sequence[Edge]) -> Sequence[Edge]:
        return [_Counting(operator, edges[0]), *edges[1:]] if edges else edges


class _Counting:
    """An edge that counts what an operator sends."""

    def __init__(self, operator: Operator, edge: Edge) -> None:
        self._operator = operator
        self._edge = edge

    def push(self, time: Time, batch: Batch) -> None:
        self._operator.batches_out += 1
        self._operator.records_out += len(batch)
        self._edge.push(time, batch)
