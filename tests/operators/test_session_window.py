"""Session windows against their twin."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import GraphError, JetonError
from jeton.state.session_chains import SessionChains
from tests.helpers import messages
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules
from tests.operators.value_types import VALUE_TYPES, schema_for, through_arrow, typed_rows

SCHEMA = pa.schema(
    [("time", pa.int64()), ("key", pa.int64()), ("word", pa.string()), ("value", pa.int64())]
)


def rows() -> st.SearchStrategy[list[Row]]:
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 80),
            "key": st.one_of(st.integers(0, 2), st.sampled_from([2**40, None])),
            "word": st.sampled_from(["", "a", "längere Wörter", None]),
            "value": st.one_of(st.integers(-5, 5), st.none()),
        }
    )
    return st.lists(row, max_size=30)


def sessions(rows: list[Row], key: tuple[str, ...], gap: int) -> list[tuple[Any, list[Row]]]:
    """The twin: each key's records in order, cut wherever the next is too far away."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in key)].append(row)
    found = []
    for values, group in groups.items():
        group.sort(key=lambda row: row["time"])
        session = [group[0]]
        for row in group[1:]:
            if row["time"] - session[-1]["time"] >= gap:
                found.append((values, session))
                session = []
            session.append(row)
        found.append((values, session))
    return found


def expected(rows: list[Row], key: tuple[str, ...], gap: int) -> list[Row]:
    found = []
    for values, session in sessions(rows, key, gap):
        known = [row["value"] for row in session if row["value"] is not None]
        found.append(
            {
                "time": session[-1]["time"] + gap,
                **dict(zip(key, values, strict=True)),
                "start": session[0]["time"],
                "n": len(session),
                "total": sum(known) if known else None,
                "least": min(known, default=None),
                "average": sum(known) / len(known) if known else None,
                "last": max((r["word"] for r in session if r["word"] is not None), default=None),
                "product": _product(known),
            }
        )
    return found


def _product(values: list[int]) -> int | None:
    return int(np.prod(values)) if values else None


AGGREGATES = {
    "n": jt.agg.count(),
    "total": jt.agg.sum("value"),
    "least": jt.agg.min("value"),
    "average": jt.agg.mean("value"),
    "last": jt.agg.max("word"),
    "product": jt.agg.reduce("value", lambda a, b: a * b),
}


@pytest.mark.parametrize("gap", [1, 4, 15])
@pytest.mark.parametrize("key", [("key",), ("word",), ("key", "word"), ()], ids="-".join)
@settings(max_examples=30)
@given(rows=rows(), schedule=schedules())
def test_sessions_equal_their_twin(
    key: tuple[str, ...], gap: int, rows: list[Row], schedule: Schedule
) -> None:
    def build(flow: jt.Flow) -> None:
        flow.output(
            "out", flow.input("in").key_by(*key).session_window(gap).aggregate(**AGGREGATES)
        )

    found = run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})
    assert_same(found["out"], expected(rows, key, gap))


@pytest.mark.parametrize("key", [("key",), ("word",), ()], ids="-".join)
@settings(max_examples=40)
@given(
    rows=rows(), gaps=st.lists(st.sampled_from([1, 2, 9, 40]), min_size=30), schedule=schedules()
)
def test_sessions_with_gaps_from_a_column_equal_their_twin(
    key: tuple[str, ...], rows: list[Row], gaps: list[int], schedule: Schedule
) -> None:
    rows = [row | {"gap": gap} for row, gap in zip(rows, gaps, strict=False)]
    found: list[Row] = []
    current: dict[Any, Row] = {}
    for row in sorted(rows, key=lambda row: row["time"]):
        of = tuple(row[name] for name in key)
        until = row["time"] + row["gap"]
        if of not in current or row["time"] >= current[of]["time"]:
            start = {"time": until, "start": row["time"], "count": 0}
            current[of] = dict(zip(key, of, strict=True)) | start
            found.append(current[of])
        current[of]["time"] = max(current[of]["time"], until)
        current[of]["count"] += 1

    def build(flow: jt.Flow) -> None:
        flow.output("out", flow.input("in").key_by(*key).session_window(gap_column="gap").count())

    schema = SCHEMA.append(pa.field("gap", pa.int32()))
    assert_same(run_twin(build, {"in": rows}, schedule, schema={"in": schema})["out"], found)


