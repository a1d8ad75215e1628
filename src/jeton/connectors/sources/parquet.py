"""Parquet: the row groups of files in a folder, shared out among the workers once."""

from __future__ import annotations

import io
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from jeton.columns.column import cast_within, from_arrow, to_arrow
from jeton.columns.conditions import Bounds, Condition
from jeton.connectors.paths import data_files, shared_folder
from jeton.connectors.sources.source import Reader, Source
from jeton.core.checks import suggestion
from jeton.core.errors import GraphError, JetonError
from jeton.storage.files import Files

BATCH: Final = 65_536
"""Rows that are read at a time."""
FOOTERS: Final = 16
"""Files whose footers are read at the same time."""
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_INTEGER: Final = re.compile(r"-?(0|[1-9]\d{0,17})")


class Parquet(Source):
    """A Parquet file, or all those of a folder and its folders, as they are when a run begins.

    The driver reads the footers, and deals row groups out to workers in shares of about equal size;
    a worker reads its share with Arrow, in the order of the files' names. So files with one row
    group each are the least that can be shared. Names that begin with ``.`` or ``_`` are left out,
    except for those of folders such as ``_day=3``.

    Only the columns that the flow uses are read, and no row groups whose statistics show that the
    filters behind the input keep none of their records: see docs/connectors.md.

    Folders named like ``day=2024-05-01`` add a column, as Spark writes and reads them: of the type
    that the input declares, else integers or text. A column that a file lacks is null there, and
    types are widened to one that holds those of all files. Times without a zone that old versions
    of Spark wrote as INT96 are instants, in UTC.

    The path is one that the driver and all workers see, or a URI such as ``s3a://bucket/in``: see
    docs/stores.md.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> pq.write_table(pa.table({"time": [1, 2], "n": [5, 6]}), f"{folder}/numbers.parquet")
    >>> source = Parquet(folder)
    >>> source.schema().names
    ['time', 'n']
    >>> [(name, position)] = source.partitions(workers=1).items()
    >>> source.open(name, position).read().to_pydict()
    {'time': [1, 2], 'n': [5, 6]}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.files = shared_folder(path)
        self.path = self.files.root
        self._declared: pa.Schema = pa.schema([])
        self._columns: tuple[str, ...] | None = None
        self._condition: Condition | None = None
        self._time: str | None = None
        self._whole: tuple[pa.Schema, frozenset[str]] | None = None
        """All columns, and those of them that are in folders' names: workers learn both from the
        driver."""

    def __repr__(self) -> str:
        return f"<Parquet files in {self.files.uri(self.path)}>"

    def __getstate__(self) -> dict[str, Any]:
        # Workers get their shares: of what the footers say, they need the columns only.
        self._known()
        return {name: value for name, value in vars(self).items() if name != "_found"}

    def schema(self) -> pa.Schema:
        """The columns of all files, of the types that hold the values of all."""
        return self._wanted()

    def typed(self, schema: pa.Schema, time: str) -> Parquet:
        """The source for an input that declares its columns: others are not read."""
        made = self._copy()
        made._declared = schema
        made._time = time
        made._columns = (time, *(name for name in schema.names if name != time))
        return made

    def narrowed(
        self, columns: Sequence[str] | None, condition: Condition | None, time: str
    ) -> Parquet:
        """The source for a flow that uses some columns only, and drops some records at once."""
        made = self._copy()
        if columns is not None:
            made._columns = (time, *(name for name in columns if name != time))
        made._condition, made._time = condition, time
        return made

    def partitions(self, workers: int) -> Mapping[str, Any]:
        """A share of the row groups for each worker, which has all that it is to read."""
        shares: list[list[_Group]] = [[] for _ in range(workers)]
        loads = [0] * workers
        # The largest first, each to the worker that has the least: the same way each time.
        for group in sorted(self._groups(), key=lambda group: (-group.size, group.place)):
            worker = loads.index(min(loads))
            shares[worker].append(group)
            loads[worker] += group.size
        return {
            f"{worker}/{workers}": {"read": _stretches(share), "rows": 0}
            for worker, share in enumerate(shares)
        }

    def open(self, partition: str, position: Any | None) -> Reader:
        """Read a share."""
        return _ParquetReader(self, position or {"read": [], "rows": 0})

    def about(self) -> str:
        """How much of the files is read, in words.

        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> pq.write_table(pa.table({"n": [5, 6]}), f"{folder}/numbers.parquet", row_group_size=1)
        >>> Parquet(folder).about()
        '2 of 2 row groups in 1 file, 1 of 1 column'
        """
        whole = sum(each.metadata.num_row_groups for each in self._found)
        return (
            f"{len(self._groups())} of {_many(whole, 'row group')} in "
            f"{_many(len(self._found), 'file')}, {len(self._wanted())} of "
            f"{_many(len(self._known()[0]), 'column')}"
        )

    def batches(
        self, name: str, size: int, groups: Sequence[int], skip: int
    ) -> Iterator[pa.RecordBatch]:
        """The records of some row groups of a file, but for the first few."""
        types, path = self._wanted(), self.path / name
        with _opened(self.files, path, size) as file:
            inside = _paths_values(name)
            present = set(file.schema_arrow.names) - inside.keys()
            columns = [each for each in types.names if each in present]
            read = file.iter_batches(
                batch_size=BATCH,
                row_groups=list(groups),
                # To have no column is to have no rows.
                columns=columns or file.schema_arrow.names[:1],
                use_threads=False,
            )
            for batch in read:
                if batch.num_rows <= skip:
                    skip -= batch.num_rows
                    continue
                batch, skip = batch.slice(skip), 0
                yield _with_types(batch, types, inside, self.files.uri(path))

    @cached_property
    def _found(self) -> list[_File]:
        """The files, by name; at the driver."""
        paths = [self.path] if self.files.exists(self.path) else data_files(self.files)
        if not paths:
            raise GraphError(f"there are no Parquet files in {self.files.uri(self.path)}")
        with ThreadPoolExecutor(FOOTERS) as pool:
            return list(pool.map(self._footer, paths))

    def _footer(self, path: PurePosixPath) -> _File:
        info = self.files.info(path)
        if info is None:
            raise FileNotFoundError(f"{self.files.uri(path)} is gone")
        name = str(path.relative_to(self.path))
        with _opened(self.files, path, info.size) as file:
            return _File(name, info.size, file.metadata, _schema(file), _paths_values(name))

    def _copy(self) -> Parquet:
        """The same source, with what is known of the files."""
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        return made

    def _known(self) -> tuple[pa.Schema, frozenset[str]]:
        if self._whole is None:
            self._whole = _unified(self._found)
        return self._whole

    def _wanted(self) -> pa.Schema:
        """The columns to read, with their types."""
        names = self._columns or tuple(self._known()[0].names)
        return pa.schema([self._field(name) for name in names])

    def _field(self, name: str) -> pa.Field:
        whole, in_names = self._known()
        if name not in whole.names:
            raise GraphError(
                f"{self!r} have no column {name!r}{suggestion(name, whole.names)} (there are: "
                f"{', '.join(map(repr, whole.names))})"
            )
        if (count := whole.names.count(name)) > 1:
            raise GraphError(
                f"{self!r} have {count} columns called {name!r}, and which one is meant is not "
                "known: rename all but one in the files, or select() others"
            )
        declares = name in in_names and name in self._declared.names
        return (self._declared if declares else whole).field(name)

    def _groups(self) -> list[_Group]:
        """The row groups that may have records which matter, in order."""
        names = set(self._wanted().names)
        return [
            _Group((at, number), file.name, file.size, _weight(file, number, names))
            for at, file in enumerate(self._found)
            for number in range(file.metadata.num_row_groups)
            if self._may_matter(file, number)
        ]

    def _may_matter(self, file: _File, number: int) -> bool:
        group = file.metadata.row_group(number)
        if not group.num_rows:
            return False
        if self._condition is None:
            return True
        leaves = enumerate(map(file.metadata.schema.column, range(group.num_columns)))
        columns = {leaf.name: at for at, leaf in leaves if _is_whole(leaf)}

        def known(name: str) -> Bounds | None:
            if name in file.values:
                found = _constant(file.values[name], 1, self._field(name).type)
                nulls = group.num_rows if found.null_count else 0
                return Bounds(group.num_rows, nulls, pa.concat_arrays([found, found]))
            if name not in columns:
                missing = name not in file.schema.names
                return Bounds(group.num_rows, group.num_rows) if missing else None
            seen = [self._field(name).type]
            if name in self._declared.names:
                seen.append(self._declared.field(name).type)
            return _bounds(group, columns[name], file.schema.field(name).type, seen)

        time = None if self._time is None else known(self._time)
        # A record without a time is an error, whichever filter comes behind.
        if time is not None and time.nulls:
            return True
        return self._condition.may_hold(known)


@dataclass(frozen=True)
class _File:
    """A file as the driver found it."""

    name: str
    size: int
    metadata: Any
    schema: pa.Schema
    values: Mapping[str, str | None]
    """The columns that its folders' names add."""


