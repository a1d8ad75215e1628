"""The event log: every invocation or every second, in files that are rotated and can be read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import GraphError, JetonError
from jeton.inspector.events import read_events, replay_frontiers, summarise
from jeton.runtime import event_log
from jeton.runtime.event_log import EventWriter, LogSettings, SampledLog
from jeton.runtime.monitor import Observation


def counting() -> jt.Flow:
    flow = jt.Flow("counting")
    flow.output("counts", flow.input("n", lateness=0).key_by("k").tumbling(10).count())
    return flow


def test_a_full_log_has_every_invocation(tmp_path: Path) -> None:
    with counting().open(workers=2) as run:
        run.log_events(tmp_path, full=True)
        for time in range(0, 50, 5):
            run.input("n").send({"time": [time, time], "k": ["a", "b"]})
            run.input("n", worker=1).advance_to(time)
            run.run_to_rest()
        invocations = sum(each.invocations for w in run.workers for each in w.operators)
        made = sum(len(batch) for batch in run._collected("counts"))
    events = read_events(tmp_path)
    assert events.num_rows == invocations
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "worker-0-000001.arrow",
        "worker-1-000001.arrow",
    ]
    summary = {each["operator"]: each for each in summarise(tmp_path)}
    assert summary["count"]["records_in"] == 20
    assert summary["counts"]["records_in"] == summary["count"]["records_out"] == made
    assert 0 < summary["count"]["longest"] <= summary["count"]["seconds"]
    clocks = events["clock"].to_pylist()
    assert clocks == sorted(clocks)


def test_frontiers_are_replayed_as_they_moved(tmp_path: Path) -> None:
    with counting().open() as run:
        run.log_events(tmp_path, full=True)
        for time in (3, 12, 25):
            run.input("n").send({"time": [time], "k": ["a"]})
            run.run_to_rest()
        run.finish()
    moves: list[list[int]] = []
    for _, frontiers in replay_frontiers(tmp_path):
        if "counts" in frontiers and frontiers["counts"] not in moves[-1:]:
            moves.append(frontiers["counts"])
    # As the output saw them: it is not invoked for a frontier alone.
    assert moves == [[10], [20], [30]]


def test_a_sampled_log_has_each_operator_at_each_look(tmp_path: Path) -> None:
    with counting().open(workers=2) as run:
        run.log_events(tmp_path)
        run.input("n").send({"time": [1, 2], "k": ["a", "b"]})
        run.run_to_rest()
        run.monitor.look()
    events = read_events(tmp_path).to_pylist()
    assert {event["kind"] for event in events} == {"sample"}
    assert {event["worker"] for event in events} == {0, 1}
    summary = {each["operator"]: each for each in summarise(tmp_path)}
    assert summary["count"]["records_in"] == 2
    inputs = [each for each in events if (each["operator"], each["worker"]) == ("n", 0)]
    assert json.loads(inputs[-1]["frontier"]) == [2]


def test_files_are_rotated_and_the_oldest_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "BATCH", 16)
    limit = 64 << 10
    with EventWriter(LogSettings(path=str(tmp_path), limit=limit), "driver") as writer:
        for number in range(20_000):
            name = f"operator {number % 7}"
            counts = (number * 7919, number, 0, 0)
            writer.add(float(number), 0, name, "sample", "[]", 0.0, *counts, None)
    files = sorted(tmp_path.iterdir())
    assert len(files) == event_log.FILES
    assert sum(file.stat().st_size for file in files) < 2 * limit
    numbers = read_events(tmp_path)["records_out"].to_pylist()
    assert numbers == list(range(numbers[0], 20_000))
    assert numbers[0] > 0


def test_a_log_goes_on_where_an_earlier_one_ended(tmp_path: Path) -> None:
    for number in range(2):
        with EventWriter(LogSettings(path=str(tmp_path)), "driver") as writer:
            writer.add(float(number), 0, "map", "sample", "[]", 0.0, number, 0, 0, 0, None)
    assert read_events(tmp_path)["records_in"].to_pylist() == [0, 1]


def test_what_was_written_before_a_crash_is_read(tmp_path: Path) -> None:
    writer = EventWriter(LogSettings(path=str(tmp_path)), "driver")
    for number in range(3):
        writer.add(float(number), 0, "map", "sample", "[]", 0.0, number, 0, 0, 0, None)
        writer.flush()
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    assert read_events(tmp_path)["records_in"].to_pylist() == [0, 1]
    writer.close()


def test_one_log_at_a_time_with_room_for_its_files(tmp_path: Path) -> None:
    with counting().open() as run:
        run.log_events(tmp_path, full=True)
        with pytest.raises(GraphError, match="writes an event log already"):
            run.log_events(tmp_path, full=True)
        with pytest.raises(GraphError, match="limit=8192 bytes or more, not 1"):
            run.log_events(tmp_path, limit=1)


def test_a_sampled_log_keeps_the_totals_of_all_attempts_and_drivers(tmp_path: Path) -> None:
    def observed(records: int, before: int) -> Observation:
        of_operator = {"name": "map", "tokens": 0, "queued": 0, "frontiers": [[records]]}
        metrics = {"operators": [{**of_operator, "records_in": records, "seconds": records / 8}]}
        earlier = {"operators": [{**of_operator, "records_in": before, "seconds": before / 8}]}
        reports = {0: {"metrics": metrics, "frontiers": {}}}
        return Observation(status="running", reports=reports, before={0: earlier})

    for _ in range(2):  # a driver that is started again goes on with the same folder
        log = SampledLog(LogSettings(path=str(tmp_path)))
        for records, before in ((100, 0), (160, 0), (16, 168), (24, 168)):
            log.take(observed(records, before))
        log.close()
    totals = read_events(tmp_path)["records_in"].to_pylist()
    assert totals == [100, 160, 184, 192] * 2
    [summary] = summarise(tmp_path)
    assert (summary["records_in"], summary["seconds"]) == (2 * 192, 2 * 24.0)


def test_a_file_of_something_else_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "worker-0-000001.arrow"
    for beginning in (b"", b"\xff\xff", b"\xff\xff\xff\xff\x80\x01"):
        file.write_bytes(beginning)  # a writer that came no further
        assert read_events(tmp_path).num_rows == 0
    file.write_bytes(b"something else")
    with pytest.raises(JetonError, match=r"worker-0-000001.arrow is not a file of an event log"):
        read_events(tmp_path)
    other = pa.schema({"n": pa.int64()})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, other) as writer:
        writer.write_table(pa.table({"n": [1]}))
    with pytest.raises(JetonError, match="not a file of an event log, or of another version"):
        summarise(tmp_path)
