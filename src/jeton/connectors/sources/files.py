"""Files: the files of a folder, as they appear."""

from __future__ import annotations

import copy
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.json as pj

from jeton.columns.durations import Duration, seconds
from jeton.connectors.paths import shared_folder
from jeton.connectors.sources.source import Reader, Source, number_of, numbered
from jeton.core.checks import require_one_of
from jeton.core.errors import GraphError

FORMATS: Final = ("parquet", "csv", "json", "arrow", "feather", "ipc", "orc")
"""The formats of files. JSON is an object in each line."""


class Files(Source):
    """Files of a folder, as they appear: Parquet, CSV, JSON lines or Arrow, by name in order.

    The folder is a path that all workers see, or a URI such as ``s3a://bucket/in``: see
    docs/stores.md. A file is read once. Write it under another name and rename it, so that it
    appears whole; in a bucket, files always do. Worker *w* of *k* reads the files whose name hashes
    to it.

    Times in JSON are texts of ISO 8601, such as ``"2024-05-01T09:00:00.25"``. Declare their columns
    as timestamps, ``flow.input(…, schema={"at": datetime})``: without a schema, only texts of whole
    seconds are taken for times.

    The position has the names of the files that have been read, so clear the folder out now and
    then: what is gone from it is forgotten.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: str = "parquet",
        every: float | Duration = 0.2,
        end: bool = False,
    ) -> None:
        require_one_of(format, "format= of Files", FORMATS)
        self.files = shared_folder(path)
        self.path = self.files.root
        self.format = format
        self.every = seconds(every, "every=")
        self.end = end
        """Whether to end once all files that are there have been read."""
        self.endless = not end
        self._times: pa.Schema = pa.schema([])

    def partitions(self, workers: int) -> Mapping[str, Any]:
        """One for each worker."""
        # A stream may wait for its folder; of a source that ends, nothing would ever be read.
        if self.end and self.files.is_local and not self.files.is_folder(self.path):
            raise GraphError(f"there is no folder {self.path}")
        return numbered(workers)

    def typed(self, schema: pa.Schema, time: str) -> Files:
        """The source for an input whose timestamps may be texts in the files."""
        made = copy.copy(self)
        made._times = pa.schema([each for each in schema if pa.types.is_timestamp(each.type)])
        return made

    def batches(self, path: PurePosixPath) -> Iterator[pa.RecordBatch]:
        """The records of one of the files."""
        with self.files.local_copy(path) as place:
            if self.format == "json":
                # The reader of datasets makes nulls of a line without an end.
                options = pj.ParseOptions(explicit_schema=self._times)
                yield from pj.open_json(place, parse_options=options)
            else:
                yield from ds.dataset(place, format=self.format).to_batches()

    def open(self, partition: str, position: Any | None) -> Reader:
        """Start looking."""
        return _FileReader(self, *number_of(partition), position or {})


class _FileReader(Reader):
    def __init__(
        self, source: Files, partition: int, partitions: int, position: dict[str, Any]
    ) -> None:
        self._source = source
        self._partition = partition
        self._partitions = partitions
        self._done: set[str] = set(position.get("done", ()))
        self._seen: set[str] = set(self._done)
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._fresh: deque[PurePosixPath] = deque()
        self._reading: str | None = None
        self._rows = 0
        self.ready_at = 0.0
        if position.get("reading") is not None:
            self._begin(source.path / position["reading"])
            self._skip(int(position["rows"]))

    def read(self) -> Any | None:
        while True:
            for batch in self._batches:
                if batch.num_rows:
                    self._rows += batch.num_rows
                    return batch
            if self._reading is not None:
                self._done.add(self._reading)
                self._reading = None
            if not self._fresh and not self._look():
                return None
            self._begin(self._fresh.popleft())

    @property
    def position(self) -> dict[str, Any]:
        return {"done": sorted(self._done), "reading": self._reading, "rows": self._rows}

    def _begin(self, path: PurePosixPath) -> None:
        self._seen.add(path.name)
        self._reading, self._rows = path.name, 0
        self._batches = self._source.batches(path)

    def _skip(self, rows: int) -> None:
        while self._rows < rows:
            batch = next(self._batches)
            left = rows - self._rows
            self._rows += min(batch.num_rows, left)
            if batch.num_rows > left:
                self._batches = chain([batch.slice(left)], self._batches)

    def _look(self) -> bool:
        """Whether there are files of this partition that were not seen yet: by name, in order."""
        now = time.monotonic()
        if self.ended or (self.ready_at is not None and now < self.ready_at):
            return False
        files, folder = self._source.files, self._source.path
        there = sorted(files.names(folder))
        # A listing may leave a file out that is still there: only what is gone is forgotten.
        missing = self._done.difference(there)
        self._done -= {name for name in missing if not files.exists(folder / name)}
        for name in there:
            if name.startswith((".", "_")) or name in self._seen:
                continue
            self._seen.add(name)
            if _stable_hash(name) % self._partitions == self._partition:
                self._fresh.append(folder / name)
        self.ended = self._source.end and not self._fresh
        self.ready_at = now + self._source.every if not self._fresh else 0.0
        return bool(self._fresh)


def _stable_hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value * 131 + byte) % (1 << 32)
    return value
