"""Sources: each worker has its share of the events, when they are due, and floors that hold."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.connectors.sources import Reader
from jeton.errors import GraphError, MissingColumn
from jeton_evaluation import nexmark
from jeton_evaluation.nexmark.config import KINDS

CONFIG = nexmark.Config(rate=1_000_000, seed=3)
SLIM: nexmark.Columns = {"persons": ["id"], "auctions": ["seller"], "bids": ["price", "auction"]}


def drain(reader: Reader) -> list[dict[str, Any]]:
    """All rows of a reader; each comes at the floor reported before it, or later."""
    rows: list[dict[str, Any]] = []
    for _ in range(3000):
        if reader.ended:
            break
        floor = reader.floor
        assert floor is not None
        assert reader.ready_at is not None
        assert reader.ready_at <= time.monotonic()
        records = reader.read()
        if records is not None:
            made = pa.table(records).to_pylist()
            assert made
            assert all(row["ts"] >= floor for row in made)
            rows += made
        assert reader.floor is not None
        assert reader.floor >= floor
    assert reader.ended
    assert reader.read() is None
    return rows


@settings(max_examples=50)
@given(
    st.integers(1, 4),
    st.integers(0, 2000),
    st.sampled_from([None, 1, 64]),
    st.integers(1, 500),
    st.sampled_from([1, 100]),
    st.booleans(),
)
def test_readers_of_all_workers_have_all_events(
    workers: int, events: int, block: int | None, most: int, group: int, paced: bool
) -> None:
    config = replace(CONFIG, out_of_order_group_size=group)
    pace: dict[str, Any] = {"rate": 1e6, "start": time.time() - 60} if paced else {}
    sources = nexmark.sources(config, events, columns=SLIM, block=block, most=most, **pace)
    tables = nexmark.tables(config, events, columns=SLIM)
    assert list(sources) == list(KINDS)
    for kind, source in sources.items():
        partitions = source.partitions(workers)
        assert len(partitions) == workers
        rows: list[Any] = []
        for name, position in partitions.items():
            rows += drain(source.open(name, position))
        assert sorted(rows, key=repr) == sorted(tables[kind].to_pylist(), key=repr)


def test_events_come_when_they_are_due() -> None:
    columns: nexmark.Columns = {"bids": ["price"]}
    soon = nexmark.sources(CONFIG, rate=10.0, start=time.time() + 1000, columns=columns)["bids"]
    reader = soon.open("1/2", None)
    assert reader.read() is None
    assert not reader.ended
    assert reader.floor == 50
    assert reader.ready_at is not None
    # The second worker's first event is the 51st of all.
    assert reader.ready_at - time.monotonic() == pytest.approx(1000 + 5.1, abs=1)
    some = nexmark.sources(CONFIG, rate=10.0, start=time.time() - 1000.05, columns=columns)["bids"]
    reader = some.open("0/1", None)
    made = reader.read()
    assert made is not None
    assert len(made["ts"]) == pytest.approx(9200, abs=92)
    now = nexmark.sources(CONFIG, rate=0.001, columns=columns)["bids"].open("0/1", None)
    assert now.read() is None


def test_without_an_end_events_go_on() -> None:
    reader = nexmark.sources(CONFIG, columns={"bids": []}, most=100)["bids"].open("0/1", None)
    for turn in range(5):
        made = reader.read()
        assert made is not None
        assert made["ts"][0] == turn * 100 + 4
    assert not reader.ended


def test_inputs_are_declared_with_their_schemas() -> None:
    flow = jt.Flow("auction house")
    inputs = nexmark.add_inputs(flow, CONFIG, {"bids": ("auction", "price"), "persons": ("id",)})
    assert flow.inputs == ("persons", "bids")
    assert inputs.bids.schema == pa.schema({"auction": pa.int64(), "price": pa.int64()})
    assert inputs.persons.schema == pa.schema({"id": pa.int64()})
    with pytest.raises(GraphError, match="auctions are not an input of this flow"):
        _ = inputs.auctions
    everything = nexmark.add_inputs(jt.Flow("all"))
    assert everything.auctions.schema == CONFIG.schema("auctions").remove(0)


@pytest.mark.parametrize("seed", range(3))
def test_a_flow_takes_the_tables(seed: int) -> None:
    config = replace(CONFIG, out_of_order_group_size=100)
    flow = jt.Flow("counts")
    inputs = nexmark.add_inputs(flow, config, {"bids": ("auction",)})
    flow.output("counts", inputs.bids.key_by().tumbling(500).count())
    tables = nexmark.tables(config, 2000, columns={"bids": ("auction",)})
    result = flow.run(tables, workers=2, seed=seed)
    assert result["counts"].to_pylist() == [
        {"ts": end, "count": 460} for end in (500, 1000, 1500, 2000)
    ]


def test_wrong_sources_are_refused() -> None:
    with pytest.raises(ValueError, match="rate must be above zero, not 0"):
        nexmark.sources(CONFIG, rate=0)
    with pytest.raises(ValueError, match="there cannot be -1 events"):
        nexmark.sources(CONFIG, -1)
    with pytest.raises(ValueError, match="most must be"):
        nexmark.sources(CONFIG, most=0)
    with pytest.raises(MissingColumn, match="no column 'prise'"):
        nexmark.sources(CONFIG, columns={"bids": ["prise"]})
