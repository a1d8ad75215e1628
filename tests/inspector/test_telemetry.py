"""OpenTelemetry gets metrics and spans, where a program has set it up."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from jeton.inspector import telemetry
from jeton.runtime.monitor import Monitor, Observation

CHECKPOINTS: list[dict[str, Any]] = [
    {"version": None},
    {"version": 1, "taken": 1, "seconds": 0.25, "bytes": 100},
    {"version": 1, "taken": 1, "seconds": 0.25, "bytes": 100},
    {"version": 2, "taken": 2, "seconds": 0.5, "bytes": 50},
]


def observed(number: int) -> Observation:
    operators = [{"name": "mean", "tokens": 3}]
    reports = {
        rank: {
            "metrics": {"rows_in": 10 * rank, "held_up": rank == 1, "operators": operators},
            "frontiers": {"out": [1_500_000]},
            "unit": "us UTC",
        }
        for rank in range(2)
    }
    checkpoints = CHECKPOINTS[number]
    return Observation(status="running", reports=reports, checkpoints=checkpoints, clock=100.0)


@pytest.fixture
def providers() -> tuple[Any, Any]:
    """A meter reader and an exporter of spans, set up as a program would."""
    metrics = pytest.importorskip("opentelemetry.metrics", reason="no OpenTelemetry")
    sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="no SDK of OpenTelemetry")
    from opentelemetry import trace
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    metrics.set_meter_provider(sdk.MeterProvider([reader]))
    trace.set_tracer_provider(tracing)
    return reader, spans


def test_metrics_and_spans_of_a_query(providers: tuple[Any, Any]) -> None:
    reader, spans = providers
    numbers = iter(range(len(CHECKPOINTS)))
    monitor = Monitor("counts", lambda: observed(next(numbers)), every=1000.0)
    assert telemetry.export(monitor)
    for _ in CHECKPOINTS[1:]:
        monitor.look()
    found = {
        metric.name: [(point.value, dict(point.attributes)) for point in metric.data.data_points]
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    query = {"jeton.query": "counts"}
    assert found["jeton.rows_in"] == [
        (0.0, {**query, "jeton.worker": "0"}),
        (10.0, {**query, "jeton.worker": "1"}),
    ]
    assert found["jeton.operator_tokens"][0] == (
        3.0,
        {**query, "jeton.worker": "0", "jeton.operator": "mean"},
    )
    assert found["jeton.frontier"] == [(1.5, {**query, "jeton.place": "out"})]
    assert found["jeton.checkpoint_version"] == [(1.0, query)]
    monitor.start()
    monitor.stop("a worker failed")  # looks once more
    monitor.join()
    *checkpoints, whole = spans.get_finished_spans()
    assert [dict(span.attributes)["jeton.checkpoint.version"] for span in checkpoints] == [1, 2]
    assert [span.end_time - span.start_time for span in checkpoints] == [250_000_000, 500_000_000]
    assert {span.parent.span_id for span in checkpoints} == {whole.context.span_id}
    assert (whole.name, whole.status.description) == ("query counts", "a worker failed")
    # Nothing is left of a query that has ended.
    assert reader.get_metrics_data() is None or not any(
        metric.data.data_points
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    )


def test_nothing_is_imported_where_it_is_not_in_use() -> None:
    code = (
        "import sys\n"
        "from jeton.inspector import telemetry\n"
        "from jeton.runtime.monitor import Monitor\n"
        "assert not telemetry.export(Monitor('q', None))\n"
        "assert 'opentelemetry' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
