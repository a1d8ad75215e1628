"""Queries 4 to 7 and what they are made of, beside slow twins: any schedule, with restarts."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

import numpy as np
import pytest

import jeton as jt
from jeton.errors import BatchError
from jeton_evaluation import nexmark
from jeton_evaluation.nexmark import queries
from jeton_evaluation.nexmark.queries.closing import VALID
from jeton_evaluation.nexmark.queries.windows import SLIDE, WINDOW
from jeton_evaluation.programs.closing import BestBids
from jeton_evaluation.programs.mechanisms import MECHANISMS
from tests.operators.twins import Row, assert_same, run_twin, schedule_of

SEEDS = 40
COLUMNS: nexmark.Columns = {
    "auctions": ("id", "seller", "category", "reserve", "expires"),
    "bids": ("auction", "bidder", "price"),
}
STEP = SLIDE // 2
"""So that a few times make several windows, with some at their very ends."""


def auction_rows(random: Random) -> list[Row]:
    found = []
    # Sometimes so that many close together.
    grid = random.choice([1, 10])
    for id in range(random.choice([3, 12, 40])):
        start = random.randint(0, 25)
        expires = start + random.choice([0, 1, 1, 3, 10, 10, 10])
        found.append(
            {
                "ts": start,
                "id": id * random.choice([1, 1 << 40]),
                "seller": random.choice([0, 0, 0, 1]),
                "category": random.randint(0, 2),
                "reserve": random.randint(0, 6),
                "expires": -(-expires // grid) * grid,
            }
        )
    # Ids are different, but for those of the two kinds that begin with 0.
    return list({row["id"]: row for row in found}.values())


def bid_rows(random: Random, auctions: list[Row], scale: int = 1) -> list[Row]:
    ids = [row["id"] for row in auctions] + [999]
    return [
        {
            "ts": random.randint(0, 30) * scale + random.choice([0, 0, scale - 1]),
            "auction": random.choice(ids),
            "bidder": random.randint(0, 3),
            "price": random.randint(0, 9),
        }
        for _ in range(random.choice([10, 60, 250]))
    ]


def closed(auctions: list[Row], bids: list[Row]) -> list[Row]:
    found = []
    for auction in auctions:
        valid = [
            (-bid["price"], bid["ts"], bid["bidder"])
            for bid in bids
            if bid["auction"] == auction["id"]
            and auction["ts"] <= bid["ts"] < auction["expires"]
            and bid["price"] >= auction["reserve"]
        ]
        if valid:
            price, at, bidder = min(valid)
            kept = {name: auction[name] for name in ("id", "seller", "category")}
            more = {"start": auction["ts"], "price": -price, "bidder": bidder, "bid_ts": at}
            found.append({"ts": auction["expires"], **kept, **more})
    return sorted(found, key=lambda row: (row["ts"], row["id"]))


def averages(won: list[Row]) -> list[Row]:
    found = {}
    for row in won:
        so_far = [
            other["price"]
            for other in won
            if other["category"] == row["category"] and other["ts"] <= row["ts"]
        ]
        found[row["ts"], row["category"]] = sum(so_far) / len(so_far)
    return [{"ts": ts, "category": c, "average": a} for (ts, c), a in found.items()]


def last_prices(won: list[Row]) -> list[Row]:
    prices: dict[int, list[int]] = defaultdict(list)
    found = []
    for row in won:
        last = prices[row["seller"]]
        last.append(row["price"])
        average = sum(last[-10:]) / len(last[-10:])
        emitted = {"auction": row["id"], "seller": row["seller"], "average": average}
        found.append({"ts": row["ts"], **emitted})
    return found


def hot_items(bids: list[Row]) -> list[Row]:
    found = []
    for end in range(0, 31 * STEP + WINDOW + SLIDE, SLIDE):
        inside = [bid["auction"] for bid in bids if end - WINDOW <= bid["ts"] < end]
        for auction, num in Counter(inside).items():
            if num == max(Counter(inside).values()):
                found.append({"ts": end, "auction": auction, "num": num})
    return found


def highest(bids: list[Row]) -> list[Row]:
    found = []
    for bid in bids:
        window = bid["ts"] // WINDOW
        prices = [other["price"] for other in bids if other["ts"] // WINDOW == window]
        if bid["price"] == max(prices):
            found.append({**bid, "bid_ts": bid["ts"], "ts": (window + 1) * WINDOW})
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_auctions_close(seed: int) -> None:
    random = Random(seed)
    auctions = auction_rows(random)
    bids = bid_rows(random, auctions)

    def build(flow: jt.Flow) -> None:
        events = nexmark.add_inputs(flow, columns=COLUMNS)
        auctions = events.auctions.with_columns(start=lambda batch: batch.times).key_by("id")
        bids = events.bids.key_by("auction")
        won = auctions.group_join(bids, until="expires", where=VALID).top("price")
        flow.output("won", won.rename({"event_time": "bid_ts"}).drop("reserve", "expires"))

    found = run_twin(build, {"auctions": auctions, "bids": bids}, schedule_of(seed), time="ts")
    assert_same(found["won"], closed(auctions, bids))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_averages_of_what_closes(seed: int) -> None:
    random = Random(seed)
    auctions = auction_rows(random)
    bids = bid_rows(random, auctions)

    def build(flow: jt.Flow) -> None:
        events = nexmark.add_inputs(flow, columns=COLUMNS)
        for mechanism in (None, *MECHANISMS):
            name = mechanism or queries.LIBRARY
            flow.output(name, queries.get("q4").answer(events, mechanism))
        flow.output("q6", queries.get("q6").answer(events))

    found = run_twin(build, {"auctions": auctions, "bids": bids}, schedule_of(seed), time="ts")
    won = closed(auctions, bids)
    assert_same(found.pop("q6"), last_prices(won))
    for rows in found.values():
        assert_same(rows, averages(won))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_windows(seed: int) -> None:
    bids = bid_rows(Random(seed), [{"id": 1}, {"id": 2}], STEP)

    def build(flow: jt.Flow) -> None:
        events = nexmark.add_inputs(flow, columns={"bids": COLUMNS["bids"]})
        flow.output("q5", queries.get("q5").answer(events))
        for mechanism in (None, *MECHANISMS):
            name = mechanism or queries.LIBRARY
            flow.output(name, queries.get("q7").answer(events, mechanism))

    found = run_twin(build, {"bids": bids}, schedule_of(seed), time="ts")
    assert_same(found.pop("q5"), hot_items(bids))
    for rows in found.values():
        assert_same(rows, highest(bids))


def test_one_token_for_all_that_is_open() -> None:
    """However many auctions are open, the system knows of one time only."""
    flow = jt.Flow("open")
    events = nexmark.add_inputs(flow, columns=COLUMNS)
    bids_on = events.auctions.key_by("id").group_join(
        events.bids.key_by("auction"), until="expires"
    )
    won = bids_on.max("price")
    flow.output("won", won.probe("won"))
    count = 1000
    ids = np.arange(count)
    auctions = {"ts": ids, "id": ids, "expires": 5000 - ids, "reserve": ids * 0}
    bids = {"ts": ids + 1, "auction": ids, "bidder": ids, "price": ids}
    with flow.open() as run:
        run.input("auctions").send({**auctions, "seller": ids, "category": ids})
        run.input("auctions").close()
        run.input("bids").send(bids)
        run.input("bids").advance_to(4500)
        run.run_to_rest()
        assert run.results()["won"]["ts"].to_pylist() == list(range(4001, 4501))
        assert list(run.probe("won").frontier) == [4500]
        run.input("bids").close()
        run.run_to_rest()
        assert run.results()["won"].num_rows == count
        assert run.probe("won").frontier.is_empty


def test_auctions_without_bids_hold_nothing_back() -> None:
    flow = jt.Flow("silent")
    events = nexmark.add_inputs(flow, columns=COLUMNS)
    bids_on = events.auctions.key_by("id").group_join(
        events.bids.key_by("auction"), until="expires"
    )
    won = bids_on.max("price")
    flow.output("won", won.probe("won"))
    auction = {"ts": [1], "id": [1], "seller": [1], "category": [1], "reserve": [1]}
    with flow.open() as run:
        run.input("auctions").send({**auction, "expires": [10]})
        for name in ("auctions", "bids"):
            run.input(name).advance_to(100)
        run.run_to_rest()
        assert list(run.probe("won").frontier) == [100]


def test_where_mechanisms_are_compared_an_auction_cannot_be_put_up_twice() -> None:
    flow = jt.Flow("twice")
    events = nexmark.add_inputs(flow, columns=queries.get("q4").columns)
    flow.output("result", queries.get("q4").answer(events, "tokens"))
    auctions = {"ts": [1, 2], "id": [7, 7], "category": [1, 1], "reserve": [1, 1]}
    bids = {"ts": [1], "auction": [7], "price": [1]}
    with pytest.raises(BatchError, match="auction 7 is put up while it is open already"):
        flow.run({"auctions": {**auctions, "expires": [9, 9]}, "bids": bids})


def test_the_table_forgets_and_grows() -> None:
    random = np.random.default_rng(1)
    best = BestBids()
    open_: dict[int, int] = {}
    ids = random.permutation(20_000) * 3 - 5_000
    for at in range(0, 20_000, 500):
        new = ids[at : at + 500]
        rows = {"id": new, "expires": np.full(500, 10), "reserve": np.zeros(500, np.int64)}
        best.open(jt.Batch(rows, times=np.ones(500, np.int64)))
        open_ |= dict.fromkeys(new.tolist(), -1)
        named = random.choice(ids, 3000)
        prices = random.integers(0, 1000, 3000)
        bids = {"auction": named, "price": prices}
        unknown = best.offer(jt.Batch(bids, times=np.full(3000, 5)))
        assert unknown.tolist() == [n for n, id in enumerate(named.tolist()) if id not in open_]
        for id, price in zip(named.tolist(), prices.tolist(), strict=True):
            if id in open_:
                open_[id] = max(open_[id], price)
        gone = random.permutation(list(open_))[: random.integers(0, 900)]
        assert best.close(gone).tolist() == [open_.pop(id) for id in gone.tolist()]
