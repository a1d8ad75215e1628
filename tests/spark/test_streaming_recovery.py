"""Structured Streaming goes on: after a replay, damage to its state, or a change of code."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import jeton as jt
from jeton.core.errors import SnapshotError
from jeton.spark.streaming import roll_back
from tests.spark.micro_batches import (
    LIMIT,
    Sink,
    Source,
    in_one_process,
    readings,
    rows,
    run,
    summing,
)


@pytest.fixture
def two_done(source: Source, tmp_path: Path) -> Sink:
    """Two micro-batches are done, and a third is there to come."""
    source.add(rows(0, count=60))
    source.add(rows(1, count=60))
    sink = Sink()
    run(summing(), source, sink, tmp_path / "checkpoint", workers=2)
    source.add(rows(2, count=60))
    return sink


def test_a_micro_batch_that_is_run_again_gives_the_same(
    source: Source, tmp_path: Path, two_done: Sink
) -> None:
    """As after a driver that died before it could say that the micro-batch was done."""
    (tmp_path / "checkpoint/commits/1").unlink()
    (tmp_path / "checkpoint/commits/.1.crc").unlink()
    run(summing(), source, two_done, tmp_path / "checkpoint", workers=3)
    assert two_done.again == 2
    expected = in_one_process(summing(), source.tables)
    assert {name: two_done.rows(name) for name in expected} == expected


@pytest.mark.parametrize("how", ["flipped", "truncated"])
def test_damaged_state_is_noticed_and_the_query_goes_back(
    source: Source, tmp_path: Path, two_done: Sink, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = tmp_path / "checkpoint"
    path = sorted((checkpoint / "jeton/summing/parts").iterdir())[-1]
    data = bytearray(path.read_bytes())
    if how == "flipped":
        # All over the file, some of which is in another file, too.
        data[::64] = bytes(byte ^ 1 for byte in data[::64])
    else:
        del data[-len(data) // 3 :]
    path.write_bytes(data)
    if how == "flipped":
        # A sink of Spark's own: the error says what to do.
        frame = summing().on_spark({"r": source.frame()}, workers=2)["sums"]
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        with pytest.raises(StreamingQueryException, match=r"(?s)is damaged.*roll_back"):
            query.awaitTermination(LIMIT)
    with caplog.at_level(logging.WARNING, "jeton.spark"):
        run(summing(), source, two_done, checkpoint, workers=2)
    assert "checkpoint 1 in" in caplog.text
    assert "micro-batch 1 again" in caplog.text
    assert two_done.again == 2
    expected = in_one_process(summing(), source.tables)
    assert {name: two_done.rows(name) for name in expected} == expected


def test_state_somewhere_else_is_mended_too(source: Source, tmp_path: Path) -> None:
    sink, checkpoint, state = Sink(), tmp_path / "checkpoint", tmp_path / "state"

    def take_all(batch: int) -> None:
        source.add(rows(batch, count=60))
        frames: Any = summing().on_spark({"r": source.frame()}, workers=2, checkpoint=state)
        query = frames.write_stream(
            {name: sink.writer(name) for name in frames},
            checkpoint=checkpoint,
            trigger={"availableNow": True},
        )
        assert query.awaitTermination(LIMIT)

    take_all(0)
    take_all(1)
    [manifest] = state.glob("*/summing/manifests/000000000001-*")
    manifest.write_bytes(b"{}")
    take_all(2)
    assert sink.again == 2
    expected = in_one_process(summing(), source.tables)
    assert {name: sink.rows(name) for name in expected} == expected


def test_a_sink_that_leaves_out_what_it_has_cannot_be_helped(
    source: Source, tmp_path: Path
) -> None:
    """Spark's file sink would have the micro-batch, and the flow would not run."""

    def take_all(batch: int) -> Any:
        source.add(rows(batch, count=60))
        frame = summing().on_spark({"r": source.frame()}, workers=2)["sums"]
        writer = frame.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.start(str(tmp_path / "out")).awaitTermination(LIMIT)

    assert take_all(0)
    for path in (tmp_path / "checkpoint/jeton/summing/parts").iterdir():
        path.write_bytes(b"")
    with pytest.raises(StreamingQueryException, match=r"(?s)is damaged.*start anew"):
        take_all(1)
    with pytest.raises(SnapshotError, match="leaves it out"):
        roll_back(tmp_path / "checkpoint")


def test_state_that_is_gone_is_an_error_and_no_fresh_start(
    source: Source, tmp_path: Path, two_done: Sink
) -> None:
    for path in (tmp_path / "checkpoint/jeton/summing/manifests").iterdir():
        path.unlink()
    frame = summing().on_spark({"r": source.frame()}, workers=2)["sums"]
    writer = frame.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match=r"state after micro-batch \d+ is damaged"):
        query.awaitTermination(LIMIT)


def test_changed_code(source: Source, tmp_path: Path, two_done: Sink) -> None:
    flow = jt.Flow("summing")
    r = readings(flow)
    flow.output("counts", r.key_by("who").running().count().select("who", "count"))
    flow.output("new", r.key_by("k").running().max("v"))
    sink = Sink()
    with pytest.raises(StreamingQueryException, match=r"allow_removed=\['sum'\]"):
        run(flow, source, sink, tmp_path / "checkpoint", workers=2)
    run(flow, source, sink, tmp_path / "checkpoint", workers=2, allow_removed=["sum"])
    expected = in_one_process(summing(), source.tables)["counts"]
    before = two_done.rows("counts")
    assert Counter(sink.rows("counts")) == Counter(expected) - Counter(before)
    assert len(sink.rows("new")) == 60
