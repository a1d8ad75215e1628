"""Tables in files: Parquet, CSV, JSON and Arrow, by suffix, one file or a folder of them."""

from __future__ import annotations

import base64
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final

from jeton.cli.command import UsageError
from jeton.connectors.paths import data_files
from jeton.core.errors import BatchError
from jeton.storage.files import Files

SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv",),
    "json": (".json",),
    "ndjson": (".ndjson", ".jsonl"),
    "arrow": (".arrow", ".feather", ".ipc"),
}
"""The formats, and the ends of file names that stand for each."""

_PACKED: Final = (".gz", ".bz2", ".zst", ".lz4")
"""Ends of compressed files, which are unpacked on the way."""


def format_of(path: str) -> str | None:
    """The format that a file's name stands for, if it stands for one.

    >>> format_of("bids.csv"), format_of("bids.NDJSON.gz"), format_of("bids")
    ('csv', 'ndjson', None)
    """
    suffixes = [each.lower() for each in PurePosixPath(path).suffixes]
    if suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    for name, ends in SUFFIXES.items():
        if suffixes and suffixes[-1] in ends:
            return name
    return None


def read_table(path: str, form: str | None = None, general: str | None = None) -> Any:
    """The Arrow table of a file, or of all files of a folder, in order of their names.

    Without a format, that of the names is taken, and where they say nothing the ``general`` one.
    In a folder, names that begin with a dot or an underscore are left out. Folders such as
    ``day=3`` add a column. A column that some files lack has nulls there.
    """
    import pyarrow as pa

    files, paths, folder = _files(path)
    form = form or _one_format(path, paths, general)
    try:
        with _on_disk(files, paths, folder) as (local, base):
            tables = [_read(file, form, base) for file in local]
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowException, ValueError) as error:
        raise BatchError(f"{path} cannot be read as {form}: {error}") from error


def format_in(path: str, general: str | None = None) -> str:
    """The format of the file or the files behind a path, by their names."""
    return _one_format(path, _files(path)[1], general)


def _files(path: str) -> tuple[Files, list[PurePosixPath], PurePosixPath]:
    """The files behind a path, and the folder that they are in."""
    files = files_at(path)
    if files.exists(files.root):
        return files, [files.root], files.root.parent
    if not files.is_folder(files.root):
        raise UsageError(f"there is no file {path}")
    found = data_files(files)
    if not found:
        raise UsageError(f"there are no files in {path}")
    return files, found, files.root


def files_at(path: str) -> Files:
    """The files at a path or URI, also one that only Java can reach."""
    from jeton.storage import store_settings, stores
    from jeton.storage.object_store import SCHEMES

    if stores.split(path)[0] not in ("file", *SCHEMES):
        from jeton.spark import store_access

        store_access.use(store_settings.current())
    return Files(path)


@contextmanager
def _on_disk(
    files: Files, paths: Sequence[PurePosixPath], folder: PurePosixPath
) -> Iterator[tuple[list[str], str]]:
    """The paths of files on this machine, copied if need be, and of the folder they are in."""
    if files.is_local:
        yield [str(path) for path in paths], str(folder)
        return
    with TemporaryDirectory(prefix="jeton-") as copies:
        local = [Path(copies, path.relative_to(folder)) for path in paths]
        for path, to in zip(paths, local, strict=True):
            to.parent.mkdir(parents=True, exist_ok=True)
            with files.local_copy(path) as copy:
                shutil.copyfile(copy, to)
        yield [str(path) for path in local], copies


def _one_format(path: str, files: Sequence[PurePosixPath], general: str | None) -> str:
    found = {format_of(file.name) or general for file in files}
    if None in found:
        unclear = next(file for file in files if format_of(file.name) is None)
        raise UsageError(
            f"the name of {unclear} does not say what it is: add --format ({', '.join(SUFFIXES)})"
        )
    names = sorted(each for each in found if each is not None)
    if len(names) > 1:
        raise UsageError(
            f"the files in {path} are of several kinds ({', '.join(names)}): give each kind a "
            "folder of its own"
        )
    return names[0]


