"""The generator: the same events however they are asked for, and distributed as NEXMark says."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jeton.errors import MissingColumn
from jeton_evaluation import nexmark
from jeton_evaluation.nexmark.config import KINDS

EVENTS = 200_000
CONFIG = nexmark.Config(rate=1_000_000, seed=7)
RICH = replace(CONFIG, avg_person_extra=20, avg_auction_extra=50, avg_bid_extra=10)


def as_table(made: dict[str, Any]) -> pa.Table:
    return pa.table(made)


def numbers(kind: str, config: nexmark.Config = CONFIG, events: int = EVENTS) -> Any:
    """The number columns of a kind, by name."""
    names = [field.name for field in config.schema(kind) if field.type == pa.int64()]  # type: ignore[arg-type]
    return nexmark.Generator(config).make(kind, 0, events, names)  # type: ignore[arg-type]


configs = st.builds(
    nexmark.Config,
    rate=st.sampled_from([1, 7, 1000, 999_983, 1_000_000, 3_000_000, 8_000_000]),
    seed=st.integers(-5, 5),
    base_time=st.sampled_from([0, 1_700_000_000_000_000]),
    person_proportion=st.integers(1, 3),
    auction_proportion=st.integers(1, 4),
    bid_proportion=st.integers(0, 46),
    in_flight_auctions=st.integers(1, 200),
    active_people=st.integers(1, 50),
    id_lead=st.integers(0, 10),
    out_of_order_group_size=st.sampled_from([1, 2, 50, 100, 953]),
    avg_bid_extra=st.sampled_from([0, 3]),
    avg_person_extra=st.sampled_from([0, 11]),
)


@settings(max_examples=60)
@given(configs, st.lists(st.integers(0, 700), max_size=5), st.integers(0, 10**9))
def test_ranges_put_together_are_the_whole(
    config: nexmark.Config, cuts: list[int], shift: int
) -> None:
    generator = nexmark.Generator(config)
    ends = sorted([0, *cuts, 700])
    for kind in KINDS:
        whole = as_table(generator.make(kind, shift, shift + 700))
        parts = [
            as_table(generator.make(kind, shift + first, shift + last))
            for first, last in pairwise(ends)
        ]
        assert pa.concat_tables(parts).combine_chunks().equals(whole.combine_chunks())
        assert whole.schema == config.schema(kind)


@settings(max_examples=60)
@given(configs, st.integers(1, 5), st.sampled_from([None, 1, 7, 33]), st.integers(0, 300))
def test_shares_of_several_workers_are_the_whole(
    config: nexmark.Config, parts: int, block: int | None, events: int
) -> None:
    whole = nexmark.Generator(config)
    shares = [nexmark.Generator(config, part=i, parts=parts, block=block) for i in range(parts)]
    places = [[share.position(n) for n in range(share.count_before(events))] for share in shares]
    assert sorted(chain.from_iterable(places)) == list(range(events))
    for kind in KINDS:
        columns = [name for name in config.schema(kind).names if name in ("auction", "id", "extra")]
        at = [as_table(whole.make(kind, n, n + 1, columns)).to_pylist() for n in range(events)]
        for share, mine in zip(shares, places, strict=True):
            made = as_table(share.make(kind, 0, len(mine), columns)).to_pylist()
            assert made == [row for place in mine for row in at[place]]
            floors = [share.floor(n) for n in range(len(mine))]
            assert floors == sorted(floors)
            for n, floor in enumerate(floors):
                assert all(floor <= row["ts"] for place in mine[n:] for row in at[place])


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_is_the_same_alone_or_with_others(kind: nexmark.Kind) -> None:
    generator = nexmark.Generator(RICH)
    everything = generator.make(kind, 0, 5000)
    assert list(everything) == RICH.schema(kind).names
    for name in everything:
        alone = generator.make(kind, 0, 5000, [name])
        assert list(alone) == list(dict.fromkeys(["ts", name]))
        assert pa.array(alone[name]).equals(pa.array(everything[name]))


def test_events_of_several_kinds() -> None:
    generator = nexmark.Generator(CONFIG)
    every = generator.make("bids", 100, 200)
    assert generator.make("bids", 100, 200, ["price"])["price"].tolist() == every["price"].tolist()
    assert generator.make("persons", 100, 200, ["id"])["id"].tolist() == [1002, 1003]


@pytest.mark.parametrize("rate", [1, 7, 10_000, 999_983, 3_000_000, 8_000_000])
def test_times_and_ids_are_exact(rate: int) -> None:
    """Of 50 events: one person, then three auctions, then 46 bids; times by whole arithmetic."""
    far = 10**12 // 50 * 50 + 17
    config = nexmark.Config(rate=rate, base_time=10**15)
    generator = nexmark.Generator(config)
    for first in (0, far):
        events = range(first, first + 500)
        times = {
            "persons": [n for n in events if n % 50 == 0],
            "auctions": [n for n in events if 1 <= n % 50 < 4],
            "bids": [n for n in events if n % 50 >= 4],
        }
        for kind in KINDS:
            emitted = generator.make(kind, first, first + 500)["ts"].tolist()
            assert emitted == [10**15 + n * 1_000_000 // rate for n in times[kind]]
            assert emitted == [config.time(n) for n in times[kind]]
        ids = generator.make("persons", first, first + 500)["id"].tolist()
        assert ids == [1000 + n // 50 for n in times["persons"]]
        ids = generator.make("auctions", first, first + 500)["id"].tolist()
        assert ids == [1000 + n // 50 * 3 + n % 50 - 1 for n in times["auctions"]]


def test_the_same_seed_gives_the_same_events_for_ever() -> None:
    """Figures of one version can be compared with those of the next."""
    generator = nexmark.Generator(CONFIG)
    bid = as_table(generator.make("bids", 123_456_789, 123_456_790)).to_pylist()
    auction = as_table(generator.make("auctions", 123_456_752, 123_456_753)).to_pylist()
    person = as_table(generator.make("persons", 123_456_750, 123_456_751)).to_pylist()
    assert (bid, auction, person) == GOLDEN
    other = nexmark.Generator(replace(CONFIG, seed=8))
    same = other.make("bids", 0, 1000)["price"] == generator.make("bids", 0, 1000)["price"]
    assert np.mean(same) < 0.01


def last_ids(times: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    """The last person and the last auction when a bid was made, counted from 0; rate 1M/s."""
    return times // 50, times // 50 * 3 + 2


def test_bids_are_for_auctions_and_by_people_that_there_are_or_soon_will_be() -> None:
    bids = numbers("bids")
    people, auctions = last_ids(bids["ts"])
    on, by = bids["auction"] - 1000, bids["bidder"] - 1000
    settled = people > 2000
    hot = on == auctions // 100 * 100
    ahead = (on - auctions)[~hot]
    assert ahead.max() == 10
    assert ahead[settled[~hot]].min() == -100
    assert on.min() == by.min() == 0
    assert np.mean(hot) == pytest.approx(1 / 2 + 1 / 2 / 111, abs=0.01)
    hot = by == people // 100 * 100 + 1
    ahead = (by - people)[~hot]
    assert ahead.max() == 10
    assert ahead[settled[~hot]].min() == -999
    assert np.mean(hot) == pytest.approx(3 / 4, abs=0.01)


def test_cold_ids_are_spread_evenly() -> None:
    config = replace(
        CONFIG, hot_auction_ratio=1, hot_bidder_ratio=1, in_flight_auctions=9, id_lead=0
    )
    bids = numbers("bids", config)
    people, auctions = last_ids(bids["ts"])
    settled = people > 1100
    back = (auctions - (bids["auction"] - 1000))[settled]
    counts = np.bincount(back, minlength=10)
    assert len(counts) == 10
    assert counts == pytest.approx(np.full(10, len(back) / 10), rel=0.05)
    back = (people - (bids["bidder"] - 1000))[settled]
    assert back.min() == 0
    assert back.max() == 999
    assert np.mean(back) == pytest.approx(499.5, rel=0.02)
    apart = np.corrcoef(back, bids["price"][settled])[0, 1]
    assert abs(apart) < 0.01


def test_without_a_lead_everything_named_is_there_already() -> None:
    config = replace(CONFIG, id_lead=0)
    bids, auctions = numbers("bids", config), numbers("auctions", config)
    people, last = last_ids(bids["ts"])
    assert (bids["auction"] - 1000 <= last).all()
    assert (bids["bidder"] - 1000 <= people).all()
    assert (auctions["seller"] - 1000 <= auctions["ts"] // 50).all()


def test_auctions() -> None:
    auctions = numbers("auctions", events=1_000_000)
    people = auctions["ts"] // 50
    sellers = auctions["seller"] - 1000
    hot = sellers == people // 100 * 100
    assert np.mean(hot) == pytest.approx(3 / 4, abs=0.01)
    assert (sellers - people).max() == 10
    assert (sellers - people)[people > 2000].min() == -999
    assert np.unique(auctions["category"]).tolist() == [10, 11, 12, 13, 14]
    assert np.bincount(auctions["category"])[10:] == pytest.approx(np.full(5, 12_000), rel=0.05)
    assert (auctions["reserve"] >= auctions["initial_bid"] + 100).all()
    # 100 auctions come along in 1666 events, which take as many microseconds.
    lengths = auctions["expires"] - auctions["ts"]
    assert lengths.min() >= 1
    assert lengths.max() <= 2 * 1666
    assert np.mean(lengths) == pytest.approx(1666, rel=0.02)


@pytest.mark.parametrize(("kind", "column"), [("bids", "price"), ("auctions", "initial_bid")])
def test_prices_are_spread_evenly_over_powers_of_ten(kind: str, column: str) -> None:
    prices = numbers(kind, events=1_000_000)[column]
    assert prices.min() >= 100
    assert prices.max() <= 100_000_000
    powers = np.log10(prices)
    counts, _ = np.histogram(powers, bins=24, range=(2, 8))
    assert counts == pytest.approx(np.full(24, len(prices) / 24), rel=0.06)


def test_reserves_are_a_price_above_the_initial_bid() -> None:
    auctions = numbers("auctions", events=1_000_000)
    more = auctions["reserve"] - auctions["initial_bid"]
    assert np.mean(np.log10(more)) == pytest.approx(5, abs=0.05)
    assert abs(np.corrcoef(np.log(more), np.log(auctions["initial_bid"]))[0, 1]) < 0.02


@pytest.mark.parametrize("group", [2, 3, 4, 50, 56, 1000, 1906])
@pytest.mark.parametrize("kind", KINDS)
def test_out_of_order_events_change_places_within_groups(kind: nexmark.Kind, group: int) -> None:
    mixed = nexmark.Generator(replace(CONFIG, out_of_order_group_size=group))
    ordered = nexmark.Generator(CONFIG)
    whole = as_table(mixed.make(kind, 0, group * 50))
    by_time = whole.sort_by("ts")
    assert by_time.equals(as_table(ordered.make(kind, 0, group * 50)))
    assert whole.equals(by_time) == (kind == "persons" and group <= 50)
    for first in range(0, group * 50, group):
        times = mixed.make(kind, first, first + group)["ts"]
        assert ((times >= first) & (times < first + group)).all()
        assert (times >= mixed.floor(first + group // 2)).all()


def test_text() -> None:
    generator = nexmark.Generator(RICH)
    persons: Any = generator.make("persons", 0, 100_000)
    auctions: Any = generator.make("auctions", 0, 100_000)
    bids: Any = generator.make("bids", 0, 100_000)
    assert set(persons["state"].to_pylist()) == {"AZ", "CA", "ID", "OR", "WA", "WY"}
    assert len(set(persons["city"].to_pylist())) == 10
    assert len(set(persons["name"].to_pylist())) == 64
    every(persons["name"], r"[A-Z][a-z]+ [A-Z][a-z]+")
    every(persons["email"], r"[a-z]{7}@[a-z]{5}\.com")
    every(persons["credit_card"], r"\d{4} \d{4} \d{4} \d{4}")
    assert len(set(persons["credit_card"].to_pylist())) == 2000
    every(auctions["item_name"], r"[a-z ]{3,20}")
    every(auctions["description"], r"[a-z ]{3,100}")
    lengths = [len(text) for text in auctions["description"].to_pylist()]
    assert (min(lengths), max(lengths)) == (3, 100)
    every(persons["extra"], r"[a-z ]{16,24}")
    every(auctions["extra"], r"[a-z ]{40,60}")
    every(bids["extra"], r"[a-z ]{8,12}")
    every(
        bids["url"], r"https://www\.nexmark\.com(/[a-z]{5}){3}/item\.htm\?query=1(&channel_id=\d+)?"
    )
    channels = bids["channel"].to_pylist()
    hot = [name for name in channels if not re.fullmatch(r"channel-\d{1,4}", name)]
    assert set(hot) == {"Apple", "Baidu", "Facebook", "Google"}
    assert len(hot) / len(channels) == pytest.approx(1 / 2, abs=0.01)
    pages = set(zip(channels, bids["url"].to_pylist(), strict=True))
    assert len(pages) == len(set(channels))
    emitted = [(name, url.rpartition("=")[2]) for name, url in pages if "channel_id" in url]
    assert all(name == f"channel-{number}" for name, number in emitted)
    assert len(emitted) / len(pages) == pytest.approx(0.9, abs=0.01)


def every(column: Any, pattern: str) -> None:
    expression = re.compile(pattern)
    wrong = [text for text in column.to_pylist() if not expression.fullmatch(text)]
    assert wrong == []


def test_tables_are_the_events() -> None:
    tables = nexmark.tables(CONFIG, 150_000)
    assert list(tables) == list(KINDS)
    generator = nexmark.Generator(CONFIG)
    for kind in KINDS:
        assert tables[kind].combine_chunks().equals(as_table(generator.make(kind, 0, 150_000)))
    assert nexmark.tables(CONFIG, 0)["bids"].schema == CONFIG.schema("bids")


def test_a_configuration_can_be_sent_to_workers() -> None:
    config = pickle.loads(pickle.dumps(RICH))
    assert config == RICH
    assert config.time(3) == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rate": 0}, "rate must be a whole number from 1 on, not 0"),
        ({"rate": 1e6}, "rate must be a whole number from 1 on, not 1000000.0"),
        ({"hot_auction_ratio": 0}, "hot_auction_ratio must be .* from 1 on"),
        ({"person_proportion": 0}, "person_proportion must be"),
        ({"auction_proportion": 0}, "auction_proportion must be"),
        ({"bid_proportion": -1}, "bid_proportion must be"),
        ({"in_flight_auctions": 1 << 40}, "in_flight_auctions must be at most"),
        ({"seed": "x"}, "seed must be a whole number, not 'x'"),
        ({"base_time": -1}, "base_time must not be negative"),
        ({"out_of_order_group_size": 0}, "out_of_order_group_size must be"),
    ],
)
def test_wrong_configurations_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        nexmark.Config(**wrong)


def test_wrong_requests_are_refused() -> None:
    generator = nexmark.Generator(CONFIG)
    with pytest.raises(MissingColumn, match="bids have no column 'prise': did you mean 'price'"):
        generator.make("bids", 0, 10, ["prise"])
    with pytest.raises(MissingColumn, match="set avg_person_extra to have one"):
        generator.make("persons", 0, 10, ["extra"])
    with pytest.raises(MissingColumn, match="no kind 'bid' of events, only persons"):
        nexmark.tables(CONFIG, 10, columns={"bid": ["price"]})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="no positions from 5 up to 3"):
        generator.make("bids", 5, 3)
    with pytest.raises(ValueError, match="part 2 is none of 2 parts"):
        nexmark.Generator(CONFIG, part=2, parts=2)
    with pytest.raises(ValueError, match="block must be"):
        nexmark.Generator(CONFIG, block=0)
    with pytest.raises(ValueError, match="there cannot be -1 events"):
        nexmark.tables(CONFIG, -1)
    lengthy = nexmark.Generator(replace(CONFIG, avg_bid_extra=1 << 29))
    with pytest.raises(ValueError, match="ask for fewer events at a time"):
        lengthy.make("bids", 0, 50, ["extra"])


GOLDEN: Any = (
    [
        {
            "ts": 123456789,
            "auction": 7408369,
            "bidder": 2470101,
            "price": 109932,
            "channel": "channel-6063",
            "url": "https://www.nexmark.com/ebiax/aqwhj/fooft/item.htm?query=1&channel_id=6063",
        }
    ],
    [
        {
            "ts": 123456752,
            "id": 7408406,
            "seller": 2470100,
            "category": 10,
            "initial_bid": 29131102,
            "reserve": 29131453,
            "expires": 123459737,
            "item_name": "omtyvdhig ",
            "description": "   vwlxglapxwpdmijt qyb mu za xbqxeunqjyvmpibs qmcbqqaksy ngwmavuhuk",
        }
    ],
    [
        {
            "ts": 123456750,
            "id": 2470135,
            "name": "Ada Mason",
            "email": "yfqfwmk@ihwvl.com",
            "credit_card": "2472 8196 0149 4961",
            "city": "Salem",
            "state": "WA",
        }
    ],
)
