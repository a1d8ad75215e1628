"""Internals of Spark: each use on the PySpark that is installed, and where it is missing.

`make matrix` runs this on other versions of PySpark.
"""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import InheritableThread, daemon
from pyspark.errors.exceptions import captured
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as F

from jeton.cluster.failures import Failure
from jeton.errors import GraphError, JetonError
from jeton.spark import internals
from jeton.spark.internals import MissingInternal
from jeton.spark.plans import only_passes_on
from tests.spark.gated import until

NONE: Any = SimpleNamespace()
"""An object of Spark's without any of its private parts."""


def rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()


def test_a_part_is_missing_only_if_it_is_not_there(spark: SparkSession) -> None:
    """An error that it raises itself does not count."""
    java: Any = spark.sparkContext._jsc
    with (
        pytest.raises(MissingInternal, match=r"has no noSuchMethod .*: use another"),
        internals.private("noSuchMethod", "use another"),
    ):
        java.noSuchMethod()
    jvm: Any = spark.sparkContext._jvm
    with pytest.raises(Py4JJavaError, match="No value present"), internals.private("Optional.get"):
        jvm.java.util.Optional.empty().get()


def test_slots(spark: SparkSession) -> None:
    assert internals.slots_of(spark.sparkContext) == 4
    assert internals.slots_of(NONE) is None


def test_executors_that_leave(spark: SparkSession, tmp_path: Path) -> None:
    """Here none does; tests/spark/test_decommission.py has a cluster where one does."""
    context: Any = spark.sparkContext

    def job() -> None:
        context.addJobTag("stays")
        spark.range(2, numPartitions=2).mapInArrow(waiting, "id long").collect()

    def waiting(batches: Any) -> Any:
        until((tmp_path / "looked").exists, "the look at the executors")
        yield from batches

    thread = InheritableThread(target=job, session=spark)
    thread.start()
    store, tracker = context._jsc.sc().statusStore(), context._jsc.sc().statusTracker()

    def used() -> set[str]:
        return {
            executor
            for number in tracker.getJobIdsForTag("stays")
            for stage in context.statusTracker().getJobInfo(number).stageIds
            for executor in internals.executors_of(store, stage)
        }

    until(lambda: used() == {"driver"}, "tasks")
    assert internals.leaving_executors(context, "stays") == []
    (tmp_path / "looked").touch()
    thread.join()
    assert internals.executors_of(store, 1 << 30) == set()
    assert internals.leaving_executors(NONE, "stays") is None


def test_settings_for_stores(spark: SparkSession, tmp_path: Path) -> None:
    given = {
        "fs.s3a.endpoint": "127.0.0.1:9000",
        "fs.s3a.secret.key": "hush",
        "fs.s3a.bucket.logs.session.token": "token, with a comma",
        "yarn.scheduler.class": "left out",
    }
    for key, value in given.items():
        spark.conf.set(key, value)
    try:
        found = internals.hadoop_settings(spark)
    finally:
        for key in given:
            spark.conf.unset(key)
    del given["yarn.scheduler.class"]
    assert given.items() <= found.items()
    assert all(key.startswith(internals.STORES) for key in found)
    # Hadoop has hundreds of defaults.
    assert len(found) < 60
    assert "fs.s3a.secret.key" not in internals.hadoop_settings(spark)


def test_secrets_of_a_credential_provider(spark: SparkSession, tmp_path: Path) -> None:
    path, name = (
        f"localjceks://file{tmp_path}/keys.jceks",
        "hadoop.security.credential.provider.path",
    )
    context: Any = spark.sparkContext
    jvm = context._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration()
    conf.set(name, path)
    provider = jvm.org.apache.hadoop.security.alias.CredentialProviderFactory.getProviders(conf)[0]
    secret = context._gateway.new_array(jvm.char, 4)
    for at, letter in enumerate("hush"):
        secret[at] = letter
    provider.createCredentialEntry("fs.s3a.secret.key", secret)
    provider.flush()
    spark.conf.set(name, path)
    try:
        assert internals.hadoop_settings(spark)["fs.s3a.secret.key"] == "hush"
    finally:
        spark.conf.unset(name)


def test_settings_for_stores_where_the_session_has_no_parts(spark: SparkSession) -> None:
    known = [("spark.hadoop.fs.s3a.endpoint", "a"), ("spark.ui.enabled", "false")]
    conf = SimpleNamespace(getAll=lambda: known)
    without: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    assert internals.hadoop_settings(without) == {"fs.s3a.endpoint": "a"}
    # A client of Spark Connect has the settings of its server.
    client: Any = SimpleNamespace(conf=SimpleNamespace(getAll=dict(known)))
    assert internals.hadoop_settings(client) == {"fs.s3a.endpoint": "a"}