@dataclass(frozen=True)
class _Group:
    """A row group: which one of which file, and how much there is to read."""

    place: tuple[int, int]
    file: str
    length: int
    size: int


class _ParquetReader(Reader):
    """The share of a worker: row groups, by file."""

    def __init__(self, source: Parquet, position: Mapping[str, Any]) -> None:
        self._source = source
        self._left: deque[list[Any]] = deque(position["read"])
        self._rows = int(position["rows"])
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._begin()

    def read(self) -> Any | None:
        while self._left:
            for batch in self._batches:
                self._rows += batch.num_rows
                return batch
            self._left.popleft()
            self._rows = 0
            self._begin()
        self.ended = True
        return None

    @property
    def position(self) -> dict[str, Any]:
        return {"read": list(self._left), "rows": self._rows}

    def close(self) -> None:
        self._batches = iter(())

    def _begin(self) -> None:
        if self._left:
            name, size, groups = self._left[0]
            self._batches = self._source.batches(name, size, groups, self._rows)


class _StoredFile(io.BytesIO):
    """A file of a store, of which Arrow reads the parts that it needs."""

    def __init__(self, files: Files, path: PurePosixPath, size: int) -> None:
        super().__init__()  # what it says of itself holds, but for the bytes
        self._files = files
        self._path = path
        self._size = size
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        found = self._files.read_at(self._path, self._at, wanted) if wanted else b""
        self._at += wanted
        return bytes(found)


