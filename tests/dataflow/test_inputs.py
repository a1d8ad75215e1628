"""Inputs: ways to send, records that come too late, and types that come out as they went in."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from tests.helpers import seeded, stamped

import jeton as jt
from jeton import Antichain
from jeton.dataflow.plan import progress_graph
from jeton.errors import (
    BatchError,
    GraphError,
    JetonError,
    MissingColumn,
    TimeError,
    TokenError,
)


def echo(name: str = "in", time: str = "time") -> jt.Flow:
    flow = jt.Flow("echo")
    flow.output("out", flow.input(name, time=time).probe("seen"))
    return flow


TABLES: dict[str, Any] = {
    "dict": {"time": [1, 2], "n": [10, 20]},
    "table": pa.table({"time": [1, 2], "n": [10, 20]}),
    "record batch": pa.record_batch({"time": [1, 2], "n": [10, 20]}),
    "rows": [{"time": 1, "n": 10}, {"time": 2, "n": 20}],
    "pandas": pd.DataFrame({"time": [1, 2], "n": [10, 20]}),
    "batch": jt.Batch({"n": [10, 20]}, times=[1, 2]),
}


@pytest.mark.parametrize("data", TABLES.values(), ids=TABLES)
def test_any_table_can_be_run_and_sent(data: Any) -> None:
    assert stamped(echo().run({"in": data})["out"]) == [(1, 10), (2, 20)]
    with echo().open() as run:
        run.input("in").send(data)
        assert stamped(run.finish()["out"]) == [(1, 10), (2, 20)]


def test_keyword_columns_are_sent_at_the_input_s_time() -> None:
    with echo().open() as run:
        run.input("in").advance_to(4)
        run.input("in").send(n=[1, 2])
        run.input("in").send(n=[3], times=6)
        run.input("in").send({"n": [4, 5]}, times=[7, 8])
        assert stamped(run.finish()["out"]) == [(4, 1), (4, 2), (6, 3), (7, 4), (8, 5)]


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(BatchError, match="cannot read records from a int"):
        echo().run({"in": 3})
    with pytest.raises(BatchError, match=r"operator 'in'"):
        echo().run({"in": {"time": [1, 2], "n": [1]}})
    with pytest.raises(BatchError, match="no time column 'time'"):
        echo().run({"in": {"tme": [1], "n": [1]}})


WITHOUT_TIMES: dict[str, Any] = {
    "dict": {"k": [1, 2], "stamp": [5, 6]},
    "one record": {"k": 1, "stamp": 5},
    "no value": {"ts": None, "k": [1, 2], "stamp": [5, 6]},
    "table": pa.table({"k": [1, 2], "stamp": [5, 6]}),
    "rows": [{"k": 1, "stamp": 5}],
    "pandas": pd.DataFrame({"k": [1, 2], "stamp": [5, 6]}),
}


@pytest.mark.parametrize("lateness", [None, 3])
@pytest.mark.parametrize("data", WITHOUT_TIMES.values(), ids=WITHOUT_TIMES)
def test_an_input_that_declares_its_time_column_needs_it(data: Any, lateness: int | None) -> None:
    flow = jt.Flow("declared")
    schema = {"ts": int, "k": int, "stamp": int}
    flow.output("out", flow.input("rows", time="ts", schema=schema, lateness=lateness))
    with flow.open() as run:
        rows = run.input("rows")
        sends = [rows.send, rows.partition("one").send] if lateness is None else [rows.send]
        for send in sends:
            with pytest.raises(MissingColumn) as sent:
                send(data)
            assert str(sent.value) == (
                "there is no time column 'ts' (there are: 'k', 'stamp'): name the one that has "
                "the times, as in time='k' [operator 'rows', worker 0]"
            )
        rows.send({})
        rows.send({"k": [], "stamp": []})
        rows.send(k=1, stamp=5, times=7)
        rows.send({"ts": [8], "k": [2], "stamp": [6]})
        result = run.finish()
    assert result["out"].to_pylist() == [
        {"ts": 7, "k": 1, "stamp": 5},
        {"ts": 8, "k": 2, "stamp": 6},
    ]


def test_the_error_for_no_times_is_the_same_for_a_run_and_for_what_is_sent() -> None:
    flow = jt.Flow("declared")
    flow.output("out", flow.input("rows", time="ts", schema={"ts": int, "k": int}))
    with pytest.raises(MissingColumn) as whole:
        flow.run({"rows": {"k": [1]}})
    with flow.open() as run:
        with pytest.raises(MissingColumn) as sent:
            run.input("rows").send({"k": [1]})
        run.finish()
    assert str(sent.value) == str(whole.value).replace("]", ", worker 0]")


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(GraphError, match=r"no input 'inn'.*'in'"):
        echo().run({"inn": {"time": [1], "n": [1]}})
    with echo().open() as run:
        with pytest.raises(GraphError, match="no probe 'sen'"):
            run.probe("sen")
        with pytest.raises(GraphError, match="no worker 1"):
            run.input("in", worker=1)
    flow = echo()
    with pytest.raises(GraphError, match="already"):
        flow.input("in")


def test_closed_input_refuses_records() -> None:
    with echo().open() as run:
        run.input("in").close()
        run.input("in").close()
        assert run.input("in").closed
        with pytest.raises(TokenError, match="closed"):
            run.input("in").send(n=[1])
        with pytest.raises(TokenError, match="closed"):
            run.input("in").advance_to(3)


def with_late(time: str = "time") -> jt.Flow:
    flow = jt.Flow("late")
    numbers = flow.input("in", time=time)
    flow.output("out", numbers)
    flow.output("late", numbers.late.probe("late"))
    return flow


@seeded
def test_late_records_go_to_the_late_output(seed: int | None) -> None:
    with with_late().open(workers=2, seed=seed) as run:
        for worker in range(2):
            handle = run.input("in", worker)
            handle.advance_to(5)
            handle.send({"time": [3, 6, 4, 5], "n": [1, 2, 3, 4]})
            assert handle.late_count == 2
        run.run_to_rest()
        assert run.probe("late").frontier == Antichain([5])
        result = run.finish()
    assert result.late == {"in": 4}
    assert stamped(result["out"]) == [(5, 4), (5, 4), (6, 2), (6, 2)]
    late = result["late"].to_pylist()
    assert sorted((row["late_at"], row["time"], row["n"]) for row in late) == [
        (5, 3, 1),
        (5, 3, 1),
        (5, 4, 3),
        (5, 4, 3),
    ]


def test_late_records_are_counted_though_nobody_asked() -> None:
    with echo().open() as run:
        run.input("in").advance_to(5)
        run.input("in").send({"time": [3, 4], "n": [1, 2]})
        result = run.finish()
    assert result.late == {"in": 2}
    assert result["out"].num_rows == 0


def test_late_records_of_an_input_whose_time_column_is_late_at() -> None:
    with with_late(time="late_at").open() as run:
        run.input("in").advance_to(5)
        run.input("in").send({"late_at": [3, 6], "n": [1, 2]})
        result = run.finish()
    assert result.late == {"in": 1}
    assert result["late"].to_pylist() == [{"late_at_": 5, "late_at": 3, "n": 1}]
    assert stamped(result["out"], time="late_at") == [(6, 2)]


def test_a_column_that_late_records_would_overwrite_is_refused() -> None:
    with with_late().open() as run:
        run.input("in").advance_to(5)
        with pytest.raises(BatchError, match=r"has a column 'late_at'.*schema="):
            run.input("in").send({"time": [3], "late_at": ["a"]})


def test_all_of_int64_are_times() -> None:
    times = [-(2**63), -1, 0, 2**63 - 1]
    result = with_late().run({"in": {"time": times, "n": [1, 2, 3, 4]}})
    assert result.late == {"in": 0}
    assert stamped(result["out"]) == [*zip(times, [1, 2, 3, 4], strict=True)]


def test_times_below_a_minimum_of_the_flow_are_refused() -> None:
    flow = jt.Flow("from zero", time=jt.IntegerTimes(minimum=0))
    flow.output("out", flow.input("in"))
    with pytest.raises(TimeError, match=r"time -1 is outside 0 … .*'in'"):
        flow.run({"in": {"time": [-1, 0], "n": [1, 2]}})


@pytest.mark.parametrize(
    ("times", "value"),
    [
        (np.array([1, 2**63], np.uint64), str(2**63)),
        (pa.array([2**64 - 1], pa.uint64()), str(2**64 - 1)),
        ([1, 2**63], str(2**63)),
        ([2**70], str(2**70)),
        (np.array(["NaT", "2024-01-01"], "datetime64[us]"), "NaT|null"),
        ([1.5], "1.5|float64"),
        (pa.array([Decimal("1")]), "[Dd]ecimal"),
    ],
)
@pytest.mark.parametrize("opened", [True, False])
def test_what_is_no_time_is_refused_by_name(times: Any, value: str, opened: bool) -> None:
    rows: Any = {"time": times, "n": [0] * len(times)}
    with echo().open() as run:
        take = run.input("in").send if opened else lambda rows: run.feed({"in": rows})
        with pytest.raises(JetonError, match=value) as caught:
            take(rows)
    assert "'in'" in str(caught.value)


def test_records_without_times_are_at_zero_or_at_the_input_s_own_time() -> None:
    with echo().open() as run:
        run.input("in").send(n=1)
        run.input("in").advance_to(-5)
        run.input("in").send(n=2)
        run.input("in").advance_to(3)
        run.input("in").send(n=3)
        assert stamped(run.finish()["out"]) == [(-5, 2), (0, 1), (3, 3)]


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_unordered_tables_are_never_late(workers: int, seed: int | None) -> None:
    times = [5, 1, 9, 0, 3, 7, 2, 8, 6, 4] * 3
    result = echo().run({"in": {"time": times, "n": times}}, workers=workers, seed=seed)
    assert result.late == {"in": 0}
    assert stamped(result["out"]) == sorted((t, t) for t in times)


EMPTY: dict[str, Any] = {
    "table": pa.table({"time": pa.array([], pa.int64()), "n": pa.array([], pa.int64())}),
    "dict": {"time": [], "n": []},
    "numpy": {"time": np.array([], dtype=np.int64), "n": np.array([], dtype=np.int64)},
    "pandas": pd.DataFrame({"time": pd.Series([], dtype="int64")}),
    "rows": [],
    "batch": jt.Batch({"n": []}, times=[]),
}


@pytest.mark.parametrize("data", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("workers", [1, 2])
def test_empty_inputs_complete(data: Any, workers: int) -> None:
    result = echo().run({"in": data}, workers=workers)
    assert result["out"].num_rows == 0
    assert "time" in result["out"].column_names


def test_a_missing_table_is_an_error_and_an_empty_one_is_not() -> None:
    with pytest.raises(GraphError, match=r"flow 'echo'.*none for 'in'"):
        echo().run()
    with pytest.raises(GraphError, match=r"none for 'in'"):
        echo().run({})
    assert echo().run({"in": {"time": []}})["out"].num_rows == 0


MOMENT = datetime(2024, 5, 1, 12, 30)

TIMES: dict[str, pa.Array] = {
    "int64": pa.array([1, 2]),
    "int32": pa.array([1, 2], pa.int32()),
    "uint16": pa.array([1, 2], pa.uint16()),
    "s": pa.array([MOMENT, MOMENT.replace(hour=13)], pa.timestamp("s")),
    "ms": pa.array([MOMENT, MOMENT.replace(hour=13)], pa.timestamp("ms")),
    "us": pa.array([MOMENT, MOMENT.replace(hour=13)], pa.timestamp("us")),
    "ns": pa.array([MOMENT, MOMENT.replace(hour=13)], pa.timestamp("ns")),
    "utc": pa.array([MOMENT.replace(tzinfo=UTC)] * 2, pa.timestamp("us", "UTC")),
    "date32": pa.array([date(2024, 5, 1), date(2024, 5, 2)], pa.date32()),
    "date64": pa.array([date(2024, 5, 1), date(2024, 5, 2)], pa.date64()),
}


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("workers", [1, 2])
def test_time_columns_come_out_as_they_went_in(times: pa.Array, workers: int) -> None:
    """Integers of the same type, or timestamps of the flow's unit."""
    kind = times.type
    if not pa.types.is_integer(kind):
        kind = pa.timestamp("us", getattr(kind, "tz", None))
    table = pa.table({"ts": times, "n": [1, 2]})
    out = echo(time="ts").run({"in": table}, workers=workers)["out"]
    assert out.equals(table.set_column(0, "ts", times.cast(kind)))
    empty = echo(time="ts").run({"in": table.slice(0, 0)}, workers=workers)["out"]
    assert empty.schema.field("ts").type == kind