def test_the_address_of_a_client_of_spark_connect() -> None:
    client: Any = SimpleNamespace(client=SimpleNamespace(host="127.0.0.1"))
    assert internals.client_address(client) == "127.0.0.1"
    with pytest.raises(MissingInternal, match=r"set spark\.jeton\.client\.host"):
        internals.client_address(NONE)


def test_a_stage_is_cancelled_with_its_cause(spark: SparkSession) -> None:
    failure = Failure.of(ValueError("no"), worker=1)
    internals.cancel_stage(spark.sparkContext, 1 << 30, failure)  # there is no such stage
    internals.cancel_stage(NONE, 1, failure)


def test_the_daemon_forks_workers_that_have_jeton(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parents(batches: Any) -> Any:
        for _ in batches:
            command = Path(f"/proc/{os.getppid()}/cmdline").read_text()
            has = {"loaded": ["jeton" in sys.modules], "frozen": [gc.get_freeze_count()]}
            yield pa.RecordBatch.from_pydict({"parent": [command], **has})

    columns = "parent string, loaded boolean, frozen long"
    rows = spark.range(0, 1, 1, 1).mapInArrow(parents, columns).collect()
    assert all("jeton.spark.daemon" in row.parent and row.loaded for row in rows)
    # What the daemon has imported is not collected anew after each task.
    assert all(row.frozen > 100_000 for row in rows)
    monkeypatch.delattr(daemon, "manager")
    assert internals.daemon_settings() == {}


def test_partitions_are_known_without_a_run(spark: SparkSession) -> None:
    numbers = spark.range(0, 10, 1, 3)
    assert internals.partitions_of(numbers.selectExpr("id + 1 as id")) == 3
    for unknown in (numbers.repartition(2), numbers.coalesce(1), numbers.union(numbers)):
        assert internals.partitions_of(unknown) is None
    assert internals.partitions_of(NONE) is None


def test_the_size_of_a_dataframe_is_estimated_without_a_run(spark: SparkSession) -> None:
    numbers = spark.range(0, 1000, 1, 3)
    assert internals.size_of(numbers.where("id > 990")) == 8000
    for unknown in (numbers.crossJoin(numbers), numbers.selectExpr("explode(array(id, id))")):
        assert internals.size_of(unknown) is None
    assert internals.size_of(NONE) is None


def test_operators_of_a_stream(spark: SparkSession) -> None:
    stream = rate(spark)
    plain = stream.where("value > 3").select("value")
    assert internals.operators_of(plain) == {"Filter", "Project", "StreamingRelationV2"}
    assert only_passes_on(plain)
    counts = stream.groupBy("value").count()
    assert "Aggregate" in (internals.operators_of(counts) or ())
    assert not only_passes_on(counts)
    assert internals.operators_of(NONE) is None
    assert not only_passes_on(NONE)


def test_rows_of_each_micro_batch(spark: SparkSession) -> None:
    made = internals.as_stream(spark.range(3))
    assert made.isStreaming
    assert made.columns == ["id"]
    frame: Any = SimpleNamespace(sparkSession=NONE, _jdf=spark.range(3)._jdf)
    with pytest.raises(GraphError, match=r"internalCreateDataFrame .*repartition=False"):
        internals.as_stream(frame)


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_rows_go_to_the_partition_of_a_number(spark: SparkSession, partitions: int) -> None:
    numbers = spark.range(20)
    # As in versions without `repartitionById`.
    older: Any = SimpleNamespace(repartition=numbers.repartition)
    for frame in (numbers, older):
        found = internals.by_number(frame, partitions, F.col("id") % partitions)
        for row in found.select("id", F.spark_partition_id().alias("at")).collect():
            assert row["at"] == row["id"] % partitions


def test_schemas_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int16()), ("s", pa.string())])
    assert internals.arrow_schema(internals.spark_schema(schema)) == schema
    monkeypatch.setitem(sys.modules, "pyspark.sql.pandas.types", None)
    with pytest.raises(GraphError, match="to_arrow_schema"):
        internals.arrow_schema(types.StructType())
    with pytest.raises(GraphError, match="from_arrow_schema"):
        internals.spark_schema(schema)


def test_the_delay_of_a_watermark(spark: SparkSession) -> None:
    stream = rate(spark).withWatermark("timestamp", "90 seconds")
    delays = {column.name: internals.watermark_delay(column) for column in stream.schema}
    assert delays == {"timestamp": 90_000, "value": None}


