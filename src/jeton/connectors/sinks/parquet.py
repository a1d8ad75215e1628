"""Parquet: files in a folder."""

from __future__ import annotations

import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jeton.connectors.paths import shared_folder
from jeton.connectors.sinks.sink import StagedWriter, Writer, concatenated
from jeton.core.errors import JetonError
from jeton.storage.files import make_durable

log = logging.getLogger(__name__)


class Parquet:
    """Parquet files in a folder; each appears whole, under its own name, once it is complete.

    A file is closed after ``rows`` rows, or when the query ends. With checkpoints, each version has
    files of its own, which appear when it is committed; from then on they can be moved or deleted.
    Several outputs may have the same folder, which the driver and all workers must see.

    A column that has only nulls, and no type that the flow knows, is left out of a file.
    """

    def __init__(self, path: str | os.PathLike[str], *, rows: int = 1_000_000) -> None:
        self.path = shared_folder(path)
        self.rows = rows

    def open(self, worker: int, run: str) -> Writer:
        """Write on this worker."""
        return _ParquetWriter(self, f"{run}-{worker:04}")

    def open_staged(self, worker: int, query: str, attempt: int) -> StagedWriter:
        """Write on this worker, for checkpoints."""
        return _StagedParquetWriter(self, f"{query}-{attempt}-{worker:04}")

    def commit(self, query: str, version: int, staged: Sequence[Any]) -> None:
        """Give files their names."""
        for name in staged:
            hidden, visible = self.path / f".{name}", self.path / name
            try:
                hidden.rename(visible)
            except FileNotFoundError:
                if not visible.exists():
                    raise JetonError(
                        f"{visible} is not there, hidden or visible, but it has rows of version "
                        f"{version}, of which it is not known whether anybody has seen them. Is "
                        "that the folder which the workers write to? If a reader has taken the "
                        "file, put one of that name there"
                    ) from None
        if staged:
            make_durable(self.path)

    def roll_back(self, query: str, version: int, attempt: int) -> None:
        """Delete hidden files of earlier attempts, and those of later versions."""
        ours = re.compile(rf"(\.?)part-{re.escape(query)}-(\d+)-\d+-\w+-(\d+)-\d+\.parquet")
        deleted = self.path.is_dir()
        # Once more, until there is none: a driver that was superseded while it gave files their
        # names may do so between a look at the folder and the deletion.
        while deleted:
            deleted = False
            for path in self.path.iterdir():
                found = ours.fullmatch(path.name)
                if found is None or int(found[2]) >= attempt:
                    continue
                if not found[1] and int(found[3]) <= version:
                    continue
                if not found[1]:
                    log.warning("%s is deleted: its rows will be made again", path)
                path.unlink(missing_ok=True)
                deleted = True


class _Gathering(ABC):
    """Rows that are gathered until there are enough of them for a file."""

    def __init__(self, sink: Parquet, name: str) -> None:
        self._sink = sink
        # Another output of this worker may go to the same folder.
        self._name = f"part-{name}-{token_hex(4)}"
        self._number = 0
        self._tables: list[pa.Table] = []
        self._rows = 0
        sink.path.mkdir(parents=True, exist_ok=True)

    def write(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows >= self._sink.rows:
            self._fill()

    @abstractmethod
    def _fill(self) -> None:
        """Make a file of what was gathered."""

    def _fill_file(self, path: Path) -> None:
        table = concatenated(self._tables, f"rows for {self._sink.path}")
        # Arrow writes nulls of no type as integers, which do not go with what comes later.
        table = table.select([f.name for f in table.schema if not pa.types.is_null(f.type)])
        pq.write_table(table, path)
        self._tables, self._rows = [], 0
        self._number += 1


class _ParquetWriter(_Gathering):
    def close(self) -> None:
        if self._rows:
            self._fill()

    def _fill(self) -> None:
        name = f"{self._name}-{self._number:05}.parquet"
        hidden = self._sink.path / f".{name}"
        self._fill_file(hidden)
        hidden.rename(self._sink.path / name)


class _StagedParquetWriter(_Gathering):
    def __init__(self, sink: Parquet, name: str) -> None:
        super().__init__(sink, name)
        self._early: list[tuple[int, Path]] = []
        """Files that were full before it was known what version they are for."""

    def stage(self, version: int) -> list[Any]:
        if self._rows:
            self._fill()
        names = []
        for number, hidden in self._early:
            names.append(f"{self._name}-{version:08}-{number:05}.parquet")
            hidden.rename(self._sink.path / f".{names[-1]}")
        if names:
            # The version must not outlive, by a power cut, the names of its files.
            make_durable(self._sink.path)
        self._early = []
        return names

    def close(self) -> None:
        self._tables, self._rows = [], 0

    def _fill(self) -> None:
        number = self._number
        hidden = self._sink.path / f".{self._name}-{0:08}-{number:05}.parquet"
        self._fill_file(hidden)
        make_durable(hidden)
        self._early.append((number, hidden))
