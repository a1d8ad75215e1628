"""The jobs of a long-lived query: started, described and cancelled, in any kind of session.

A classic session has a context in this process. Under Spark Connect the context is at a server:
jobs are known by their tags alone, and neither their descriptions nor the slots can be seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from jeton.spark.application import context_of
from jeton.spark.decommission import DecommissionWatch
from jeton.spark.internals import holders_of_slots, through_ui

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jeton.spark.query import Query


class Jobs:
    """All jobs of a query, one after the other.

    >>> jobs = Jobs(spark, "a tag")
    >>> counts = []
    >>> jobs.run(lambda: counts.append(spark.range(3).count())).join()
    >>> counts
    [3]
    """

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._context = context_of(spark)
        self.tag = tag

    def run(self, act: Callable[[], None]) -> threading.Thread:
        """Call a function in a thread whose jobs are those of the query."""
        context = self._context

        def tagged() -> None:
            if context is None:
                self._spark.addTag(self.tag)
            else:
                context.addJobTag(self.tag)
            act()

        thread: threading.Thread
        if context is None:
            thread = threading.Thread(target=tagged)
        else:
            # PySpark ties a thread of Python's to one of the JVM's, which has the job's tag.
            from pyspark import InheritableThread

            thread = InheritableThread(target=tagged, session=self._spark)
        thread.daemon = True
        thread.start()
        return thread

    def describe(self, text: str) -> None:
        """Describe the next job in Spark's pages."""
        if self._context is not None:
            self._context.setJobDescription(text)

    def cancel(self) -> None:
        """Have Spark end the job that runs."""
        if self._context is None:
            self._spark.interruptTag(self.tag)
        else:
            self._context.cancelJobsWithTag(self.tag)

    def holders_of_slots(self, own: str) -> list[str]:
        """The jobs that hold slots, except for the newest one described as ``own``."""
        return [] if self._context is None else holders_of_slots(self._context, own)

    def through_ui(self, url: str) -> str | None:
        """The address of a page of this machine through Spark's UI, if there is one."""
        return None if self._context is None else through_ui(self._context, url)

    def watch_executors(self, query: Query) -> None:
        """Have the query leave executors that Spark takes away, if Spark says so beforehand."""
        context = self._context
        if context and context.getConf().get("spark.decommission.enabled", "false") == "true":
            DecommissionWatch(query, self.tag).start()
