"""Arrangements against lists of all that ever came, on random schedules, with restarts."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules

import jeton as jt
from jeton.idioms.arrangement import Arrangement, Reader, arrange
from jeton.idioms.lookup_join import lookup_join

pickling: Any = cloudpickle

MODES: dict[str, dict[str, Any]] = {
    "all": {},
    "diff": {"diff": "diff"},
    "upsert": {"upsert": True},
    "upsert with removals": {"upsert": True, "diff": "diff"},
}
modes = pytest.mark.parametrize("mode", MODES)
UPDATES = pa.schema(
    [("time", pa.int64()), ("key", pa.string()), ("value", pa.int64()), ("diff", pa.int64())]
)
ASKED = pa.schema([("time", pa.int64()), ("key", pa.string()), ("value", pa.string())])


def as_of(updates: Sequence[Row], mode: str, key: Any, time: Any) -> list[Any]:
    """The obvious twin: the values of a key at a time, from all updates there ever were."""
    there = [row for row in updates if row["key"] == key and row["time"] <= time]
    if key is None:
        return []
    if mode == "all":
        return [row["value"] for row in there]
    if mode == "diff":
        counts: Counter[Any] = Counter()
        for row in there:
            counts[row["value"]] += row["diff"]
        return [value for value, count in counts.items() for _ in range(count)]
    if not there:
        return []
    signs = mode == "upsert with removals"

    def rank(row: Row) -> Any:
        value = -1 if row["value"] is None else row["value"]
        return row["time"], signs and row["diff"] > 0, value, row["diff"]

    last = max(there, key=rank)
    return [] if signs and last["diff"] <= 0 else [last["value"]]


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


class Asker:
    """An operator that reads an arrangement and asks when the test wants it to."""

    def __init__(self, flow: jt.Flow, arranged: Arrangement) -> None:
        self.readers: list[Reader] = []
        builder = flow.operator("asker")
        builder.input(flow.input("asker"))
        self._acts: list[Callable[[], None]] = []

        def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Callable[..., None]:
            self.readers.append(arranged.reader(info))

            def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
                for _ in inputs[0]:
                    while self._acts:
                        self._acts.pop()()

            return step

        builder.build(build)

    def ask(self, run: jt.Run, act: Callable[[], None]) -> None:
        self._acts.append(act)
        handle = run.input("asker")
        handle.send({"time": [handle.time], "n": [0]})
        run.run_to_rest()
        assert not self._acts

    def advance(self, run: jt.Run, *since: int) -> None:
        self.ask(run, lambda: self.readers[0].advance(since))

    def lookup(self, run: jt.Run, keys: Sequence[Any], at: int) -> list[tuple[int, Any]]:
        found: list[tuple[int, Any]] = []

        def act() -> None:
            asking, rows = self.readers[0].lookup(jt.Batch({"key": keys}, [0] * len(keys)), at=at)
            if rows is not None:
                found.extend(zip(asking.tolist(), rows["value"].tolist(), strict=True))

        self.ask(run, act)
        return found


@modes
@pytest.mark.parametrize("effort", [1, 5, 1000])
def test_forgetting_history_never_changes_what_can_be_seen(mode: str, effort: int) -> None:
    for seed in range(4):
        random = Random(seed)
        flow = jt.Flow("history")
        arranged = arrange(flow.input("updates"), "key", effort=effort, **MODES[mode])
        asker = Asker(flow, arranged)
        updates: list[Row] = []
        since = 0
        with flow.open() as run:
            for start in range(0, 200, 10):
                rows = [
                    {
                        "time": random.randrange(start, start + 10),
                        "key": random.randrange(5),
                        "value": random.randrange(3),
                        "diff": random.choice([1, 1, -1]),
                    }
                    for _ in range(random.choice([0, 1, 10, 60]))
                ]
                updates += rows
                if rows:
                    run.input("updates").send(pa.Table.from_pylist(rows))
                run.input("updates").advance_to(start + 10)
                run.run_to_rest()
                if random.random() < 0.4:
                    since = random.randrange(since, start + 10)
                    asker.advance(run, since)
                for _ in range(4):
                    at = random.randrange(since, start + 10)
                    expected = [(k, v) for k in range(6) for v in as_of(updates, mode, k, at)]
                    assert sorted(asker.lookup(run, range(6), at)) == sorted(expected)
            if mode != "all":
                # At most one run, and less than half as much again, waits to be gone through.
                asker.advance(run, 200)
                here = sum(len(set(as_of(updates, mode, key, 200))) for key in range(5))
                assert asker.readers[0].size <= 3 * max(here, 15)
            asker.advance(run)
            assert asker.readers[0].size == 0


def test_history_stays_as_long_as_one_reader_may_ask_for_it() -> None:
    flow = jt.Flow("two readers")
    prices = arrange(flow.input("prices"), "key", upsert=True, effort=10)
    asker = Asker(flow, prices)
    flow.output("priced", lookup_join(flow.input("orders"), prices))
    with flow.open() as run:
        for time in range(100):
            run.input("prices").send({"time": [time] * 3, "key": [1, 2, 3], "value": [time] * 3})
            run.input("prices").advance_to(time + 1)
            run.input("orders").advance_to(time + 1)
            run.run_to_rest()
        assert asker.readers[0].size == 300
        assert asker.lookup(run, [2], at=17) == [(0, 17)]
        asker.advance(run, 50)
        assert asker.lookup(run, [2], at=50) == [(0, 50)]
        run.input("orders").send({"time": [100], "key": [3]})
        run.input("prices").advance_to(101)
        asker.advance(run)
        assert asker.readers[0].size < 20
        assert run.finish()["priced"].to_pylist() == [{"time": 100, "key": 3, "value": 99}]


def test_memory_is_taken_once_however_many_read() -> None:
    rows = {
        "time": np.arange(200_000) // 1000,
        "key": np.arange(200_000),
        "value": np.zeros(200_000),
    }

    def taken(readers: int) -> int:
        flow = jt.Flow("shared")
        arranged = arrange(flow.input("rows"), "key")
        for number in range(readers):
            lookup_join(flow.input(f"asked {number}"), arranged)
        with flow.open() as run:
            tracemalloc.start()
            run.input("rows").send(rows)
            run.input("rows").advance_to(1000)
            run.run_to_rest()
            size, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return size

    once = taken(1)
    assert once > 5_000_000
    assert taken(5) < 1.1 * once


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
    waiting = jt.RecordQueue(info.kind)
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


def test_what_is_sealed_is_told_of() -> None:
    flow = jt.Flow("told")
    flow.output("told", arrange(flow.input("rows", time="at"), "key", diff="n").stream)
    rows = {
        "at": [1, 1, 2, 2],
        "key": [7, 7, 8, 8],
        "value": ["x", "x", "y", "y"],
        "n": [1, 2, 1, -1],
    }
    assert flow.run({"rows": rows})["told"].to_pylist() == [
        {"at": 1, "key": 7, "value": "x", "n": 3}
    ]


def test_a_flow_that_travels_shares_too() -> None:
    flow = jt.Flow("travels")
    arranged = arrange(flow.input("rows"), "key")
    flow.output("one", lookup_join(flow.input("asked"), arranged))
    copy: jt.Flow = pickling.loads(pickling.dumps(flow))
    inputs = {"rows": {"time": [0], "key": [1], "value": [5]}, "asked": {"time": [3], "key": [1]}}
    assert copy.run(inputs, workers=2)["one"].to_pylist() == [{"time": 3, "key": 1, "value": 5}]


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
    with pytest.raises(jt.GraphError, match="would have the same name"):
        lookup_join(asked, arrange(rows, "key"), suffix="")


def run_reader(act: Callable[[Reader], Any]) -> None:
    flow = jt.Flow("misused")
    arranged = arrange(flow.input("rows"), "key")
    asker = Asker(flow, arranged)
    with flow.open() as run:
        run.input("rows").send({"time": [2, 9], "key": [1, 1], "value": [1, 2]})
        run.input("rows").advance_to(5)
        run.run_to_rest()
        asker.ask(run, lambda: act(asker.readers[0]))


def test_reading_what_is_not_complete_or_forgotten_is_an_error() -> None:
    batch = jt.Batch({"key": [1]}, [4])
    run_reader(lambda reader: reader.lookup(batch))
    with pytest.raises(jt.TimeError, match="'arrange' is not complete at 5: wait until"):
        run_reader(lambda reader: reader.lookup(batch, at=5))

    def forgotten(reader: Reader) -> None:
        reader.advance([4])
        reader.advance([3])
        reader.lookup(batch, at=4)
        reader.lookup(batch, at=3)

    with pytest.raises(jt.TimeError, match=r"moved on to Antichain\(\[4\]\) cannot look at 3"):
        run_reader(forgotten)


def test_what_makes_no_sense_is_refused() -> None:
    flow = jt.Flow("wrong")
    rows = flow.input("rows", schema={"key": int, "value": int})
    arranged = arrange(rows, "key")
    with pytest.raises(jt.GraphError, match="needs a key"):
        arrange(rows)
    with pytest.raises(jt.GraphError, match="no column 'kye': did you mean 'key'"):
        arrange(rows, "kye")
    with pytest.raises(jt.GraphError, match="needs a latest record"):
        arrange(rows.enter(flow.loop()), "key", upsert=True)
    with pytest.raises(jt.GraphError, match="of different lengths"):
        lookup_join(rows, arranged, ["key", "value"])
    with pytest.raises(jt.GraphError, match="must know the columns"):
        lookup_join(rows, arrange(flow.input("unknown"), "key"), how="left")
    with pytest.raises(jt.GraphError, match="'outer' is not known"):
        lookup_join(rows, arranged, how="outer")  # type: ignore[arg-type]
    own = jt.Flow("own times", time=Own)
    with pytest.raises(jt.GraphError, match="integer times"):
        arrange(own.input("rows"), "key")


class Own:
    """A time of one's own."""

    @classmethod
    def minimum(cls) -> Own:
        return cls()

    def __le__(self, other: object) -> bool:
        return True

    def sort_key(self) -> int:
        return 0


def test_a_diff_that_is_no_whole_number_and_columns_that_clash_are_errors() -> None:
    flow = jt.Flow("diff")
    arrange(flow.input("rows"), "key", diff="n")
    with pytest.raises(jt.BatchError, match="column 'n' must be of whole numbers"):
        flow.run({"rows": {"time": [0], "key": [1], "n": [0.5]}})
    flow = jt.Flow("clash")
    arranged = arrange(flow.input("rows"), "key")
    flow.output("found", lookup_join(flow.input("asked"), arranged, suffix=""))
    rows = {"time": [0], "key": [1], "value": [1]}
    with pytest.raises(jt.BatchError, match="would have the same name"):
        flow.run({"rows": rows, "asked": rows})
