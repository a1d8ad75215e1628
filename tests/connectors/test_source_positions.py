"""Sources tell where they are, and go on from there."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jeton.connectors.sources import Batches, Files, Rate, Reader, Source
from jeton_evaluation.nexmark import Config
from jeton_evaluation.nexmark import sources as nexmark_sources


def drained(reader: Reader) -> list[Any]:
    found = []
    while not reader.ended:
        records = reader.read()
        if records is not None:
            found.append(records)
    return found


def some_files(folder: Path) -> Files:
    for number in range(5):
        table = pa.table({"time": np.arange(30) + number * 30})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=7)
    return Files(folder, end=True)


calls = itertools.count()


def now_and_then(partition: int, partitions: int) -> Iterator[Any]:
    """The same tables each time, but not the same pauses between them."""
    for at in range(20):
        if next(calls) % 3 == 0:
            yield None
        yield {"time": [at]}


SOURCES: dict[str, Callable[[Path], Source]] = {
    "batches": lambda _: Batches(now_and_then, 2),
    "rate": lambda _: Rate(1e5, lambda positions: {"n": positions}, limit=1000, most=64),
    "files": some_files,
    "nexmark": lambda _: nexmark_sources(Config(), events=1000, rate=1e5, most=50)["bids"],
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources_go_on_where_they_were(name: str, tmp_path: Path) -> None:
    source = SOURCES[name](tmp_path)
    for partition in range(2):
        whole = [time for r in drained(source.open(partition, 2)) for time in times_of(r)]
        assert len(whole) > 10
        for stops in ((1,), (2, 5), (0, 3, 3)):
            found: list[int] = []
            reader = source.open(partition, 2)
            for stop in stops:
                read = 0
                while read < stop and not reader.ended:
                    records = reader.read()
                    if records is not None:
                        found += times_of(records)
                        read += 1
                position = json.loads(json.dumps(reader.position))
                reader = source.open(partition, 2, position)
            if reader.floor is not None and len(found) < len(whole):
                assert reader.floor <= whole[len(found)]
            found += [time for records in drained(reader) for time in times_of(records)]
            assert found == whole


def times_of(records: Any) -> list[int]:
    return [
        int(time) for time in np.asarray(records["time" if "time" in _names(records) else "ts"])
    ]


def _names(records: Any) -> list[str]:
    return records.schema.names if isinstance(records, pa.RecordBatch) else list(records)
