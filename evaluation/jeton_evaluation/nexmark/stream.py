"""NEXMark events as a source of Spark's own streaming queries; it needs Spark 4.2 or newer.

An offset is a position among all events, so a micro-batch that is run again, after a restart too,
has the same rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from jeton.spark.internals import spark_schema
from jeton_evaluation.nexmark.config import Config, Kind
from jeton_evaluation.nexmark.generator import Blocks


@dataclass(frozen=True)
class StreamOptions:
    """Options of a stream of events of one kind: see `jeton_evaluation.nexmark.stream_frames`."""

    config: Config
    kind: Kind
    columns: tuple[str, ...]
    events: int | None
    rate: float | None
    start: float | None
    partitions: int
    most: int
    block: int

    def __post_init__(self) -> None:
        if self.rate is not None and self.rate <= 0:
            raise ValueError(f"rate must be above zero, not {self.rate}")
        if self.events is not None and self.events < 0:
            raise ValueError(f"there cannot be {self.events} events")
        for name in ("partitions", "most", "block"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")

    def to_json(self) -> str:
        """As text: options of Spark's have no other type."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StreamOptions:
        """Back from text."""
        found = json.loads(text)
        config = Config(**found.pop("config"))
        return cls(config=config, columns=tuple(found.pop("columns")), **found)

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self.config.schema(self.kind, self.columns)


class NexmarkSource(DataSource):
    """The data source that Spark knows as ``jeton-nexmark``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = StreamOptions.from_json(options["stream"])

    @classmethod
    def name(cls) -> str:
        """The name for ``readStream.format``."""
        return "jeton-nexmark"

    def schema(self) -> StructType:
        """The columns."""
        return spark_schema(self._options.schema)

    def streamReader(self, schema: StructType) -> EventStreamReader:
        """The reader from which Spark gets offsets and rows."""
        return EventStreamReader(self._options)


class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets, at Spark's driver, and rows, in its tasks."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._began: tuple[float, int] | None = None
        self._target = options.events

    def initialOffset(self) -> dict[str, int]:
        """Before the first event."""
        return {"position": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """As far as events are due, but not more of them than one micro-batch may have."""
        first = start["position"]
        last = first + self._options.most
        if self._options.rate is not None:
            last = min(last, self._due(first, self._options.rate))
        if self._target is not None:
            last = min(last, self._target)
        return {"position": max(first, last)}

    def prepareForTriggerAvailableNow(self) -> None:
        """All events are there from the beginning."""
        if self._target is None:
            raise ValueError("a query that takes what is available now needs events=")

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Split events of a micro-batch into parts of nearly the same size, each in a row."""
        first, count = start["position"], end["position"] - start["position"]
        parts = min(self._options.partitions, max(count, 1))
        cuts = [first + count * part // parts for part in range(parts + 1)]
        return [InputPartition(pair) for pair in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Make the events of one part."""
        options = self._options
        blocks = Blocks(options.config, options.kind, options.schema, options.block)
        return blocks.between(*partition.value)

    def _due(self, position: int, rate: float) -> int:
        """How many events are due: counted from the clock's start, or from where we come in."""
        if self._options.start is not None:
            return int((time.time() - self._options.start) * rate)
        if self._began is None:
            self._began = (time.monotonic(), position)
        since, first = self._began
        return first + int((time.monotonic() - since) * rate)
