"""Keyed state is found again where its records come, or a snapshot says that it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.helpers import messages

import jeton as jt
from jeton.errors import JetonError, SnapshotError, TokenError
from jeton.idioms.priority import HeapAgenda
from jeton.state.snapshot import Stateful

WORDS = [f"w{n}" for n in range(20)]

Key = Callable[[str], Any]
Prepare = Callable[[jt.Stream], jt.Stream]


def same(value: Any) -> Any:
    return value


def counting(pact: jt.Pact, key: Key = same, prepare: Prepare = same) -> jt.Flow:
    """How many records of a word have come."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        counts = jt.state.KeyedValues[int]()
        info.keep(counts)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                for word in batch["word"].to_list():
                    counts[key(word)] = counts.get(key(word), 0) + 1
                    output.session(ref).give(word=word, n=counts[key(word)])

        return step

    flow = jt.Flow("counts")
    flow.output("out", prepare(flow.input("in")).unary(build, pact=pact, name="count"))
    return flow


def windows(pact: jt.Pact, key: Key = same, prepare: Prepare = same) -> jt.Flow:
    """The same for one window."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        open_ = jt.state.KeyedTimes[list[str]](info.kind)
        info.keep(open_, token)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                for word in batch["word"].to_list():
                    open_.get_or(ref, 10, key(word), list).append(word)
            for time, _, found in open_.pop_before(input.frontier, inclusive=True):
                output.session(open_.right_for(time), time).give(word=found[0], n=len(found))
            open_.settle()

        return step

    flow = jt.Flow("windows")
    flow.output("out", prepare(flow.input("in")).unary_frontier(build, pact=pact, name="count"))
    return flow


def counted(flow: jt.Flow, before: int, after: int) -> dict[str, int]:
    """The greatest count of each word, if a run goes on with other workers half way."""
    with flow.open(workers=before) as run:
        run.input("in").send({"time": [0] * 20, "word": WORDS})
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=after, restore=snapshot) as run:
        run.input("in").send({"time": [1] * 20, "word": WORDS})
        rows = run.finish()["out"].to_pylist()
    return {row["word"]: row["n"] for row in rows}


MAKE = pytest.mark.parametrize("make", [counting, windows])
RIGHT = dict.fromkeys(WORDS, 2)


@MAKE
@pytest.mark.parametrize("pact", [jt.Exchange("word"), jt.Gather()], ids=repr)
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (2, 2), (2, 3), (3, 1)])
def test_entries_follow_the_pact(make: Any, pact: jt.Pact, before: int, after: int) -> None:
    assert counted(make(pact), before, after) == RIGHT


@MAKE
def test_an_earlier_operator_may_have_placed_the_records(make: Any) -> None:
    for prepare in (
        lambda stream: stream.exchange("word").map_rows(same),
        lambda stream: stream.unary(passing, pact=jt.Gather()),
    ):
        assert counted(make(jt.Pipeline(), prepare=prepare), 1, 3) == RIGHT
        assert counted(make(jt.Pipeline(), prepare=prepare), 2, 3) == RIGHT


def passing(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            output.session(ref).give(batch)

    return step


@MAKE
@pytest.mark.parametrize("pact", [jt.Pipeline(), jt.Broadcast()], ids=repr)
def test_records_that_come_anywhere_have_no_place(make: Any, pact: jt.Pact) -> None:
    flow = make(pact)
    with pytest.raises(SnapshotError, match=rf"key 'w\d+' is on worker \d, .*{pact!r:.8}.*'count'"):
        counted(flow, 2, 2)
    # One worker has them all, but more would not.
    assert counted(flow, 1, 1) == RIGHT
    with pytest.raises(SnapshotError, match=rf"3 workers the keyed entries .*{pact!r:.8}.*'count'"):
        counted(flow, 1, 3)


@MAKE
@pytest.mark.parametrize("key", [lambda word: (word, 1), str.upper], ids=["two", "upper"])
def test_keys_other_than_that_of_the_exchange_are_refused(make: Any, key: Key) -> None:
    expected = r"key .* is on worker \d, but belongs to .*Exchange\('word'\).*operator 'count'"
    with pytest.raises(SnapshotError, match=expected):
        counted(make(jt.Exchange("word"), key), 2, 3)


def test_a_key_may_be_computed_as_the_exchange_does() -> None:
    flow = counting(jt.Exchange(lambda batch: [len(w) for w in batch["word"].to_list()]), len)
    assert max(counted(flow, 2, 3).values()) == 20
    assert counted(counting(jt.Exchange("word"), lambda word: (word,)), 2, 3) == RIGHT


def kept(state: Any, *, dropped: bool = False, tokens: bool = True) -> jt.Flow:
    """A flow with an operator that keeps some state, of a type that may be wrong."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        made = state(info) if callable(state) else state
        if dropped:
            token.drop()
        info.keep(made, *([token] if tokens else []))
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                if isinstance(made, jt.state.RecordQueue):
                    made.push(ref, batch)

        return step

    flow = jt.Flow("kept")
    flow.output("out", flow.input("in").unary(build, pact=jt.Exchange("word"), name="mine"))
    return flow


