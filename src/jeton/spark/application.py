"""The Spark application that flows run in: how many tasks it can run, and where they meet."""

from __future__ import annotations

import itertools
import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from jeton.cluster.rendezvous import Rendezvous
from jeton.core.checks import require_workers
from jeton.core.errors import GraphError
from jeton.spark.internals import cancel_stage, raise_user_errors, slots_of
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

    def __init__(self, context: SparkContext) -> None:
        require_same_python(context)
        self.id = context.applicationId
        conf = context.getConf()
        host = conf.get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
        self.rendezvous = Rendezvous(host, conf.get("spark.driver.bindAddress"))
        """The server where the tasks of a stage meet."""
        self.rendezvous.on_final = partial(cancel_stage, context)
        self.state_owners: dict[tuple[str, str], str] = {}
        """The plan that keeps its state in a folder, by the run of a query and the folder."""
        self._plans = itertools.count()
        raise_user_errors(self.rendezvous.failures.find)

    @classmethod
    def of(cls, spark: SparkSession) -> Application:
        """The application of a session, which begins when it is first needed."""
        context = context_of(spark)
        if context is None:
            raise GraphError(
                "this needs a Spark session with a context of its own: Spark Connect has none"
            )
        with cls._lock:
            found = cls._current
            if found is None or found.id != context.applicationId:
                if found is not None:
                    found.rendezvous.close()
                found = cls._current = cls(context)
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


def require_slots(spark: SparkSession, workers: int) -> int | None:
    """Refuse more workers than the cluster can run at the same time: Spark would wait for them.

    Returns how many it can run, if that is known.
    """
    workers = require_workers(workers)
    context = context_of(spark)
    _refuse_dynamic_allocation(spark.conf if context is None else context.getConf())
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
    if conf.get("spark.dynamicAllocation.enabled", "false") != "true":
        return
    testing = conf.get("spark.dynamicAllocation.testing", "false") == "true"
    # On one machine there is nothing to allocate, and Spark ignores the setting.
    if testing or not re.fullmatch(r"local(\[.*\])?", conf.get("spark.master", "") or ""):
        raise GraphError(
            "spark.dynamicAllocation.enabled is true, but all workers of a flow run at the same "
            "time, in a barrier stage, which Spark refuses then (SPARK-24942): start the session "
            "with spark.dynamicAllocation.enabled=false and spark.executor.instances set to the "
            "number of executors that the flow needs"
        )
