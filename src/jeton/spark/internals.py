"""Everything that Jeton uses of Spark and Spark does not promise, one function for each use.

Each function says why it is needed and what happens where a version of Spark does not have it:
either a fallback, or a `GraphError` that names the missing part and a way around it.
``make matrix`` tries all of them on each version of PySpark that is supported.

Four uses are modules of their own:

- `jeton.spark.query_log` reads and edits the offset and commit logs of a streaming query. They are
  needed to know whether a micro-batch without state had rows, and to repeat one. A format that is
  not known is a `SnapshotError`.
- `jeton.spark.daemon` runs in place of PySpark's worker daemon, which starts it by its module name:
  see `daemon_settings`.
- `jeton.spark.hadoop_store` calls Hadoop's FileSystem in the session's JVM, for stores that only
  Java can reach.
- `jeton.spark.java` makes Spark's launch script work with a Java that lacks one of its modules.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from py4j.protocol import (  # type: ignore[import-untyped]
    Py4JError,
    Py4JJavaError,
    Py4JNetworkError,
)
from pyspark import __version__
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from jeton.cluster.failures import Failure
from jeton.core.errors import GraphError, JetonError
from jeton.spark.query_location import QueryLocation
from jeton.storage.store_settings import StoreSettings

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark import BarrierTaskContext, SparkContext
    from pyspark.sql.types import StructField, StructType

log = logging.getLogger(__name__)


class MissingInternal(GraphError):
    """A private part of Spark that this version does not have."""


@contextmanager
def private(part: str, remedy: str = "") -> Iterator[None]:
    """Raise `MissingInternal` if a private part of Spark is missing or is called otherwise.

    Errors that the part itself raises pass unchanged.

    >>> with private("SparkContext._jsc.noSuchMethod", "use another one"):
    ...     spark.sparkContext._jsc.noSuchMethod()
    Traceback (most recent call last):
    jeton.spark.internals.MissingInternal: Spark ... has no SparkContext._jsc.noSuchMethod ...
    """
    try:
        yield
    except (AttributeError, ImportError, TypeError, Py4JError) as error:
        if isinstance(error, Py4JJavaError | Py4JNetworkError):
            raise
        # Py4J appends the stack of the JVM.
        reason = str(error).partition("\n")[0]
        message = f"Spark {__version__} has no {part} as Jeton uses it ({reason})"
        raise MissingInternal(f"{message}: {remedy}" if remedy else message) from error


# Clusters


def slots_of(context: SparkContext) -> int | None:
    """The number of tasks that a cluster runs at the same time.

    Reason: a barrier stage with more tasks than slots waits for minutes before it fails, and the
    public ``defaultParallelism`` may be set to any number.
    Missing: ``None``, as for Spark Connect. Then the number of workers is not checked.

    >>> slots_of(spark.sparkContext)
    4
    """
    try:
        with private("SparkContext.maxNumConcurrentTasks"):
            java: Any = context._jsc.sc()
            profile = java.resourceProfileManager().defaultResourceProfile()
            return int(java.maxNumConcurrentTasks(profile))
    except MissingInternal as error:
        log.info("the number of workers is not checked: %s", error)
        return None


_proxied: dict[str, Any] = {}
"""For each application the servers behind its UI."""


def through_ui(context: SparkContext, url: str) -> str | None:
    """The address of a page of this machine through Spark's UI, if the application has one.

    Reason: often only Spark's UI can be reached from outside, directly or through the proxies of
    Spark's master, YARN or a notebook. Spark's own proxy, by which its master shows the UIs of
    applications, is added to the UI.
    Missing: ``None``. Then the page is at its own address only.

    >>> print(through_ui(spark.sparkContext, "http://127.0.0.1:4711/secret/"))
    None
    """
    parts = urlsplit(url)
    name = f"jeton-{parts.port}"
    try:
        with private("the proxy of its UI"):
            ui: Any = context._jsc.sc().ui()
            if not ui.isDefined() or context.uiWebUrl is None:
                return None
            jvm: Any = context._jvm
            servers = _proxied.get(context.applicationId)
            if servers is None:
                servers = jvm.scala.collection.concurrent.TrieMap()
                proxy = jvm.org.apache.spark.ui.JettyUtils.createProxyHandler(servers.lift())
                ui.get().attachHandler(proxy)
                _proxied.clear()  # there is one application at a time
                _proxied[context.applicationId] = servers
            servers.put(name, f"{parts.scheme}://{parts.netloc}")
    except (MissingInternal, Py4JError) as error:
        log.info("the page is not shown through Spark's UI: %s", error)
        return None
    return f"{context.uiWebUrl}/proxy/{name}{parts.path}"


STORES: Final = ("fs.", "dfs.", "google.cloud.", "hadoop.security.", "ha.", "ipc.")
"""The beginnings of the settings that say how to reach stores."""
_NOT_FOR_STORES: Final = (
    r'\{"key":"(?:(?!'
    + "|".join(map(re.escape, STORES))
    + r')[^"]*","value":"(?:[^"\\]|\\.)*+","isFinal":\w++,"resource":"[^"]*+"'
    r'|[^"]*+","value":"(?:[^"\\]|\\.)*+","isFinal":\w++,"resource":"[^"]*-default\.xml")\},?'
)
"""Matches, in Hadoop's own text, a setting for something else, or a default."""
_REDACTED: Final = "<redacted>"
"""The text that Hadoop writes in place of a secret."""
_SECRETS: Final = ("fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token")


