"""Changes of containers: all cuts together are the rows as they were at the last of them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import jeton as jt
from jeton.columns.batch import Batch
from jeton.state import aggregates as agg
from jeton.state import changes
from jeton.state.changes import Cut, Delta, Guard, with_numbers, without_numbers
from jeton.state.groups import Groups
from jeton.state.python_values import brought_back
from jeton.state.snapshot import Snapshot

KEYS: dict[str, Any] = {
    "small": lambda n: n,
    "wide": lambda n: n * 12345678901,
    "text": lambda n: f"key {n}",
    "nulls": lambda n: None if n % 7 == 0 else n,
}
NUMBERS = st.lists(st.integers(0, 60), min_size=1, max_size=12)


class Cuts(RuleBasedStateMachine):
    """Groups that are changed, cut, read sooner or later, merged, and restored; and their twin."""

    def __init__(self) -> None:
        super().__init__()
        self.twin: dict[Any, tuple[int, int]] = {}
        self.stored: dict[Any, tuple[int, int]] = {}
        self.deltas: list[Delta] = []
        self.token: str | None = None
        self.cut: Cut | None = None
        self.guard = Guard()

    @initialize(keys=st.sampled_from(sorted(KEYS)), small=st.sampled_from([0, 4096]))
    def begin(self, keys: str, small: int) -> None:
        self.key_of = KEYS[keys]
        self.groups = self.made()
        # Whether nothing is noted any more once half of the rows have changed.
        vars(changes)["_SMALL"] = small

    def made(self) -> Groups:
        return Groups(["k"], {"count": agg.count(), "sum": agg.sum("n")})

    @rule(numbers=NUMBERS)
    def add(self, numbers: list[int]) -> None:
        keys = [self.key_of(n) for n in numbers]
        batch = Batch({"k": pa.array(keys), "n": numbers}, np.zeros(len(keys), np.int64))
        slots, _ = self.groups.find(batch)
        self.groups.add(slots, batch)
        for key, n in zip(keys, numbers, strict=True):
            count, total = self.twin.get(key, (0, 0))
            self.twin[key] = count + 1, total + n

    @rule(large=st.integers(1 << 22, 1 << 23))
    def add_large(self, large: int) -> None:
        """Integers too large to be their own slots, which makes another index."""
        self.add([large])

    @precondition(lambda self: self.twin)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        order = sorted(self.twin, key=str)
        gone = data.draw(st.lists(st.sampled_from(order), min_size=1, max_size=9, unique=True))
        batch = Batch({"k": pa.array(gone)}, np.zeros(len(gone), np.int64))
        slots, new = self.groups.find(batch)
        assert not len(new)
        self.groups.remove(slots.copy())
        for key in gone:
            del self.twin[key]

    @precondition(lambda self: self.cut is None)
    @rule()
    def take_cut(self) -> None:
        self.cut = self.groups.changed(self.token, self.guard, self.groups.save)
        self.at_cut = dict(self.twin)

    @precondition(lambda self: self.cut is not None)
    @rule()
    def read(self) -> None:
        cut, self.cut = self.cut, None
        assert cut is not None
        if cut.after is None:
            self.deltas = []
        if not cut.is_empty:
            self.deltas.append(cut.read())
        self.token, self.stored = cut.token, self.at_cut

    @precondition(lambda self: self.cut is None)
    @rule()
    def take_back(self) -> None:
        self.groups.changed(self.token, self.guard, self.groups.save).abandon()

    @precondition(lambda self: len(self.deltas) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(self.deltas) - 2))
        self.deltas[start:] = [Delta.merged(self.deltas[start:], whole=start == 0)]

    @precondition(lambda self: self.deltas and self.cut is None)
    @rule()
    def restore(self) -> None:
        """Another process goes on from what is stored."""
        assert self.token is not None
        whole = Delta.merged(self.deltas, whole=True)
        if not whole.rows.num_rows:
            return
        table, token, ids = without_numbers(with_numbers(whole, self.token))
        self.groups = self.made()
        self.groups.load(table)
        assert token is not None
        self.groups.changes.restored(token, ids)
        self.twin = dict(self.stored)
        self.guard = Guard()

    @invariant()
    def what_is_stored_is_what_was_cut(self) -> None:
        if not self.deltas:
            return
        rows = Delta.merged(self.deltas, whole=True).rows
        if not rows.num_rows:
            assert not self.stored
            return
        columns = ("key.k", "of.count.count", "of.sum.value")
        found = list(zip(*(rows[name].to_pylist() for name in columns), strict=True))
        assert {key: (count, total) for key, count, total in found} == self.stored
        assert len(found) == len(self.stored)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "PIECE", 5)
    monkeypatch.setattr(changes, "_STRETCH", 16)
    monkeypatch.setattr(changes, "_SMALL", changes._SMALL)


class QueuedCuts(RuleBasedStateMachine):
    """Records that wait, are taken in order of time, cut, merged and restored; and their twin."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = jt.state.RecordQueue(jt.IntegerTimes(), ["n"])
        self.twin: list[tuple[int, int]] = []
        self.stored: list[tuple[int, int]] = []
        self.deltas: list[Delta] = []
        self.token: str | None = None
        self.records = 0

    @rule(times=st.lists(st.integers(0, 12), min_size=1, max_size=6))
    def push(self, times: list[int]) -> None:
        numbers = range(self.records, self.records + len(times))
        self.records += len(times)
        self.queue.push(None, Batch({"n": [*numbers]}, times=times))
        self.twin += zip(times, numbers, strict=True)

    @rule(limit=st.integers(0, 14), inclusive=st.booleans())
    def take(self, limit: int, inclusive: bool) -> None:
        self.queue.take(limit, inclusive=inclusive)
        self.twin = [(t, n) for t, n in self.twin if t >= limit + inclusive]

    @rule(parity=st.integers(0, 1))
    def move(self, parity: int) -> None:
        """Some bins go elsewhere, and come back."""
        chosen = np.arange(256) % 2 == parity
        self.queue.restore(self.queue.take_bins(chosen), ())

    @rule(merged=st.integers(0, 3))
    def store(self, merged: int) -> None:
        cut = self.queue.cut(self.token, Guard())
        assert cut is not None
        if cut.after is None:
            self.deltas = []
        if not cut.is_empty:
            self.deltas.append(cut.read())
        self.token, self.stored = cut.token, list(self.twin)
        if 1 < merged <= len(self.deltas):
            whole = merged == len(self.deltas)
            self.deltas[-merged:] = [Delta.merged(self.deltas[-merged:], whole=whole)]

    @precondition(lambda self: self.deltas)
    @rule()
    def restore(self) -> None:
        whole = Delta.merged(self.deltas, whole=True)
        self.queue = jt.state.RecordQueue(jt.IntegerTimes(), ["n"])
        self.queue.restore(whole.rows, ())
        assert self.token is not None
        self.queue.restored(self.token, None)
        self.twin = list(self.stored)

    @invariant()
    def what_is_stored_is_what_was_cut(self) -> None:
        if self.deltas:
            rows = Delta.merged(self.deltas, whole=True).rows
            assert rows.num_rows == len(self.stored)
            if self.stored:
                found = zip(*(rows[n].to_pylist() for n in ("time.time", "value.n")), strict=True)
                assert sorted(found) == sorted(self.stored)


