"""Spark sessions for campaigns, and the processes that belong to them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from jeton.spark.java import ensure_java

ROOT: Final = Path(__file__).parents[2]
QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for a minute spends most of its time on code that it will not run for long."""


def cluster(folder: Path, slots: int) -> SparkSession:
    """A session on a cluster of two executors in processes of their own."""
    return on_master(folder, f"local-cluster[2,{slots // 2},1024]")


def local(folder: Path, slots: int) -> SparkSession:
    """A session in one process, whose tasks may fail a few times as on a cluster."""
    return on_master(folder, f"local[{slots},4]")


def has_stopped(spark: SparkSession) -> bool:
    """Whether Spark has given the whole session up, as it does when its scheduler fails."""
    context: Any = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def executors(spark: SparkSession) -> list[int]:
    """The processes of a session's executors."""
    application = spark.sparkContext.applicationId.encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (path / "cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in line and application in line:
                found.append(int(path.name))
    return found


def on_master(folder: Path, master: str, more: dict[str, Any] | None = None) -> SparkSession:
    """A session on a master, with a few more settings."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    local_dir = folder / "local"
    local_dir.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.executor.extraJavaOptions": QUICK,
        "spark.local.dir": str(local_dir),
        "spark.sql.shuffle.partitions": 4,
        # Workers that are killed come back in a moment, so that more of them can be killed.
        "spark.python.daemon.module": "jeton.spark.daemon",
        # If an executor is missing, Spark looks again after this time: 15 seconds by default.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        # Executors are killed here more often than a cluster expects.
        "spark.deploy.maxExecutorRetries": "-1",
        # Executors run in folders of their own, but the code of the campaigns is here.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT))),
        **(more or {}),
    }
    builder: SparkSession.Builder = SparkSession.builder
    session = builder.master(master).appName("soak").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