def hadoop_settings(spark: SparkSession) -> dict[str, str]:
    """The settings for stores in the session's configuration of Hadoop, except for defaults.

    Reason: stores are to be reached as Spark reaches them, and the public ``spark.conf`` has
    neither those of Hadoop's own files nor those of credential providers.
    Missing: those that ``SparkConf`` has with the prefix ``spark.hadoop.``.

    >>> spark.conf.set("fs.s3a.endpoint", "127.0.0.1:9")
    >>> hadoop_settings(spark)["fs.s3a.endpoint"]
    '127.0.0.1:9'
    >>> spark.conf.unset("fs.s3a.endpoint")
    """
    try:
        with private("SparkSession.sessionState.newHadoopConf"):
            inside: Any = spark
            conf = inside._jsparkSession.sessionState().newHadoopConf()
            written = inside._jvm.java.io.StringWriter()
            conf.dumpConfiguration(conf, written)
            # Without them the text is short: Py4J takes 40 ms for one of more than 8 KB.
            others = inside._jvm.java.util.regex.Pattern.compile(_NOT_FOR_STORES)
            text = str(others.matcher(written.getBuffer()).replaceAll(""))
            found = json.loads(text.removesuffix(",]}").removesuffix("]}") + "]}")["properties"]
            settings: dict[str, str] = {
                each["key"]: str(conf.get(each["key"]))
                if each["value"] == _REDACTED
                else each["value"]
                for each in found
                if each["key"].startswith(STORES)
                and not str(each["resource"]).endswith("-default.xml")
            }
            if conf.get("hadoop.security.credential.provider.path"):
                for key in _SECRETS:
                    if (secret := conf.getPassword(key)) is not None:
                        settings[key] = "".join(secret)
            return settings
    except MissingInternal as error:
        log.info("settings for stores are taken from SparkConf alone: %s", error)
        return dict(StoreSettings.of_spark(dict(_settings_of(spark))).values)


def _settings_of(spark: SparkSession) -> Mapping[str, str]:
    """The settings of a session. Spark Connect has them at its server, and no context."""
    session: Any = spark
    try:
        context = session.sparkContext
    except AttributeError:
        found: dict[str, str] = session.conf.getAll
        return found
    return dict(context.getConf().getAll())


