"""Record batches of events of one kind, made block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from jeton_evaluation.nexmark.config import Config, Kind
from jeton_evaluation.nexmark.generator import Generator


@dataclass(frozen=True)
class Blocks:
    """Events of a kind, by blocks of ``size`` positions; ``events`` are all that there are."""

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
        """How many blocks there are, the last one perhaps smaller."""
        return -(-self.events // self.size)

    def between(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Make the events at some positions."""
        generator = Generator(self.config)
        for start in range(first, last, self.size):
            end = min(start + self.size, last)
            made = generator.make(self.kind, start, end, self.schema.names)
            yield pa.RecordBatch.from_pydict(made, schema=self.schema)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Make the blocks whose numbers Spark hands over."""
        for batch in batches:
            for block in batch.column(0).to_pylist():
                first = block * self.size
                yield from self.between(first, min(first + self.size, self.events))
