"""Queries: flows that stay up on Spark, and the handle to one."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from jeton.core.errors import GraphError, JetonError
from jeton.spark.control import Control, read_table
from jeton.spark.sinks import DriverSink, Memory, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

Status = Literal["starting", "running", "stopping", "ended", "failed"]


class QueryFailed(JetonError):
    """A long-lived query ended with an error; the text has the first cause."""


class Query:
    """A flow that runs on Spark in the background, as familiar as a ``StreamingQuery``.

    >>> import jeton as jt
    >>> from jeton.spark.sources import Batches
    >>> flow = jt.Flow("patient")
    >>> flow.output("numbers", flow.input("numbers"))
    >>> def nothing_yet(partition, partitions):
    ...     while True:
    ...         yield None
    >>> with flow.start(spark, sources={"numbers": Batches(nothing_yet)}) as query:
    ...     query.await_running()
    ...     query.status, query.metrics()["rows_in"]
    ('running', 0)
    >>> query.status
    'ended'
    """

    def __init__(
        self, name: str, spark: SparkSession, workers: int, sinks: Mapping[str, Sink], tag: str
    ) -> None:
        self.name = name
        self.workers = workers
        self._spark = spark
        self._sinks = sinks
        self._tag = tag
        self._status: Status = "starting"
        self._controls: dict[int, Control] = {}
        self._reports: dict[int, dict[str, Any]] = {}
        self._cause: str | None = None
        self._error: BaseException | None = None
        self._stop: dict[str, Any] | None = None
        self._listeners: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._receiving = threading.Lock()

    @property
    def status(self) -> Status:
        """Where the query is in its life: starting, running, stopping, ended or failed."""
        return self._status

    @property
    def is_active(self) -> bool:
        """Whether the query has not come to its end yet."""
        return self._status not in ("ended", "failed")

    def frontiers(self) -> dict[str, list[Any]]:
        """For each input, output and probe the least times that may still pass there.

        An empty list says that it is complete. This is the latest that workers reported; each
        knows the frontier of all workers.
        """
        with self._changed:
            reports = list(self._reports.values())
        found: dict[str, list[Any]] = {}
        for report in reports:
            for place, times in report["frontiers"].items():
                known = found.get(place)
                # Every report is conservative, so the furthest of them is the best.
                if known is None or not times or (known and times > known):
                    found[place] = times
        return found

    def metrics(self) -> dict[str, Any]:
        """Counts summed over the workers, and each worker's own under ``workers``."""
        with self._changed:
            reports = {rank: dict(report["metrics"]) for rank, report in self._reports.items()}
        total: dict[str, Any] = {}
        for report in reports.values():
            for name, value in report.items():
                total[name] = total.get(name, 0) + value
        return {**total, "workers": reports}

    def table(self, name: str) -> DataFrame:
        """The rows so far of an output that has a `Memory` sink, as a DataFrame."""
        sink = self._sinks.get(name)
        if not isinstance(sink, Memory):
            raise GraphError(f"output {name!r} of query {self.name!r} has no Memory sink")
        table = sink.table()
        if table is None:
            raise GraphError(f"no row of output {name!r} of query {self.name!r} has come yet")
        return self._spark.createDataFrame(table)

    def stop(self, *, drain: bool = False, timeout: float = 30.0) -> None:
        """End the query in good order.

        With ``drain``, inputs are closed and what is under way is brought to its end, so that
        also the windows that are open now are told. Without, workers stop where they are.
        """
        if self.is_active:
            with self._changed:
                if self.is_active:
                    self._status = "stopping"
                # Workers that have not joined yet will be told when they do.
                self._stop = {"drain": drain}
                controls = list(self._controls.values())
            for control in controls:
                self._tell_to_stop(control)
        if not self.await_termination(timeout):
            self._cancel()
            self.await_termination(5.0)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end; tells whether it came in time. Raises if the query failed."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_active, timeout)
        if self._status == "failed":
            failure = self.exception()
            assert failure is not None
            raise failure
        return not self.is_active

    def await_running(self, timeout: float = 120.0) -> None:
        """Wait until all workers have reported; raises if the query fails, or not in time."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: len(self._reports) == self.workers or not self.is_active, timeout
            )
            reported = len(self._reports)
        if self._status == "failed":
            self.await_termination(0)
        if not came:
            raise TimeoutError(
                f"after {timeout:g} seconds, {reported} of {self.workers} workers of query "
                f"{self.name!r} have reported"
            )

    def exception(self) -> QueryFailed | None:
        """Why the query failed, if it did."""
        if self._status != "failed":
            return None
        failure = QueryFailed(f"query {self.name!r} failed: {self._cause or self._error}")
        failure.__cause__ = self._error if self._cause is None else None
        return failure

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_active:
            self.stop()

    def __repr__(self) -> str:
        return f"<Query {self.name!r}: {self._status}, {self.workers} workers>"

    # What the driver's side of the query calls

    def take_over(self, rank: int, epoch: int, sock: socket.socket) -> None:
        """A worker has joined: listen to it from now on."""
        control = Control(sock)
        thread = threading.Thread(
            target=self._listen,
            args=(rank, control),
            name=f"jeton-{self.name}-{rank}",
            daemon=True,
        )
        with self._changed:
            self._controls[rank] = control
            self._listeners.append(thread)
            if self._status == "starting":
                self._status = "running"
            stopping = self._stop is not None
            self._changed.notify_all()
        thread.start()
        if stopping:
            self._tell_to_stop(control)

    def ended(self, error: BaseException | None) -> None:
        """The job is over."""
        # Workers' last rows and words may still be on their way when Spark says that the job is
        # over. Rows are waited for as long as a sink takes for them, words of the dead are not.
        deadline = None if error is None else time.monotonic() + 5.0
        for thread in list(self._listeners):
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for control in list(self._controls.values()):
            control.close()
        with self._changed:
            self._error = error
            stopped = self._status == "stopping" and self._cause is None
            self._status = "failed" if error is not None and not stopped else "ended"
            self._changed.notify_all()

    def _tell_to_stop(self, control: Control) -> None:
        assert self._stop is not None
        try:
            control.send("stop", **self._stop)
        except OSError as error:
            log.info("a worker of query %r has gone already: %s", self.name, error)

    def _listen(self, rank: int, control: Control) -> None:
        while (news := control.receive()) is not None:
            header, payload = news
            if header["kind"] == "rows":
                sink = self._sinks[header["output"]]
                assert isinstance(sink, DriverSink)
                with self._receiving:
                    self._deliver(sink, read_table(payload), header["output"])
                continue
            with self._changed:
                if header["kind"] == "report":
                    self._reports[rank] = header
                elif header["kind"] == "failed" and self._cause is None:
                    self._cause = header["text"]
                self._changed.notify_all()

    def _deliver(self, sink: DriverSink, table: pa.Table, name: str) -> None:
        try:
            sink.receive(table)
        except Exception:
            # One bad callback must not stop the query from being listened to.
            log.exception("the sink of output %r of query %r failed", name, self.name)

    def _cancel(self) -> None:
        log.warning("query %r did not stop by itself: cancelling its Spark job", self.name)
        self._spark.sparkContext.cancelJobsWithTag(self._tag)