TestCuts = Cuts.TestCase
TestQueuedCuts = QueuedCuts.TestCase


def test_a_cut_that_is_taken_back_is_part_of_the_next_one() -> None:
    groups = Groups(["k"], {"count": agg.count()})
    guard = Guard()

    def add(*keys: int) -> None:
        batch = Batch({"k": np.array(keys)}, np.zeros(len(keys), np.int64))
        groups.add(groups.find(batch)[0], batch)

    add(1, 2, 3)
    first = groups.changed(None, guard, groups.save)
    first.read()
    add(2)
    groups.changed(first.token, guard, groups.save).abandon()
    assert guard.open == 0
    add(3)
    found = groups.changed(first.token, guard, groups.save)
    assert found.after == first.token
    assert found.read().rows["key.k"].to_pylist() == [2, 3]


class NextCut(Guard):
    """At the end of reading, the operator's thread takes the next cut at once."""

    groups: Groups

    def __exit__(self, *error: object) -> None:
        was_open = self.open
        super().__exit__(*error)
        if not was_open:
            self.groups.changed(None, Guard(), self.groups.save)


def test_a_cut_keeps_its_numbers_while_the_next_one_is_taken() -> None:
    groups, guard = Groups(["k"], {"count": agg.count()}), NextCut()

    def add(*keys: int) -> None:
        batch = Batch({"k": np.array(keys)}, np.zeros(len(keys), np.int64))
        groups.add(groups.find(batch)[0], batch)

    add(1, 2, 3)
    table = groups.save(groups.live())
    groups = guard.groups = Groups(["k"], {"count": agg.count()})
    groups.load(table)
    groups.changes.restored("stored", np.array([70, 80, 90]))
    add(2)
    delta = groups.changed("stored", guard, groups.save).read()
    assert delta.rows["key.k"].to_pylist() == [2]
    assert delta.ids is not None
    assert delta.ids.tolist() == [80]


