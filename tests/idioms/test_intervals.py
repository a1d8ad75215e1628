"""Interval batching: one message and one downgrade for an advance, whatever the times inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules

import jeton as jt
from jeton.errors import BatchError, GraphError
from jeton.idioms.intervals import Intervals, Sealed, batch_intervals

SCHEMA = pa.schema(
    [("time", pa.int64()), ("key", pa.string()), ("value", pa.float64()), ("n", pa.int64())]
)


def rows() -> st.SearchStrategy[list[Row]]:
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 9),
            "key": st.sampled_from(["a", "b", None]),
            "value": st.sampled_from([1.0, None]),
            "n": st.integers(-2, 2),
        }
    )
    return st.lists(row, max_size=30)


@given(given_rows=rows(), schedule=schedules())
@settings(max_examples=30, deadline=None)
def test_nothing_is_lost_and_equal_records_become_one(
    given_rows: list[Row], schedule: Schedule
) -> None:
    def build(flow: jt.Flow) -> None:
        stream = flow.input("rows")
        flow.output("plain", batch_intervals(stream, "key"))
        flow.output("summed", batch_intervals(stream, "key", "value", diff="n"))

    found = run_twin(build, {"rows": given_rows}, schedule, schema={"rows": SCHEMA})
    assert_same(found["plain"], given_rows)
    sums: Counter[Any] = Counter()
    for row in given_rows:
        sums[row["time"], row["key"], row["value"]] += row["n"]
    expected = [
        {"time": time, "key": key, "value": value, "n": n}
        for (time, key, value), n in sums.items()
        if n
    ]
    assert_same(found["summed"], expected)


class Seen:
    """Every message that comes, and every interval that is sealed, by worker."""

    def __init__(self) -> None:
        self.messages: list[jt.Batch] = []
        self.sealed: dict[int, list[list[Sealed]]] = {}
        self.times: dict[int, list[Any]] = {}

    def look(self, batch: jt.Batch) -> None:
        self.messages.append(batch)

    def seal(self, token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        token.drop()
        waiting = Intervals(info.kind)
        mine = self.sealed[info.worker] = []
        pushed = self.times[info.worker] = []

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                waiting.push(ref, batch)
                pushed.extend(time for time, part in batch.by_time() for _ in range(len(part)))
            sealed = waiting.seal(input.frontier)
            for one in sealed:
                output.session(one.token).give(one.batch)
            if sealed:
                mine.append(sealed)
            waiting.settle()

        return step


def test_one_message_for_an_advance_sorted_by_key_then_time() -> None:
    seen = Seen()
    flow = jt.Flow("sorted")
    batch_intervals(flow.input("rows"), "key").inspect(seen.look)
    random = Random(7)
    times = [random.randrange(1_000_000) for _ in range(5000)]
    keys = [random.choice([None, "x", "a", "y"]) for _ in times]
    with flow.open() as run:
        for start in range(0, 5000, 500):
            columns = {"time": times[start : start + 500], "key": keys[start : start + 500]}
            run.input("rows").send(columns)
        for frontier in (300_000, 300_001, 900_000):
            run.input("rows").advance_to(frontier)
            run.run_to_rest()
        run.finish()
    assert 3 <= len(seen.messages) <= 4
    for batch in seen.messages:
        order = [(row["key"] is None, row["key"] or "", row["time"]) for row in batch.rows()]
        assert order == sorted(order)
    assert sum(map(len, seen.messages)) == 5000


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_intervals_follow_each_other_and_hold_what_they_say(workers: int) -> None:
    for seed in range(5):
        seen = Seen()
        flow = jt.Flow("intervals")
        flow.output("all", flow.input("n").unary_frontier(seen.seal, pact=jt.Exchange("n")))
        random = Random(seed)
        times = [random.randrange(50) for _ in range(60)]
        columns = {"time": times, "n": list(range(60))}
        result = flow.run({"n": columns}, workers=workers, seed=seed)
        assert sorted(result["all"]["time"].to_pylist()) == sorted(times)
        for parts in seen.sealed.values():
            assert all(len(part) == 1 for part in parts)
            check([part[0] for part in parts])


def check(sealed: Sequence[Sealed]) -> None:
    before: jt.Antichain | None = None
    for one in sealed:
        assert one.lower != one.upper
        assert one.lower.dominates(one.upper)
        assert before is None or before.dominates(one.lower)
        before = one.upper
        for time, _ in one.batch.by_time():
            assert one.lower.less_equal(time)
            assert one.upper.passed(time)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_in_a_loop_there_is_a_part_for_each_least_token(workers: int) -> None:
    for seed in range(5):
        seen = Seen()
        flow = jt.Flow("loop")
        loop = flow.loop()
        again = loop.feedback()
        numbers = flow.input("n").enter(loop).concat(again.stream)
        sealed = numbers.unary_frontier(seen.seal, pact=jt.Exchange("n"))
        again.connect(
            numbers.filter(lambda batch: batch["n"] > 0).map(lambda batch: {"n": batch["n"] - 1})
        )
        flow.output("all", sealed.leave())
        random = Random(seed)
        given_rows = [(random.randrange(4), random.randrange(6)) for _ in range(10)]
        columns = {"time": [t for t, _ in given_rows], "n": [n for _, n in given_rows]}
        result = flow.run({"n": columns}, workers=workers, seed=seed)
        found = Counter((row["time"], row["n"]) for row in result["all"].to_pylist())
        assert found == Counter((t, m) for t, n in given_rows for m in range(n + 1))
        for worker, intervals in seen.sealed.items():
            for parts in intervals:
                tokens = [part.token for part in parts]
                assert len(set(map(id, tokens))) == len(tokens)
                for part in parts:
                    check([part])
            times = [
                time
                for parts in intervals
                for part in parts
                for time, rows_at in part.batch.by_time()
                for _ in range(len(rows_at))
            ]
            assert Counter(times) == Counter(seen.times[worker])


def test_one_token_is_held_whatever_the_number_of_times() -> None:
    held: list[Any] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        step = Seen().seal(token, info)

        def watched(input: jt.Input, output: jt.Output) -> None:
            step(input, output)
            held.append(output.book.held)

        return watched

    flow = jt.Flow("one token")
    flow.input("n").unary_frontier(build)
    with flow.open() as run:
        run.input("n").send({"time": np.arange(100_000), "n": np.arange(100_000)})
        for frontier in (10_000, 50_000, 99_999):
            run.input("n").advance_to(frontier)
            run.run_to_rest()
        run.finish()
    assert max(held) == 1
    assert held[-1] == 0


class Own:
    """Times of one's own: pairs of numbers."""

    def __init__(self, a: int = 0, b: int = 0) -> None:
        self.pair = (a, b)

    @classmethod
    def minimum(cls) -> Own:
        return cls()

    def __le__(self, other: Own) -> bool:
        return self.pair[0] <= other.pair[0] and self.pair[1] <= other.pair[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and self.pair == other.pair

    def __hash__(self) -> int:
        return hash(self.pair)

    def sort_key(self) -> tuple[int, int]:
        return self.pair


def test_times_of_ones_own() -> None:
    seen = Seen()
    flow = jt.Flow("own", time=Own)
    batch_intervals(flow.input("rows"), "key", diff="n").inspect(seen.look)
    with flow.open() as run:
        times = [Own(0, 1), Own(1, 0), Own(0, 1), Own(1, 0), Own(1, 0)]
        run.input("rows").send(
            jt.Batch({"key": [1, 1, 1, 2, 2], "n": [1, 1, 1, 1, -1]}, times, kind=flow.kind)
        )
        run.finish()
    found = [
        (time.pair, *row.values())
        for batch in seen.messages
        for time, part in batch.by_time()
        for row in part.select("key", "n").to_arrow().drop(["time"]).to_pylist()
    ]
    assert sorted(found) == [((0, 1), 1, 2), ((1, 0), 1, 1)]


def test_what_makes_no_sense_is_refused() -> None:
    flow = jt.Flow("wrong")
    with pytest.raises(GraphError, match="needs a key"):
        batch_intervals(flow.input("n"))
    with pytest.raises(GraphError, match="no column 'm'"):
        batch_intervals(flow.input("known", schema={"n": int}), "m")


@pytest.mark.parametrize(
    ("diff", "column", "says"),
    [
        (None, {"key": pa.array([[1], [2]])}, "key column 'key' is of type list.*no order"),
        ("n", {"value": pa.array([[1], [2]])}, "'value' is of type list.*compared by all"),
        ("n", {"value": pa.array([{"a": 1}] * 2)}, "'value' is of type struct.*compared by all"),
        ("n", {"n": pa.array([1, 2**63], pa.uint64())}, "'n' has 9223372036854775808, but"),
        ("n", {"n": pa.array([1, None])}, "'n' must be of whole numbers, without nulls"),
    ],
)
def test_columns_that_cannot_be_worked_with_are_named(
    diff: str | None, column: dict[str, pa.Array], says: str
) -> None:
    flow = jt.Flow("wrong")
    flow.output("out", batch_intervals(flow.input("rows"), "key", diff=diff))
    rows = {"time": [0, 0], "key": [1, 1], "value": [1, 1], "n": [1, 1], **column}
    with pytest.raises(BatchError, match=says):
        flow.run({"rows": rows})


def test_keys_may_be_categories() -> None:
    flow = jt.Flow("categories")
    flow.output("out", batch_intervals(flow.input("rows"), "key", diff="n"))
    keys = pa.array(["b", "a", "b"]).dictionary_encode()
    result = flow.run({"rows": {"time": [1, 1, 1], "key": keys, "n": [1, 2, 3]}}, workers=2)
    found = sorted((row["key"], row["n"]) for row in result["out"].to_pylist())
    assert found == [("a", 2), ("b", 4)]
