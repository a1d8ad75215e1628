"""Batches in order of time: the same answers, with state near the frontier only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import jeton as jt
from jeton.errors import GraphError
from jeton.spark import ordered, plans
from jeton.spark.ordered import OrderedBatches, in_order_of_time
from jeton.spark.plans import numbered
from jeton.spark.tasks import Columns, Ends, shared
from tests.oracle.case import Case
from tests.oracle.duck import Oracle
from tests.oracle.pipelines import cases
from tests.oracle.tables import TIME
from tests.oracle.verdicts import WRONG, judge
from tests.spark.flows import in_order, rows_of

# NumPy warns of divisions by zero and numbers that are too large, as it does without Jeton.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

ORACLE = Oracle()
TURNS = 200_000
"""More than any of these runs takes, so that one that waits in vain ends."""


def sorted_batches(
    tables: Sequence[pa.Table], times: Sequence[str], share: int, shares: int, random: Random
) -> list[pa.RecordBatch]:
    """One worker's rows of all inputs as Spark hands them over: by time, cut anywhere."""
    found: list[tuple[Any, int, dict[str, Any]]] = []
    for number, (table, time) in enumerate(zip(tables, times, strict=True)):
        # Compared as integers, since timestamps of the earliest years are none of Python's.
        stamps = table[time]
        if pa.types.is_timestamp(stamps.type):
            stamps = stamps.cast(pa.int64())
        for at, stamp in enumerate(stamps.to_pylist()):
            found.append((stamp, number, table.slice(at, 1)))
    mine = found[share::shares]
    mine.sort(key=lambda row: (row[0] is not None, row[0] or 0))
    batches = []
    while mine:
        size = random.choice([1, 2, 3, 7, 20])
        batches.append(_in_one(tables, mine[:size]))
        mine = mine[size:]
    return batches


def _in_one(tables: Sequence[pa.Table], rows: Sequence[tuple[Any, int, pa.Table]]) -> Any:
    whole = pa.concat_tables([row for _, number, row in rows if number == 0] or [tables[0][:0]])
    if len(tables) == 1:
        return whole.combine_chunks().to_batches()[0]
    found: dict[int, Any] = {0: pa.array([number for _, number, _ in rows], pa.int32())}
    kinds = {
        at: field.type
        for table, columns in zip(tables, columns_of(tables), strict=True)
        for at, field in zip(columns.at, table.schema, strict=True)
    }
    for slot, kind in sorted(kinds.items()):
        parts = []
        for _, number, row in rows:
            its = columns_of(tables)[number].at
            part = row.column(its.index(slot)).combine_chunks() if slot in its else None
            parts.append(pa.nulls(1, kind) if part is None else part)
        found[slot] = pa.concat_arrays(parts)
    return pa.RecordBatch.from_arrays(list(found.values()), [f"_{at}" for at in found])


def columns_of(tables: Sequence[pa.Table]) -> tuple[Columns, ...]:
    """Where the columns of tables are in the rows of all of them."""
    return shared([[(field.name, field.type) for field in table.schema] for table in tables])


def attach(
    run: jt.Run, tables: Sequence[pa.Table], times: Sequence[str], random: Random
) -> list[list[pa.RecordBatch]]:
    """Have each worker read a share of the rows; returns their batches."""
    workers = len(run.agents)
    shares = [sorted_batches(tables, times, n, workers, random) for n in range(workers)]
    for worker, batches in enumerate(shares):
        inputs = [run.input(name, worker) for name in run.flow.inputs]
        feed = OrderedBatches(run.agents[worker], inputs, columns_of(tables), iter(batches))
        run.attach(worker, feed=feed)
    return shares


def turns(run: jt.Run) -> Iterator[None]:
    """Take turns until all workers have read everything."""
    for _ in range(TURNS):
        if all(agent.feed.ended for agent in run.agents):
            return
        run.turn()
        yield
    raise AssertionError("the workers wait for each other")


def read_in_order(lead: int, case: Case) -> list[pa.Table]:
    """The tables of a case's outputs, from workers that read in order of time."""
    flow = jt.Flow("case", unit=case.unit or "us")
    for number, stream in case.add_to(flow).items():
        flow.output(f"out{number}", stream)
    times = [TIME] * len(case.tables)
    schedule = case.schedule
    with (
        pytest.MonkeyPatch.context() as patch,
        flow.open(workers=schedule.workers, seed=schedule.seed) as run,
    ):
        patch.setattr(ordered, "LEAD", lead)
        attach(run, case.tables, times, Random(schedule.seed or 0))
        for _ in turns(run):
            pass
        result = run.finish()
    assert not any(result.late.values())
    return [result[f"out{number}"] for number in case.ends]


