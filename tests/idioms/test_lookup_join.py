"""Lookup joins against lists of all that ever came, with restarts and in loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.idioms.arranging import MODES, as_of, modes
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules

import jeton as jt
from jeton.errors import BatchError, GraphError
from jeton.idioms.arrangement import arrange
from jeton.idioms.lookup_join import lookup_join

UPDATES = pa.schema(
    [("time", pa.int64()), ("key", pa.string()), ("value", pa.int64()), ("diff", pa.int64())]
)
ASKED = pa.schema([("time", pa.int64()), ("key", pa.string()), ("value", pa.string())])


def update_rows() -> st.SearchStrategy[list[Row]]:
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 12),
            "key": st.sampled_from(["a", "b", "c", None]),
            "value": st.sampled_from([1, 2, None]),
            "diff": st.sampled_from([1, 1, -1, 2]),
        }
    )
    return st.lists(row, max_size=40)


def asked_rows() -> st.SearchStrategy[list[Row]]:
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 14),
            "key": st.sampled_from(["a", "b", "d", None]),
            "value": st.sampled_from(["x", "y"]),
        }
    )
    return st.lists(row, max_size=12)


@modes
@given(updates=update_rows(), first=asked_rows(), second=asked_rows(), schedule=schedules())
@settings(max_examples=25, deadline=None)
def test_two_joins_read_one_index(
    mode: str, updates: list[Row], first: list[Row], second: list[Row], schedule: Schedule
) -> None:
    signed = "diff" in MODES[mode]

    def build(flow: jt.Flow) -> None:
        arranged = arrange(flow.input("updates", schema=UPDATES), "key", effort=1, **MODES[mode])
        inner = lookup_join(flow.input("first"), arranged)
        flow.output("inner", inner if signed else inner.drop("diff"))
        asked = flow.input("second").rename({"key": "of"})
        outer = lookup_join(asked, arranged, "of", how="left", suffix="_there")
        flow.output("outer", outer if signed else outer.drop("diff"))

    inputs = {"updates": updates, "first": first, "second": second}
    schema = {"updates": UPDATES, "first": ASKED, "second": ASKED}
    found = run_twin(build, inputs, schedule, schema=schema)
    assert_same(
        found["inner"],
        [
            {**row, "value_right": value}
            for row in first
            for value in as_of(updates, mode, row["key"], row["time"])
        ],
    )
    assert_same(
        found["outer"],
        [
            {"time": row["time"], "of": row["key"], "value": row["value"], "value_there": value}
            for row in second
            for value in as_of(updates, mode, row["key"], row["time"]) or [None]
        ],
    )


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_loop_reads_an_index_from_outside(workers: int) -> None:
    # Which pages can be reached, while links come and go.
    flow = jt.Flow("reach")
    links = arrange(flow.input("links"), "page", diff="diff", effort=1)
    loop = flow.loop()
    again = loop.feedback()
    pages = flow.input("start").enter(loop).concat(again.stream)
    linked = lookup_join(pages, links.enter(loop))
    reached = linked.map(lambda batch: {"from": batch["from"], "page": batch["to"]})
    new = reached.unary_frontier(first_time, pact=jt.Exchange("page"))
    again.connect(new)
    flow.output("reached", new.leave())
    for seed in range(4):
        random = Random(seed)
        there: list[Row] = []
        for _ in range(40):
            row = {"time": random.randrange(5), "page": random.randrange(6), "diff": 1}
            there.append({**row, "to": random.randrange(6)})
            if random.random() < 0.5:
                there.append({**there[-1], "time": random.randrange(row["time"], 6), "diff": -1})
        start = [{"time": time, "from": page, "page": page} for time in range(6) for page in (0, 3)]
        inputs = {
            name: pa.Table.from_pylist(rows)
            for name, rows in {"links": there, "start": start}.items()
        }
        result = flow.run(inputs, workers=workers, seed=seed)
        expected = []
        for row in start:
            counts: Counter[Any] = Counter()
            for link in there:
                if link["time"] <= row["time"]:
                    counts[link["page"], link["to"]] += link["diff"]
            seen: set[int] = set()
            edge = {row["page"]}
            while edge:
                edge = {b for (a, b), n in counts.items() if n > 0 and a in edge} - seen
                seen |= edge
            expected += [{"time": row["time"], "from": row["from"], "page": p} for p in seen]
        assert_same(result["reached"].to_pylist(), expected)


def first_time(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
    """Each page once for each outer time and start, whatever the round."""
    seen: set[Any] = set()
    waiting = jt.state.RecordQueue(info.kind)
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            waiting.push(ref, batch)
        for time, batch in waiting.pop(input.frontier):
            keep = []
            for pair in zip(batch["from"].tolist(), batch["page"].tolist(), strict=True):
                keep.append((time.outer, *pair) not in seen)
                seen.add((time.outer, *pair))
            output.session(waiting.right_for(time)).give(batch.filter(np.array(keep)))
        waiting.settle()

    return step


@pytest.mark.parametrize("mode", ["all", "diff"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_inside_a_loop_times_are_partially_ordered(workers: int, mode: str) -> None:
    # Numbers count down, round after round, and ask who came before in both senses.
    flow = jt.Flow("count down")
    loop = flow.loop()
    again = loop.feedback()
    numbers = flow.input("numbers").enter(loop).concat(again.stream)
    keyed = numbers.with_columns(
        key=lambda batch: batch["n"] % 3, diff=lambda batch: np.where(batch["n"] % 4 == 1, -1, 1)
    )
    arranged = arrange(keyed.rename({"n": "value"}), "key", effort=1, **MODES[mode])
    flow.output("found", lookup_join(keyed.drop("diff"), arranged).leave())
    less = numbers.filter(lambda batch: batch["n"] > 0)
    again.connect(less.map(lambda batch: {"n": batch["n"] - 1}))
    for seed in range(4):
        random = Random(seed)
        given = [(random.randrange(4), random.randrange(6)) for _ in range(8)]
        inputs = {"time": [t for t, _ in given], "n": [n for _, n in given]}
        result = flow.run({"numbers": inputs}, workers=workers, seed=seed)
        all_rows: list[Row] = [
            {"time": jt.Product(t, r), "key": (n - r) % 3, "value": n - r,
             "diff": -1 if (n - r) % 4 == 1 else 1}
            for t, n in given for r in range(n + 1)
        ]  # fmt: skip
        expected = [
            (row["time"].outer, row["value"], value)
            for row in all_rows
            for value in as_of(all_rows, mode, row["key"], row["time"])
        ]
        rows = result["found"].to_pylist()
        assert Counter((r["time"], r["n"], r["value"]) for r in rows) == Counter(expected)


def test_several_key_columns_of_any_type() -> None:
    flow = jt.Flow("keys")
    arranged = arrange(flow.input("rows"), "day", "name")
    flow.output("found", lookup_join(flow.input("asked"), arranged, ["d", "n"]))
    days = pa.array([1, 2, None], pa.date32())
    rows = {"time": [0, 0, 0], "day": days, "name": ["a", "b", "c"], "value": [[1], [2], [3]]}
    asked = {"time": [1, 1, 1], "d": days.take([1, 0, 2]), "n": ["b", "b", "c"]}
    [row] = flow.run({"rows": pa.table(rows), "asked": pa.table(asked)}, workers=3)[
        "found"
    ].to_pylist()
    assert (row["n"], row["value"]) == ("b", [2])


def test_the_columns_of_a_join_are_known_beforehand() -> None:
    flow = jt.Flow("known")
    rows = flow.input("rows", schema={"key": int, "value": str, "n": int})
    asked = flow.input("asked", schema={"key": int, "value": float})
    found = lookup_join(asked, arrange(rows, "key", diff="n"))
    assert found.schema == pa.schema(
        {"key": pa.int64(), "value": pa.float64(), "value_right": pa.string()}
    )
    with pytest.raises(GraphError, match="would be called"):
        lookup_join(asked, arrange(rows, "key"), suffix="")


def asking(have: pa.Array, asked: pa.Array, *, declared: bool) -> jt.Flow:
    flow = jt.Flow("types")
    rows, questions = (
        flow.input(name, schema={"key": key.type, "n": int} if declared else None)
        for name, key in (("rows", have), ("asked", asked))
    )
    flow.output("found", lookup_join(questions, arrange(rows, "key")))
    return flow


def keyed(key: pa.Array, time: int) -> dict[str, Any]:
    return {"time": [time] * len(key), "key": key, "n": [0] * len(key)}


@pytest.mark.parametrize(
    ("have", "asked"),
    [
        (pa.array([1, 2]), pa.array([1.0, 2.0])),
        (pa.array([1, 2]), pa.array(["1", "2"])),
        (pa.array([1, 2], pa.timestamp("us")), pa.array([1, 2], pa.timestamp("ns"))),
        (pa.array(["a"]), pa.array([b"a"])),
    ],
)
def test_keys_that_are_never_equal_are_refused(have: pa.Array, asked: pa.Array) -> None:
    with pytest.raises(GraphError, match=r"'key' \(.*are never equal.*operator 'lookup_join'"):
        asking(have, asked, declared=True)
    flow = asking(have, asked, declared=False)
    with pytest.raises(BatchError, match=r"'key' .* and 'key' .* are never equal"):
        flow.run({"rows": keyed(have, 0), "asked": keyed(asked, 1)})


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("have", "asked"),
    [
        (pa.array([1, 2]), pa.array([1, 2], pa.uint8())),
        (pa.array([1.0, 2.0]), pa.array([1.0, 2.0], pa.float32())),
        (pa.array(["a", "b"]), pa.array(["a", "b"], pa.large_string())),
        (pa.array(["a", "b"]), pa.array(["a", "b"]).dictionary_encode()),
    ],
)
def test_keys_of_like_types_find_each_other(
    have: pa.Array, asked: pa.Array, declared: bool
) -> None:
    flow = asking(have, asked, declared=declared)
    result = flow.run({"rows": keyed(have, 0), "asked": keyed(asked, 1)}, workers=2)
    assert result["found"].num_rows == 2


def test_keys_of_nothing_but_nulls_are_of_any_type() -> None:
    flow = jt.Flow("nulls")
    flow.output("found", lookup_join(flow.input("asked"), arrange(flow.input("rows"), "key")))
    with flow.open() as run:
        for time, keys in enumerate([[None], ["a"], [None]]):
            for name in ("rows", "asked"):
                run.input(name).send(keyed(pa.array(keys), time))
                run.input(name).advance_to(time + 1)
            run.run_to_rest()
        assert run.finish()["found"].num_rows == 1
    with flow.open() as run:
        for time, keys in enumerate([[None], ["a"]]):
            run.input("rows").send(keyed(pa.array(keys), time))
            run.input("rows").advance_to(time + 1)
            run.run_to_rest()
        run.input("rows").send(keyed(pa.array([1]), 2))
        with pytest.raises(BatchError, match=r"operator 'arrange'"):
            run.finish()
