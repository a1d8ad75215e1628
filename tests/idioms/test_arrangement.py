"""Arrangements: one index for all readers, which forgets history that no reader can ask for."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from tests.idioms.arranging import MODES, Asker, as_of, modes
from tests.operators.twins import Row

import jeton as jt
from jeton.errors import BatchError, GraphError, TimeError
from jeton.idioms.arrangement import Reader, arrange
from jeton.idioms.lookup_join import lookup_join

pickling: Any = cloudpickle


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


def test_sealed_intervals_are_emitted() -> None:
    flow = jt.Flow("emitted")
    flow.output("emitted", arrange(flow.input("rows", time="at"), "key", diff="n").stream)
    rows = {
        "at": [1, 1, 2, 2],
        "key": [7, 7, 8, 8],
        "value": ["x", "x", "y", "y"],
        "n": [1, 2, 1, -1],
    }
    assert flow.run({"rows": rows})["emitted"].to_pylist() == [
        {"at": 1, "key": 7, "value": "x", "n": 3}
    ]


def test_a_flow_that_travels_shares_too() -> None:
    flow = jt.Flow("travels")
    arranged = arrange(flow.input("rows"), "key")
    flow.output("one", lookup_join(flow.input("asked"), arranged))
    copy: jt.Flow = pickling.loads(pickling.dumps(flow))
    inputs = {"rows": {"time": [0], "key": [1], "value": [5]}, "asked": {"time": [3], "key": [1]}}
    assert copy.run(inputs, workers=2)["one"].to_pylist() == [{"time": 3, "key": 1, "value": 5}]


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
    with pytest.raises(TimeError, match="'arrange' is not complete at 5: wait until"):
        run_reader(lambda reader: reader.lookup(batch, at=5))

    def forgotten(reader: Reader) -> None:
        reader.advance([4])
        reader.advance([3])
        reader.lookup(batch, at=4)
        reader.lookup(batch, at=3)

    with pytest.raises(TimeError, match=r"moved on to Antichain\(\[4\]\) cannot look at 3"):
        run_reader(forgotten)


def test_what_makes_no_sense_is_refused() -> None:
    flow = jt.Flow("wrong")
    rows = flow.input("rows", schema={"key": int, "value": int})
    arranged = arrange(rows, "key")
    with pytest.raises(GraphError, match="needs a key"):
        arrange(rows)
    with pytest.raises(GraphError, match="no column 'kye': did you mean 'key'"):
        arrange(rows, "kye")
    with pytest.raises(GraphError, match="needs a latest record"):
        arrange(rows.enter(flow.loop()), "key", upsert=True)
    with pytest.raises(GraphError, match="of different lengths"):
        lookup_join(rows, arranged, ["key", "value"])
    with pytest.raises(GraphError, match="must know the columns"):
        lookup_join(rows, arrange(flow.input("unknown"), "key"), how="left")
    with pytest.raises(GraphError, match="'outer' is not known"):
        lookup_join(rows, arranged, how="outer")  # type: ignore[arg-type]
    own = jt.Flow("own times", time=Own)
    with pytest.raises(GraphError, match="integer times"):
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
    with pytest.raises(BatchError, match="column 'n' must be of whole numbers"):
        flow.run({"rows": {"time": [0], "key": [1], "n": [0.5]}})
    flow = jt.Flow("clash")
    arranged = arrange(flow.input("rows"), "key")
    flow.output("found", lookup_join(flow.input("asked"), arranged, suffix=""))
    rows = {"time": [0], "key": [1], "value": [1]}
    with pytest.raises(BatchError, match="would be called"):
        flow.run({"rows": rows, "asked": rows})
