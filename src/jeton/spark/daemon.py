"""The Python daemon of an executor, with Jeton imported before it forks workers.

Spark starts a daemon on each executor, which forks a process for each Python worker. A worker that
has to import Jeton itself takes most of a second of CPU time to start, which counts when a stage
runs again after a failure. With ``spark.python.daemon.module=jeton.spark.daemon`` the daemon does
this once, and loads the compiled loops of the usual operators. After each task, PySpark has a
worker collect its garbage; what the daemon has imported is left out of that, which would otherwise
take longer than a small task. Jeton must be installed on the executors, as for any flow. A local
session has it:

>>> spark.sparkContext.getConf().get("spark.python.daemon.module")
'jeton.spark.daemon'
"""

import gc

from pyspark import daemon

from jeton.runtime.warm_up import warm_up
from jeton.spark import long_lived_tasks, native_tasks, streaming_tasks, tasks

__all__ = ["long_lived_tasks", "native_tasks", "streaming_tasks", "tasks", "warm_up"]


if __name__ == "__main__":
    warm_up()
    gc.collect()
    # For all workers, which are forks of this process: libraries stay as long as it does.
    gc.freeze()
    daemon.manager()
