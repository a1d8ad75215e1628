"""Configuration of the generator: rates, skew, sizes; and the columns of the three kinds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cached_property
from math import gcd
from typing import Final, Literal, TypeAlias, get_args

import pyarrow as pa

from jeton.errors import MissingColumn

Kind: TypeAlias = Literal["persons", "auctions", "bids"]
"""The three kinds of events, each of them an input of its own."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

Columns: TypeAlias = "Mapping[Kind, Sequence[str]]"
"""Which columns are wanted of which kinds; kinds that are not there are not wanted."""

FIRST_PERSON_ID: Final = 1000
FIRST_AUCTION_ID: Final = 1000
FIRST_CATEGORY: Final = 10
CATEGORIES: Final = 5
HOT_EVERY: Final = 100
"""One auction, one seller and one bidder in this many may be hot."""

MICROSECONDS: Final = 1_000_000

_LARGEST: Final = 1 << 30
"""Draws have 32 random bits, so that what is drawn from must be well below their range."""
_MAY_BE_ZERO: Final = (
    *("bid_proportion", "id_lead"),
    *("avg_person_extra", "avg_auction_extra", "avg_bid_extra"),
)
_NUMBERS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "persons": ("ts", "id"),
    "auctions": ("ts", "id", "seller", "category", "initial_bid", "reserve", "expires"),
    "bids": ("ts", "auction", "bidder", "price"),
}
_TEXTS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "persons": ("name", "email", "credit_card", "city", "state"),
    "auctions": ("item_name", "description"),
    "bids": ("channel", "url"),
}


@dataclass(frozen=True)
class Config:
    """Configuration of the generator. The defaults are those of NEXMark's other implementations.

    Events come in rounds: first persons, then auctions, then bids, as many of each as their
    proportions say. Event *n* happens at ``base_time + n / rate`` seconds, in whole microseconds.

    >>> config = Config(rate=8_000_000, hot_auction_ratio=4)
    >>> config.time(80)
    10
    >>> config.schema("bids").names
    ['ts', 'auction', 'bidder', 'price', 'channel', 'url']
    >>> Config(rate=0)
    Traceback (most recent call last):
    ValueError: rate must be a whole number from 1 on, not 0
    """

    rate: int = 10_000
    """Events in a second of event time."""
    seed: int = 0
    base_time: int = 0
    """When the first event happens, in microseconds."""
    person_proportion: int = 1
    auction_proportion: int = 3
    bid_proportion: int = 46
    hot_auction_ratio: int = 2
    """All bids but one in this many are for the hot auction; with 1, none are."""
    hot_bidder_ratio: int = 4
    """All bids but one in this many are by the hot bidder."""
    hot_seller_ratio: int = 4
    """All auctions but one in this many are by the hot seller."""
    in_flight_auctions: int = 100
    """Bids that are not for the hot auction are for one of this many latest; it sets how long
    auctions are open."""
    active_people: int = 1000
    """Bidders and sellers that are not hot are some of this many latest people."""
    id_lead: int = 10
    """How many ids ahead of the last one made a bid or an auction may name."""
    out_of_order_group_size: int = 1
    """Events change places within groups of this many; with 1 they come in order of time."""
    avg_person_extra: int = 0
    """The mean length of the text ``extra`` of a person; with 0 there is no such column."""
    avg_auction_extra: int = 0
    avg_bid_extra: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name in ("seed", "base_time"):
                continue
            least = 0 if name in _MAY_BE_ZERO else 1
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be a whole number from {least} on, not {value!r}")
            if value > _LARGEST:
                raise ValueError(f"{name} must be at most {_LARGEST}, not {value}")
        for name in ("seed", "base_time"):
            value = getattr(self, name)
            if type(value) is not int:
                raise ValueError(f"{name} must be a whole number, not {value!r}")
        if self.base_time < 0:
            raise ValueError(f"base_time must not be negative, but is {self.base_time}")

    @property
    def round(self) -> int:
        """The number of events in a round: persons first, then auctions, then bids."""
        return self.person_proportion + self.auction_proportion + self.bid_proportion

    @cached_property
    def time_step(self) -> tuple[int, int]:
        """Microseconds from an event to the next one, as a fraction in lowest terms."""
        common = gcd(MICROSECONDS, self.rate)
        return MICROSECONDS // common, self.rate // common

    def time(self, event: int) -> int:
        """When an event happens, in microseconds: by its number in order of time."""
        above, below = self.time_step
        return self.base_time + event * above // below

    def place(self, kind: Kind) -> tuple[int, int]:
        """Where events of a kind are in a round: the first of them, and the first after them."""
        persons, auctions = self.person_proportion, self.auction_proportion
        return {
            "persons": (0, persons),
            "auctions": (persons, persons + auctions),
            "bids": (persons + auctions, self.round),
        }[kind]

    def extra(self, kind: Kind) -> int:
        """The mean length of the text ``extra`` of a kind."""
        extra: int = getattr(self, f"avg_{kind.removesuffix('s')}_extra")
        return extra

    def schema(self, kind: Kind, columns: Iterable[str] | None = None) -> pa.Schema:
        """The columns of a kind, all or some of them; ``ts`` is always there, and first.

        >>> Config().schema("bids", ["price"])
        ts: int64
        price: int64
        """
        if kind not in KINDS:
            raise MissingColumn(f"there is no kind {kind!r} of events, only {', '.join(KINDS)}")
        texts = (*_TEXTS[kind], "extra") if self.extra(kind) else _TEXTS[kind]
        known = dict.fromkeys(_NUMBERS[kind], pa.int64()) | dict.fromkeys(texts, pa.string())
        wanted = known if columns is None else dict.fromkeys(("ts", *columns))
        for name in wanted:
            if name not in known:
                raise MissingColumn(_no_column(name, kind, tuple(known)))
        return pa.schema({name: known[name] for name in wanted})

    def schemas(self, columns: Columns | None = None) -> dict[Kind, pa.Schema]:
        """A schema for each kind of ``columns`` (default: all columns of all kinds)."""
        if columns is None:
            return {kind: self.schema(kind) for kind in KINDS}
        return {kind: self.schema(kind, names) for kind, names in columns.items()}


def _no_column(name: str, kind: Kind, known: tuple[str, ...]) -> str:
    close = get_close_matches(name, known, n=1)
    hint = f": did you mean {close[0]!r}?" if close else ""
    if name == "extra":
        hint = f": set avg_{kind.removesuffix('s')}_extra to have one"
    return f"{kind} have no column {name!r}{hint} (there are: {', '.join(map(repr, known))})"