def holders_of_slots(context: SparkContext, own: str = "") -> list[str]:
    """The jobs that have tasks running now, except for the newest one described as ``own``.

    Reason: a barrier stage waits without a word until enough slots are free, and the public
    ``statusTracker`` does not know the descriptions of jobs.
    Missing: no jobs are named.

    >>> holders_of_slots(spark.sparkContext)
    []
    """
    jobs: list[tuple[int, str, int]] = []
    try:
        with private("SparkContext.statusStore"):
            store: Any = context._jsc.sc().statusStore()
            for number in sorted(context.statusTracker().getActiveJobsIds()):
                try:
                    job = store.job(number)
                except Py4JJavaError:  # it has ended
                    continue
                text, tasks = job.description(), job.numActiveTasks()
                name = text.get() if text.isDefined() else job.name()
                jobs.append((number, name, tasks))
    except (MissingInternal, Py4JError) as error:
        log.info("the jobs that hold slots are not known: %s", error)
    newest = max((number for number, name, _ in jobs if name == own), default=None)
    return [
        f"job {number}, {name} ({tasks} tasks)"
        for number, name, tasks in jobs
        if tasks and number != newest
    ]


def leaving_executors(context: SparkContext, tag: str) -> list[str] | None:
    """The executors that Spark decommissions, and on which tasks of the jobs with a tag run.

    Reason: no public listener hears that an executor is about to leave, only that it has left,
    when its tasks are lost. The scheduler knows it as soon as the cluster manager says so.
    Missing: ``None``. Then a worker on such an executor is replaced once it is lost.

    >>> leaving_executors(spark.sparkContext, "a tag")
    []
    """
    try:
        with private("TaskScheduler.getExecutorDecommissionState"):
            java: Any = context._jsc.sc()
            scheduler, store = java.taskScheduler(), java.statusStore()
            found: set[str] = set()
            for job in java.statusTracker().getJobIdsForTag(tag):
                info = context.statusTracker().getJobInfo(job)
                for stage in info.stageIds if info is not None and info.status == "RUNNING" else ():
                    found |= executors_of(store, stage)
            return [
                executor
                for executor in sorted(found)
                if scheduler.getExecutorDecommissionState(executor).isDefined()
            ]
    except MissingInternal as error:
        log.info("executors that leave are not noticed before they have left: %s", error)
        return None


def executors_of(store: Any, stage: int) -> set[str]:
    """The executors on which tasks of the last attempt of a stage run."""
    try:
        attempt = store.lastStageAttempt(stage).attemptId()
    except Py4JJavaError:  # it has not begun, or is forgotten
        return set()
    tasks = store.taskList(stage, attempt, 1 << 20)
    listed = (tasks.apply(at) for at in range(tasks.size()))
    return {task.executorId() for task in listed if task.status() == "RUNNING"}


def client_address(spark: SparkSession) -> str:
    """The address of this machine on the way to a server of Spark Connect.

    Reason: the tasks of a long-lived query connect to this program, and only the client of Spark
    Connect knows its server.
    Missing: an error, which names the setting to use instead.
    """
    remote: Any = spark
    with private("SparkSession.client.host", "set spark.jeton.client.host"):
        host = str(remote.client.host)
    for family, kind, number, _, where in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
        # Nothing is sent: the system only chooses the way.
        with suppress(OSError), socket.socket(family, kind, number) as sock:
            sock.connect(where)
            return str(sock.getsockname()[0])
    raise GraphError(
        f"there is no way from here to {host}, the server of Spark Connect: set "
        "spark.jeton.client.host to the address at which executors reach this program"
    )


def cancel_stage(context: SparkContext, stage: int, failure: Failure) -> None:
    """Have Spark give up a stage.

    Reason: without it, Spark repeats a stage three times that fails because of user code.
    Missing: the driver refuses the tasks of the next attempts, before any user code runs.
    """
    try:
        with private("SparkContext.cancelStage"):
            context._jsc.sc().cancelStage(stage, failure.text)
    except (MissingInternal, Py4JError) as error:
        log.info("stage %d could not be cancelled: %s", stage, error)


