"""The generator: the events at any positions, the same ones wherever they are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import blake2b
from math import gcd
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton_evaluation.nexmark import kernels
from jeton_evaluation.nexmark.config import Config, Kind
from jeton_evaluation.nexmark.kernels import Integers, Shape, Share
from jeton_evaluation.nexmark.text import text_column

Made: TypeAlias = "dict[str, npt.NDArray[np.int64] | pa.Array]"
"""Columns by name, ``ts`` first: NumPy arrays of numbers, Arrow arrays of text."""

_DRAWN: Final[Mapping[Kind, tuple[str, ...]]] = {
    "persons": (),
    "auctions": ("seller", "category", "initial_bid", "reserve", "expires"),
    "bids": ("auction", "bidder", "price"),
}
"""The number columns that are random, each with a key of its own."""
_NO_ROOM: Final = np.empty(0, dtype=np.int64)


class Generator:
    """Makes the events of a configuration, at any positions, in any order.

    Position and number of an event are the same, unless ``out_of_order_group_size`` lets events
    change places. Only the columns that are requested are made.

    >>> generator = Generator(Config(rate=1_000_000, seed=7))
    >>> bids = generator.make("bids", 0, 100, ["auction"])
    >>> list(bids), len(bids["ts"])
    (['ts', 'auction'], 92)
    >>> generator.make("auctions", 50, 100, ["id"])["id"].tolist()
    [1003, 1004, 1005]

    One of several generators that share the work makes blocks of positions in turn with the
    others, and counts its own ones only.

    >>> second = Generator(Config(rate=1_000_000, seed=7), part=1, parts=2, block=50)
    >>> second.make("persons", 0, 100, ["id"])
    {'ts': array([ 50, 150]), 'id': array([1001, 1003])}
    """

    def __init__(
        self, config: Config, *, part: int = 0, parts: int = 1, block: int | None = None
    ) -> None:
        block = config.round if block is None else block
        if not 0 <= part < parts:
            raise ValueError(f"part {part} is none of {parts} parts, which are counted from 0")
        if block < 1:
            raise ValueError(f"block must be a whole number from 1 on, not {block}")
        self.config = config
        group = config.out_of_order_group_size
        self._share = Share(part, parts, block, group, _stride(group))
        self._shape = Shape(*(getattr(config, name) for name in Shape._fields))
        self._keys = {
            kind: np.array([self._key(f"{kind}.{name}") for name in names], dtype=np.uint64)
            for kind, names in _DRAWN.items()
        }

    def make(self, kind: Kind, first: int, last: int, columns: Iterable[str] | None = None) -> Made:
        """Events of a kind at positions from ``first`` up to ``last``, in that order."""
        numbers = self._numbers(kind, first, last)
        extra = self.config.extra(kind)
        made: Made = {
            name: text_column(kind, name, numbers, self._key, extra)
            if is_text
            else np.empty(len(numbers), dtype=np.int64)
            for name, is_text in _wanted(
                self.config, kind, None if columns is None else tuple(columns)
            )
        }
        self._count(kind, numbers, made)
        return made

    def position(self, local: int) -> int:
        """Where among all events the one is that this generator counts as ``local``."""
        turn, rest = divmod(local, self._share.block)
        return (turn * self._share.parts + self._share.part) * self._share.block + rest

    def count_before(self, position: int) -> int:
        """How many of this generator's events are before a position among all events."""
        share = self._share
        turns, rest = divmod(position, share.block * share.parts)
        return turns * share.block + min(max(rest - share.part * share.block, 0), share.block)

    def floor(self, local: int) -> int:
        """A time before which no event happens from this generator's position ``local`` on."""
        position = self.position(local)
        return self.config.time(position - position % self._share.group)

    def _numbers(self, kind: Kind, first: int, last: int) -> Integers:
        if not 0 <= first <= last:
            raise ValueError(f"there are no positions from {first} up to {last}")
        low, high = self.config.place(kind)
        out = np.empty(last - first, dtype=np.int64)
        count = kernels.numbers_of(first, last, self._share, self.config.round, low, high, out)
        return out[:count]

    def _count(self, kind: Kind, numbers: Integers, made: Made) -> None:
        """Fill in the number columns that are there."""

        def room(name: str) -> Any:
            return made.get(name, _NO_ROOM)

        keys = self._keys[kind]
        if kind == "bids":
            columns = map(room, ("ts", *_DRAWN[kind]))
            kernels.bids(numbers, self._shape, keys, *columns)
            return
        kernels.times_of(numbers, self._shape, room("ts"))
        if kind == "persons":
            kernels.persons(numbers, self._shape, room("id"))
        else:
            kernels.auctions(numbers, self._shape, keys, room("id"), *map(room, _DRAWN[kind]))

    def _key(self, name: str) -> np.uint64:
        return _key_of(self.config.seed, name)


def _stride(group: int) -> int:
    """By how much the number grows from one event of a group to the next, going around in it.

    All events must be reached, so nothing divides both; and neighbours should be far apart.
    """
    stride = max(round(group * 0.618), 1)
    while gcd(stride, group) > 1:
        stride += 1
    return stride


@lru_cache(maxsize=1024)
def _wanted(
    config: Config, kind: Kind, columns: tuple[str, ...] | None
) -> tuple[tuple[str, bool], ...]:
    """The columns to make, and whether each is text."""
    schema = config.schema(kind, columns)
    return tuple((field.name, pa.types.is_string(field.type)) for field in schema)


@cache
def _key_of(seed: int, name: str) -> np.uint64:
    """Where a column's random sequence starts."""
    return np.uint64(
        int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "little")
    )


@dataclass(frozen=True)
class Blocks:
    """Record batches of the first ``events`` events of a kind, in blocks of ``size`` positions."""

    config: Config
    kind: Kind
    schema: pa.Schema
    size: int
    events: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"block must be a whole number from 1 on, not {self.size}")
        if self.events < 0:
            raise ValueError(f"there cannot be {self.events} events")

    @property
    def count(self) -> int:
        """The number of blocks; the last one may be smaller."""
        return -(-self.events // self.size)

    def between(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Make the events at some positions."""
        generator = Generator(self.config)
        for start in range(first, last, self.size):
            end = min(start + self.size, last)
            made = generator.make(self.kind, start, end, self.schema.names)
            yield pa.RecordBatch.from_pydict(made, schema=self.schema)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Make the blocks whose numbers Spark passes in."""
        for batch in batches:
            for block in batch.column(0).to_pylist():
                first = block * self.size
                yield from self.between(first, min(first + self.size, self.events))