def snapshot_of(flow: jt.Flow) -> None:
    with flow.open() as run:
        run.input("in").send({"time": [0], "word": ["a"]})
        run.run_to_rest()
        run.snapshot()


@pytest.mark.parametrize(
    "container", [jt.state.RecordQueue, jt.state.KeyedTimes, HeapAgenda], ids=lambda c: c.__name__
)
def test_rights_need_the_initial_token(container: Any) -> None:
    def make(info: jt.OperatorInfo) -> Stateful:
        made: Stateful = container(info.kind)
        return made

    snapshot_of(kept(make))
    with pytest.raises(JetonError) as caught:
        snapshot_of(kept(make, tokens=False))
    assert "info.keep(state, token), before they are dropped" in messages(caught.value)
    assert "'mine'" in messages(caught.value)
    with pytest.raises(JetonError) as caught:
        snapshot_of(kept(make, dropped=True))
    assert isinstance(caught.value, TokenError)
    assert "before token.drop()" in messages(caught.value)


def test_rights_kept_elsewhere_need_no_token() -> None:
    """As with watermarks: records that are pushed without a right."""
    queue = jt.state.RecordQueue(jt.IntegerTimes())
    queue.kept_with(())
    queue.push(None, jt.Batch({"word": ["a"]}, times=[0]))
    assert len(queue) == 1


class Own:
    """State of a user, with a table of its own."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def snapshot(self) -> Any:
        return self.table

    def restore(self, state: pa.Table, tokens: Any) -> None:
        self.token = tokens[0]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"bin": [1]}, r"pyarrow\.Table, not dict"),
        (None, r"pyarrow\.Table, not NoneType"),
        (pa.RecordBatch.from_pydict({"bin": [1]}), r"pyarrow\.Table, not RecordBatch"),
        (pa.table({"n": [1]}), "no column 'bin'"),
        (pa.table({"bin": ["a"]}), "of type string"),
        (pa.table({"bin": pa.array([None], pa.uint16())}), "has nulls"),
        (pa.table({"bin": [65_536]}), "has 65536, not integers from 0 to 65535"),
        (pa.table({"bin": [-1, 3]}), "has -1"),
    ],
    ids=str,
)
def test_tables_that_cannot_be_divided_are_refused(table: Any, expected: str) -> None:
    with pytest.raises(SnapshotError, match=rf"Own.*{expected}.*operator 'mine'"):
        snapshot_of(kept(Own(table)))


def test_what_has_not_the_two_methods_cannot_be_kept() -> None:
    with pytest.raises(SnapshotError) as caught:
        snapshot_of(kept({}))
    assert "a dict cannot be kept" in messages(caught.value)
    assert "'mine'" in messages(caught.value)


def test_state_that_asks_for_a_token_it_was_not_kept_with() -> None:
    flow = kept(Own(pa.table({"bin": [1]})), tokens=False)
    with flow.open() as run:
        snapshot = run.snapshot()
    with pytest.raises(SnapshotError) as caught:
        flow.open(restore=snapshot)
    assert "initial token for output 0" in messages(caught.value)
