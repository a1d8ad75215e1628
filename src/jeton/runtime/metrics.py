"""Metrics: one record of a worker and its operators, for every host.

The counts of a worker are always kept. So are the invocations, tokens and queues of an operator,
which cost nothing. Time spent, and records and batches in and out, cost something for each message:
a worker that is *measured* keeps them too, from the moment when someone begins to look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from time import perf_counter
from typing import Any, Final, Protocol

from jeton.columns.batch import Batch
from jeton.core.times import Product, Time
from jeton.dataflow.ports import Edge
from jeton.runtime.latency import Latencies
from jeton.runtime.operator import Operator
from jeton.runtime.worker import Worker

_LEVELS: Final = (
    *("tokens", "queued", "frontiers", "state_rows", "state_bytes"),
    *("memory_bytes", "spilled_bytes", "spilled_bins", "spilled_held"),
    *("backlog", "held_up", "sink_full", "peak_rss_mb"),
)
"""The numbers of an operator or a worker that go up and down."""
_MEASURED: Final = (
    *("seconds", "batches_in", "records_in", "bytes_in", "batches_out", "records_out", "bytes_out"),
    *("latency", "latency_seconds"),
)
"""The numbers that only a worker that is measured knows."""


@dataclass(frozen=True, slots=True)
class OperatorMetrics:
    """One operator on one worker."""

    name: str
    invocations: int
    tokens: int
    """Tokens that it holds now."""
    queued: int
    """Messages that wait in its inputs."""
    frontiers: list[list[Any]]
    """For each input the least times that may still arrive there; none if it is complete."""
    state_rows: int | None
    """Rows of its state in the latest snapshot; not known before the first one."""
    state_bytes: int | None
    # Only with a memory budget, if its state can be on disk:
    memory_bytes: int | None = None
    """About how many bytes of memory its state takes."""
    spilled_bytes: int | None = None
    """Bytes of state on disk."""
    spilled_bins: int | None = None
    """Bins whose state is on disk."""
    spilled_held: int | None = None
    """Records that wait for state on disk."""
    brought_back: int | None = None
    """How often state has come back from disk."""
    # Only if the worker is measured:
    seconds: float | None = None
    """Time spent in it."""
    batches_in: int | None = None
    records_in: int | None = None
    bytes_in: int | None = None
    """Bytes of the columns of these records."""
    batches_out: int | None = None
    """Batches that it sent, to one of those that read them."""
    records_out: int | None = None
    bytes_out: int | None = None
    latency: list[int] | None = None
    """How often an advance of the inputs has reached it, by seconds: see `jeton.runtime.latency`.
    Operators that send something have none."""
    latency_seconds: float | None = None
    """The sum of these seconds."""

    def to_json(self) -> dict[str, Any]:
        """The numbers that are known."""
        return {
            name: value
            for name, value in zip(_OPERATOR_FIELDS, _operator_values(self), strict=True)
            if value is not None
        }


_OPERATOR_FIELDS: Final = tuple(each.name for each in fields(OperatorMetrics))
_operator_values: Final = attrgetter(*_OPERATOR_FIELDS)


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
    rejected: int
    """Records of sources that could not be read, and have been put elsewhere."""
    messages: int
    """Messages that were sent to other workers."""
    bytes_in: int
    """Bytes of messages that came from other workers."""
    progress_batches: int
    progress_bytes: int
    queued: int
    """Messages that wait in inputs of operators."""
    backlog: int
    """The most bytes that wait to go out to one other worker."""
    held_up: bool
    """Whether sources wait, since enough is under way here or at another worker."""
    sink_full: bool
    """Whether rows wait until others are taken, so that nothing more is read."""
    seconds: float
    """Wall time."""
    cpu_seconds: float
    """Of the whole process since then."""
    peak_rss_mb: int
    operators: tuple[OperatorMetrics, ...]

    def to_json(self) -> dict[str, Any]:
        """The record as it travels to the driver."""
        record = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "worker"}
        return {**record, "operators": [each.to_json() for each in self.operators]}


def add_metrics(
    one: Mapping[str, Any], other: Mapping[str, Any], *, later: bool = False
) -> dict[str, Any]:
    """Two records as one, operator by operator: numbers are added up.

    Of two frontiers the furthest is taken, since each is a lower bound of the true one. If the
    other record is of a ``later`` run, its levels (tokens, queues, state) and frontiers replace
    those of the first.

    >>> one = {"rows_in": 3, "operators": [{"name": "map", "tokens": 1, "frontiers": [[4]]}]}
    >>> other = {"rows_in": 5, "operators": [{"name": "map", "tokens": 2, "frontiers": [[7]]}]}
    >>> add_metrics(one, other)
    {'rows_in': 8, 'operators': [{'name': 'map', 'tokens': 3, 'frontiers': [[7]]}]}
    >>> add_metrics(other, one, later=True)["operators"]
    [{'name': 'map', 'tokens': 1, 'frontiers': [[4]]}]
    """
    total: dict[str, Any] = {}
    for name in {**one, **other}:
        if name not in one or name not in other:
            total[name] = one[name] if name in one else other[name]
            continue
        first, second = one[name], other[name]
        if name == "operators":
            pairs = zip(first, second, strict=True) if first and second else ()
            added = [add_metrics(*pair, later=later) for pair in pairs]
            total[name] = added or first or second
        elif name == "name" or (later and name in _LEVELS):
            total[name] = second
        elif name == "latency":
            total[name] = [sum(pair) for pair in zip(first, second, strict=True)]
        elif name == "frontiers":
            total[name] = [furthest(*pair) for pair in zip(first, second, strict=True)]
        else:
            total[name] = first + second
    return total


Totals = Mapping[int, Mapping[str, Any]]
"""For each worker its metrics, over all its runs."""


def carried(before: Totals, reports: Mapping[int, Mapping[str, Any]]) -> Totals:
    """The totals after another run, whose workers have made their last reports.

    >>> reports = {0: {"metrics": {"rows_in": 5, "queued": 2}}}
    >>> carried({0: {"rows_in": 3, "queued": 9}, 1: {"rows_in": 4}}, reports)
    {0: {'rows_in': 8, 'queued': 2}, 1: {'rows_in': 4}}
    """
    latest = {
        rank: add_metrics(before.get(rank, {}), report["metrics"], later=True)
        for rank, report in reports.items()
    }
    return {**before, **latest}


def furthest(one: list[Any], other: list[Any]) -> list[Any]:
    """The better of two lower bounds of one frontier; empty if it is complete.

    >>> furthest([3], [7]), furthest([3], [])
    ([7], [])
    """
    return max(one, other) if one and other else []


def plain(times: Iterable[Time]) -> list[Any]:
    """Times as JSON has them."""
    return [list(time) if isinstance(time, Product) else time for time in times]


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
    inputs, spill = operator.inputs, operator.spill
    measured = () if worker.meter is None else _MEASURED
    return OperatorMetrics(
        operator.plan.name,
        operator.invocations,
        tokens=sum(book.held for book in operator.books),
        queued=sum(map(len, inputs)),
        frontiers=[plain(worker.tracker.least_anywhere(port.location)) for port in inputs],
        state_rows=operator.state_rows,
        state_bytes=operator.state_bytes,
        memory_bytes=None if spill is None else spill.memory,
        spilled_bytes=None if spill is None else spill.nbytes,
        spilled_bins=None if spill is None else spill.bins,
        spilled_held=None if spill is None else spill.held,
        brought_back=None if spill is None else spill.brought_back,
        **{name: getattr(operator, name) for name in measured},
    )


def measure(worker: Worker) -> Meter:
    """Have a worker measure its operators from now on: a worker that nobody looks at does not.

    >>> import jeton as jt
    >>> flow = jt.Flow("echo")
    >>> flow.output("out", flow.input("in"))
    >>> with flow.open() as run:
    ...     _ = measure(run.workers[0])
    ...     run.input("in").send({"n": [1, 2]})
    ...     run.run_to_rest()
    ...     [each.records_out for each in operator_metrics(run.workers[0])]
    [2, 0]
    """
    meter = begin_to_count(worker)
    meter.begin_to_time()
    return meter


def begin_to_count(worker: Worker) -> Meter:
    """The meter of a worker, made if it has none; its operators may be built later."""
    meter = worker.meter
    if meter is None:
        meter = worker.meter = Meter(worker)
        for operator in worker.operators:
            for output in operator.outputs:
                if output.edges:
                    output.connect([_Counting(operator, output.edges[0]), *output.edges[1:]])
    assert isinstance(meter, Meter)
    return meter


class InvocationLog(Protocol):
    """Takes note of invocations."""

    def invoked(self, operator: Operator, began: float, seconds: float) -> None:
        """An operator has been invoked, at a time of `perf_counter`, for some seconds."""
        ...


class Meter:
    """The time spent in the operators of a worker, and what goes in and out of them."""

    def __init__(self, worker: Worker) -> None:
        self.log: InvocationLog | None = None
        self._worker = worker
        self._latencies: Latencies | None = None

    def begin_to_time(self) -> Latencies:
        """Note from now on how long results take; inputs have been built."""
        if self._latencies is None:
            self._latencies = Latencies(self._worker)
        return self._latencies

    def step_begins(self) -> None:
        """A step begins, from which on it is noted how long results take."""
        self.begin_to_time().begin()

    def frontiers_moved(self) -> None:
        """A step has ended, or news of another worker has come."""
        self.begin_to_time().end()

    def arrived(self, operator: Operator, batch: Batch) -> None:
        """A message has arrived at an input of an operator."""
        if len(batch):  # the others announce types
            operator.batches_in += 1
            operator.records_in += len(batch)
            operator.bytes_in += batch.nbytes
            if not operator.outputs:
                operator.sample = batch

    def invoke(self, operator: Operator, act: Callable[[Operator], None]) -> None:
        """Invoke an operator, and note how long it takes."""
        began = perf_counter()
        try:
            act(operator)
        finally:
            seconds = perf_counter() - began
            operator.seconds += seconds
            if self.log is not None:
                self.log.invoked(operator, began, seconds)


class _Counting:
    """An edge that counts what an operator sends."""

    def __init__(self, operator: Operator, edge: Edge) -> None:
        self._operator = operator
        self._edge = edge

    def push(self, time: Time, batch: Batch) -> None:
        operator = self._operator
        operator.batches_out += 1
        operator.records_out += len(batch)
        operator.bytes_out += batch.nbytes
        if len(batch):
            operator.sample = batch
        self._edge.push(time, batch)
