"""The idle query is measured by its workers' own clocks."""

import pytest
from pyspark.sql import SparkSession

from jeton_evaluation.bench import idle


def test_an_idle_query_tells_what_its_workers_took(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "SETTLE", 0.3)
    line = idle.measure(spark, workers=2, seconds=0.6)
    assert (line["experiment"], line["workers"]) == ("idle", 2)
    # Time does not stand still, and no worker takes more than a core.
    assert 0 < line["cpu_per_worker"] <= line["cpu_most"] <= 1.1