def test_a_running_query_and_its_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    """The driver sees the query, and its tasks the micro-batch."""

    def names(batches: Any) -> Any:
        from pyspark import BarrierTaskContext

        for _ in batches:
            batch = internals.micro_batch_of(BarrierTaskContext.get())
            yield pa.RecordBatch.from_pydict({"query": [batch.query], "n": [batch.number]})

    frame = rate(spark).repartition(1).mapInArrow(names, "query string, n long", barrier=True)
    seen: list[Any] = []

    def write(rows: DataFrame, number: int) -> None:
        seen.extend((row.query, row.n, number) for row in rows.collect())

    query = (
        frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)).start()
    )
    try:
        found = internals.running_query(spark, str(query.id), None)
        until(lambda: len(seen) >= 2 or query.exception() is not None, "two micro-batches")
    finally:
        query.stop()
    assert Path(found.location.checkpoint.removeprefix("file:")) == tmp_path
    assert (found.mode, "ForeachBatch" in found.sink) == ("Append", True)
    assert len(found.first_offsets()) == 1
    assert all(row == (str(query.id), row[2], row[2]) for row in seen)
    assert found.location.log.query == str(query.id)
    assert found.location.log.done[:1] == [0]


def test_a_query_that_cannot_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = SimpleNamespace(streams=SimpleNamespace(get={"known": NONE}.get))
    with pytest.raises(GraphError, match=r"has no StreamingQuery\._jsq"):
        internals.running_query(spark, "known", None)
    with pytest.raises(GraphError, match="not active"):
        internals.running_query(spark, "unknown", None)
    context: Any = SimpleNamespace(getLocalProperty=lambda name: None)
    with pytest.raises(JetonError, match=r"not run by one, or .*streaming\.sql\.batchId"):
        internals.micro_batch_of(context)


def test_sinks_that_skip_repeated_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    sinks = {}
    for kind in ("parquet", "memory"):
        writer = rate(spark).writeStream.format(kind).queryName(f"skips_{kind}")
        writer = writer.option("checkpointLocation", str(tmp_path / kind))
        query = writer.start(*([str(tmp_path / "out")] if kind == "parquet" else []))
        try:
            sinks[kind] = internals.running_query(spark, str(query.id), None).sink
        finally:
            query.stop()
    skips = {kind: internals.skips_repeated_batches(sink) for kind, sink in sinks.items()}
    assert skips == {"parquet": True, "memory": False}


def test_classes_travel_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(Exception):
        pass

    Local.__module__ = "__main__"
    assert isinstance(pickle.loads(internals.dumps_by_value(Local("here"))), Exception)
    monkeypatch.setitem(sys.modules, "pyspark.cloudpickle", None)
    assert pickle.loads(internals.dumps_by_value(ValueError("no"))).args == ("no",)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        internals.dumps_by_value(Local("here"))


def test_functions_of_a_module_travel_with_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("named_on_a_command_line")
    exec("def double(n):\n    return 2 * n", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert internals.ship_by_value(module)
    pickled = internals.dumps_by_value(vars(module)["double"])
    monkeypatch.delitem(sys.modules, module.__name__)
    assert pickle.loads(pickled)(3) == 6
    monkeypatch.setitem(sys.modules, "pyspark.cloudpickle", None)
    assert not internals.ship_by_value(module)


def test_errors_of_user_code_are_raised_themselves(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = Failure.of(ZeroDivisionError("no ratio"), worker=1)
    before = getattr(captured, internals._FIND, lambda text: None)
    assert internals.raise_user_errors(lambda text: failure if "TABLE_OR_VIEW" in text else None)
    try:
        with pytest.raises(JetonError, match="no ratio") as caught:
            spark.table("there_is_none").collect()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(Exception, match="cannot be resolved"):
            spark.range(1).select("there_is_none").collect()
        wrapped = inspect.unwrap(captured.convert_exception)
        assert wrapped is not captured.convert_exception, "Spark's own is inside"
    finally:
        internals.raise_user_errors(before)
    monkeypatch.setitem(sys.modules, "pyspark.errors.exceptions.captured", None)
    monkeypatch.delattr("pyspark.errors.exceptions.captured")
    assert not internals.raise_user_errors(before)


def test_workers_can_hide_their_traceback(spark: SparkSession) -> None:
    def fails(batches: Any) -> Any:
        for _ in batches:
            internals.hide_traceback()
            raise ValueError("plain and simple")
        yield pa.RecordBatch.from_pydict({"id": [0]})

    with pytest.raises(Exception, match="plain and simple") as caught:
        spark.range(0, 1, 1, 1).mapInArrow(fails, "id long").collect()
    assert "worker.py" not in str(caught.value)
