"""TLS on Spark: the rows are right, and a hardened Spark gets TLS or nothing."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Memory
from jeton.connectors.sources import Rate
from jeton.errors import GraphError
from jeton.spark import application
from jeton.spark.application import Application
from jeton.spark.wire_settings import wire_settings
from tests.spark.test_cluster import surroundings

PROGRAM = Path(__file__).with_name("hardened.py")


def counts() -> jt.Flow:
    flow = jt.Flow("counts")
    numbers = flow.input("numbers", time="id", schema={"k": int})
    flow.output("counts", numbers.key_by("k").tumbling(50).count())
    return flow


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A session with one more setting of its context."""
    conf = spark.sparkContext._conf
    before = conf.get(name)
    conf.set(name, value)
    # Those of a context are read once.
    application._settings.clear()
    yield
    conf._jconf.remove(name)  # type: ignore[union-attr]
    application._settings.clear()
    assert conf.get(name) == before


def test_a_batch_under_tls_has_the_right_rows(spark: SparkSession) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr("id", "id % 2 as k")
    rows = counts().on_spark({"numbers": frame}, workers=2, tls=True)["counts"].collect()
    assert sorted((row.id, row.k, row["count"]) for row in rows) == [
        (50, 0, 25),
        (50, 1, 25),
        (100, 0, 25),
        (100, 1, 25),
    ]


def test_a_long_lived_query_under_tls_has_the_right_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = jt.Flow("live")
    flow.output("numbers", flow.input("numbers").exchange("n"))
    rate = Rate(10_000, lambda positions: {"n": positions}, limit=1000)
    query = flow.start(
        spark,
        sources={"numbers": rate},
        sinks={"numbers": Memory()},
        checkpoint=tmp_path / "checkpoint",
        tls=True,
    )
    # Its plan is the newest of this application.
    assert query.await_termination(120)
    found = sorted(row.n for row in query.table("numbers").collect())
    assert found == list(range(1000))


@pytest.mark.parametrize(
    "name", ["spark.authenticate", "spark.network.crypto.enabled", "spark.ssl.enabled"]
)
def test_a_hardened_spark_gets_tls_by_default(
    name: str, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    server = Application.of(spark).rendezvous
    frame = spark.range(0, 10, 1, 2).selectExpr("id", "id % 2 as k")
    with setting(spark, name, "true"):
        counts().on_spark({"numbers": frame}, workers=2)
        newest = max(server._plans)
        assert server._plans[newest].meeting.credentials is not None
        with caplog.at_level(logging.WARNING, "jeton"):
            counts().on_spark({"numbers": frame}, workers=2, tls=False)
        assert server._plans[newest + 1].meeting.credentials is None
        assert f"{name} is true, but TLS is turned off" in caplog.text


def test_a_hardened_spark_without_certificates_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    frame = spark.range(0, 10, 1, 2).selectExpr("id", "id % 2 as k")
    rate = Rate(10, lambda positions: {"k": positions}, limit=10)
    with setting(spark, "spark.network.crypto.enabled", "true"):
        with pytest.raises(GraphError, match=r"crypto.enabled is true, but .*jeton\[tls\]"):
            counts().on_spark({"numbers": frame}, workers=2)
        with pytest.raises(GraphError, match=r"crypto.enabled is true, but .*jeton\[tls\]"):
            counts().start(spark, sources={"numbers": rate}, sinks={"counts": Memory()})
    with pytest.raises(GraphError, match=r"TLS is asked for, but .*jeton\[tls\]"):
        counts().on_spark({"numbers": frame}, workers=2, tls=True)
    assert counts().on_spark({"numbers": frame}, workers=2)["counts"].count() == 2


def test_settings_decide_where_the_call_does_not() -> None:
    hardened = {"spark.authenticate": "true"}
    assert wire_settings({**hardened, "spark.jeton.tls.enabled": "false"}, None).tls is False
    assert wire_settings({"spark.jeton.tls.enabled": "true"}, None).tls is True
    assert wire_settings({"spark.jeton.tls.enabled": "true"}, False).tls is False
    assert wire_settings({"spark.ssl.rpc.enabled": "true"}, None).tls is True
    assert wire_settings({"spark.authenticate": "false"}, None).tls is False
    # Spark reads its settings so: whatever hardens Spark, hardens Jeton.
    assert wire_settings({"spark.network.crypto.enabled": "TRUE"}, None).tls is True
    assert wire_settings({"spark.authenticate": " True "}, None).tls is True
    assert wire_settings({**hardened, "spark.jeton.tls.enabled": "False"}, None).tls is False
    with pytest.raises(GraphError, match=r"spark.jeton.tls.enabled is 'yes'"):
        wire_settings({"spark.jeton.tls.enabled": "yes"}, None)


@pytest.mark.long
def test_workers_that_meet_by_tcp_on_a_hardened_spark(tmp_path: Path) -> None:
    # A name that is too long for a Unix socket, so that workers meet by TCP.
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    first = 20_000 + int(np.random.default_rng().integers(20_000))
    done = subprocess.run(
        [sys.executable, str(PROGRAM), f"{first}-{first + 40}"],
        env={**surroundings(), "TMPDIR": str(folder), "PYTHONPATH": os.environ["PYTHONPATH"]},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "all is well" in done.stdout, done.stderr[-5000:]
