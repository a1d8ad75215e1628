"""Targets: the files that outputs are written to, each whole or not at all."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

from jeton.cli.command import UsageError
from jeton.cli.tables import SUFFIXES, files_at, format_of, write_table
from jeton.columns import show
from jeton.core.errors import JetonError
from jeton.storage.files import Files
from jeton.storage.local_store import UNREADY, make_durable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STDOUT: Final = "-"
_ON_SPARK: Final = {"parquet": "parquet", "csv": "csv", "ndjson": "json"}
"""The formats in which Spark writes folders, and its names for them."""


@dataclass(frozen=True)
class Target:
    """A file or folder for the rows of one output.

    Rows are written beside it under another name. `publish` renames that, once all outputs of the
    run are there.
    """

    output: str
    path: str
    format: str | None
    """Nothing for a table that people read."""
    overwrite: bool
    unready: Path = field(compare=False)
    files: Files | None = field(default=None, compare=False)
    """The store that it is on; nothing for what is printed."""

    @staticmethod
    def of(output: str, path: str, form: str | None, general: str | None, over: bool) -> Target:
        """The target of an output; ``general`` is the format for names that do not say one."""
        if path == STDOUT:
            return Target(output, path, form, over, Path())
        known = form or format_of(path) or general
        if known is None and path.endswith("/"):
            known = "parquet"
        if known is None:
            raise UsageError(
                f"the name of {path} does not say what to write: add --format "
                f"({', '.join(SUFFIXES)})"
            )
        files = files_at(path)
        if not path.endswith("/") and files.is_folder(files.root):
            raise UsageError(f"{path} is a folder: write {path}/ to have it replaced, or a file")
        if path.endswith("/") and files.exists(files.root):
            raise UsageError(f"{path} is a file, not a folder")
        unready = Path(files.root.with_name(f".{files.root.name}.{token_hex(4)}{UNREADY}"))
        kind = Target if files.is_local else StoreTarget
        target = kind(output, path, known, over, unready, files)
        target.require_free()
        return target

    @property
    def place(self) -> Path:
        """Where it is."""
        assert self.files is not None
        return Path(self.files.root)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of files."""
        return self.path.endswith("/")

    def require_spark_can_write(self) -> None:
        """Refuse a folder of files that Spark does not write."""
        if self.is_folder and self.format not in _ON_SPARK:
            raise UsageError(
                f"Spark cannot write a folder of {self.format} files, only of "
                f"{', '.join(_ON_SPARK)}: name a file, which this process writes"
            )

    def require_free(self) -> None:
        """Refuse to replace what is there, unless that was asked for."""
        if self.path != STDOUT and self.is_there() and not self.overwrite:
            raise UsageError(f"{self.path} is there already: add --overwrite to replace it")

    def is_there(self) -> bool:
        """Whether there is something in its place."""
        return self.place.exists()

    def write(self, table: Any) -> None:
        """Write a whole table."""
        if self.path == STDOUT:
            self._print(table)
            return
        assert self.format is not None
        self.unready.parent.mkdir(parents=True, exist_ok=True)
        file = self.unready
        if self.is_folder:
            file.mkdir()
            file = file / f"part-00000{SUFFIXES[self.format][0]}"
        with open(file, "xb") as stream:
            write_table(table, self.format, stream)
        make_durable(file)

    def write_by_spark(self, frame: DataFrame) -> None:
        """Have the cluster write a folder, with a file for each partition."""
        assert self.format is not None
        writer = frame.write.format(_ON_SPARK[self.format])
        if self.format == "csv":
            writer = writer.option("header", True)
        writer.save(self.unready_uri)

    def rows_by_spark(self, spark: SparkSession) -> int:
        """The number of rows that the cluster has written."""
        assert self.format is not None
        reader = spark.read.format(_ON_SPARK[self.format]).option("header", self.format == "csv")
        return reader.load(self.unready_uri).count()

    @property
    def unready_uri(self) -> str:
        """Where Spark writes its rows first."""
        return self.unready.as_uri()

    def publish(self) -> None:
        """Put the rows in their place."""
        if self.path == STDOUT:
            return
        place = self.place
        try:
            if self.overwrite:
                self._replace(place)
            elif self.is_folder:
                # Fails if there is one with files in it by now.
                os.rename(self.unready, place)
            else:
                os.link(self.unready, place)
                self.unready.unlink()
        except OSError as error:
            raise JetonError(f"{self.path} could not be put in place: {error}") from error
        make_durable(place.parent)

    def discard(self) -> None:
        """Delete rows that have not been published."""
        if self.path == STDOUT:
            return
        if self.unready.is_dir():
            shutil.rmtree(self.unready, ignore_errors=True)
        else:
            self.unready.unlink(missing_ok=True)

    def _replace(self, place: Path) -> None:
        if not self.is_folder or not place.exists():
            os.replace(self.unready, place)
            return
        # A folder cannot be replaced in one step: the old one is set aside first.
        before = place.with_name(f"{self.unready.name}.before")
        os.rename(place, before)
        try:
            os.rename(self.unready, place)
        except OSError:
            os.rename(before, place)
            raise
        shutil.rmtree(before)

    def _print(self, table: Any) -> None:
        if self.format is None:
            print(f"{self.output}: {show.rows(table.num_rows)}")
            if table.num_rows:
                print(show.as_text(table))
        else:
            sys.stdout.flush()
            write_table(table, self.format, sys.stdout.buffer)
            sys.stdout.buffer.flush()