def daemon_settings() -> dict[str, str]:
    """The setting by which executors fork Python workers from a process that has imported Jeton.

    Reason: a worker that imports Jeton itself takes most of a second of CPU time to start.
    Missing: no setting. Workers start more slowly.

    >>> daemon_settings()
    {'spark.python.daemon.module': 'jeton.spark.daemon'}
    """
    try:
        with private("pyspark.daemon.manager"):
            from pyspark import daemon

            _ = daemon.manager
    except MissingInternal as error:
        log.info("Python workers import Jeton themselves: %s", error)
        return {}
    return {"spark.python.daemon.module": "jeton.spark.daemon"}


# Plans


_UNKNOWN: Final = ("Exchange", "Adaptive", "Cartesian", "Coalesce", "Union", "Subquery")
"""In the text of plans whose partitions are known too late, or are not those of what they read."""


def partitions_of(frame: DataFrame) -> int | None:
    """The number of partitions of a DataFrame, if it is known without running a part of it.

    Reason: an input that has as many partitions as there are workers needs no shuffle. Behind a
    shuffle or a broadcast, Spark learns the number by running what is before it; and no operator
    that changes it, such as ``coalesce`` or ``union``, may stand right before a barrier stage. Only
    the plan's text says so.
    Missing: ``None``. Then the rows are shuffled.

    >>> partitions_of(spark.range(0, 10, 1, 3)), partitions_of(spark.range(10).coalesce(1))
    (3, None)
    """
    try:
        with private("DataFrame._jdf.queryExecution"):
            plan = str(frame._jdf.queryExecution().executedPlan().toString())
    except MissingInternal as error:
        log.info("the input is shuffled: %s", error)
        return None
    if any(word in plan for word in _UNKNOWN):
        return None
    return int(frame.rdd.getNumPartitions())


_ESTIMATED: Final = {
    "Aggregate",
    "DataSourceV2ScanRelation",
    "Filter",
    "GlobalLimit",
    "InMemoryRelation",
    "LocalLimit",
    "LocalRelation",
    "LogicalRDD",
    "LogicalRelation",
    "Project",
    "Range",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "Sample",
    "Sort",
    "Union",
    "Window",
}
"""Operators of optimized plans that make no more rows than they read."""


def runs_as_barrier(frame: DataFrame) -> bool:
    """Whether a part of a DataFrame's plan runs as a barrier stage, as flows do.

    Reason: a union is one stage with what is united, and has more tasks than a barrier stage may
    have. A shuffle between them parts the stages. Only the plan has the property.
    Missing: ``False``. Then Spark refuses the stage, if there is one.

    >>> runs_as_barrier(spark.range(1))
    False
    """

    def is_barrier(plan: Any) -> bool:
        if plan.getClass().getSimpleName() in ("MapInArrow", "MapInPandas") and plan.isBarrier():
            return True
        children = plan.children()
        return any(is_barrier(children.apply(at)) for at in range(children.size()))

    try:
        with private("DataFrame._jdf.queryExecution"):
            return is_barrier(frame._jdf.queryExecution().analyzed())
    except MissingInternal as error:
        log.info("whether an input is a barrier stage is not known: %s", error)
        return False


def size_of(frame: DataFrame) -> int | None:
    """The bytes of a DataFrame as Spark's optimizer estimates them, if that means something.

    It does not behind a join, an explode or a function in Python, which may make many rows of one.
    Sources that Spark knows nothing about have more than any memory. Reason: a batch that is small
    need not be sorted to be read in order of time. Missing: ``None``. Then it is sorted wherever an
    operator waits for times to pass.

    >>> size_of(spark.range(1000)), size_of(spark.range(3).selectExpr("explode(array(id, id))"))
    (8000, None)
    """

    def estimated(plan: Any) -> bool:
        children = plan.children()
        return str(plan.getClass().getSimpleName()) in _ESTIMATED and all(
            estimated(children.apply(at)) for at in range(children.size())
        )

    try:
        with private("DataFrame._jdf.queryExecution"):
            plan = frame._jdf.queryExecution().optimizedPlan()
            return int(str(plan.stats().sizeInBytes())) if estimated(plan) else None
    except MissingInternal as error:
        log.info("the size of an input is not known: %s", error)
        return None


