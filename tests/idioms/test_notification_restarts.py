"""Notifications over restarts: notified once, where the state is that they are about."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import UnaryStep
from tests.operators.twins import Schedule, assert_same, run_twin, schedules

import jeton as jt
from jeton.errors import SnapshotError
from jeton.idioms.notifications import Mode, Notificator, unary_notify


class Sums:
    """The sum of each time and key, kept by both."""

    def __init__(self, notificator: Notificator, info: jt.OperatorInfo) -> None:
        self.notificator = notificator
        self.sums: jt.state.KeyedValues[int] = jt.state.KeyedValues()
        info.keep(self.sums)

    def on_receive(self, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
        for time, part in batch.by_time():
            self.notificator.notify_at(ref, time, key=[part["key"], part.times])
            for row in part.rows():
                at = row["key"], time
                self.sums[at] = self.sums.get(at, 0) + row["n"]

    def on_notify(self, token: jt.TimestampToken, output: jt.Output) -> None:
        mine = [at for at in self.sums if at[1] == token.time]
        assert mine, "a worker without state is not notified"
        for key, time in mine:
            output.session(token).give(key=key, sum=self.sums.pop((key, time)))


rows = st.lists(
    st.fixed_dictionaries(
        {"time": st.integers(0, 9), "key": st.integers(0, 4), "n": st.integers(-9, 9)}
    ),
    min_size=1,
)


@pytest.mark.parametrize("mode", ["strict", "relaxed"])
@given(given=rows, on=schedules())
@settings(max_examples=25, deadline=None)
def test_sums_and_their_notifications_go_to_the_same_workers(
    mode: Mode, given: list[dict[str, int]], on: Schedule
) -> None:
    def build(flow: jt.Flow) -> None:
        stream = unary_notify(
            flow.input("rows"),
            Sums,
            pact=jt.Exchange("key", "time"),
            mode=mode,
            schema={"key": int, "sum": int},
        )
        assert stream.schema == pa.schema({"key": pa.int64(), "sum": pa.int64()})
        flow.output("sums", stream)

    sums: Counter[tuple[int, int]] = Counter()
    for row in given:
        sums[row["time"], row["key"]] += row["n"]
    expected = [{"time": t, "key": k, "sum": n} for (t, k), n in sums.items()]
    assert_same(run_twin(build, {"rows": given}, on)["sums"], expected)


def test_one_restart_after_the_other() -> None:
    flow = jt.Flow("sums")
    pact = jt.Exchange("key", "time")
    flow.output("sums", unary_notify(flow.input("rows"), Sums, pact=pact))
    keys = list(range(10))
    with flow.open(workers=2) as run:
        run.input("rows").send({"time": [5] * 10, "key": keys, "n": keys})
        run.run_to_rest()
        snapshot = run.snapshot()
    for workers in (3, 4):
        with flow.open(workers=workers, restore=snapshot) as run:
            run.run_to_rest()
            snapshot = run.snapshot()
    with flow.open(workers=1, restore=snapshot) as run:
        assert sorted(run.finish()["sums"]["sum"].to_pylist()) == keys


class Ticks:
    """Has nothing to keep but what it asked for."""

    def __init__(self, notificator: Notificator, info: jt.OperatorInfo) -> None:
        self.notificator = notificator
        self.worker = info.worker

    def on_receive(self, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
        for time, _ in batch.by_time():
            self.notificator.notify_at(ref, time)

    def on_notify(self, token: jt.TimestampToken, output: jt.Output) -> None:
        output.session(token).give(worker=self.worker)


def ticking(run: jt.Run) -> None:
    run.input("in").send({"time": [5, 6, 5], "n": [0, 0, 0]})
    run.run_to_rest()


def test_without_keys_the_first_worker_is_notified() -> None:
    flow = jt.Flow("ticks")
    flow.output("ticks", unary_notify(flow.input("in"), Ticks, pact=jt.Gather()))
    with flow.open(workers=2) as run:
        ticking(run)
        snapshot = run.snapshot()
    with flow.open(workers=3, restore=snapshot) as run:
        run.input("in").send({"time": [6], "n": [0]})
        result = run.finish()["ticks"]
    assert result.to_pylist() == [{"time": 5, "worker": 0}, {"time": 6, "worker": 0}]


def test_a_snapshot_needs_keys_where_records_go_by_key() -> None:
    flow = jt.Flow("ticks")
    flow.output("ticks", unary_notify(flow.input("in"), Ticks, pact=jt.Exchange("n"), name="op"))
    with flow.open(workers=2) as run:
        ticking(run)
        with pytest.raises(SnapshotError, match=r"at 5, 6 were asked for without a key.*'op'"):
            run.snapshot()
        run.input("in").advance_to(10)
        run.input("in", 1).advance_to(10)
        run.run_to_rest()
        run.snapshot()


def test_inside_a_loop_none_may_wait() -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        notificator = Notificator(info)
        info.keep(notificator, token)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, _ in input:
                notificator.notify_at(ref)
            for _ in notificator.ready(input.frontier):
                pass

        return step

    flow = jt.Flow("looped")
    flow.output("out", flow.input("in").enter(flow.loop()).unary_frontier(build).leave())
    with flow.open() as run:
        ticking(run)
        with pytest.raises(SnapshotError, match="notifications inside a loop wait"):
            run.snapshot()
        run.input("in").advance_to(10)
        run.run_to_rest()
        snapshot: Any = run.snapshot()
    with flow.open(restore=snapshot) as run:
        run.finish()
