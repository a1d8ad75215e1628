"""Containers in hand-written operators, over a restart from two workers to three."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import SnapshotError
from tests.helpers import held, messages
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules

SCHEMA = pa.schema(
    [("time", pa.int64()), ("key", pa.int32()), ("word", pa.string()), ("n", pa.int64())]
)
Step = Callable[[jt.Input, jt.Output], None]


def rows() -> st.SearchStrategy[list[Row]]:
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 30),
            "key": st.one_of(st.integers(-3, 3), st.none()),
            "word": st.sampled_from(["", "a", "b", "längere Wörter", None]),
            "n": st.integers(0, 9),
        }
    )
    return st.lists(row, max_size=25)


def key_of(row: Row, key: tuple[str, ...]) -> Any:
    return row[key[0]] if len(key) == 1 else tuple(row[name] for name in key)


def rolling_sum(key: tuple[str, ...]) -> Any:
    """A hand-written operator: the greatest sum of each key is emitted at the end of windows."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
        totals: jt.state.KeyedValues[int] = jt.state.KeyedValues()
        windows: jt.state.KeyedTimes[list[int]] = jt.state.KeyedTimes(info.kind)
        info.keep(totals, name="totals")
        info.keep(windows, token, name="windows")
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                for row in batch.rows():
                    end = (row["time"] // 10 + 1) * 10
                    windows.get_or(ref, end, key_of(row, key), list).append(row["n"])
            for end, at, window in windows.pop_before(input.frontier, inclusive=True):
                total = totals[at] = totals.get(at, 0) + sum(window)
                parts = at if isinstance(at, tuple) else (at,)
                given = dict(zip(key, parts, strict=True)) | {"window": sum(window)}
                columns = {name: pa.array([v], _type(name)) for name, v in given.items()}
                output.session(windows.right_for(end), end).give(columns, total=[total])
            windows.settle()

        return step

    return build


def _type(name: str) -> pa.DataType:
    return SCHEMA.field(name).type if name in SCHEMA.names else pa.int64()


def summed(rows: list[Row], key: tuple[str, ...]) -> list[Row]:
    groups: dict[Any, int] = defaultdict(int)
    for row in rows:
        groups[(row["time"] // 10 + 1) * 10, *(row[name] for name in key)] += row["n"]
    totals: dict[Any, int] = defaultdict(int)
    found = []
    for (end, *values), window in sorted(groups.items(), key=lambda item: item[0][0]):
        totals[tuple(values)] += window
        given = dict(zip(key, values, strict=True))
        found.append({"time": end, **given, "window": window, "total": totals[tuple(values)]})
    return found


@pytest.mark.parametrize("key", [("key",), ("word",), ("key", "word")], ids="-".join)
@settings(max_examples=40)
@given(rows=rows(), schedule=schedules())
def test_an_operator_on_containers_equals_its_twin(
    key: tuple[str, ...], rows: list[Row], schedule: Schedule
) -> None:
    def build(flow: jt.Flow) -> None:
        stream = flow.input("in")
        flow.output("out", stream.unary_frontier(rolling_sum(key), pact=jt.Exchange(*key)))

    found = run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})
    assert_same(found["out"], summed(rows, key))


class Seen:
    """A hand-written operator's own state, which joins with the two methods."""

    def __init__(self) -> None:
        self.words: set[str] = set()

    def snapshot(self) -> pa.Table:
        words = pa.array(sorted(self.words), pa.string())
        return pa.table({"bin": jt.state.bins_of([words]), "word": words})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        self.words.update(state.column("word").to_pylist())


@settings(max_examples=40)
@given(rows=rows(), schedule=schedules())
def test_an_operator_with_the_two_methods_equals_its_twin(
    rows: list[Row], schedule: Schedule
) -> None:
    def repeats(token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
        token.drop()
        seen = Seen()
        info.keep(seen)

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                for row in batch.rows():
                    if row["word"] in seen.words:
                        output.session(ref).give(word=row["word"])
                    seen.words.add(row["word"])

        return step

    rows = [row for row in rows if row["word"] is not None]

    def build(flow: jt.Flow) -> None:
        flow.output("out", flow.input("in").unary(repeats, pact=jt.Exchange("word")))

    found = run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})["out"]
    words = sorted(row["word"] for row in rows)
    for word in set(words):
        words.remove(word)
    assert sorted(row["word"] for row in found) == words


KEYS: list[Any] = [
    [0, -5, 2**40, None],
    ["a", "", "längere", None],
    [b"a", b""],
    [True, False],
    [1.5, -0.0],
    [(1, "a"), (2, None), (None, None)],
]


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: type(keys[0]).__name__)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_entries_are_where_exchange_sends_their_records(keys: list[Any], workers: int) -> None:
    values: jt.state.KeyedValues[int] = jt.state.KeyedValues()
    values.update({key: at for at, key in enumerate(keys)})
    table = values.snapshot()
    parts = [key if isinstance(key, tuple) else (key,) for key in keys]
    columns = {f"k{i}": pa.array(part) for i, part in enumerate(zip(*parts, strict=True))}
    batch = jt.Batch({**columns, "at": list(range(len(keys)))}, times=[0] * len(keys))
    snapshot = jt.state.Snapshot("flow", {"op": {"state": table}})
    for worker, part in jt.Exchange(*columns).route(batch, workers):
        share = snapshot.share("op", "state", worker, snapshot.placed_on(workers))
        assert share is not None
        again: jt.state.KeyedValues[int] = jt.state.KeyedValues()
        again.restore(share, [])
        assert {keys[at]: at for at in part["at"].tolist()} == dict(again)