def operators_of(frame: DataFrame) -> set[str] | None:
    """The names of the operators of a streaming DataFrame, without those of static ones.

    Reason: which operators there are decides whether Spark may leave a flow out of a micro-batch,
    and whether an aggregation before the flow emits rows more than once.
    Missing: ``None``. Then every micro-batch must run the flow, and output modes are not checked.

    >>> stream = spark.readStream.format("rate").load()
    >>> sorted(operators_of(stream.where("value > 3").select("value")))
    ['Filter', 'Project', 'StreamingRelationV2']
    """

    def names(plan: Any) -> Iterator[str]:
        if plan.isStreaming():
            yield str(plan.getClass().getSimpleName())
            children = plan.children()
            for at in range(children.size()):
                yield from names(children.apply(at))

    try:
        with private("DataFrame._jdf.queryExecution"):
            return set(names(frame._jdf.queryExecution().analyzed()))
    except MissingInternal as error:
        log.info("the operators before the flow are not checked: %s", error)
        return None


def as_stream(frame: DataFrame) -> DataFrame:
    """The rows of a static DataFrame in each micro-batch, as a streaming DataFrame.

    Reason: one row must reach every micro-batch, or Spark leaves the flow out of those without
    rows. Only streams can be united with streams, and no public call makes a constant one.
    Missing: an error, which suggests ``repartition=False``.

    >>> as_stream(spark.range(3)).isStreaming
    True
    """
    spark = frame.sparkSession
    with private("SparkSession.internalCreateDataFrame", "call on_spark with repartition=False"):
        rows = frame._jdf.queryExecution().toRdd()
        made = spark._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), True)
    return DataFrame(made, spark)


