"""The Spark application that flows run in: how many tasks it can run, and where they meet."""

from __future__ import annotations

import itertools
import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakKeyDictionary

from jeton.cluster.rendezvous import Rendezvous
from jeton.core.checks import require_workers
from jeton.core.errors import GraphError
from jeton.spark.internals import cancel_stage, client_address, raise_user_errors, slots_of
from jeton.spark.wire_settings import CLIENT_HOST, client_binding, driver_binding
from jeton.spark.worker_python import require_same_python

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from jeton.dataflow.flow import Flow

EXECUTORS_COME_WITHIN: Final = 30.0
"""Seconds after an application's start in which a cluster's executors may still be missing."""


class Application:
    """The driver's side of all flows that run in one Spark application.

    >>> Application.of(spark) is Application.of(spark)
    True
    """

    # As with the Spark context, there is one in a process at a time.
    _current: ClassVar[Application | None] = None
    _lock: ClassVar = threading.Lock()

    def __init__(self, spark: SparkSession, context: SparkContext | None) -> None:
        self.id = _id_of(spark, context)
        if context is None:
            conf: Any = spark.conf
            host, binding = conf.get(CLIENT_HOST, "") or client_address(spark), client_binding(conf)
        else:
            require_same_python(context)
            conf = conf_of(spark)
            host = conf.get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
            binding = driver_binding(conf)
        self.rendezvous = Rendezvous(host, binding)
        """The server where the tasks of a stage meet."""
        if context is not None:
            self.rendezvous.on_final = partial(cancel_stage, context)
        self.state_owners: dict[tuple[str, str], str] = {}
        """The plan that keeps its state in a folder, by the run of a query and the folder."""
        self._plans = itertools.count()
        raise_user_errors(self.rendezvous.failures.find)

    @classmethod
    def of(cls, spark: SparkSession) -> Application:
        """The application of a session, which begins when it is first needed.

        Under Spark Connect it is this program, which the tasks must be able to reach.
        """
        context = context_of(spark)
        with cls._lock:
            found = cls._current
            if found is None or found.id != _id_of(spark, context):
                if found is not None:
                    found.rendezvous.close()
                found = cls._current = cls(spark, context)
            return found

    def next_plan(self, flow: Flow) -> str:
        """A name for one more way that a flow is run."""
        return f"{flow.name}-{next(self._plans)}"


def context_of(spark: SparkSession) -> SparkContext | None:
    """The Spark context, which Spark Connect does not have."""
    try:
        return spark.sparkContext
    except Exception:
        return None


def _id_of(spark: SparkSession, context: SparkContext | None) -> str:
    if context is not None:
        return str(context.applicationId)
    remote: Any = spark
    return str(remote.session_id)


def conf_of(spark: SparkSession) -> Any:
    """The settings of the context; of the session under Spark Connect, which shows no others.

    Those of a context are read once, since they do not change and each is a call to the JVM.

    >>> conf_of(spark).get("spark.app.id") == spark.sparkContext.applicationId
    True
    """
    context = context_of(spark)
    if context is None:
        return spark.conf
    found = _settings.get(context)
    if found is None:
        found = _settings[context] = dict(context.getConf().getAll())
    return found


_settings: WeakKeyDictionary[SparkContext, dict[str, str]] = WeakKeyDictionary()


def require_slots(spark: SparkSession, workers: int) -> int | None:
    """Refuse more workers than the cluster can run at the same time: Spark would wait for them.

    Returns how many it can run, if that is known.
    """
    workers = require_workers(workers)
    context = context_of(spark)
    _refuse_dynamic_allocation(conf_of(spark))
    if context is None:
        return None
    slots = slots_of(context)
    while slots is not None and slots < workers and _executors_may_come(context):
        time.sleep(0.1)
        slots = slots_of(context)
    if slots is not None and workers > slots:
        raise GraphError(
            f"{workers} workers must run at the same time, but this cluster has slots for {slots} "
            "tasks: ask for fewer workers, or give Spark more cores"
        )
    return slots


def _executors_may_come(context: SparkContext) -> bool:
    """Whether the application is so young that executors may still be on their way."""
    return (
        not (context.master or "").startswith("local[")
        and time.time() - context.startTime / 1000 < EXECUTORS_COME_WITHIN
    )


def _refuse_dynamic_allocation(conf: Any) -> None:
    """Spark refuses barrier stages while it may take executors away (SPARK-24942)."""
    # Spark reads "True" as it does "true".
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() != "true":
        return
    testing = conf.get("spark.dynamicAllocation.testing", "false").lower() == "true"
    # On one machine there is nothing to allocate, and Spark ignores the setting.
    if testing or not re.fullmatch(r"local(\[.*\])?", conf.get("spark.master", "") or ""):
        raise GraphError(
            "spark.dynamicAllocation.enabled is true, but all workers of a flow run at the same "
            "time, in a barrier stage, which Spark refuses then (SPARK-24942): start the session "
            "with spark.dynamicAllocation.enabled=false and spark.executor.instances set to the "
            "number of executors that the flow needs"
        )
