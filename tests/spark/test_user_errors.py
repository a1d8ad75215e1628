"""Errors of user code on Spark: they reach the driver as what they are, after one run."""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.errors.exceptions import captured
from pyspark.sql import DataFrame, SparkSession

import jeton as jt
from jeton.cluster.failures import Failure
from jeton.connectors.sinks import DirectSink, SinkContext, Writer
from jeton.connectors.sources import Batches
from jeton.errors import JetonError, OperatorFailed, QueryFailed, UserError, WorkerFailed
from jeton.runtime.agent import Agent
from jeton.spark import Frames
from jeton.spark.application import Application
from jeton.spark.streaming import on_stream
from jeton.spark.tasks import SparkBatches, SparkLeft

LIMIT = 300
PRICES: dict[str, int] = {}


class Runs:
    """Counts how many times user code came to a point, in any process."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "runs"
        self._file.touch()

    def note(self) -> None:
        with self._file.open("a") as file:
            file.write("x")

    def __len__(self) -> int:
        return self._file.stat().st_size


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def judging(judge: Callable[[jt.Batch], Any]) -> jt.Flow:
    """A flow whose function gets all records on one worker."""
    flow = jt.Flow("judged")
    numbers = flow.input("n", time="id", schema={"k": int})
    flow.output("n", numbers.exchange("k").filter(judge, name="judging"))
    return flow


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(100).selectExpr("id", "7 as k")


def judged(spark: SparkSession, judge: Callable[[jt.Batch], Any], **options: Any) -> DataFrame:
    frames: Frames = judging(judge).on_spark({"n": numbers(spark)}, workers=2, **options)
    return frames["n"]


ACTIONS: dict[str, Callable[[DataFrame, Path], object]] = {
    "collect": lambda frame, _: frame.collect(),
    "toPandas": lambda frame, _: frame.toPandas(),
    "toArrow": lambda frame, _: frame.toArrow(),
    "write": lambda frame, path: frame.write.parquet(str(path / "out")),
}
IN_CI = ("collect", "toPandas")


# PySpark itself warns of every error in toPandas.
@pytest.mark.filterwarnings("ignore:toPandas attempted Arrow optimization:UserWarning")
@pytest.mark.parametrize(
    "action",
    [
        pytest.param(act, id=name, marks=() if name in IN_CI else pytest.mark.long)
        for name, act in ACTIONS.items()
    ],
)
def test_the_driver_raises_the_user_s_own_exception(
    spark: SparkSession, runs: Runs, tmp_path: Path, action: Callable[[DataFrame, Path], object]
) -> None:
    class Refused(Exception):
        def __init__(self, price: int) -> None:
            super().__init__(price)
            self.price = price

    def refuse(batch: jt.Batch) -> Any:
        if len(batch):
            runs.note()
            raise Refused(12)
        return batch.times >= 0

    with pytest.raises(OperatorFailed) as caught:
        action(judged(spark, refuse), tmp_path)
    assert len(runs) == 1
    error = caught.value
    assert isinstance(error.__cause__, Refused)
    assert error.__cause__.price == 12
    assert error.operator == "judging"
    where = f"[operator 'judging', worker {error.worker}, time {error.time}]"
    first, line = str(error).splitlines()
    assert first == f"Refused: 12 {where}"
    assert line.startswith("  at tests/spark/test_user_errors.py:")
    assert line.endswith(": raise Refused(12)")
    shown = "".join(traceback.format_exception(error))
    assert shown.count("in refuse") == 1, "the worker's traceback, once"
    assert "org.apache.spark" not in shown
    # The same as in this process.
    with pytest.raises(OperatorFailed) as caught:
        judging(refuse).run({"n": {"id": [0], "k": [7]}})
    assert str(caught.value).splitlines() == [
        "Refused: 12 [operator 'judging', worker 0, time 0]",
        line,
    ]


@pytest.mark.parametrize(
    ("leave", "text"),
    [
        pytest.param(lambda: sys.exit(3), "SystemExit(3)", id="exit"),
        pytest.param(
            lambda: signal.raise_signal(signal.SIGINT),
            "KeyboardInterrupt()",
            id="interrupt",
            marks=pytest.mark.long,
        ),
        pytest.param(
            lambda: (_ for _ in ()).throw(GeneratorExit),
            "GeneratorExit()",
            id="generator",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_is_no_exception_is_told_as_what_it_is(
    spark: SparkSession, runs: Runs, leave: Callable[[], object], text: str
) -> None:
    def judge(batch: jt.Batch) -> Any:
        if len(batch):
            runs.note()
            leave()
        return batch.times >= 0

    with pytest.raises(OperatorFailed) as caught:
        judged(spark, judge).collect()
    error = caught.value
    where = f"[operator 'judging', worker {error.worker}, time {error.time}]"
    assert str(error).startswith(f"{text} {where}\n  at ")
    assert repr(error.__cause__) == text
    assert len(runs) == 1


def test_another_action_runs_user_code_again(spark: SparkSession, runs: Runs) -> None:
    def judge(batch: jt.Batch) -> Any:
        if len(batch):
            runs.note()
            if len(runs) == 1:
                raise OSError("the service is away")
        return batch.times >= 0

    frame = judged(spark, judge)
    with pytest.raises(OperatorFailed, match="the service is away"):
        frame.collect()
    assert frame.count() == 100
    assert len(runs) > 1


def test_further_attempts_get_the_first_cause_and_run_nothing(
    spark: SparkSession, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Spark cannot be asked to give the stage up."""
    monkeypatch.setattr(Application.of(spark).rendezvous, "on_final", None)

    def judge(batch: jt.Batch) -> Any:
        if len(batch):
            runs.note()
            raise ValueError("no")
        return batch.times >= 0

    with pytest.raises(OperatorFailed, match="ValueError: no"):
        judged(spark, judge).collect()
    assert len(runs) == 1