class StoreTarget(Target):
    """A target in a bucket, or on another store that is not a disk.

    A file appears whole. A folder appears file by file, and if it is overwritten, the files before
    are deleted first: a reader may see some of both.
    """

    @property
    def _files(self) -> Files:
        assert self.files is not None
        return self.files

    @property
    def unready_uri(self) -> str:
        """Where Spark writes its rows first."""
        return self._files.uri(PurePosixPath(self.unready))

    def is_there(self) -> bool:
        """Whether there is something in its place."""
        files = self._files
        return files.exists(files.root) or files.is_folder(files.root)

    def write(self, table: Any) -> None:
        """Write a whole table."""
        assert self.format is not None
        place = PurePosixPath(self.unready)
        if self.is_folder:
            place = place / f"part-00000{SUFFIXES[self.format][0]}"
        with self._files.output(place) as stream:
            write_table(table, self.format, stream)

    def publish(self) -> None:
        """Put the rows in their place."""
        files, unready = self._files, PurePosixPath(self.unready)
        try:
            if self.is_folder:
                for old in [*files.walk(files.root)] if self.overwrite else []:
                    files.remove(old)
                for path in [*files.walk(unready)]:
                    files.move(path, files.root / path.relative_to(unready))
            elif self.overwrite:
                files.move(unready, files.root)
            else:
                files.put(files.root, files.read(unready))
        except OSError as error:
            raise JetonError(f"{self.path} could not be put in place: {error}") from error

    def discard(self) -> None:
        """Delete rows that have not been published."""
        unready = PurePosixPath(self.unready)
        for path in [unready] if not self.is_folder else [*self._files.walk(unready)]:
            self._files.delete(path)


def require_different(targets: Sequence[Target]) -> None:
    """Refuse two outputs in one place; several can be printed."""
    places: dict[str, str] = {}
    for target in targets:
        if target.files is None:
            continue
        place = target.files.uri(target.files.root)
        other = places.setdefault(os.path.realpath(place), target.output)
        if other != target.output:
            raise UsageError(f"the outputs {other} and {target.output} have one path")


@contextmanager
def published_together(targets: Sequence[Target]) -> Iterator[Mapping[str, Target]]:
    """Publish all targets if the block succeeds, and none if it fails."""
    try:
        yield {target.output: target for target in targets}
        for target in targets:
            target.require_free()
        for target in targets:
            target.publish()
    finally:
        for target in targets:
            target.discard()
