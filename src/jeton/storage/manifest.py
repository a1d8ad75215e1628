"""Parts: what one worker contributes to a version of the state, and what it need not write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from jeton.state.bins import BINS, FEWEST_BINS
from jeton.state.changes import Cut
from jeton.storage.chains import Chain, Link
from jeton.storage.chunk_format import Chunk, Digests

COPIES: Final = 2
"""In how many files a bin is once it has stayed the same."""
MOST_CHUNKS: Final = 8
"""From how many files at most a worker's container is put together."""
LEAST_LIVE: Final = 0.25
"""A chunk of which less than this still counts is written anew."""

Tables = Mapping[str, Mapping[str, Cut | pa.Table]]
"""The result of `Worker.cut` or `Worker.snapshot`: for each container of each operator, its
changes or a table of all its rows."""


class Key(NamedTuple):
    """A container of an operator."""

    operator: str
    name: str


@dataclass(frozen=True, slots=True)
class Part:
    """One worker's contribution to a version: chunks, some of them written before.

    >>> chunk = Chunk("a.arrow", 0, 100, 7, bins=(1, 4), written=3)
    >>> part = Part(0, {Key("count", "state"): (chunk,)})
    >>> Part.from_json(part.to_json()) == part
    True
    """

    worker: int
    chunks: Mapping[Key, tuple[Chunk, ...]]
    digests: Mapping[Key, Digests] = field(default_factory=dict, compare=False)
    """Digests of the bins when they were written, which show the bins that change."""
    written: int = field(default=0, compare=False)
    """How many bytes it took."""
    bins: int = BINS
    """Into how many bins the worker divides keys."""
    owners: tuple[int, ...] = ()
    """The worker that owns each bin, if some have been moved; the part of worker 0 says it."""
    chains: Mapping[Key, Chain] = field(default_factory=dict)
    """The containers that know their changes; all others are in `chunks`."""

    @property
    def tokens(self) -> dict[tuple[str, str], str]:
        """The states of containers of which changes will do."""
        return {key: chain.token for key, chain in self.chains.items() if not chain.is_broken}

    @property
    def files(self) -> set[str]:
        """The names of the files that it needs."""
        found = {chunk.file for chunks in self.chunks.values() for chunk in chunks}
        links = [link for chain in self.chains.values() for link in chain.links]
        return found | {place.file for link in links for place in link.copies}

    def to_json(self) -> dict[str, Any]:
        """The part as it travels to the driver, and as the manifest has it."""
        states = [[*key, [chunk.to_json() for chunk in kept]] for key, kept in self.chunks.items()]
        chains = [
            [*key, chain.token, [link.to_json() for link in chain.links]]
            for key, chain in self.chains.items()
            if chain.links
        ]
        moved = {"owners": list(self.owners)} if self.owners else {}
        return {
            "worker": self.worker,
            "states": states,
            "chains": chains,
            "bins": self.bins,
            **moved,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Part:
        """A part in this form."""
        return Part(
            int(value["worker"]),
            {
                Key(operator, name): tuple(map(Chunk.from_json, kept))
                for operator, name, kept in value["states"]
            },
            # Before it was a setting, there were always as many, and parts did not say it.
            bins=int(value.get("bins", FEWEST_BINS)),
            owners=tuple(value.get("owners", ())),
            chains={
                Key(operator, name): Chain(token, tuple(map(Link.from_json, links)))
                for operator, name, token, links in value.get("chains", ())
            },
        )


def unchanged(base: Part, key: Key, digests: Digests) -> tuple[Chunk, ...]:
    """The chunks that can be used again, as far as their bins are still the same."""
    before = base.digests.get(key, {})
    same = {number for number, digest in digests.items() if before.get(number) == digest}
    left = [chunk.only(same) for chunk in base.chunks.get(key, ())]
    left = [chunk for chunk in left if len(chunk.bins) >= max(1.0, LEAST_LIVE * chunk.written)]
    if len(left) >= MOST_CHUNKS:
        # The least used chunks are written anew, together with changed bins.
        left.sort(key=lambda chunk: len(chunk.bins), reverse=True)
        del left[MOST_CHUNKS // 2 :]
    return tuple(left)


def too_rare(digests: Digests, chunks: Sequence[Chunk]) -> list[int]:
    """The bins that are to be written: changed ones, and those that are in one older file only."""
    copies = Counter(number for chunk in chunks for number in chunk.bins)
    return [number for number in digests if copies[number] < COPIES]
