"""Sources say where they are, and go on from there: they pass `check_source`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jeton.connectors.sources import Batches, Files, Rate, Source
from jeton.testing import check_source
from jeton_evaluation.nexmark import Config
from jeton_evaluation.nexmark import sources as nexmark_sources


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


SOURCES: dict[str, tuple[Callable[[Path], Source], int]] = {
    "batches": (lambda _: Batches(now_and_then, 2), 40),
    "rate": (lambda _: Rate(1e5, lambda positions: {"n": positions}, limit=1000, most=64), 1000),
    "files": (some_files, 150),
    "nexmark": (lambda _: nexmark_sources(Config(), events=1000, rate=1e5, most=50)["bids"], 920),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources_go_on_where_they_were(name: str, tmp_path: Path) -> None:
    make, rows = SOURCES[name]
    assert check_source(make(tmp_path), time="ts" if name == "nexmark" else "time") == rows