def test_a_worker_that_is_killed_is_worth_another_attempt(spark: SparkSession, runs: Runs) -> None:
    def judge(batch: jt.Batch) -> Any:
        if len(batch):
            runs.note()
            if len(runs) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return batch.times >= 0

    assert len(judged(spark, judge).collect()) == 100
    assert len(runs) > 1


class Bound(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("it stays here")


class Particular(Exception):
    def __init__(self, text: str, *, price: int) -> None:
        super().__init__(f"{text} {price}")


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (Bound("to this process"), "Bound: to this process"),
        (Particular("about", price=3), "Particular: about 3"),
        (ValueError("x" * 100_000), "ValueError: xxx"),
        (ValueError("→" * 100_000), "ValueError: →→→"),
    ],
    ids=["cannot be pickled", "cannot be made again", "large", "large as JSON"],
)
def test_an_exception_that_cannot_travel_is_told(cause: Exception, text: str) -> None:
    failed = OperatorFailed.because(cause).located(operator="judging")
    sent = json.dumps(Failure.of(failed, worker=1).to_json())
    assert len(sent) < 2**16
    failure = Failure.from_json(json.loads(sent))
    error = failure.exception()
    assert str(error).startswith(text)
    assert str(error).endswith("[operator 'judging', worker 1]")
    assert len(str(error)) < 10_000
    assert isinstance(error, OperatorFailed)
    assert isinstance(error.__cause__, UserError)
    assert text in str(error.__cause__)


class Mute(Exception):
    def __str__(self) -> str:
        raise LookupError("no words")


LONG = "y" * 2_000_000


def raising(cause: Exception) -> Callable[[jt.Batch], Any]:
    def judge(batch: jt.Batch) -> Any:
        if len(batch):
            raise cause
        return batch["k"] > 0

    return judge


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (Mute(), "Mute: its text cannot be had: LookupError('no words')"),
        (ValueError(LONG), "ValueError: yyy"),
    ],
    ids=["no text", "a very long text"],
)
def test_an_exception_whose_text_is_of_no_use_is_raised_at_the_driver(
    spark: SparkSession, cause: Exception, text: str
) -> None:
    with pytest.raises(OperatorFailed) as caught:
        judged(spark, raising(cause)).collect()
    assert str(caught.value).startswith(text)
    assert len(str(caught.value)) < 10_000
    assert caught.value.operator == "judging"
    assert type(caught.value.__cause__) in (type(cause), UserError)