def _opened(files: Files, path: PurePosixPath, size: int) -> Any:
    """A file, if it is still the one that the driver saw."""
    info = files.info(path)
    if info is None or info.size != size:
        now = "is gone" if info is None else f"has {info.size:,} bytes instead of {size:,}"
        raise JetonError(
            f"{files.uri(path)} {now}: it has changed since the driver looked at it. Start again, "
            "and add files under new names instead of changing those that are read"
        )
    place: Any = str(path)
    if not files.is_local:
        place = pa.PythonFile(_StoredFile(files, path, size), mode="r")
    try:
        # By one thread, which may wait for Python; Spark writes microseconds, also as INT96.
        return pq.ParquetFile(place, coerce_int96_timestamp_unit="us", pre_buffer=False)
    except pa.ArrowInvalid as error:
        raise JetonError(f"{files.uri(path)} is not a Parquet file: {error}") from error


def _schema(file: Any) -> pa.Schema:
    """The columns of a file; INT96 are instants."""
    schema: pa.Schema = file.schema_arrow.remove_metadata()
    for at in range(len(file.schema)):
        column = file.schema.column(at)
        if column.physical_type == "INT96" and _is_whole(column):
            index = schema.get_field_index(column.name)
            field = schema.field(index).with_type(pa.timestamp("us", "UTC"))
            schema = schema.set(index, field)
    return pa.schema([field.remove_metadata() for field in schema])


def _is_whole(leaf: Any) -> bool:
    """Whether a leaf of a file's schema is a column, and not a part of a nested one.

    A column may be called ``a.b``, as the path of the field ``b`` of a column ``a`` is.
    """
    return bool(leaf.name == leaf.path)


def _unified(files: Sequence[_File]) -> tuple[pa.Schema, frozenset[str]]:
    """The columns of all files, of types that hold all values, and those of folders' names."""
    whole = files[0].schema
    for file in files[1:]:
        if file.schema == whole:
            continue
        try:
            whole = pa.unify_schemas(_alike(whole, file.schema), promote_options="permissive")
        except pa.ArrowException as error:
            raise GraphError(
                f"the columns of {file.name} do not go with those of the files before: {error}"
            ) from error
    in_names = dict.fromkeys(chain.from_iterable(file.values for file in files))
    for name in in_names:
        texts = [text for file in files if (text := file.values.get(name)) is not None]
        numbers = bool(texts) and all(_INTEGER.fullmatch(text) for text in texts)
        field = pa.field(name, pa.int64() if numbers else pa.string())
        at = whole.get_field_index(name)
        whole = whole.append(field) if at < 0 else whole.set(at, field)
    return whole, frozenset(in_names)


