"""The Python daemon of an executor, with Jeton imported before it forks workers.

Spark starts a daemon on each executor, which forks a process for each Python worker. A worker that
has to import Jeton itself takes most of a second of CPU time to start, which counts when a stage
runs again after a failure. With ``spark.python.daemon.module=jeton.spark.daemon`` the daemon does
this once. Jeton must be installed on the executors, as for any flow.
"""

from pyspark import daemon

import jeton as jt
from jeton.spark import long_lived_tasks, streaming_tasks, tasks

__all__ = ["long_lived_tasks", "streaming_tasks", "tasks", "warm_up"]


def warm_up() -> None:
    """Run a small flow, so that forked workers have its compiled loops loaded.

    >>> warm_up()
    """
    flow = jt.Flow("warm-up")
    rows = flow.input("rows").key_by("key")
    flow.output("counts", rows.running().count())
    flow.output("means", rows.tumbling(10).mean("value"))
    flow.run({"rows": {"time": [1, 2], "key": [1, 2], "value": [1.0, 2.0]}}, workers=2)


if __name__ == "__main__":
    warm_up()
    daemon.manager()
