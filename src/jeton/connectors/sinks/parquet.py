"""Parquet: files in a folder, on a disk or in a bucket."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jeton.connectors.paths import shared_folder
from jeton.connectors.sinks.sink import Sink, SinkContext, Writer, concatenated
from jeton.core.errors import JetonError

log = logging.getLogger(__name__)


class Parquet(Sink):
    """Parquet files in a folder; each appears whole, under its own name, once it is complete.

    Each version of a checkpoint has files of its own, with at most about ``rows`` rows. They appear
    when it is committed; from then on they can be moved or deleted. Without checkpoints, each
    worker's files appear every few seconds and when the query ends. Several outputs may have the
    same folder. It is a path that the driver and all workers see, or a URI such as
    ``s3a://bucket/out``: see docs/stores.md.

    A column that has only nulls, and no type that the flow knows, is left out of a file.
    """

    def __init__(self, path: str | os.PathLike[str], *, rows: int = 1_000_000) -> None:
        self.files = shared_folder(path)
        self.path = self.files.root
        self.rows = rows

    def open(self, context: SinkContext) -> Writer:
        """Write on this worker."""
        return _ParquetWriter(self, f"{context.query}-{context.attempt}-{context.worker or 0:04}")

    def commit(self, context: SinkContext, version: int, staged: Sequence[Any]) -> None:
        """Give files their names."""
        for name in staged:
            visible = self.path / name
            try:
                self._show(name, visible)
            except FileNotFoundError:
                raise JetonError(
                    f"{self.files.uri(visible)} is not there, hidden or visible, but it has rows "
                    f"of version {version}, of which it is not known whether anybody has seen "
                    "them. Is that the folder which the workers write to? If a reader has taken "
                    "the file, put one of that name there"
                ) from None

    def roll_back(self, context: SinkContext, version: int) -> None:
        """Delete hidden files of earlier attempts, and those of later versions."""
        ours = re.compile(rf"(\.?)part-{re.escape(context.query)}-(\d+)-\d+-\w+-(\d+)-\d+\.parquet")
        deleted = True
        # Once more, until there is none: a driver that was superseded while it gave files their
        # names may do so between a look at the folder and the deletion.
        while deleted:
            deleted = False
            for name in self.files.names(self.path):
                found = ours.fullmatch(name)
                if found is None or int(found[2]) >= context.attempt:
                    continue
                if not found[1] and int(found[3]) <= version:
                    continue
                # A listing may still have what was deleted.
                if not self.files.exists(self.path / name):
                    continue
                if not found[1]:
                    log.warning("%s is deleted: its rows will be made again", self.path / name)
                self.files.remove(self.path / name)
                deleted = True

    def _show(self, name: str, visible: PurePosixPath) -> None:
        # A worker writes a file before it is known what version it is for.
        base, _, number = name.removesuffix(".parquet").rsplit("-", 2)
        try:
            self.files.move(self.path / f".{base}-{0:08}-{number}.parquet", visible)
        except FileNotFoundError:
            # Earlier releases gave it that version's name, and hid it too.
            self.files.move(self.path / f".{name}", visible)


class _ParquetWriter(Writer):
    """Rows that are gathered until there are enough of them for a file, or a version is due."""

    def __init__(self, sink: Parquet, name: str) -> None:
        self._sink = sink
        # Another output of this worker may go to the same folder.
        self._name = f"part-{name}-{token_hex(4)}"
        self._number = 0
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._early: list[int] = []
        """Files that are written, and not staged yet."""

    def write(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows >= self._sink.rows:
            self._fill()

    def stage(self, version: int) -> list[Any]:
        if self._tables:
            self._fill()
        names = [f"{self._name}-{version:08}-{number:05}.parquet" for number in self._early]
        self._early = []
        return names

    def close(self) -> None:
        self._tables, self._rows = [], 0

    def _fill(self) -> None:
        files, path = self._sink.files, self._sink.path
        table = concatenated(self._tables, f"rows for {files.uri(path)}")
        # Arrow writes nulls of no type as integers, which do not go with what comes later.
        table = table.select([f.name for f in table.schema if not pa.types.is_null(f.type)])
        with files.output(path / f".{self._name}-{0:08}-{self._number:05}.parquet") as stream:
            pq.write_table(table, stream)
        self._early.append(self._number)
        self._tables, self._rows = [], 0
        self._number += 1
