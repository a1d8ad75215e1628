"""Containers from which bins are taken: what leaves and what stays is what a snapshot had."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.state.snapshot import Movable, bin_numbers

BINS = 256
KEYS: dict[str, Callable[[int], Any]] = {
    "small": lambda n: n,
    "wide": lambda n: n * 12345678901,
    "negative": lambda n: -n,
    "text": lambda n: f"key {n}",
    "nulls": lambda n: None if n % 7 == 0 else n,
}


def flow_of(name: str) -> jt.Flow:
    flow = jt.Flow(name, bins=BINS)
    keyed = flow.input("in").key_by("k")
    made = {
        "running": lambda: keyed.running().sum("n"),
        "ordered": lambda: keyed.running(ordered=True).sum("n"),
        "windows": lambda: keyed.tumbling(10).sum("n"),
        "sliding": lambda: keyed.sliding(10, every=5).max("n"),
        "sessions": lambda: keyed.session_window(3).sum("n"),
        "distinct": lambda: keyed.distinct(),
        "deduplicate": lambda: keyed.deduplicate(),
        "rolling": lambda: keyed.rolling(20).sum("n"),
        "top": lambda: keyed.tumbling(10).top_k(3, "n"),
        "stateful map": lambda: keyed.stateful_map(lambda total, row: (total + row["n"], []), 0),
    }
    flow.output("out", made[name]())
    return flow


NAMES = (
    *("running", "ordered", "windows", "sliding", "sessions", "distinct", "deduplicate"),
    *("rolling", "top", "stateful map"),
)


def rows(table: pa.Table) -> list[str]:
    return sorted(str(sorted(row.items())) for row in table.to_pylist())


@pytest.mark.parametrize("keys", list(KEYS))
@pytest.mark.parametrize("name", NAMES)
def test_bins_leave_and_come_back(name: str, keys: str) -> None:
    random = Random(f"{name} {keys}")
    with flow_of(name).open() as run:
        numbers = [random.randrange(300) for _ in range(1000)]
        made = pa.array([KEYS[keys](n) for n in numbers])
        times = np.array([random.randrange(40) for _ in numbers])
        run.input("in").send({"time": times, "k": made, "n": np.arange(1000)})
        run.input("in").advance_to(12)
        run.run_to_rest()
        operator = run.workers[0].operators[1]
        whole = {each: kept.snapshot() for each, kept in operator.kept.items()}
        assert sum(table.num_rows for table in whole.values()) > 50
        chosen = np.array([random.random() < 0.5 for _ in range(BINS)])

        def act() -> None:
            for each, kept in operator.kept.items():
                assert isinstance(kept.state, Movable)
                if each == "reached":
                    continue  # it has the times of all bins
                taken, left = kept.take_bins(chosen), kept.snapshot()
                assert taken.num_rows
                assert left.num_rows
                assert chosen[bin_numbers(taken, BINS)].all()
                assert not chosen[bin_numbers(left, BINS)].any()
                both = pa.concat_tables([taken, left], promote_options="permissive")
                assert rows(both) == rows(whole[each])
            done.append(True)

        done: list[bool] = []
        run.workers[0].post(act)
        run.run_to_rest()
        assert done