def test_values_of_many_shapes_come_back() -> None:
    values: jt.state.KeyedValues[Any] = jt.state.KeyedValues()
    for key, value in enumerate([[1, 2], [], None, [3]]):
        values[key] = value
    again: jt.state.KeyedValues[Any] = jt.state.KeyedValues()
    again.restore(values.snapshot(), [])
    assert dict(again) == {0: [1, 2], 1: [], 2: None, 3: [3]}
    assert again.get_or(9, lambda: [9]) == [9]
    assert 9 in again
    del again[9]
    assert len(again) == 4
    typed: jt.state.KeyedValues[Any] = jt.state.KeyedValues(type=pa.map_(pa.string(), pa.int64()))
    typed["a"] = {"x": 1}
    assert typed.snapshot().column("value").to_pylist() == [[("x", 1)]]


@pytest.mark.parametrize("key", [frozenset("a"), (1, ("a", "b")), {"a": 1}.keys()])
def test_keys_without_a_bin_are_refused_at_once(key: Any) -> None:
    values: jt.state.KeyedValues[int] = jt.state.KeyedValues()
    with pytest.raises((SnapshotError, TypeError)):
        values[key] = 1


def test_what_cannot_be_stored_is_an_error_of_the_snapshot() -> None:
    values: jt.state.KeyedValues[Any] = jt.state.KeyedValues()
    values["a"] = Lock()
    with pytest.raises(SnapshotError, match=r"cannot be stored.*pickle"):
        values.snapshot()
    typed: jt.state.KeyedValues[Any] = jt.state.KeyedValues(type=pa.int8())
    typed["a"] = 1000
    with pytest.raises(SnapshotError, match=r"cannot be stored.*1000"):
        typed.snapshot()
    mixed: jt.state.KeyedValues[Any] = jt.state.KeyedValues()
    with pytest.raises(SnapshotError, match="tuples"):
        mixed.update({(1, 2): 0, 3: 0})
    assert mixed.snapshot().num_rows == 1


def test_keyed_times_hold_one_token_and_let_it_go() -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
        waiting: jt.state.KeyedTimes[int] = jt.state.KeyedTimes(info.kind)
        info.keep(waiting, token)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                for row in batch.rows():
                    waiting.push(ref, row["time"], row["k"], row["n"])
                    assert (row["time"], row["k"]) in waiting
            for time, key, n in waiting.pop_before(input.frontier):
                output.session(waiting.right_for(time), time).give(k=key, n=n)
            waiting.settle()
            left.append(len(waiting))

        return step

    left: list[int] = []
    flow = jt.Flow("tokens")
    flow.output("out", flow.input("in").unary_frontier(build, name="waits"))
    with flow.open() as run:
        run.input("in").send({"time": [3, 9, 5], "k": ["a", "b", "a"], "n": [1, 2, 3]})
        run.run_to_rest()
        assert held(run, "waits") == {3: 1}
        run.input("in").advance_to(6)
        run.run_to_rest()
        assert held(run, "waits") == {9: 1}
        table = run.finish()["out"]
    assert left[-1] == 0
    assert table.to_pylist() == [
        {"time": 3, "k": "a", "n": 1},
        {"time": 5, "k": "a", "n": 3},
        {"time": 9, "k": "b", "n": 2},
    ]


def test_windows_are_told_as_soon_as_their_ends_are_reached() -> None:
    flow = jt.Flow("early")
    flow.output("out", flow.input("in").unary_frontier(rolling_sum(("key",))))
    with flow.open() as run:
        run.input("in").send({"time": [3], "key": [1], "n": [5]})
        for time, emitted in ((9, 0), (10, 1)):
            run.input("in").advance_to(time)
            run.run_to_rest()
            assert run.results()["out"].num_rows == emitted
        run.finish()


def test_keyed_times_in_a_loop_cannot_be_stored_while_they_wait() -> None:
    kind = jt.Flow("kind").loop().kind
    times: jt.state.KeyedTimes[int] = jt.state.KeyedTimes(kind)
    assert times.snapshot().num_rows == 0


def test_two_states_need_two_names() -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
        token.drop()
        for _ in range(2):
            info.keep(jt.state.KeyedValues())
        raise AssertionError

    flow = jt.Flow("names")
    flow.output("out", flow.input("in").unary(build))
    with pytest.raises(SnapshotError) as caught:
        flow.open()
    assert "name=" in messages(caught.value)