def _alike(one: pa.Schema, other: pa.Schema) -> list[pa.Schema]:
    """Two schemas in which a column that has a dictionary in one only, has it in neither.

    >>> words = pa.schema({"word": pa.dictionary(pa.int8(), pa.string())})
    >>> [schema.field("word").type for schema in _alike(words, pa.schema({"word": pa.string()}))]
    [DataType(string), DataType(string)]
    """
    return [_decoded(one, other), _decoded(other, one)]


def _decoded(schema: pa.Schema, beside: pa.Schema) -> pa.Schema:
    others = {field.name for field in beside if not _may_have_dictionary(field.type)}
    return pa.schema(
        field.with_type(field.type.value_type)
        if pa.types.is_dictionary(field.type) and field.name in others
        else field
        for field in schema
    )


def _may_have_dictionary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind) or pa.types.is_null(kind))


def _paths_values(name: str) -> dict[str, str | None]:
    """The columns that the folders of a file's name add.

    >>> _paths_values("day=2024-05-01/place=New%20York/part-0.parquet")
    {'day': '2024-05-01', 'place': 'New York'}
    """
    pairs = (part.split("=", 1) for part in PurePosixPath(name).parts[:-1] if "=" in part)
    return {unquote(key): None if text == _NULL else unquote(text) for key, text in pairs}


def _constant(text: str | None, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()).cast(kind), rows)


def _with_types(
    batch: pa.RecordBatch, types: pa.Schema, inside: Mapping[str, str | None], uri: str
) -> pa.RecordBatch:
    """The columns that are wanted, with the values that are in folders' names."""
    if batch.schema.equals(types, check_metadata=False):
        return batch
    columns = []
    for field in types:
        at = batch.schema.get_field_index(field.name)
        try:
            if field.name in inside:
                columns.append(_constant(inside[field.name], batch.num_rows, field.type))
            elif at < 0:
                columns.append(pa.nulls(batch.num_rows, field.type))
            elif batch.column(at).type == field.type:
                columns.append(batch.column(at))
            else:
                columns.append(cast_within(batch.column(at), field.type))
        except pa.ArrowException as error:
            raise JetonError(
                f"column {field.name!r} of {uri} cannot be read as {field.type}: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=types)


def _bounds(group: Any, at: int, kind: pa.DataType, seen: Sequence[pa.DataType]) -> Bounds:
    """The bounds of a column of a row group, as its statistics have them.

    Values are read as the types ``seen``, one after the other, and the filter compares the last.
    """
    found, rows = group.column(at).statistics, group.num_rows
    if found is None:
        return Bounds(rows)
    nulls = found.null_count if found.has_null_count else None
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    # Arrow shows statistics of times of day in microseconds, which cuts nanoseconds off.
    unclear = kind == pa.time64("ns") or pa.types.is_nested(kind) or pa.types.is_float16(kind)
    if unclear or not found.has_min_max:
        return Bounds(rows, nulls)
    try:
        extremes = pa.array([found.min, found.max], kind)
        for each in seen:
            each = each.value_type if pa.types.is_dictionary(each) else each
            if each != extremes.type:
                extremes = to_arrow(from_arrow(cast_within(extremes, each)))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return Bounds(rows, nulls)
    return Bounds(rows, nulls, extremes)


def _weight(file: _File, number: int, names: set[str]) -> int:
    """The bytes of a row group that are decoded for some columns."""
    group = file.metadata.row_group(number)
    columns = (group.column(at) for at in range(group.num_columns))
    read = (c.total_uncompressed_size for c in columns if _top(c.path_in_schema, names))
    return sum(read) or group.total_byte_size


def _top(path: str, names: set[str]) -> bool:
    return path in names or path.split(".", 1)[0] in names


def _stretches(groups: Sequence[_Group]) -> list[list[Any]]:
    """Row groups in order, those of a file together: its name, its length, and their numbers."""
    found: list[list[Any]] = []
    for group in sorted(groups, key=lambda group: group.place):
        if not found or found[-1][0] != group.file:
            found.append([group.file, group.length, []])
        found[-1][2].append(group.place[1])
    return found


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