def _read(file: str, form: str, folder: str) -> Any:
    import pyarrow.dataset as ds

    if form in ("parquet", "csv"):
        hive = ds.partitioning(flavor="hive")
        found = ds.dataset([file], format=form, partitioning=hive, partition_base_dir=folder)
        return found.to_table()
    parts = PurePosixPath(file).relative_to(folder).parts[:-1]
    if any("=" in part for part in parts):
        raise UsageError(f"{folder} has folders such as {parts[0]!r}: only for Parquet and CSV")
    return _read_arrow(file) if form == "arrow" else _read_json(file)


def _read_arrow(file: str) -> Any:
    import pyarrow as pa

    with pa.memory_map(file) as source:
        whole = source.read(6) == b"ARROW1"
        source.seek(0)
        return (pa.ipc.open_file if whole else pa.ipc.open_stream)(source).read_all()


def _read_json(file: str) -> Any:
    """A table of JSON lines, or of one array of objects."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    with pa.input_stream(file, compression="detect") as source:
        data = source.read()
    if data.lstrip()[:1] == b"[":
        return pa.Table.from_pylist(json.loads(data))
    return arrow_json.read_json(pa.BufferReader(data))


def write_table(table: Any, form: str, to: BinaryIO) -> None:
    """Write a table in a format."""
    import pyarrow as pa

    try:
        _WRITERS[form](table, to)
    except pa.ArrowException as error:
        raise BatchError(f"these rows cannot be written as {form}: {error}") from error


def _write_parquet(table: Any, to: BinaryIO) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, to)


def _write_csv(table: Any, to: BinaryIO) -> None:
    from pyarrow import csv

    csv.write_csv(table, to)


def _write_arrow(table: Any, to: BinaryIO) -> None:
    import pyarrow as pa

    with pa.ipc.new_file(to, table.schema) as writer:
        writer.write_table(table)


def _write_ndjson(table: Any, to: BinaryIO) -> None:
    for batch in table.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            to.write(json.dumps(plain(row), ensure_ascii=False).encode() + b"\n")


def _write_json(table: Any, to: BinaryIO) -> None:
    to.write(json.dumps(plain(table.to_pylist()), ensure_ascii=False, indent=0).encode() + b"\n")


_WRITERS: Final[Mapping[str, Callable[[Any, BinaryIO], None]]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "json": _write_json,
    "ndjson": _write_ndjson,
    "arrow": _write_arrow,
}


def plain(value: Any) -> Any:
    """A value as JSON has it: times in ISO 8601, decimals as text, bytes in Base64.

    Numbers that JSON does not have are text, as in the files that Spark writes.

    >>> plain({"at": date(2024, 5, 1), "n": [1, float("nan")], "raw": b"ab"})
    {'at': '2024-05-01', 'n': [1, 'NaN'], 'raw': 'YWI='}
    """
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def named_paths(values: Sequence[str], option: str) -> dict[str, str]:
    """The values of an option that is given as ``name=path``.

    >>> named_paths(["bids=data/bids.csv"], "--input")
    {'bids': 'data/bids.csv'}
    """
    found: dict[str, str] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not equals or not name or not path:
            raise UsageError(f"{option} {value!r} is not of the form name=path")
        if name in found:
            raise UsageError(f"{option} names {name!r} twice")
        found[name] = path
    return found


def named_formats(values: Sequence[str], names: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """The values of ``--format``: one for all files whose names say nothing, and those of names.

    >>> named_formats(["csv", "late=ndjson"], ["bids", "late"])
    ('csv', {'late': 'ndjson'})
    """
    general, found = None, {}
    for value in values:
        name, equals, form = value.rpartition("=")
        if form not in SUFFIXES:
            raise UsageError(f"--format {form!r} is not known (there are: {', '.join(SUFFIXES)})")
        if not equals:
            general = form
        elif name not in names:
            raise UsageError(f"--format names {name!r}, which is not given as a file")
        else:
            found[name] = form
    return general, found