def test_inputs_with_times_of_different_units_meet() -> None:
    flow = jt.Flow("two clocks")
    flow.output("both", flow.input("a").concat(flow.input("b")))
    for one, other in [("ns", "us"), ("s", "ms"), ("date32", "us"), ("int32", "int64")]:
        both = flow.run(
            {
                "a": pa.table({"time": TIMES[one], "n": [1, 2]}),
                "b": pa.table({"time": TIMES[other], "n": [1, 2]}),
            }
        )["both"]
        kind = pa.int64() if one == "int32" else pa.timestamp("us")
        expected = [*TIMES[one].cast(kind).to_pylist(), *TIMES[other].cast(kind).to_pylist()]
        assert both.schema.field("time").type == kind
        assert both["time"].to_pylist() == sorted(expected)


def test_inputs_with_times_that_do_not_mix_are_refused() -> None:
    flow = jt.Flow("two clocks")
    flow.input("a").concat(flow.input("b"))
    for one, other, message in [
        ("us", "utc", "'b' are timestamps with a time zone, but other times"),
        ("us", "int64", "'b' are integers, but other times of this flow are timestamps"),
    ]:
        tables = {"a": TIMES[one], "b": TIMES[other]}
        with pytest.raises(TimeError, match=message):
            flow.run({name: pa.table({"time": times}) for name, times in tables.items()})