@given(case=cases(), lead=st.sampled_from([1, 300, 2_000, 1 << 24]))
@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_pipelines(case: Case, lead: int) -> None:
    verdict = judge(case, ORACLE, partial(read_in_order, lead))
    assert verdict.outcome != WRONG, f"{verdict.why}\n{case}"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_few_records_wait_for_the_frontier(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lead, rows = 400, 1_000
    monkeypatch.setattr(ordered, "LEAD", lead)
    most = 0

    def hold(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()
        queue = jt.state.RecordQueue(info.kind)

        def step(input: jt.Input, output: jt.Output) -> None:
            nonlocal most
            for ref, batch in input:
                queue.push(ref, batch)
            for time, batch in queue.pop(input.frontier):
                output.session(queue.right_for(time)).give(batch)
            queue.settle()
            most = max(most, len(queue))

        return step

    flow = jt.Flow("held")
    left, right = (flow.input(name, time="t", schema={"v": int}) for name in ("left", "right"))
    flow.output("all", left.concat(right).unary_frontier(hold, pact=jt.Exchange("v")))
    random = np.random.default_rng(workers)
    tables = [pa.table({"t": random.permutation(rows), "v": np.arange(rows)}) for _ in range(2)]
    with flow.open(workers=workers, seed=5) as run:
        shares = attach(run, tables, ["t", "t"], Random(3))
        ends = [np.array([latest(batch) for batch in share]) for share in shares]
        sizes = [np.array([batch.nbytes for batch in share]) for share in shares]
        largest = max(map(max, sizes))
        for _ in turns(run):
            now = [run.input("left", worker).time for worker in range(workers)]
            for end, size, time in zip(ends, sizes, now, strict=True):
                assert size[(end > min(now)) & (end <= time)].sum() < lead + largest
        result = run.finish()
    assert result["all"]["t"].to_pylist() == sorted([*range(rows), *range(rows)])
    assert 0 < most < rows // 5


@pytest.mark.parametrize("workers", [1, 3])
def test_sources_within_the_flow_and_loops(workers: int) -> None:
    def prices(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        def step(output: jt.Output) -> None:
            if not token.dropped:
                if info.worker == 0:
                    with output.session(token, 0) as session:
                        session.give({"k": [0, 1], "price": [10, 20]}, times=[0, 30])
                token.drop()

        return step

    def halve(stream: jt.Stream) -> jt.Stream:
        return stream.with_columns(v=lambda batch: batch["v"] // 2).filter(jt.col("v") > 0)

    flow = jt.Flow("sources")
    rows = flow.input("rows", time="t", schema={"k": int, "v": int})
    known = flow.source(prices)
    flow.output("priced", rows.key_by("k").asof_join(known.key_by("k"), how="inner"))
    loop = flow.loop()
    again = loop.feedback(schema={"k": int, "v": int})
    whole = rows.enter(loop).concat(again.stream)
    again.connect(halve(whole).exchange("v"))
    flow.output("halves", whole.leave().key_by("k").each_time().count())
    random = np.random.default_rng(3)
    table = pa.table({"t": random.permutation(60), "k": random.integers(0, 2, 60), "v": range(60)})
    with flow.open(workers=workers, seed=2) as run:
        attach(run, [table], ["t"], Random(1))
        for _ in turns(run):
            pass
        found = run.finish()
    expected = flow.run({"rows": table})
    for name in flow.outputs:
        assert in_order(found[name].to_pylist()) == in_order(expected[name].to_pylist())


def latest(batch: pa.RecordBatch) -> int:
    """The greatest time of a batch that has the rows of two inputs."""
    return int(pc.max(batch.column(1)).as_py())


# On Spark


def both_ways(flow: jt.Flow, inputs: dict[str, DataFrame], output: str) -> list[Any]:
    """The rows of an output, if they are the same in order of time and not, and none is late."""
    found = []
    for wanted in (True, False):
        frames = flow.on_spark(inputs, workers=2, ordered=wanted)
        found.append(rows_of(frames[output]))
        assert frames.metrics()["late"] == 0
    assert found[0] == found[1]
    return found[0]


def test_times_of_several_types_and_at_the_extremes(spark: SparkSession) -> None:
    flow = jt.Flow("extremes")
    short = flow.input("short", time="at`.b", schema={"v": int})
    long = flow.input("long", time="t", schema={"v": int}, lateness=0)
    flow.output("sums", short.concat(long).key_by().each_time().sum("v"))
    few = spark.createDataFrame([(7, 1), (-3, 2)], "`at``.b` short, v long")
    ends = [2**63 - 1, 0, -(2**63), 7, -(2**63) + 1]
    many = spark.createDataFrame([(t, n) for n, t in enumerate(ends)], "t long, v long")
    rows = both_ways(flow, {"short": few, "long": many}, "sums")
    expected = {2**63 - 1: 0, 0: 1, -(2**63): 2, 7: 4, -(2**63) + 1: 4, -3: 2}
    assert dict(rows) == expected


def test_dates_beside_timestamps_without_a_zone(spark: SparkSession) -> None:
    flow = jt.Flow("days")
    days = flow.input("days", time="day", schema={"n": int})
    hours = flow.input("hours", time="at", schema={"n": int})
    flow.output("sums", days.concat(hours).key_by().tumbling("1d").sum("n"))
    one = spark.createDataFrame([(date(2024, 1, 2), 1), (date(1960, 1, 1), 2)], "day date, n long")
    other = spark.createDataFrame(
        [(datetime(2024, 1, 2, 7), 10), (datetime(2024, 1, 1, 23), 20)], "at timestamp_ntz, n long"
    )
    rows = both_ways(flow, {"days": one, "hours": other}, "sums")
    assert rows == in_order(
        [
            {"day": datetime(1960, 1, 2), "sum": 2},
            {"day": datetime(2024, 1, 2), "sum": 20},
            {"day": datetime(2024, 1, 3), "sum": 11},
        ]
    )


def test_rows_without_a_time_are_refused(spark: SparkSession) -> None:
    flow = jt.Flow("nulls")
    flow.output("counts", flow.input("n", time="t", schema={}).key_by().tumbling(10).count())
    frame = spark.createDataFrame([(1,), (None,), (3,)], "t long")
    said = []
    for wanted in (True, False):
        with pytest.raises(Exception, match="null") as caught:
            flow.on_spark({"n": frame}, workers=1, ordered=wanted)["counts"].collect()
        said.append(str(caught.value).splitlines()[0])
    assert said[0] == said[1]


def test_workers_read_in_step_though_partitions_have_times_of_their_own(
    spark: SparkSession,
) -> None:
    """Each partition would be a range of times, and a worker of the last would wait for all."""

    def spread(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        seen: list[int] = []

        def step(input: jt.Input, output: jt.Output) -> None:
            for _, batch in input:
                seen.extend((int(batch.times.min()), int(batch.times.max())))
            if input.frontier.is_empty and not token.dropped:
                with token, output.session(token) as session:
                    session.give(least=min(seen), most=max(seen))

        return step

    flow = jt.Flow("spread")
    numbers = flow.input("n", time="id", schema={})
    flow.output("seen", numbers.unary_frontier(spread, schema={"least": int, "most": int}))
    frame = spark.range(0, 20_000, 1, 2)
    rows = flow.on_spark({"n": frame}, workers=2, ordered=True)["seen"].collect()
    assert all(row.least < 2_000 and row.most > 18_000 for row in rows)


def test_sorted_where_it_is_needed(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    flow = jt.Flow("needs")
    numbers = flow.input("n", time="id", schema={})
    flow.output("small", numbers.filter(lambda batch: batch.times < 10))
    large = spark.range(10**12)

    def is_sorted(frame: DataFrame, **options: Any) -> bool:
        frames = flow.on_spark({"n": frame}, workers=2, **options)
        plan = frames[flow.outputs[0]]._jdf.queryExecution().executedPlan().toString()
        frames.explain()
        shown = "Rows are read in order of time" in capsys.readouterr().out
        assert ("Sort" in plan) == shown
        return shown

    assert not is_sorted(large)
    assert is_sorted(large, ordered=True)
    flow.output("counts", numbers.key_by().tumbling(10).count())
    assert is_sorted(large)
    assert not is_sorted(large, ordered=False)
    assert not is_sorted(spark.range(10))


def test_streams_are_not_sorted(spark: SparkSession) -> None:
    flow = jt.Flow("stream")
    flow.output("n", flow.input("n", time="timestamp", schema={"value": int}))
    stream = spark.readStream.format("rate").load()
    with pytest.raises(GraphError, match="ordered= is for batch ones"):
        flow.on_spark({"n": stream}, ordered=True)


def test_a_sorted_dataframe_is_not_sorted_again(spark: SparkSession) -> None:
    flow = jt.Flow("once")
    flow.output("n", flow.input("n", time="id", schema={}))
    frame = spark.range(0, 100, 1, 1).sortWithinPartitions("id")
    twice = in_order_of_time(numbered(frame), flow, Ends(("n",), (), plans.columns_of([frame])))
    assert twice._jdf.queryExecution().executedPlan().toString().count("Sort") <= 1