def test_python_objects_are_read_at_the_cut() -> None:
    """A function of the user's may change them where they are, at any time later."""
    flow = jt.Flow("lists")

    def append(state: list[int], row: dict[str, Any]) -> tuple[list[int], list[Any]]:
        state.append(row["n"])
        return state, []

    flow.output("out", flow.input("in").key_by("k").stateful_map(append, list))
    with flow.open() as run:
        run.input("in").send({"time": [0], "k": [7], "n": [1]})
        run.input("in").advance_to(1)
        run.run_to_rest()
        cuts = run.workers[0].cut({})["stateful_map"]
        run.input("in").send({"time": [1], "k": [7], "n": [2]})
        run.input("in").advance_to(2)
        run.run_to_rest()
        cut = cuts["state"]
        assert isinstance(cut, Cut)
        assert brought_back(cut.read().rows["state"]) == [[1]]


TEXT = pa.array(["b", "a"])


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (TEXT, TEXT.dictionary_encode()),
        (TEXT.dictionary_encode(), TEXT),
        (pa.nulls(2), TEXT.dictionary_encode()),
        (TEXT.cast(pa.dictionary(pa.int8(), pa.string())), TEXT.dictionary_encode()),
        (pa.array([1, 2]), pa.array([Decimal("1.5"), None])),
    ],
    ids=["a dictionary", "none any more", "nulls", "two dictionaries", "decimals"],
)
@pytest.mark.parametrize("how", ["waiting", "joined", "most", "different"])
def test_columns_may_change_their_types_between_cuts(how: str, first: Any, then: Any) -> None:
    flow = jt.Flow("types", bins=256)
    keyed, other = flow.input("in").key_by("k"), flow.input("other").key_by("k")
    made = {
        "waiting": lambda: keyed.running(ordered=True).count(),
        "joined": lambda: keyed.interval_join(other, 0, 9),
        "most": lambda: keyed.tumbling(20).max("v"),
        "different": lambda: keyed.tumbling(20).aggregate(count=agg.count_distinct("v")),
    }
    flow.output("out", made[how]())
    deltas: dict[tuple[str, str], list[Delta]] = {}
    tokens: dict[tuple[str, str], str] = {}
    with flow.open() as run:
        for at, values in enumerate((first, then)):
            try:
                run.input("in").send({"time": [at, at], "k": [1, 2], "v": values})
                run.run_to_rest()
            except jt.errors.BatchError:
                return  # refused, not only by checkpoints
            for operator, kept in run.workers[0].cut(tokens).items():
                for name, cut in kept.items():
                    if isinstance(cut, Cut):
                        before = deltas.get((operator, name), []) if cut.after else []
                        deltas[operator, name] = [*before, cut.read()]
                        tokens[operator, name] = cut.token
        run.input("other").send({"time": [2, 2], "k": [1, 2]})
        expected = run.finish()["out"]
    stored: dict[str, dict[str, pa.Table]] = {}
    for (operator, name), each in deltas.items():
        stored.setdefault(operator, {})[name] = Delta.merged(each, whole=True).rows
    with flow.open(restore=Snapshot(flow.name, stored, bins=256)) as run:
        run.input("other").send({"time": [2, 2], "k": [1, 2]})
        found = run.finish()["out"]
    for name in expected.column_names:
        assert found[name].to_pylist() == expected[name].to_pylist()


def test_sums_of_integers_that_become_floats_are_all_written() -> None:
    """Such a sum need not be a floating-point number, which changes it where it is."""
    groups = Groups(["k"], {"sum": agg.sum("n")})

    def add(key: int, n: float) -> None:
        batch = Batch({"k": [key], "n": [n]}, times=[0])
        groups.add(groups.find(batch)[0], batch)

    add(1, 2**53 + 1)
    first = groups.changed(None, Guard(), groups.save)
    first.read()
    add(2, 0.5)
    second = groups.changed(first.token, Guard(), groups.save)
    assert second.after is None
    assert second.read().rows["of.sum.real"].to_pylist() == [2.0**53, 0.5]
    add(2, 0.5)
    third = groups.changed(second.token, Guard(), groups.save)
    assert third.read().rows["key.k"].to_pylist() == [2]