def test_times_of_several_zones_come_out_in_the_first_one() -> None:
    def two(**schemas: Any) -> jt.Flow:
        flow = jt.Flow("zones")
        inputs = [flow.input(name, schema=schemas.get(name)) for name in ("a", "b")]
        flow.output("both", inputs[0].concat(inputs[1]))
        return flow

    zones = {"b": "Asia/Tokyo", "a": "Europe/Berlin"}
    tables = {
        name: pa.table({"time": pa.array([0, 1], pa.timestamp("ms", zone))})
        for name, zone in zones.items()
    }
    declared = two(**{name: table.schema for name, table in tables.items()})
    for flow in (two(), declared):
        both = flow.run(tables, workers=2)["both"]
        assert both.schema.field("time").type == pa.timestamp("us", "Europe/Berlin")
    with declared.open() as run:
        run.input("b").send(tables["b"])
        run.input("a").send(tables["a"])
        assert run.finish()["both"].num_rows == 4
    with two().open() as run:
        run.input("b").send(tables["b"])
        with pytest.raises(TimeError, match=r"'a' are .*Europe/Berlin.*declare the time columns"):
            run.input("a").send(tables["a"])


def test_concat_renames_the_time_column() -> None:
    flow = jt.Flow("names")
    flow.output("out", flow.input("a", time="ts").concat(flow.input("b", time="when")))
    rows = {"a": {"ts": [2], "n": [1]}, "b": {"when": [1], "n": [2]}}
    assert stamped(flow.run(rows)["out"], time="ts") == [(1, 2), (2, 1)]