def test_gaps_of_a_column_are_lengths_of_time() -> None:
    flow = jt.Flow("gaps")
    flow.output("out", flow.input("in").key_by().session_window(gap_column="gap").count())
    times = pa.array([0, 1000, 3000], pa.timestamp("ms"))
    gaps = pa.array([1, 2, 1], pa.duration("s"))
    table = flow.run({"in": pa.table({"time": times, "gap": gaps})})["out"]
    assert table["count"].to_pylist() == [1, 1, 1]
    for wrong, message in {
        0: "a gap of 0 for the record at 5",
        None: "has 1 nulls",
        2**63 - 5: "its session would end after",
    }.items():
        rows = pa.table({"time": [5], "gap": pa.array([wrong], pa.int64())})
        with pytest.raises(JetonError, match=message):
            flow.run({"in": rows})
    stream = jt.Flow("refused").input("in", schema={"gap": str}).key_by()
    with pytest.raises(GraphError, match=r"'gap' of .* is string, not integers or durations"):
        stream.session_window(gap_column="gap")
    with pytest.raises(GraphError, match=r"the column that has it as gap_column="):
        stream.session_window()
    with pytest.raises(GraphError, match=r"the column that has it as gap_column="):
        stream.session_window(3, gap_column="gap")


@pytest.mark.parametrize("name", VALUE_TYPES)
@settings(max_examples=8)
@given(data=st.data(), schedule=schedules())
def test_sessions_of_all_types_of_values(
    name: str, data: st.DataObject, schedule: Schedule
) -> None:
    schema = schema_for(name)
    rows = through_arrow(data.draw(typed_rows(name)), schema)

    def build(flow: jt.Flow) -> None:
        flow.output(
            "out",
            flow.input("in")
            .key_by("key")
            .session_window(6)
            .aggregate(least=jt.agg.min("value"), most=jt.agg.max("value")),
        )

    expected = []
    for (key,), session in sessions(rows, ("key",), 6):
        known = [row["value"] for row in session if row["value"] is not None]
        expected.append(
            {
                "time": session[-1]["time"] + 6,
                "key": key,
                "start": session[0]["time"],
                "least": min(known, default=None),
                "most": max(known, default=None),
            }
        )
    found = run_twin(build, {"in": rows}, schedule, schema={"in": schema})
    assert_same(found["out"], expected)


def test_a_record_at_the_gap_begins_another_session_and_one_before_it_does_not() -> None:
    flow = jt.Flow("edges")
    flow.output("out", flow.input("in").key_by("k").session_window(10).count())
    table = flow.run({"in": {"time": [0, 10, 29, 20], "k": [1, 1, 1, 1]}})["out"]
    assert table.to_pylist() == [
        {"time": 10, "k": 1, "start": 0, "count": 1},
        {"time": 20, "k": 1, "start": 10, "count": 1},
        {"time": 39, "k": 1, "start": 20, "count": 2},
    ]


def test_sessions_are_told_as_soon_as_nothing_can_prolong_them() -> None:
    flow = jt.Flow("early")
    flow.output("out", flow.input("in").key_by("k").session_window(10).count())
    with flow.open() as run:
        run.input("in").send({"time": [0, 5], "k": [1, 1]})
        run.input("in").advance_to(14)
        run.run_to_rest()
        assert run.results()["out"].num_rows == 0
        run.input("in").advance_to(15)
        run.run_to_rest()
        assert run.results()["out"].to_pylist() == [{"time": 15, "k": 1, "start": 0, "count": 2}]
        assert run.finish()["out"].num_rows == 1