def by_number(frame: DataFrame, partitions: int, number: Column) -> DataFrame:
    """The same rows, each in the partition of the given number.

    Reason: a row's partition must follow from the data alone. ``repartitionById`` is public, but
    only newer versions have it.
    Missing: hash partitioning, with a value for each partition that Spark's hash puts there.

    >>> def where(frame):
    ...     rows = frame.select("id", F.spark_partition_id()).collect()
    ...     return sorted(tuple(row) for row in rows)
    >>> where(by_number(spark.range(3), 3, 2 - F.col("id")))
    [(0, 2), (1, 1), (2, 0)]
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(partitions, number.cast("int"))
    stand_ins: dict[int, int] = {}
    candidate = 0
    while len(stand_ins) < partitions:
        stand_ins.setdefault(_hash(candidate) % partitions, candidate)
        candidate += 1
    chosen = F.array(*(F.lit(stand_ins[at]) for at in range(partitions)))
    return frame.repartition(partitions, F.element_at(chosen, number.cast("int") + 1))


def _hash(value: int) -> int:
    """Spark's hash of an integer of 32 bits (Murmur3 with seed 42), as a signed one."""
    mask = 0xFFFFFFFF

    def turned(word: int, bits: int) -> int:
        return (word << bits | word >> (32 - bits)) & mask

    word = turned(value * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    mixed = (turned(42 ^ word, 13) * 5 + 0xE6546B64 & mask) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & mask
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & mask
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


# Schemas


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a DataFrame's rows, as ``flow.input(…, schema=…)`` takes it.

    Reason: ``DataFrame.toArrow`` would run the query. The conversion has a parameter
    ``timezone`` in some versions only.
    Missing: an error.

    >>> arrow_schema(spark.sql("select current_timestamp() as ts, 'a' as word").schema)
    ts: timestamp[us, tz=UTC] not null
    word: string not null
    """
    with private("pyspark.sql.pandas.types.to_arrow_schema"):
        from pyspark.sql.pandas.types import to_arrow_schema

        asks = "timezone" in inspect.signature(to_arrow_schema).parameters
    options: dict[str, Any] = {"timezone": "UTC"} if asks else {}
    found: pa.Schema = to_arrow_schema(schema, **options)
    return found


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of a table's rows.

    Reason: ``mapInArrow`` wants one, and ``createDataFrame`` of an empty table asks the JVM.
    Missing: an error.

    >>> spark_schema(pa.schema([("n", pa.int16()), ("word", pa.large_string())])).simpleString()
    'struct<n:smallint,word:string>'
    """
    with private("pyspark.sql.pandas.types.from_arrow_schema"):
        from pyspark.sql.pandas.types import from_arrow_schema
    # Before 4.1, times without a zone were taken for those of the session.
    found: StructType = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return found


def watermark_delay(column: StructField) -> int | None:
    """The milliseconds of a DataFrame's ``withWatermark`` on a column, if it has one.

    Reason: an input without ``lateness=`` takes the delay of its DataFrame.
    Missing: ``None``, as without a watermark.

    >>> stream = spark.readStream.format("rate").load().withWatermark("timestamp", "2 seconds")
    >>> [watermark_delay(column) for column in stream.schema]
    [2000, None]
    """
    delay = column.metadata.get("spark.watermarkDelayMs")
    return None if delay is None else int(delay)


# Streaming queries


@dataclass(frozen=True)
class RunningQuery:
    """A streaming query that runs now."""

    location: QueryLocation
    sink: str = ""
    """Spark's name of the sink."""
    mode: str = "Append"
    first_offsets: Callable[[], Sequence[str | None]] = tuple
    """Where each of the sources began, as far as they know."""


def running_query(spark: SparkSession, query: str, state: str | None) -> RunningQuery:
    """The facts of a query that runs in a session, by its id.

    Reason: workers keep their state under the query's checkpoint location, by default, and
    whether a micro-batch can be repeated depends on the sink. A ``StreamingQuery`` has neither.
    Missing: an error.
    """
    found: Any = spark.streams.get(query)
    if found is None:
        raise GraphError(f"query {query} is not active in this session")
    with private("StreamingQuery._jsq.streamingQuery"):
        inside = found._jsq.streamingQuery()
        location = QueryLocation(str(inside.resolvedCheckpointRoot()), state, query)
        sink, mode = str(inside.sink().toString()), str(inside.outputMode().toString())

    def first_offsets() -> list[str | None]:
        with private("StreamExecution.sources"):
            sources = inside.sources()
            return [_first_offset(sources.apply(at)) for at in range(sources.size())]

    return RunningQuery(location, sink, mode, first_offsets)


def _first_offset(source: Any) -> str | None:
    try:
        return str(source.initialOffset().json())
    except Py4JError:
        # Sources of the older kind do not have it.
        return None


def skips_repeated_batches(sink: str) -> bool:
    """Whether a sink takes no micro-batch a second time, so that Spark does not even run it.

    Reason: a flow cannot restore its state by repeating a micro-batch that Spark leaves out.
    Missing: a sink with another name is taken for one that accepts a micro-batch again.

    >>> skips_repeated_batches("FileSink[/data/out]"), skips_repeated_batches("MemorySink")
    (True, False)
    """
    return sink.startswith("FileSink")


@dataclass(frozen=True)
class BatchId:
    """The names of a micro-batch: of its query, of that one's run, and its number."""

    query: str
    run: str
    number: int


def micro_batch_of(context: BarrierTaskContext) -> BatchId:
    """The micro-batch that a task belongs to.

    Reason: state is kept by query and micro-batch, which Spark passes to its tasks in local
    properties without documenting their names.
    Missing: an error, as where no streaming query runs the stage.
    """
    names = "sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"
    query, run, number = (context.getLocalProperty(name) for name in names)
    if query is None or run is None or number is None:
        raise JetonError(
            "this stage was planned for a streaming query, but is not run by one, or this version "
            f"of Spark ({__version__}) does not set the local properties {', '.join(names)}"
        )
    return BatchId(query, run, int(number))


# Errors

_CAUSE: Final = "_jeton_cause"
"""The cause that an exception had before PySpark raised it without."""
_FIND: Final = "_jeton_find"

Find = Callable[[str], Failure | None]
"""Returns the failure that a text comes from, if it is known."""


def dumps_by_value(value: object) -> bytes:
    """Pickle a value with the classes that other processes cannot import.

    Reason: an exception of a class that was defined in a notebook is the same class again at the
    driver. PySpark ships cloudpickle for its own use.
    Missing: plain pickle, so that the text alone stands for such an exception.
    """
    try:
        with private("pyspark.cloudpickle"):
            from pyspark.cloudpickle import dumps
    except MissingInternal:
        return pickle.dumps(value)
    return bytes(dumps(value))  # type: ignore[no-untyped-call]


def ship_by_value(module: ModuleType) -> bool:
    """Have the functions and classes of a module travel with tasks; returns whether they do.

    Reason: executors cannot import a file that was named on a command line. PySpark ships
    cloudpickle for its own use.
    Missing: executors have to find the module themselves.
    """
    try:
        with private("pyspark.cloudpickle.register_pickle_by_value"):
            from pyspark.cloudpickle import register_pickle_by_value
    except MissingInternal:
        return False
    register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return True


def hide_traceback() -> None:
    """Have PySpark's worker pass on the text of its next error without its own traceback.

    The process ends with that error, so that no other task is concerned.

    Reason: the text has the traceback of the user's code already.
    Missing: the text begins with the traceback of PySpark's worker.
    """
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def raise_user_errors(find: Find) -> bool:
    """Have PySpark raise the exceptions of user code themselves; returns whether it was possible.

    Reason: a worker's exception reaches the driver as text inside a Java exception, which PySpark
    turns into one of its own classes. This extends that step: a text that ``find`` knows becomes
    the user's exception again.
    Missing: Spark's own exception, whose text begins with the cause.
    """
    try:
        with private("pyspark.errors.exceptions.captured"):
            from pyspark.errors.exceptions import captured

            if not hasattr(captured, _FIND):
                convert, query_error = captured.convert_exception, captured.StreamingQueryException
                captured.convert_exception = _converting(convert, captured)
                query_error.__init__ = _with_cause(query_error.__init__, captured)  # type: ignore[method-assign]
                captured.capture_sql_exception = _chaining(captured.capture_sql_exception)
                # It wraps what Py4J calls; each new session does so again.
                captured.install_exception_handler()
            setattr(captured, _FIND, find)
    except MissingInternal as error:
        log.info("errors of user code are raised as Spark does: %s", error)
        return False
    return True


def _converting(original: Any, captured: Any) -> Any:
    """PySpark's function that makes a Python exception of a Java one, extended."""

    @functools.wraps(original)
    def convert(java: Any) -> Any:
        converted = original(java)
        if isinstance(converted, captured.StreamingQueryException):
            # Users expect this class; it has the cause.
            return converted
        return _cause_of(converted, captured) or converted

    return convert


def _chaining(original: Any) -> Any:
    """PySpark's wrapper around calls of Java, which raises ``from None``, with the cause again."""

    @functools.wraps(original)
    def capture(function: Any) -> Any:
        captured = original(function)

        @functools.wraps(captured)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return captured(*args, **kwargs)
            except Exception as error:
                cause = getattr(error, _CAUSE, None)
                if cause is not None:
                    error.__cause__ = cause
                raise

        return call

    return capture


def _with_cause(original: Any, captured: Any) -> Any:
    """The constructor of a streaming query's exception, which then begins with the cause."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        cause = _cause_of(self, captured)
        if cause is not None:
            notes = "\n".join(getattr(cause, "__notes__", ()))
            first, *_ = str(self._desc).splitlines() or [""]
            self._desc = f"{cause}\n\n{notes}\n\n{first}"
            self.__cause__ = cause
            setattr(self, _CAUSE, cause)

    return init


def _cause_of(converted: Any, captured: Any) -> JetonError | None:
    """The failure that an exception of PySpark's comes from, as an exception."""
    # Causes went through the same conversion.
    cause = getattr(converted, "_cause", None)
    if isinstance(cause, JetonError):
        return cause
    failure = getattr(captured, _FIND)(str(getattr(converted, "_desc", "")))
    if failure is None:
        return None
    error: JetonError = failure.exception()
    setattr(error, _CAUSE, error.__cause__)
    return error