def test_unordered_input_with_a_foreign_token_raises() -> None:
    flow = jt.Flow("unordered")
    flow.unordered_input("a")
    flow.unordered_input("b")
    with flow.open() as run, pytest.raises(TokenError, match="its own output only"):
        run.input("a").session(run.input("b").token)


def test_unordered_input_cannot_be_fed_with_a_table() -> None:
    flow = jt.Flow("unordered")
    flow.unordered_input("a")
    with pytest.raises(GraphError, match="unordered"):
        flow.run({"a": {"time": [1], "n": [1]}})


@pytest.mark.parametrize(("time", "column"), [("late_at", "n"), ("time", "late_at")])
def test_the_columns_of_late_records_are_those_that_were_announced(time: str, column: str) -> None:
    flow = jt.Flow("late")
    numbers = flow.input("in", time=time, schema={column: int})
    flow.output("late", numbers.late)
    announced = flow.output_schema("late")
    assert announced is not None
    with flow.open() as run:
        run.input("in").advance_to(5)
        run.input("in").send({time: [3], column: [1]})
        late = run.finish()["late"]
    assert late.column_names == ["late_at_", *announced.names]
    assert late.to_pylist() == [{"late_at_": 5, time: 3, column: 1}]


def test_reading_late_changes_nothing_until_an_operator_uses_it() -> None:
    flow = jt.Flow("f")
    numbers = flow.input("in")
    flow.output("out", numbers)
    before = progress_graph(flow.operators)
    late = numbers.late
    assert numbers.late.sources == late.sources
    after = progress_graph(flow.operators)
    assert [node.outputs for node in after.nodes] == [node.outputs for node in before.nodes]
    flow.output("late", late)
    assert len(progress_graph(flow.operators).nodes[0].outputs) == 2
