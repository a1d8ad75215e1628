"""Long-lived queries with checkpoints go on: after a stop, with other workers or other code."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.cluster.checkpoint_committer import CheckpointCommitter
from jeton.connectors.sinks import Callback, Memory, Parquet
from jeton.connectors.sources import Batches, Reader, Source, numbered
from jeton.errors import GraphError, QueryFailed, SnapshotError
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.leases import Superseded
from tests.spark.gated import (
    LIMIT,
    PARTITIONS,
    ROWS,
    TABLES,
    Place,
    counting,
    expected,
    in_order,
    until,
    written,
)

# Going on


def test_rows_appear_with_the_checkpoint_that_covers_them(
    spark: SparkSession, place: Place
) -> None:
    came: list[pa.Table] = []
    memory = Memory()
    sinks = {"rolling": memory, "windows": Callback(came.append)}
    with place.start(spark, sinks=sinks) as query:
        place.read_to(query, 3)
        until(lambda: query.metrics()["rows_out"] >= 3 * ROWS, "rows")
        assert memory.table() is None
        assert not came
        assert query.checkpoint(LIMIT) == 1
        table = memory.table()
        assert table is not None
        assert in_order(table) == expected("rolling", 3)
        place.read_to(query, 4)
        assert query.checkpoint(LIMIT) == 2
        counts = query.metrics()["checkpoints"]
        assert (counts["version"], counts["taken"], counts["missed"], counts["restarts"]) == (
            2,
            2,
            0,
            0,
        )
        assert 0 < counts["pause_ms"] <= counts["longest_pause_ms"]
        assert counts["bytes"] > 0
        print(f"a pause of {counts['pause_ms']:.1f} ms")
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    table = memory.table()
    assert table is not None
    assert in_order(table) == expected("rolling")
    assert in_order(pa.concat_tables(came)) == expected("windows")


@pytest.mark.parametrize("workers", [(2, 3, 1), (1, 2, 2)])
def test_it_goes_on_with_any_number_of_workers(
    spark: SparkSession, place: Place, workers: Sequence[int]
) -> None:
    for at, count in enumerate(workers):
        with place.start(spark, workers=count) as query:
            if at < 2:
                place.read_to(query, 4 * (at + 1), before=4 * at)
                query.stop()
            else:
                place.gate.open_to(TABLES)
                assert query.await_termination(LIMIT)
    place.check()
    # Once more: there is nothing left to do, and nothing is done twice.
    with place.start(spark, workers=3) as query:
        assert query.await_termination(LIMIT)
    place.check()


def test_after_draining_it_is_at_its_end(spark: SparkSession, place: Place) -> None:
    with place.start(spark) as query:
        place.read_to(query, 5)
        query.stop(drain=True)
    assert written(place.windows) == expected("windows", 5)
    with place.start(spark) as query:
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    assert written(place.windows) == expected("windows", 5)


def test_a_query_is_known_by_its_checkpoint(spark: SparkSession, place: Place) -> None:
    """A second run takes over; the first cannot commit any more, and says why."""
    first = place.start(spark, name="first")
    place.read_to(first, 3)
    first.checkpoint(LIMIT)
    place.read_to(first, 4)
    second = place.start(spark, name="second")
    with pytest.raises(QueryFailed, match="another run has taken over the checkpoint"):
        first.checkpoint(LIMIT)
    assert first.status == "failed"
    assert first.metrics()["checkpoints"]["restarts"] == 0
    place.gate.open_to(TABLES)
    assert second.await_termination(LIMIT)
    place.check()


def test_whoever_was_superseded_does_not_take_over_again(tmp_path: Path) -> None:
    def committer() -> CheckpointCommitter:
        store = Checkpoints(tmp_path)
        known: dict[str, Any] = {"every": None, "keep": 2, "allow_removed": ()}
        return CheckpointCommitter(counting(), store, {}, lambda wait: False, **known)

    first, second = committer(), committer()
    assert first.recover().attempt == 1
    assert first.recover().attempt == 2, "after a failure"
    assert second.recover().attempt == 3
    with pytest.raises(Superseded):
        first.recover()
    with pytest.raises(Superseded):
        first.commit(1, {}, {}, 0.0)
    assert committer().recover().attempt == 4, "whoever is started anew does"


# Other code


def test_operators_may_be_added_and_removed_on_request(spark: SparkSession, place: Place) -> None:
    sinks = {"rolling": Parquet(place.rolling)}
    with place.start(spark, counting(windows=False), sinks=sinks) as query:
        place.read_to(query, 4)
    with pytest.raises(SnapshotError, match=r"say allow_removed=\['numbers', 'count'\]"):
        place.start(spark, jt.Flow("nothing"), sources={}, sinks={})
    # Windows are new: they know nothing of what was before.
    shutil.copytree(place.checkpoint, place.windows / "checkpoint")
    with place.start(spark) as query:
        place.read_to(query, 8, before=4)
    with pytest.raises(SnapshotError, match=r"say allow_removed=\['sum'\]"):
        place.start(spark, counting(windows=False), sinks=sinks)
    place.gate.open_to(TABLES)
    query = place.start(spark, counting(windows=False), sinks=sinks, allow_removed=["sum"])
    assert query.await_termination(LIMIT)
    assert written(place.rolling) == expected("rolling")
    sinks = {"windows": Parquet(place.windows / "new")}
    query = place.start(spark, checkpoint=place.windows / "checkpoint", sinks=sinks)
    assert query.await_termination(LIMIT)
    since = [row for row in expected("windows") if row[0] > 4 * ROWS * PARTITIONS]
    assert written(place.windows / "new") == since


def test_an_operator_that_is_another_now_is_an_error(spark: SparkSession, place: Place) -> None:
    with place.start(spark, sinks={}) as query:
        place.read_to(query, 2)
    flow = jt.Flow("counting")
    numbers = flow.input("numbers", schema={"k": int, "n": int}, lateness=8 * ROWS)
    flow.output("rolling", numbers.key_by("n").running().count())
    flow.output("windows", numbers.key_by("k").tumbling(100).sum("n"))
    query = place.start(spark, flow, sinks={})
    with pytest.raises(QueryFailed, match=r"SnapshotError: .* but this is 'running by n: count"):
        query.await_termination(LIMIT)


# What cannot take part


def test_what_is_not_a_sink_or_cannot_take_checkpoints_is_refused(
    spark: SparkSession, place: Place
) -> None:
    class Plain:
        def open(self, context: Any) -> Any: ...

    with pytest.raises(GraphError, match=r"sink of 'rolling' is .*, which is not a sink: "):
        place.start(spark, sinks={"rolling": Plain()})
    query = counting().start(spark, sources={"numbers": place.gate.source()})
    with pytest.raises(GraphError, match="start it with checkpoint="):
        query.checkpoint()
    query.stop()


class Mute(Reader):
    def read(self) -> Any:
        self.ended = True
        return {"time": [1], "k": [1], "n": [1]}


class MuteSource(Source):
    def partitions(self, workers: int) -> dict[str, None]:
        return numbered(workers)

    def open(self, partition: str, position: Any) -> Reader:
        return Mute()


def test_a_source_without_positions_is_refused(spark: SparkSession, place: Place) -> None:
    query = place.start(spark, sources={"numbers": MuteSource()})
    with pytest.raises(QueryFailed, match="input 'numbers' cannot tell its position"):
        query.await_termination(LIMIT)


def test_a_state_that_cannot_be_had_now_is_had_later(
    spark: SparkSession, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    class Moody:
        def __init__(self, worker: int) -> None:
            self.moods = 2 * worker

        def snapshot(self) -> pa.Table:
            self.moods -= 1
            if self.moods >= 0:
                raise SnapshotError("not now")
            return pa.table({"bin": pa.array([0], pa.uint16())})

        def restore(self, state: pa.Table, tokens: Any) -> None:
            pass

    def moody(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()
        info.keep(Moody(info.worker))
        return lambda input, output: [output.session(ref).give(batch) for ref, batch in input]

    flow = counting()
    flow.output("moody", flow.input("more").unary(moody, name="moody"))
    more = Batches(lambda partition, partitions: iter([{"time": [1]}]))
    sources = {"numbers": place.gate.source(), "more": more}
    with place.start(spark, flow, sources=sources) as query:
        place.read_to(query, 4)
        assert query.checkpoint(LIMIT) == 3
        assert query.metrics()["checkpoints"]["missed"] >= 2
        assert "checkpoint 2 of flow 'counting' was not taken: not now" in caplog.text
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    # What was staged for versions that were missed came with the next one.
    place.check()
