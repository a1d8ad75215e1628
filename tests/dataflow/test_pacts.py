"""Pacts: which worker gets which record."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import UnaryStep, consume, dropping, seeded

import jeton as jt
from jeton.columns.batch import Batch
from jeton.columns.keys import hash_columns
from jeton.dataflow.pacts import GUEST, KeyExchange, SpreadExchange
from jeton.errors import BatchError, GraphError
from jeton.state.bins import Placement


def arrivals(
    table: pa.Table, pact: jt.Pact, workers: int = 3, seed: int | None = None
) -> list[dict[str, Any]]:
    """Each record with the worker that got it."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                with output.session(ref) as session:
                    session.give(batch, worker=[info.worker] * len(batch))

        return step

    flow = jt.Flow("arrivals")
    flow.output("out", flow.input("in").unary(build, pact=pact))
    rows: list[dict[str, Any]] = flow.run({"in": table}, workers=workers, seed=seed)[
        "out"
    ].to_pylist()
    return rows


def table(**columns: Any) -> pa.Table:
    length = len(next(iter(columns.values())))
    return pa.table({"time": list(range(length)), **columns})


NOW = datetime(2024, 5, 1, tzinfo=UTC)

KEYS: dict[str, pa.Array] = {
    "int": pa.array([1, 2, None, 3] * 10),
    "int8": pa.array([1, 2, 3, None] * 10, pa.int8()),
    "uint64": pa.array([2**64 - 1, 0, None, 5] * 10, pa.uint64()),
    "float": pa.array([0.0, -0.0, float("nan"), None, 1.5] * 8),
    "bool": pa.array([True, False, None] * 10),
    "text": pa.array(["a", "b", "", None, "a longer text than eight bytes"] * 8),
    "large text": pa.array(["a", "b", None] * 8, pa.large_string()),
    "bytes": pa.array([b"a", b"b", None] * 8),
    "dictionary": pa.array(["a", "b", None] * 8).dictionary_encode(),
    "timestamp": pa.array([NOW.replace(tzinfo=None), None] * 8, pa.timestamp("us")),
    "zoned": pa.array([NOW, None] * 8, pa.timestamp("ns", "UTC")),
    "date": pa.array([date(2024, 5, 1), date(2024, 5, 2)] * 8),
    "date and null": pa.array([date(2024, 5, 1), None] * 8),
    "time": pa.array([time(12), time(13)] * 8),
    "decimal": pa.array([Decimal("1.50"), Decimal("2.50")] * 8),
    "decimal and null": pa.array([Decimal("1.50"), None] * 8),
    "nulls": pa.nulls(16),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_equal_keys_meet_on_one_worker(key: pa.Array, seed: int | None) -> None:
    got = arrivals(table(key=key), jt.Exchange("key"), seed=seed)
    assert sorted(row["time"] for row in got) == list(range(len(key)))
    workers = defaultdict(set)
    for row in got:
        value = row["key"]
        # 0.0 and -0.0 are equal, every NaN is the same key.
        workers["nan" if value != value else value].add(row["worker"])
    assert all(len(owners) == 1 for owners in workers.values())


def test_many_keys_spread_over_all_workers() -> None:
    for column in (list(range(300)), [f"word {i}" for i in range(300)]):
        got = arrivals(table(key=column), jt.Exchange("key"))
        assert {row["worker"] for row in got} == {0, 1, 2}


def some_column(kind: str, rows: int, seed: int) -> Any:
    """Values of a kind, as operators may hand them on: strided and read-only ones too."""
    chosen = np.random.default_rng(seed)
    words = chosen.integers(-(2**63), 2**63 - 1, rows, endpoint=True)
    words[chosen.integers(0, 4, rows) == 0] = 7
    if kind == "strided":
        return np.repeat(words, 2)[::2]
    if kind == "read-only":
        words.flags.writeable = False
        return words
    if kind == "big end first":
        return words.astype(">i8")
    if kind == "text":
        return pa.array([None if word == 7 else f"word {word}" for word in words], pa.string())
    if kind == "float64":
        return words / 3.0
    if kind in ("datetime64[us]", "timedelta64[ns]"):
        return np.maximum(words, -(2**62)).astype(kind)
    return words.astype(kind)


FIXED = (
    *("int64", "float64", "uint64", "strided", "read-only", "big end first"),
    *("datetime64[us]", "timedelta64[ns]", "int32", "int8", "bool", "text"),
)


@given(
    st.sampled_from(["int64", "strided", "read-only", "int32", "float64", "text"]),
    st.lists(st.sampled_from(FIXED), max_size=4),
    st.one_of(st.integers(0, 30), st.integers(1000, 3000)),
    st.integers(1, 5),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_parts_are_what_taking_them_one_by_one_gives(
    key: str, others: list[str], rows: int, workers: int, seed: int, loop: bool
) -> None:
    """In their order, with all types as they were, for columns of any types beside each other."""
    columns = {f"c{at}": some_column(kind, rows, seed + at) for at, kind in enumerate(others)}
    columns["key"] = some_column(key, rows, seed + 99)
    times = np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, rows, endpoint=True)
    batch = Batch.trusted(columns, np.stack([times, -times], axis=1) if loop else times)
    owners = Placement.even(workers).owners
    hashes = hash_columns([columns["key"]])
    to = owners[(hashes & np.uint64(len(owners) - 1)).astype(np.int64)]
    found = dict(jt.Exchange("key").route(batch, workers))
    if rows:
        assert sorted(found) == sorted(set(to.tolist()))
    for worker, part in found.items():
        expected = batch.take(np.flatnonzero(to == worker))
        assert part.names == expected.names
        assert np.array_equal(part.times, expected.times)
        for name, column in expected.columns.items():
            got: Any = part.columns[name]
            if isinstance(column, np.ndarray):
                assert got.dtype == column.dtype
                # The same object, by which operators know without a comparison what they have.
                assert got.dtype is np.dtype(np.int64) or column.dtype != np.int64
                assert got.tobytes() == column.tobytes()
            else:
                assert got.equals(column)


def shares(pact: SpreadExchange, keys: list[Any], workers: int) -> Counter[tuple[Any, int, bool]]:
    """How often each key comes to each worker, and whether as a guest."""
    batch = jt.Batch({"key": pa.array(keys)}, times=[0] * len(keys))
    return Counter(
        (key, worker, GUEST in part)
        for worker, part in pact.router(Placement.even(workers), 0)(batch)
        for key in pa.array(part["key"]).to_pylist()
    )


@pytest.mark.parametrize("keys", [[7] * 3000, ["hot"] * 3000, [None, "hot"] * 1500])
def test_a_hot_key_goes_evenly_to_as_many_workers(keys: list[Any]) -> None:
    found = shares(SpreadExchange("key", spread=2), keys, workers=3)
    for key in set(keys):
        counts = [n for (of, _, _), n in found.items() if of == key]
        assert len(counts) == 2
        assert max(counts) < 1.2 * min(counts)


def test_a_hot_key_is_on_all_workers_if_there_are_fewer() -> None:
    for pact, workers in ((SpreadExchange("key", spread=8), 3), (SpreadExchange(spread=2), 2)):
        found = shares(pact, [7] * 300, workers)
        assert sorted(worker for _, worker, _ in found) == list(range(workers))
        assert sum(not guest for _, _, guest in found) == 1


def test_other_keys_go_to_their_owners_as_without_spread() -> None:
    keys = [7] * 5000 + list(range(1000, 6000))
    random.Random(0).shuffle(keys)
    found = shares(SpreadExchange("key", spread=4), keys, workers=4)
    batch = jt.Batch({"key": keys}, times=[0] * len(keys))
    owners = {
        key: worker
        for worker, part in jt.Exchange("key").route(batch, 4)
        for key in part["key"].tolist()
    }
    guests = {key: n for (key, _, guest), n in found.items() if guest}
    assert all(owners[key] == worker for key, worker, guest in found if not guest)
    assert sum(guests.values()) > 1000
    # The first records of all, and those that share the place of a hot one.
    assert sum(n for key, n in guests.items() if key != 7) < 100


@pytest.mark.parametrize("period", [1, 2, 3, 8])
def test_no_pattern_of_records_sends_a_hot_key_to_one_worker(period: int) -> None:
    route = SpreadExchange("key", spread=4).router(Placement.even(4), 0)
    batch = jt.Batch({"key": [7, *range(100, 99 + period)]}, times=[0] * period)
    counts = Counter(
        worker for _ in range(400) for worker, part in route(batch) if 7 in part["key"].tolist()
    )
    assert len(counts) == 4
    assert max(counts.values()) < 2 * min(counts.values())


def test_integers_of_any_width_with_or_without_nulls_go_the_same_way() -> None:
    def owners(column: pa.Array) -> dict[Any, int]:
        got = arrivals(table(key=column), jt.Exchange("key"))
        return {row["key"]: row["worker"] for row in got if row["key"] is not None}

    plain = owners(pa.array(range(50)))
    assert owners(pa.array(range(50), pa.int8())) == plain
    assert owners(pa.array([*range(50), None])) == plain


def test_several_columns_make_one_key() -> None:
    a, b = [i % 5 for i in range(60)], [f"{i % 3}" for i in range(60)]
    got = arrivals(table(a=a, b=b), jt.Exchange("a", "b"))
    workers = defaultdict(set)
    for row in got:
        workers[row["a"], row["b"]].add(row["worker"])
    assert len(workers) == 15
    assert all(len(owners) == 1 for owners in workers.values())
    assert {row["worker"] for row in got} == {0, 1, 2}


def test_a_function_makes_the_key() -> None:
    got = arrivals(table(n=list(range(40))), jt.Exchange(lambda batch: batch["n"] % 4))
    workers = defaultdict(set)
    for row in got:
        workers[row["n"] % 4].add(row["worker"])
    assert all(len(owners) == 1 for owners in workers.values())


def test_a_function_and_a_column_make_one_key() -> None:
    pact = jt.Exchange("w", lambda batch: batch["n"] % 2)
    got = arrivals(table(n=list(range(40)), w=["a", "b"] * 20), pact)
    assert len(got) == 40


def test_a_function_that_gives_too_few_keys_is_refused() -> None:
    with pytest.raises(BatchError, match="one key for each of"):
        arrivals(table(n=[1, 2, 3, 4]), jt.Exchange(lambda batch: np.array([1])), workers=2)


def test_unknown_key_column_is_refused_with_a_suggestion() -> None:
    with pytest.raises(BatchError, match="did you mean 'key'"):
        arrivals(table(key=[1, 2]), jt.Exchange("kye"), workers=2)


@pytest.mark.parametrize("through", [False, True])
def test_error_in_a_pact_says_where(through: bool) -> None:
    flow = jt.Flow("lost")
    stream: jt.Stream = flow.input("in")
    if through:
        stream = stream.map(lambda batch: batch, name="before")
    stream.unary(dropping(consume), pact=jt.Exchange("kye"), name="after")
    with pytest.raises(BatchError, match="did you mean 'key'") as caught:
        flow.run({"in": table(key=[1, 2])}, workers=2)
    assert caught.value.operator in ("in", "before", "after")


def test_exchange_needs_a_key() -> None:
    with pytest.raises(GraphError, match="needs a key"):
        jt.Exchange()


@seeded
def test_broadcast_gives_every_worker_every_record(seed: int | None) -> None:
    got = arrivals(table(n=[1, 2, 3]), jt.Broadcast(), seed=seed)
    assert sorted((row["n"], row["worker"]) for row in got) == [
        (n, worker) for n in (1, 2, 3) for worker in range(3)
    ]


def test_pipeline_leaves_records_where_they_are() -> None:
    flow = jt.Flow("stay")
    seen: dict[int, list[int]] = {0: [], 1: []}

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for _, batch in input:
                seen[info.worker] += batch["n"].tolist()

        return step

    flow.input("in").unary(build, pact=jt.Pipeline())
    with flow.open(workers=2) as run:
        run.input("in", 0).send({"time": [0, 0], "n": [1, 2]})
        run.input("in", 1).send({"time": [0], "n": [3]})
        run.finish()
    assert seen == {0: [1, 2], 1: [3]}


@seeded
def test_order_between_two_workers_is_kept(seed: int | None) -> None:
    seen: list[int] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for _, batch in input:
                seen.extend(batch["n"].tolist())

        return step

    flow = jt.Flow("order")
    flow.input("in").unary(build, pact=jt.Exchange(lambda batch: batch["n"] * 0))
    with flow.open(workers=2, seed=seed) as run:
        for n in range(20):
            run.input("in", 1).send({"time": [0], "n": [n]})
            run.turn()
        run.finish()
    assert seen == list(range(20))


def test_records_of_a_hot_key_stay_on_one_of_its_workers() -> None:
    batch = jt.Batch({"key": [7] * 3000}, times=[0] * 3000)
    pact = SpreadExchange("key", spread=2, stays=True)
    owner = next(worker for worker, _ in jt.Exchange("key").route(batch, 4))
    found = {}
    for here in range(4):
        parts = pact.router(Placement.even(4), here)(batch)
        [(worker, part)] = [(worker, part) for worker, part in parts if len(part)]
        found[here] = worker
        assert len(part) == 3000
        assert (GUEST in part) == (worker != owner)
    other = (owner + 1) % 4
    assert found[owner] == owner
    assert found[other] == other
    # The workers that are none of its two choose different ones.
    assert {found[here] for here in range(4) if here not in (owner, other)} == {owner, other}


def test_keys_that_become_hot_and_cold_again_go_back_to_their_owners() -> None:
    route = SpreadExchange("key", spread=2, stays=True).router(Placement.even(2), 0)
    plain = jt.Exchange("key")
    rng = np.random.default_rng(1)

    def guests(hot: int) -> set[int]:
        """The keys with guests, after many records of which one key has half."""
        for _ in range(20):
            keys = rng.integers(0, 10_000, 20_000)
            keys[rng.random(20_000) < 0.5] = hot
            batch = jt.Batch({"key": keys}, times=[0] * 20_000)
            parts = list(route(batch))
        assert sum(len(part) for _, part in parts) == 20_000
        own = {w: part for w, part in parts if GUEST not in part}
        for worker, part in plain.route(batch, 2):
            assert set(own[worker]["key"].tolist()) <= set(part["key"].tolist())
        return {k for _, part in parts if GUEST in part for k in part["key"].tolist()}

    elsewhere = [
        key
        for key in range(100)
        for worker, _ in plain.route(jt.Batch({"key": [key]}, times=[0]), 2)
        if worker == 1
    ]
    for hot in elsewhere[:3]:
        found = guests(hot)
        assert hot in found
        # Those that share the place of the hot one by chance.
        assert len(found) < 30


@pytest.mark.parametrize("workers", [1, 3])
def test_only_the_columns_that_are_read_travel_and_to_the_same_workers(workers: int) -> None:
    keys = KEYS["text"]
    batch = jt.Batch({"a": np.arange(len(keys)), "key": keys, "b": keys}, np.arange(len(keys)))
    whole = dict(KeyExchange("key").route(batch, workers))
    for columns in (("key",), ("key", "a"), ("key", "a", "time"), ("key", "a", "b")):
        some = KeyExchange("key", columns=frozenset(columns))
        assert repr(some) == repr(KeyExchange("key"))
        parts = dict(some.route(batch, workers))
        assert parts.keys() == whole.keys()
        for worker, part in parts.items():
            names = [name for name in batch.names if name in columns]
            assert list(part.names) == names
            assert part.to_arrow().equals(whole[worker].select(*names).to_arrow())


def test_a_column_that_is_missing_is_named_with_all_that_there_are() -> None:
    flow = jt.Flow("missing")
    flow.output("out", flow.input("in").key_by("k").tumbling(10).sum("price"))
    rows = {"time": [1, 2, 3], "k": [1, 2, 3], "cost": [5, 6, 7], "who": ["a", "b", "c"]}
    with pytest.raises(BatchError, match=r"no column 'price' \(there are: 'k', 'cost', 'who'"):
        flow.run({"in": rows}, workers=2)


@pytest.mark.parametrize("width", [1, 4, 5, 1200])
def test_batches_of_any_width_are_exchanged(width: int) -> None:
    keys = np.arange(50)
    columns = {f"c{at}": keys * 1.5 + at for at in range(width)}
    parts = dict(jt.Exchange("key").route(jt.Batch({"key": keys, **columns}, keys), 2))
    for part in parts.values():
        assert part["key"].tolist() == part["time"].tolist()
        for at in range(width):
            assert (part[f"c{at}"] == part["key"].to_numpy() * 1.5 + at).all()
    assert sorted(key for part in parts.values() for key in part["key"].tolist()) == keys.tolist()


def test_a_column_of_a_part_holds_no_others_in_memory() -> None:
    keys = np.arange(1000)
    batch = jt.Batch({"key": keys, "a": keys, "b": keys}, keys)
    for _, part in jt.Exchange("key").route(batch, 2):
        column = part.column("a")
        assert isinstance(column, np.ndarray)
        base = column if column.base is None else column.base
        assert base.nbytes == keys.nbytes