def test_one_token_for_however_many_sessions() -> None:
    from tests.helpers import held

    flow = jt.Flow("tokens")
    flow.output("out", flow.input("in").key_by("k").session_window(10).count())
    with flow.open() as run:
        times = np.arange(1000) * 7919 % 5000
        run.input("in").send({"time": times, "k": np.arange(1000) % 50})
        run.run_to_rest()
        assert list(held(run, "count").values()) == [1]
        run.finish()


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60)), min_size=1, max_size=8),
        max_size=8,
    ),
    st.integers(0, 70),
)
def test_chains_join_what_is_close(batches: list[list[tuple[int, int]]], until: int) -> None:
    chains = SessionChains(5)
    live: dict[int, int] = {}
    seen: list[Row] = []
    for batch in batches:
        cut = sessions([{"k": k, "time": t} for k, t in batch], ("k",), 5)
        stretches = sorted((key[0], s[0]["time"], s[-1]["time"]) for key, s in cut)
        seen += [{"k": k, "time": t} for k, t in batch]
        keys, starts, lasts = (np.array(c) for c in zip(*stretches, strict=True))
        nodes, new, kept, gone = chains.insert(keys, starts, lasts)
        for node in gone.tolist():
            del live[node]
        for at in new.tolist():
            live[int(nodes[at])] = int(keys[at])
        assert set(nodes.tolist()) | set(kept.tolist()) <= set(live)
        expected = {(k[0], s[0]["time"], s[-1]["time"]) for k, s in sessions(seen, ("k",), 5)}
        at = np.array(sorted(live), dtype=np.int64)
        found = zip((live[n] for n in at.tolist()), chains.starts(at).tolist(),
                    chains.lasts(at).tolist(), strict=True)  # fmt: skip
        assert set(found) == expected
    # All that ends before some time goes, as when the frontier gets there.
    at = np.array(sorted(live), dtype=np.int64)
    ended = at[chains.lasts(at) < until]
    left = {live[n] for n in at.tolist() if n not in set(ended.tolist())}
    assert set(chains.remove(ended).tolist()) == {live[n] for n in ended.tolist()} - left


def test_what_sessions_cannot_do_is_refused_when_the_flow_is_built() -> None:
    flow = jt.Flow("refused")
    keyed = flow.input("in").key_by("k")
    with pytest.raises(GraphError, match="greater than zero"):
        keyed.session_window(0)
    with pytest.raises(GraphError, match="merge"):
        keyed.session_window(5).fold("v", list, lambda state, value: [*state, value])
    with pytest.raises(GraphError, match="start"):
        keyed.session_window(5).count(name="start")
    with pytest.raises(GraphError, match="start"):
        flow.input("other").key_by("start").session_window(5)
    loop = flow.loop()
    with pytest.raises(GraphError, match="integer times"):
        flow.input("third").enter(loop).key_by("k").session_window(5)


def test_a_snapshot_of_another_gap_or_without_keys_is_an_error() -> None:
    def flow_with(key: str) -> jt.Flow:
        flow = jt.Flow("sessions")
        flow.output("out", flow.input("in").key_by(key).session_window(10).count())
        return flow

    with flow_with("k").open() as run:
        run.input("in").send({"time": [0], "k": [1], "other": [2]})
        run.run_to_rest()
        snapshot = run.snapshot()
    with pytest.raises(JetonError) as caught:
        flow_with("other").open(restore=snapshot)
    assert "other" in messages(caught.value)


@pytest.mark.parametrize("later", [1, 2, 9])
def test_a_session_that_was_prolonged_is_not_told_at_its_old_end(later: int) -> None:
    flow = jt.Flow("prolonged")
    flow.output("out", flow.input("in").key_by("k").session_window(10).count())
    with flow.open() as run:
        for time in (0, later):
            run.input("in").send({"time": [time], "k": [1]})
            run.run_to_rest()
        run.input("in").advance_to(later + 9)
        run.run_to_rest()
        assert run.results()["out"].num_rows == 0
        run.input("in").send({"time": [later + 9], "k": [1]})
        found = run.finish()["out"].to_pylist()
    assert found == [{"time": later + 19, "k": 1, "start": 0, "count": 3}]
