"""A quiet Spark session on this machine, for trying things out and for tests."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from jeton.spark.internals import daemon_settings
from jeton.spark.java import ensure_java

_LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def local_session(workers: int = 2, **conf: str | float | bool | None) -> SparkSession:
    """Return a Spark session of this machine with room for `workers` tasks at a time.

    The session binds to this machine only, has no web page, logs only errors, and runs Python tasks
    with the Python that called it. `conf` takes any Spark setting and overrides these. One session
    runs in a process at a time: another call with the same number of workers returns it again.

    Raises:
        jeton.errors.JavaNotFoundError: there is no Java for Spark to run on.
        RuntimeError: a session with another master runs in this process.

    Example:
        >>> spark = local_session(workers=4)
        >>> spark.range(10).count()
        10

        Settings have dots in their names, so they are handed over as a dictionary:

        >>> spark = local_session(4, **{"spark.sql.session.timeZone": "UTC"})
        >>> spark.conf.get("spark.sql.session.timeZone")
        'UTC'
    """
    master = f"local[{workers}]"
    running = _running()
    if running and running.sparkContext.master != master:
        raise RuntimeError(
            f"a session with master {running.sparkContext.master} runs in this process, so none "
            f"with {master} can start: stop() that one first, or use it"
        )
    ensure_java()
    # Spark starts `python3` for its tasks by default, which may be another Python.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, str | float | bool | None] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # 200 by default, each a task that costs more than the few rows that it would hold here.
        "spark.sql.shuffle.partitions": workers,
        # With a limit in bytes, Spark adds up the bytes of a batch anew for each row on its way to
        # Python: a third of what the whole way costs. The limit in rows stays.
        "spark.sql.execution.arrow.maxBytesPerBatch": 2**31 - 1,
        # Over TCP, Spark's small writes wait for acknowledgements: 40 ms in each stage with Python.
        "spark.python.unix.domain.socket.enabled": hasattr(socket, "AF_UNIX"),
        # Otherwise each stage of a micro-batch is a job of its own, and the next is planned anew:
        # 20 ms for a flow, whose shuffles have a fixed number of partitions anyway.
        "spark.sql.adaptive.streaming.stateless.enabled": False,
        **daemon_settings(),
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        **conf,
    }
    # The log level must be known before the first line is logged, so it goes to the JVM itself.
    java_options = settings.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = f"{_LOGGING} {java_options}"
    builder: SparkSession.Builder = SparkSession.builder
    return builder.master(master).appName("jeton").config(map=settings).getOrCreate()


def _running() -> SparkSession | None:
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None
