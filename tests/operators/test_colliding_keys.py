"""Keys are compared by value: those with equal hashes stay apart, in every operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.columns.keys import same_values
from jeton.idioms.arrangement import arrange
from jeton.idioms.intervals import batch_intervals
from jeton.idioms.lookup_join import lookup_join
from jeton.state.key_slots import KeySlots
from tests.operators.colliding import colliding

TWINS = colliding(4)
HARMLESS = ["a", "b", "c", "d"]
ROWS = 60

Key = tuple[str, ...]
Program = Callable[[jt.Stream, jt.Stream, Key], jt.Stream]

PROGRAMS: dict[str, Program] = {
    "rolling": lambda left, right, key: left.key_by(*key).running().sum("n"),
    "ordered": lambda left, right, key: left.key_by(*key).running(ordered=True).sum("n"),
    "each time": lambda left, right, key: left.key_by(*key).each_time().sum("n"),
    "tumbling": lambda left, right, key: left.key_by(*key).tumbling(5).sum("n"),
    "sliding": lambda left, right, key: left.key_by(*key).sliding(6, every=3).sum("n"),
    "session": lambda left, right, key: left.key_by(*key).session_window(3).sum("n"),
    "distinct": lambda left, right, key: left.key_by(*key).distinct(),
    "top_k": lambda left, right, key: left.key_by(*key).tumbling(5).top_k(1, by="n"),
    "stateful_map": lambda left, right, key: left.key_by(*key).stateful_map(
        lambda state, row: (state + row["n"], [{"sum": state + row["n"]}]), 0
    ),
    "join": lambda left, right, key: left.key_by(*key).join(right.key_by(*key)),
    "interval_join": lambda left, right, key: left.key_by(*key).interval_join(
        right.key_by(*key), -1, 1
    ),
    "asof_join": lambda left, right, key: left.key_by(*key).asof_join(
        right.key_by(*key), how="inner"
    ),
    "cogroup": lambda left, right, key: left.key_by(*key).cogroup(
        right.key_by(*key), lambda key, mine, others: {"n": sum(mine["n"]) if len(mine) else 0}
    ),
    "lookup": lambda left, right, key: lookup_join(left, arrange(right, *key)),
    "latest": lambda left, right, key: lookup_join(left, arrange(right, *key, upsert=True)),
    "counted": lambda left, right, key: lookup_join(left, arrange(right, *key, diff="n")),
    "intervals": lambda left, right, key: batch_intervals(left, *key, diff="n"),
}


def answers(
    program: Program, names: list[str], kind: pa.DataType, key: Key, workers: int
) -> list[dict[str, Any]]:
    """The output, with the keys as their places in ``names``."""
    random = np.random.default_rng(5)
    inputs = {}
    for name in ("left", "right"):
        keys = [names[n] for n in random.integers(0, len(names), ROWS)]
        inputs[name] = {
            "time": np.sort(random.integers(0, 25, ROWS)),
            "key": pa.array(keys).cast(pa.binary() if kind == pa.binary() else pa.string()),
            "part": random.integers(0, 2, ROWS),
            "n": random.integers(1, 9, ROWS),
        }
        if pa.types.is_dictionary(kind):
            inputs[name]["key"] = inputs[name]["key"].dictionary_encode()
    flow = jt.Flow("twins")
    flow.output("out", program(flow.input("left"), flow.input("right"), key))
    with flow.open(workers=workers) as run:
        for start in range(0, ROWS, 20):
            for name, columns in inputs.items():
                rows = {n: column[start : start + 20] for n, column in columns.items()}
                run.input(name).send(rows)
                run.input(name).advance_to(int(rows["time"][-1]))
            run.run_to_rest()
        rows = run.finish()["out"].to_pylist()
    for row in rows:
        if "key" in row:
            value = row["key"].decode() if isinstance(row["key"], bytes) else row["key"]
            row["key"] = names.index(value)
    return sorted(rows, key=lambda row: str(sorted(row.items())))


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_twins_stay_apart(program: Program) -> None:
    for key in (("key",), ("key", "part")):
        expected = answers(program, HARMLESS, pa.string(), key, 1)
        for workers in (1, 2):
            assert answers(program, TWINS, pa.string(), key, workers) == expected


@pytest.mark.parametrize("kind", [pa.binary(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_whatever_the_type(kind: pa.DataType) -> None:
    for program in (PROGRAMS["tumbling"], PROGRAMS["interval_join"]):
        expected = answers(program, HARMLESS, kind, ("key",), 1)
        assert answers(program, TWINS, kind, ("key",), 1) == expected


def test_twins_keep_their_slots_as_others_come_and_go() -> None:
    keys = KeySlots(1, timed=True)
    known: dict[tuple[int, str], int] = {}
    random = np.random.default_rng(3)
    for _ in range(200):
        chosen = [TWINS[n] for n in random.integers(0, len(TWINS), 5)]
        times = random.integers(0, 3, 5)
        slots, new = keys.find([pa.array(chosen)], 5, times.astype(np.uint64))
        pairs = list(zip(times.tolist(), chosen, strict=True))
        assert {pairs[row] for row in new} == {pair for pair in pairs if pair not in known}
        assert len(new) == len({pair for pair in pairs if pair not in known})
        for pair, slot in zip(pairs, slots.tolist(), strict=True):
            assert known.setdefault(pair, slot) == slot
        assert len(set(known.values())) == len(known) == len(keys)
        gone = [pair for pair in known if random.random() < 0.3]
        keys.remove(np.array([known.pop(pair) for pair in gone], dtype=np.int64))
        live = keys.live()
        [names] = keys.values(live)
        assert isinstance(names, pa.Array)
        assert names.to_pylist() == [
            name for slot in live.tolist() for (_, name), at in known.items() if at == slot
        ]


def test_keys_with_two_equal_hashes_stay_apart() -> None:
    keys = ["d6d3a7bf65eda2734141414141414141", "bb572554797659ef3aef0706346357f3"]
    column = pa.array([bytes.fromhex(key) for key in keys])
    for seed in (0, 1):
        assert len(np.unique(jt.state.hash_columns([column], seed))) == 1
    flow = jt.Flow("collision")
    flow.output("sums", flow.input("rows").key_by("account").tumbling(10).sum("amount"))
    rows = {"time": [1, 2], "account": column, "amount": [100, 5]}
    assert flow.run({"rows": rows}, workers=2)["sums"]["sum"].to_pylist() == [100, 5]


def test_a_snapshot_has_twins_as_they_are() -> None:
    flow = jt.Flow("twins")
    flow.output("counts", flow.input("rows").key_by("key").running().count())
    with flow.open() as run:
        run.input("rows").send({"time": [0] * 4, "key": TWINS})
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=2, restore=snapshot) as run:
        run.input("rows").send({"time": [1] * 4, "key": TWINS})
        assert run.finish()["counts"]["count"].to_pylist() == [2] * 4


NAN = float("nan")


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (np.array([NAN, 0.0, 1.0]), np.array([NAN, -0.0, NAN]), [True, True, False]),
        (pa.array([None, NAN, 0.0]), pa.array([None, NAN, -0.0]), [True, True, True]),
        (pa.array([1, None]), np.array([1, 0]), [True, False]),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "c"]), [True, False]),
        (pa.array(["a"], pa.large_string()), pa.array(["a"], pa.string_view()), [True]),
        (pa.array([None], pa.null()), pa.array(["a"]), [False]),
        (np.array([2**64 - 1], np.uint64), np.array([-1]), [False]),
    ],
    ids=str,
)
def test_what_equal_values_are(left: Any, right: Any, same: list[bool]) -> None:
    assert same_values(left, right).tolist() == same
    assert same_values(right, left).tolist() == same
