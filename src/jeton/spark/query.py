"""Queries: flows that stay up on Spark, and the handle to one."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from jeton.core.errors import GraphError, JetonError
from jeton.spark.commits import Attempt, Commits
from jeton.spark.control import Control, read_table
from jeton.spark.failures import find
from jeton.spark.restarts import gist
from jeton.spark.sinks import DriverSink, Memory, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

Status = Literal["starting", "running", "restarting", "stopping", "ended", "failed"]


class QueryFailed(JetonError):
    """A long-lived query ended with an error; the text has the first cause."""


@dataclass(slots=True)
class Presence:
    """The workers of one attempt at a query, as far as they have come."""

    attempt: Attempt | None = None
    """The checkpoints that they take."""
    controls: dict[int, Control] = field(default_factory=dict)
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)
    listeners: list[threading.Thread] = field(default_factory=list)
    cause: str | None = None
    """What a worker said went wrong first."""
    lost: str | None = None
    """What a worker said of another that has gone."""


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
        self.commits: Commits | None = None
        """The driver's side of its checkpoints, if it takes any."""
        self._spark = spark
        self._sinks = sinks
        self._tag = tag
        self._status: Status = "starting"
        self._present = Presence()
        self._error: BaseException | None = None
        self._cause: str | None = None
        self._restarts = 0
        self._stop: dict[str, Any] | None = None
        self._changed = threading.Condition()
        self._receiving = threading.Lock()

    @property
    def status(self) -> Status:
        """Where the query is in its life.

        Starting, running, restarting after a worker was lost, stopping, ended or failed.
        """
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
            reports = list(self._present.reports.values())
        found: dict[str, list[Any]] = {}
        for report in reports:
            for place, times in report["frontiers"].items():
                known = found.get(place)
                # Every report is conservative, so the furthest of them is the best.
                if known is None or not times or (known and times > known):
                    found[place] = times
        return found

    def metrics(self) -> dict[str, Any]:
        """Counts summed over the workers, and each worker's own under ``workers``.

        With checkpoints, ``checkpoints`` has the latest version, for how long the flow stopped for
        it (``pause_ms``) and at most so far (``longest_pause_ms``), the ``seconds`` and ``bytes``
        that it took to write, how many were ``taken`` and ``missed``, and the ``restarts``.
        """
        with self._changed:
            reports = {
                rank: dict(report["metrics"]) for rank, report in self._present.reports.items()
            }
        total: dict[str, Any] = {}
        for report in reports.values():
            for name, value in report.items():
                total[name] = total.get(name, 0) + value
        if self.commits is not None:
            total["checkpoints"] = {**self.commits.metrics(), "restarts": self._restarts}
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

    def checkpoint(self, timeout: float = 60.0) -> int:
        """Take a checkpoint now, and wait until it is committed; returns its version."""
        if self.commits is None:
            raise GraphError(f"query {self.name!r} has no checkpoints: start it with checkpoint=")
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0 and self.is_active:
            attempt = self._present.attempt
            if attempt is not None and (version := attempt.take(left)) is not None:
                return version
            with self._changed:
                # If an attempt has failed, there is another one, or none any more.
                while self._present.attempt is attempt and self.is_active:
                    if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                        break
        if self.await_termination(0):
            raise JetonError(
                f"query {self.name!r} has ended, and takes no checkpoint any more; its last one is "
                f"version {self.commits.version}"
            )
        raise TimeoutError(
            f"query {self.name!r} ({self._status}) did not commit a checkpoint within "
            f"{timeout:g} seconds"
        )

    def stop(self, *, drain: bool = False, timeout: float = 30.0) -> None:
        """End the query in good order.

        With ``drain``, inputs are closed and what is under way is brought to its end, so that
        also the windows that are open now are told. Without, workers stop where they are; if the
        query has checkpoints, they take one more, so that it can go on from there.
        """
        if self.is_active:
            with self._changed:
                if self.is_active:
                    self._status = "stopping"
                attempt = self._present.attempt
                self._changed.notify_all()
            if attempt is not None and not drain and attempt.take(timeout, last=True) is None:
                log.warning("query %r stops without a last checkpoint", self.name)
            with self._changed:
                # Workers that have not joined yet will be told when they do.
                self._stop = {"drain": drain}
                controls = list(self._present.controls.values())
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
                lambda: len(self._present.reports) == self.workers or not self.is_active, timeout
            )
            reported = len(self._present.reports)
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
        failed = QueryFailed(f"query {self.name!r} failed: {self._cause or self._error}")
        failure = find(self._cause or "")
        if failure is not None:
            error = failure.exception()
            failed.__cause__ = error.__cause__ or error
        elif self._cause is None or isinstance(self._error, JetonError):
            failed.__cause__ = self._error
        return failed

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_active:
            self.stop()

    def __repr__(self) -> str:
        return f"<Query {self.name!r}: {self._status}, {self.workers} workers>"

    # What the driver's side of the query calls

    def begin(self, present: Presence) -> None:
        """An attempt begins."""
        with self._changed:
            self._present = present
            self._changed.notify_all()

    def take_over(self, present: Presence, rank: int, sock: socket.socket) -> None:
        """A worker has joined: listen to it from now on."""
        control = Control(sock)
        thread = threading.Thread(
            target=self._listen,
            args=(present, rank, control),
            name=f"jeton-{self.name}-{rank}",
            daemon=True,
        )
        with self._changed:
            present.controls[rank] = control
            present.listeners.append(thread)
            if self._status in ("starting", "restarting"):
                self._status = "running"
            stopping = self._stop is not None
            self._changed.notify_all()
        thread.start()
        if present.attempt is not None:
            present.attempt.joined(rank, control)
        if stopping:
            self._tell_to_stop(control)

    def end(self, present: Presence, error: BaseException | None) -> None:
        """The job of an attempt is over."""
        # Workers' last rows and words may still be on their way when Spark says that the job is
        # over. Rows are waited for as long as a sink takes for them, words of the dead are not.
        deadline = None if error is None else time.monotonic() + 5.0
        for thread in list(present.listeners):
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for control in list(present.controls.values()):
            control.close()
        if present.attempt is not None:
            present.attempt.end()

    def restart(self, wait: float, cause: str | None) -> bool:
        """After a failure: wait, unless the query is to be stopped; tells whether to go on."""
        with self._changed:
            if self._status != "stopping":
                self._status = "restarting"
                self._restarts += 1
                self._changed.notify_all()
                log.warning(
                    "query %r is started again from its last checkpoint: %s",
                    self.name,
                    gist(cause) if cause else "its job failed",
                )
                self._changed.wait_for(lambda: self._status == "stopping", wait)
            return self._status != "stopping"

    def ended(self, error: BaseException | None, cause: str | None) -> None:
        """There will be no further attempt."""
        with self._changed:
            self._error, self._cause = error, cause
            stopped = self._status == "stopping" and cause is None
            self._status = "failed" if error is not None and not stopped else "ended"
            self._changed.notify_all()

    def deliver(self, name: str, table: pa.Table) -> None:
        """Hand rows to a sink at the driver."""
        sink = self._sinks[name]
        assert isinstance(sink, DriverSink)
        with self._receiving:
            try:
                sink.receive(table)
            except Exception:
                # One bad callback must not stop the query from being listened to.
                log.exception("the sink of output %r of query %r failed", name, self.name)

    def cancel(self) -> None:
        """Have Spark end the job."""
        self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def _tell_to_stop(self, control: Control) -> None:
        assert self._stop is not None
        try:
            control.send("stop", **self._stop)
        except OSError as error:
            log.info("a worker of query %r has gone already: %s", self.name, error)

    def _listen(self, present: Presence, rank: int, control: Control) -> None:
        attempt = present.attempt
        while (news := control.receive()) is not None:
            header, payload = news
            if header["kind"] == "rows":
                if attempt is None:
                    self.deliver(header["output"], read_table(payload))
                else:
                    attempt.rows(rank, header["output"], read_table(payload))
            elif header["kind"] in ("report", "failed"):
                with self._changed:
                    if header["kind"] == "report":
                        present.reports[rank] = header
                    elif header["lost"]:
                        present.lost = present.lost or header["text"]
                    else:
                        present.cause = present.cause or header["text"]
                    self._changed.notify_all()
            elif attempt is not None:
                attempt.hear(rank, header)

    def _cancel(self) -> None:
        log.warning("query %r did not stop by itself: cancelling its Spark job", self.name)
        self.cancel()