def test_without_the_hook_spark_s_own_error_has_the_text(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    Application.of(spark)
    own = inspect.unwrap(captured.convert_exception)
    monkeypatch.setattr(captured, "convert_exception", own)

    with pytest.raises(Exception, match="KeyError: 'price'") as caught:
        judged(spark, refuse).collect()
    assert not isinstance(caught.value, JetonError)
    assert "test_user_errors.py" in str(caught.value)


def test_spark_may_need_no_more_rows(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Failure] = []
    server = Application.of(spark).rendezvous
    monkeypatch.setattr(server.failures, "record", lambda *said: failures.append(said[-1]))
    flow = jt.Flow("long")
    flow.output("n", flow.input("n", time="id", schema={}))
    frame = flow.on_spark({"n": spark.range(1_000_000)}, workers=1, shuffle=False)["n"]
    assert frame.limit(5).count() == 5
    assert not failures


@pytest.mark.parametrize(
    "error", [ConnectionResetError(), OSError("Expected to be able to read 9 bytes, got 7")]
)
def test_a_connection_that_ends_within_a_batch_means_that_spark_has_left(error: OSError) -> None:
    def cut(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise error

    with closing(Agent(jt.Flow("cut"))) as agent:
        feed = SparkBatches(agent, [], (), cut([]))
        with pytest.raises(SparkLeft, match="needs no more rows"):
            feed.read(busy=False)


def test_an_error_outside_of_operators_names_the_worker() -> None:
    failure = Failure.of(OSError("no route"), worker=1)
    assert failure.summary.startswith("OSError: no route [worker 1]")
    assert not failure.final
    error = failure.exception()
    assert isinstance(error, WorkerFailed)
    assert isinstance(error.__cause__, OSError)


def test_a_micro_batch_fails_once_with_the_cause(
    spark: SparkSession, runs: Runs, tmp_path: Path
) -> None:
    def judge(batch: jt.Batch) -> Any:
        if len(batch):
            runs.note()
            raise ValueError("too dear")
        return batch.times >= 0

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    stream = source.selectExpr("value as id", "7 as k")
    frames = judging(judge).on_spark({"n": stream}, workers=2)
    writer = frames["n"].writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    for attempt in (1, 2):
        query = writer.start()
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination()
        assert len(runs) == attempt, "started again, it runs again"
    failure = query.exception()
    assert failure is not None
    for error in (caught.value, failure):
        first, line, *rest = str(error).splitlines()
        assert first.startswith("ValueError: too dear [operator 'judging', worker ")
        assert line.endswith(': raise ValueError("too dear")')
        assert "\n".join(rest).count("in judge") == 1
        cause = error.__cause__
        assert isinstance(cause, OperatorFailed)
        assert isinstance(cause.__cause__, ValueError)


def look_at(rows: DataFrame, batch: int) -> None:
    rows.collect()


def test_an_error_in_a_micro_batch_with_several_outputs(
    spark: SparkSession, runs: Runs, tmp_path: Path
) -> None:
    def judge(batch: jt.Batch) -> Any:
        if len(batch):
            runs.note()
            sys.exit("out of stock")
        return batch.times >= 0

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    stream = source.selectExpr("value as id", "7 as k")
    query = on_stream(judging(judge), {"n": stream}, workers=2).write_stream(
        {"n": look_at}, checkpoint=tmp_path / "checkpoint"
    )
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    assert str(caught.value).startswith("SystemExit('out of stock') [operator 'judging', worker ")
    assert isinstance(caught.value.__cause__, OperatorFailed)
    assert len(runs) == 1


# Long-lived queries


def dried_up(partition: int, partitions: int) -> Iterator[Any]:
    yield {"id": [1], "k": [7]}
    sys.exit(3)


def endless(partition: int, partitions: int) -> Iterator[Any]:
    yield {"id": [1], "k": [7]}
    while True:
        yield None


class Full(DirectSink):
    def open(self, context: SinkContext) -> Writer:
        return FullWriter()


class FullWriter(Writer):
    def write(self, table: Any) -> None:
        raise KeyboardInterrupt

    def stage(self, version: int) -> list[Any]:
        return []


def accept(batch: jt.Batch) -> Any:
    return batch.times >= 0


def refuse(batch: jt.Batch) -> Any:
    return batch.times >= 0 if not len(batch) else PRICES["price"]


@pytest.mark.parametrize(
    ("judge", "source", "sinks", "text", "cause"),
    [
        pytest.param(accept, dried_up, {}, "SystemExit(3) while reading", SystemExit, id="source"),
        pytest.param(
            accept,
            endless,
            {"n": Full()},
            "KeyboardInterrupt() while writing",
            KeyboardInterrupt,
            id="sink",
            marks=pytest.mark.long,
        ),
        pytest.param(
            refuse, endless, {}, "KeyError: 'price' [operator 'judging'", KeyError, id="operator"
        ),
    ],
)
def test_a_long_lived_query_raises_with_the_user_s_exception(
    spark: SparkSession,
    judge: Callable[[jt.Batch], Any],
    source: Callable[[int, int], Iterator[Any]],
    sinks: dict[str, Any],
    text: str,
    cause: type[BaseException],
) -> None:
    query = judging(judge).start(
        spark, sources={"n": Batches(source, partitions=1)}, sinks=sinks, workers=2
    )
    with pytest.raises(QueryFailed) as caught:
        query.await_termination(LIMIT)
    error = query.exception()
    assert error is not None
    for found in (caught.value, error):
        first, line, *rest = str(found).splitlines()
        assert first.startswith(f"query 'judged' failed: {text}")
        assert "[operator " in first
        assert "worker " in first
        assert line.startswith("  at tests/spark/test_user_errors.py:")
        assert sum("Traceback (most" in other for other in rest) == 1
        assert isinstance(found.__cause__, cause)
