"""A driver whose executor is decommissioned while a query runs: the query goes on elsewhere.

Prints a line with the facts, for the test that runs it.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from jeton.spark.internals import executors_of, leaving_executors, slots_of
from tests.soak.sessions import on_master
from tests.spark.gated import LIMIT, TABLES, Place, until


def main(folder: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    root = Path(folder)
    spark = on_master(root, "local-cluster[3,1,1024]", {"spark.decommission.enabled": "true"})
    context: Any = spark.sparkContext
    java = context._jsc.sc()
    until(lambda: slots_of(context) == 3, "all executors")
    place = Place(root)
    with place.start(spark, workers=3) as query:
        place.read_to(query, 4)
        [job] = java.statusTracker().getJobIdsForTag(query._jobs.tag)
        [stage] = context.statusTracker().getJobInfo(job).stageIds
        used = executors_of(java.statusStore(), stage)
        assert len(used) == 3, used
        assert leaving_executors(context, query._jobs.tag) == []
        leaving = min(used)
        jvm = context._jvm
        info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(
            "as a cluster manager would", jvm.scala.Option.empty()
        )
        assert java.schedulerBackend().decommissionExecutor(leaving, info, False, False)
        until(lambda: query.workers == 2 and query.status == "running", "two workers")
        query.await_running(LIMIT)
        place.gate.open_to(7)
        until(
            lambda: (
                leaving not in java.schedulerBackend().getExecutorIds().mkString(",").split(",")
            ),
            "the executor to be gone",
        )
        restarts = query.metrics()["checkpoints"]["restarts"]
        # The cluster gets another executor. Spark adds this to what was asked of it before, which
        # may be none, and the machines have room for three.
        java.requestExecutors(3)
        until(lambda: query.workers == 3 and query.status == "running", "three workers again")
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    place.check()
    print(json.dumps({"restarts": restarts, "after": query.metrics()["checkpoints"]["restarts"]}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
