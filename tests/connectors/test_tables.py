"""Tables of Delta and Iceberg as sources and sinks: promises, types, other writers, history."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog

from jeton.connectors import sinks, sources
from jeton.connectors.sinks import Sink, SinkContext
from jeton.connectors.sinks.table_files import Upsert
from jeton.connectors.sources import Reader, Source
from jeton.connectors.tables import TableFailed, groups
from jeton.core.errors import BatchError, GraphError, MissingColumn
from jeton.storage import store_settings
from jeton.storage.files import Files
from jeton.testing import check_sink, check_source
from tests.nan_levels import NAN_LEVELS
from tests.storage.s3_server import BUCKET, s3_server, settings_of


@dataclass(frozen=True)
class Kind:
    """A kind of table, and how others read and write it."""

    sink: Callable[..., Sink]
    source: Callable[..., Source]
    read: Callable[[], pa.Table | None]
    append: Callable[[pa.Table], None]
    delete: Callable[[str], Any]

    def rows(self) -> list[dict[str, Any]]:
        table = self.read()
        return [] if table is None else table.to_pylist()


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    if request.param == "delta":
        yield delta_kind(str(tmp_path / "table"))
        return
    warehouse = tmp_path / "tables"
    warehouse.mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/db", "warehouse": f"file://{warehouse}"}
    place = sinks.Iceberg("tests.rows", catalog).table

    def read() -> pa.Table | None:
        table = place.load()
        return None if table is None else table.scan().to_arrow()

    def append(rows: pa.Table) -> None:
        place.create(rows.schema).append(rows)

    yield Kind(
        lambda **more: sinks.Iceberg("tests.rows", catalog, **more),
        lambda **more: sources.Iceberg("tests.rows", catalog, **more),
        read,
        append,
        lambda predicate: place.create(pa.schema([])).delete(predicate),
    )
    place.close()


def delta_kind(path: str) -> Kind:
    def read() -> pa.Table | None:
        return DeltaTable(path).to_pyarrow_table() if DeltaTable.is_deltatable(path) else None

    return Kind(
        lambda **more: sinks.Delta(path, **more),
        lambda **more: sources.Delta(path, **more),
        read,
        lambda rows: write_deltalake(path, rows, mode="append", schema_mode="merge"),
        lambda predicate: DeltaTable(path).delete(predicate),
    )


def numbers(first: int, count: int = 3, **more: Any) -> pa.Table:
    return pa.table({"time": list(range(first, first + count)), **more})


# Promises


def test_sinks_keep_their_promises(kind: Kind) -> None:
    check_sink(kind.sink(rows=2), kind.rows)


def test_a_partitioned_delta_table_keeps_its_promises(tmp_path: Path) -> None:
    kind = delta_kind(str(tmp_path))
    check_sink(kind.sink(partition_by=["text", "n"]), kind.rows)
    assert check_source(kind.source(end=True)) == len(kind.rows()) > 0


@pytest.mark.parametrize("partitions", [1, 3])
def test_sources_keep_their_promises(kind: Kind, partitions: int) -> None:
    for first in range(0, 40, 10):
        kind.append(numbers(first, 10))
    assert check_source(kind.source(end=True, partitions=partitions)) == 40
    assert check_source(kind.source(end=True, start="latest", partitions=partitions)) == 0


@pytest.mark.parametrize("partition_by", [[], ["text"]])
def test_upserts_into_delta_keep_their_promises(tmp_path: Path, partition_by: list[str]) -> None:
    kind = delta_kind(str(tmp_path))
    more: dict[str, Any] = {"key": ["n", "text"], "order_by": "time", "partition_by": partition_by}
    check_sink(kind.sink(mode="upsert", rows=2, **more), kind.rows)


def test_upserts_into_delta_keep_the_newest_row_of_a_key(tmp_path: Path) -> None:
    kind, files = delta_kind(str(tmp_path)), Files("/nowhere")
    more: dict[str, Any] = {"mode": "upsert", "key": ['A "key"']}
    first = pa.table({'A "key"': ["a", None, "a"], "time": [3, 1, 2], "only": [1, 1, 1]})
    commit(kind.sink(**more), first, 1, files=files)
    assert sorted((row['A "key"'] or "", row["time"]) for row in kind.rows()) == [("", 1), ("a", 2)]
    second = pa.table({'A "key"': ["a", None, "a", "b"], "time": [9, 0, 8, None]})
    for _ in range(2):
        commit(kind.sink(order_by="time", **more), second, 2, files=files)
    found = sorted((row['A "key"'] or "", row["time"], row["only"]) for row in kind.rows())
    assert found == [("", 1, 1), ("a", 9, 1), ("b", None, None)]
    with pytest.raises(TableFailed, match="they were merged with others"):
        kind.sink(**more).roll_back(SinkContext("q", 2, files=files), 1)
    with pytest.raises(GraphError, match=r"output 'rows' has no columns \['k'\] for key="):
        sinks.Delta(tmp_path, mode="upsert", key=["k"]).begin("rows", second.schema)


@pytest.mark.parametrize("kind_of", [pa.float32(), pa.float64()])
def test_nan_gives_way_to_any_number_in_upserts_into_delta(
    tmp_path: Path, kind_of: pa.DataType
) -> None:
    kind = delta_kind(str(tmp_path))
    sink = kind.sink(mode="upsert", key=["k"], order_by="level")
    for version, (levels, newest) in enumerate(NAN_LEVELS, 1):
        count = range(10 * version, 10 * version + len(levels))
        level = pa.array(levels, kind_of, from_pandas=False)
        table = pa.table({"k": ["a"] * len(levels), "level": level, "n": list(count)})
        commit(sink, table, version, files=Files("/nowhere"))
        assert [row["n"] for row in kind.rows()] == [newest], version


ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.one_of(st.none(), st.integers(0, 3)))
)


@given(ROWS, st.booleans())
def test_the_newest_row_of_a_key(rows: list[tuple[str | None, int | None]], by_time: bool) -> None:
    table = pa.table(
        {
            "k": pa.array([key for key, _ in rows], pa.string()),
            "time": pa.array([time for _, time in rows], pa.int64()),
            "n": pa.array(range(len(rows)), pa.int64()),
        }
    )
    newest: dict[str | None, tuple[int, int]] = {}
    for n, (key, time) in enumerate(rows):
        rank = (-1 if time is None else time) if by_time else 0
        if key not in newest or newest[key][0] <= rank:
            newest[key] = (rank, n)
    found = Upsert(("k",), "time" if by_time else None).newest(table)["n"].to_pylist()
    assert found == sorted(n for _, n in newest.values())


# Types

EVERY_TYPE = pa.table(
    {
        "time": pa.array([datetime(2024, 5, 1, 9, tzinfo=UTC), None], pa.timestamp("ms", "CET")),
        "local": pa.array([datetime(1969, 1, 1, 0, 0, 0, 5), None], pa.timestamp("us")),
        "nanos": pa.array([1_000, None], pa.timestamp("ns")),
        "day": pa.array([date(2024, 5, 1), None]),
        "price": pa.array([Decimal("12.50"), None], pa.decimal128(9, 2)),
        "small": pa.array([-1, None], pa.int8()),
        "unsigned": pa.array([2**32 - 1, None], pa.uint32()),
        "big": pa.array([2**63 - 1, None]),
        "float": pa.array([float("inf"), None], pa.float32()),
        "flag": pa.array([True, None]),
        "text": pa.array(['a "quoted", line\n', None], pa.large_string()),
        "word": pa.array(["", None]).dictionary_encode(),
        "bytes": pa.array([b"\x00\xff", None], pa.large_binary()),
        "list": pa.array([[1, None], None], pa.list_(pa.int32())),
        "struct": pa.array([{"a": 1, "b": "x"}, None]),
        "map": pa.array([{"a": 1}, None], pa.map_(pa.string(), pa.int64())),
        "nothing": pa.nulls(2),
    }
)


def commit(sink: Sink, table: pa.Table, version: int = 1, attempt: int = 1, **more: Any) -> None:
    context = SinkContext("q", attempt, worker=0, **more)
    writer = sink.open(context)
    writer.write(table)
    sink.commit(context, version, writer.stage(version))
    writer.close()


def test_values_of_all_types_come_back(kind: Kind) -> None:
    sink = kind.sink()
    sink.begin("rows", EVERY_TYPE.schema)
    commit(sink, EVERY_TYPE)
    [first, second] = sorted(kind.rows(), key=repr, reverse=True)
    values = dict.fromkeys(EVERY_TYPE.column_names) | EVERY_TYPE.slice(0, 1).to_pylist()[0]
    del values["nothing"]
    # The zone is not stored, and nanoseconds are not either.
    values |= {
        "time": datetime(2024, 5, 1, 9, tzinfo=UTC),
        "nanos": datetime(1970, 1, 1, 0, 0, 0, 1),
    }
    assert (first if first["big"] else second) == values
    assert set((second if first["big"] else first).values()) == {None}
    source = kind.source(end=True, partitions=1)
    [(name, position)] = source.partitions(1).items()
    reader = source.open(name, position)
    assert values in batch_of(reader).to_pylist()
    reader.close()


@pytest.mark.parametrize("type_", [pa.duration("s"), pa.uint64(), pa.decimal256(50, 2)])
def test_types_that_tables_lack_are_errors_at_the_start(kind: Kind, type_: pa.DataType) -> None:
    with pytest.raises(BatchError, match=r"column 'wait' of output 'rows' is of type .* cast it"):
        kind.sink().begin("rows", pa.schema([("wait", type_)]))


def test_values_that_microseconds_cannot_hold_are_errors(kind: Kind) -> None:
    table = pa.table({"at": pa.array([1_001], pa.timestamp("ns"))})
    with pytest.raises(BatchError, match=r"column 'at' of output 'rows' is timestamp\[ns\]"):
        commit(kind.sink(), table)


def test_rows_that_do_not_fit_a_table_are_errors(kind: Kind) -> None:
    kind.append(pa.table({"n": pa.array([1], pa.int32()), "more": ["a"]}))
    sink = kind.sink()
    sink.begin("rows", pa.schema([("n", pa.int16())]))
    commit(sink, pa.table({"n": pa.array([2], pa.int16())}))
    assert {"n": 2, "more": None} in kind.rows()
    with pytest.raises(BatchError, match="column 'n' is int64, and int32 in the table"):
        sink.begin("rows", pa.schema([("n", pa.int64())]))
    with pytest.raises(BatchError, match="column 'm' is not in the table"):
        commit(sink, pa.table({"m": [1]}))


def test_nulls_where_a_table_has_none_are_errors(tmp_path: Path) -> None:
    fields = [pa.field("time", pa.int64(), nullable=False), pa.field("n", pa.int64())]
    DeltaTable.create(str(tmp_path), pa.schema(fields))
    writer = sinks.Delta(tmp_path).open(SinkContext("q", worker=0))
    writer.write(pa.table({"time": pa.array([1, None], pa.int64())}))
    with pytest.raises(BatchError, match="column 'time' of output 'rows' has 1 nulls"):
        writer.stage(1)


@pytest.mark.parametrize("rule", ["constraint", "generated", "mapping"])
def test_delta_tables_with_rules_for_rows_are_refused(tmp_path: Path, rule: str) -> None:
    wrong = {"delta.generationExpression": "time * 2"} if rule == "generated" else {}
    fields = [
        Field("time", PrimitiveType("long")),
        Field("n", PrimitiveType("long"), metadata=wrong),
    ]
    mapping = {"delta.columnMapping.mode": "name"} if rule == "mapping" else None
    table = DeltaTable.create(str(tmp_path), Schema(fields), configuration=mapping)
    if rule == "constraint":
        table.alter.add_constraint({"small": "n < 5"})
    schema = pa.schema({"time": pa.int64()})
    with pytest.raises(GraphError, match=r"delta\.(constraints\.small|gener|columnMapping)"):
        sinks.Delta(tmp_path).begin("rows", schema)
    writer = sinks.Delta(tmp_path).open(SinkContext("q", worker=0))
    writer.write(pa.table({"time": [1]}))
    with pytest.raises(GraphError, match=r"delta\."):
        writer.stage(1)


def test_delta_checks_constraints_of_upserts(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), pa.schema({"time": pa.int64(), "n": pa.int64()}))
    table.alter.add_constraint({"small": "n < 5"})
    sink, context = sinks.Delta(tmp_path, mode="upsert", key=["time"]), SinkContext("q", worker=0)
    for n in (4, 5):
        writer = sink.open(context)
        writer.write(pa.table({"time": [n], "n": [n]}))
        staged = writer.stage(n)
        if n == 5:
            with pytest.raises(TableFailed, match="1 rows failed validation check"):
                sink.commit(context, n, staged)
        else:
            sink.commit(context, n, staged)
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == [{"time": 4, "n": 4}]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.one_of(st.none(), st.integers(0, 2)))))
def test_rows_are_grouped_by_all_keys(rows: list[tuple[str, int | None]]) -> None:
    table = pa.table({"a": [a for a, _ in rows], "b": pa.array([b for _, b in rows], pa.int64())})
    found = [part.to_pylist() for _, part in groups(table, [table["a"], table["b"]])]
    twin = [
        [row for row in table.to_pylist() if (row["a"], row["b"]) == key]
        for key in product("ab", (None, 0, 1, 2))
    ]
    assert sorted(found, key=repr) == sorted((part for part in twin if part), key=repr)


# Several writers


def test_others_write_at_the_same_time(kind: Kind) -> None:
    kind.append(numbers(0))
    sink, files = kind.sink(), Files("/nowhere")
    failed: list[BaseException] = []

    def work(query: str) -> None:
        try:
            for version in range(1, 4):
                context = SinkContext(query, worker=0, files=files)
                mine = kind.sink()
                writer = mine.open(context)
                writer.write(numbers(100))
                staged = writer.stage(version)
                for _ in range(2):
                    mine.commit(context, version, staged)
                writer.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for each in threads:
        each.start()
    for version in range(1, 4):
        commit(sink, numbers(100), version, files=files)
    for each in threads:
        each.join()
    assert failed == []
    assert len(kind.rows()) == 3 * (1 + 3 * 3)


def test_a_driver_that_was_superseded_cannot_commit(kind: Kind) -> None:
    sink, files = kind.sink(), Files("/nowhere")
    commit(sink, numbers(0), 1, 1, files=files)
    old = SinkContext("q", 1, worker=0, files=files)
    writer = sink.open(old)
    writer.write(numbers(10))
    staged = writer.stage(2)
    sink.roll_back(SinkContext("q", 2, files=files), 1)
    with pytest.raises(TableFailed, match=r"attempt 2 at output 'rows' writes to .* superseded"):
        sink.commit(old, 2, staged)
    assert len(kind.rows()) == 3


def test_a_driver_that_is_superseded_while_it_commits_cannot(kind: Kind) -> None:
    """It has read the table before its successor stops it, and commits afterwards."""
    sink, files = kind.sink(), Files("/nowhere")
    commit(sink, numbers(0), 1, 1, files=files)
    old = SinkContext("q", 1, worker=0, files=files)
    writer = sink.open(old)
    writer.write(numbers(10))
    staged = writer.stage(2)
    suspended = [True]

    def wake_up_late() -> None:
        if suspended and suspended.pop():
            kind.sink().roll_back(SinkContext("q", 2, files=files), 1)

    if isinstance(sink, sinks.Iceberg):
        load = sink.table.load

        def loaded() -> Any:
            found = load()
            wake_up_late()
            return found

        sink.table.load = loaded  # type: ignore[method-assign]
    else:
        assert isinstance(sink, sinks.Delta)
        last = sink._last

        def asked(table: Any, context: SinkContext) -> Any:
            found = last(table, context)
            wake_up_late()
            return found

        sink._last = asked  # type: ignore[method-assign]
    with pytest.raises(TableFailed, match="attempt 2 at output 'rows'"):
        sink.commit(old, 2, staged)
    assert len(kind.rows()) == 3


def test_a_catalog_in_a_database_has_a_name(tmp_path: Path) -> None:
    known = {"type": "sql", "uri": f"sqlite:///{tmp_path}/db", "warehouse": f"file://{tmp_path}"}
    catalog = load_catalog("prod", **known)
    catalog.create_namespace("tests")
    catalog.create_table("tests.rows", pa.schema({"time": pa.int64()}))
    sink, context = (
        sinks.Iceberg("tests.rows", known | {"name": "prod"}),
        SinkContext("q", worker=0),
    )
    writer = sink.open(context)
    writer.write(numbers(0))
    sink.commit(context, 1, writer.stage(1))
    writer.close()
    assert catalog.load_table("tests.rows").scan().to_arrow().num_rows == 3
    sink.table.close()
    catalog.close()


def test_iceberg_does_not_withdraw(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/db", "warehouse": f"file://{tmp_path}"}
    sink = sinks.Iceberg("tests.rows", catalog)
    commit(sink, numbers(0), 2, files=Files("/nowhere"))
    with pytest.raises(TableFailed, match=r"rows of version 2 .* property jeton.q.rows"):
        sink.roll_back(SinkContext("q", 2, files=Files("/nowhere")), 1)
    sink.table.close()


def test_delta_does_not_withdraw_what_others_have_rewritten(tmp_path: Path) -> None:
    kind = delta_kind(str(tmp_path))
    for version in (1, 2, 3):
        commit(kind.sink(), numbers(version), version, files=Files("/nowhere"))
    DeltaTable(tmp_path).optimize.compact()
    with pytest.raises(TableFailed, match="others have rewritten or deleted them"):
        kind.sink().roll_back(SinkContext("q", 2, files=Files("/nowhere")), 2)


def test_delta_does_not_add_files_that_are_gone(tmp_path: Path) -> None:
    sink, context = sinks.Delta(tmp_path), SinkContext("q", worker=0, files=Files("/nowhere"))
    writer = sink.open(context)
    writer.write(numbers(0))
    staged = writer.stage(1)
    (tmp_path / staged[0]["path"]).unlink()
    with pytest.raises(TableFailed, match="has VACUUM deleted them"):
        sink.commit(context, 1, staged)
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 0


@pytest.mark.parametrize("partitioning", ["identity", "day"])
def test_a_partitioned_iceberg_table(tmp_path: Path, partitioning: str) -> None:
    from pyiceberg.transforms import parse_transform

    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/db", "warehouse": f"file://{tmp_path}"}
    days = [datetime(2024, 5, day, hour, tzinfo=UTC) for day in (1, 2) for hour in (3, 9)]
    rows = pa.table({"at": pa.array(days, pa.timestamp("us", "UTC")), "n": [1, None, 2, 2]})
    sink = sinks.Iceberg("tests.rows", catalog)
    with sink.table.create(rows.schema).update_spec() as spec:
        column = "n" if partitioning == "identity" else "at"
        spec.add_field(column, parse_transform(partitioning))
    sink.begin("rows", rows.schema)
    commit(sink, rows)
    table = sink.table.load()
    assert table is not None
    assert sorted(map(repr, table.scan().to_arrow().to_pylist())) == sorted(
        map(repr, rows.to_pylist())
    )
    assert len(table.inspect.files()) == (3 if partitioning == "identity" else 2)
    assert table.scan("n = 2").to_arrow().num_rows == 2
    with table.update_spec() as spec:
        spec.add_field("n", parse_transform("bucket[4]"))
    with pytest.raises(GraphError, match=r"partitioned by bucket\[4\] of 'n'"):
        sink.begin("rows", rows.schema)
    sink.table.close()


# Following a table


def drained(reader: Reader) -> list[int]:
    """The times of the rows that there are now."""
    found: list[int] = []
    while (batch := reader.read()) is not None:
        found += batch["time"].to_pylist()
    return found


def batch_of(reader: Reader) -> Any:
    batch = reader.read()
    assert batch is not None
    return batch


def opened(source: Source) -> Reader:
    [(name, position)] = source.partitions(1).items()
    return source.open(name, position)


def test_versions_are_followed_as_they_come(kind: Kind) -> None:
    kind.append(numbers(0))
    reader = opened(kind.source(every=0.0))
    late = opened(kind.source(every=0.0, start="latest"))
    assert (drained(reader), drained(late)) == ([0, 1, 2], [])
    for first in (10, 20):
        kind.append(numbers(first))
    assert drained(reader) == drained(late) == [10, 11, 12, 20, 21, 22]
    position = reader.position
    reader.close()
    kind.append(numbers(30))
    again = kind.source(every=0.0).open("0/1", position)
    assert drained(again) == [30, 31, 32]
    again.close()
    late.close()


def test_only_the_columns_of_an_input_are_read(kind: Kind) -> None:
    kind.append(numbers(0, word=["a", "b", "c"], n=[1, 2, 3]))
    source = kind.source(end=True).typed(pa.schema([("n", pa.int64())]), "time")
    reader = opened(source)
    assert batch_of(reader).schema.names == ["time", "n"]
    reader.close()


def test_a_table_without_the_time_of_the_input_is_an_error(kind: Kind) -> None:
    kind.append(numbers(0, n=[1, 2, 3]))
    schema = pa.schema({"Time": pa.int64(), "N": pa.int64()})
    source = kind.source(end=True)
    [(name, position), *_] = source.partitions(1).items()
    wrong = source.typed(schema, "Time")
    with pytest.raises(MissingColumn, match="no time column 'Time': did you mean 'time'"):
        wrong.partitions(1)
    with pytest.raises(MissingColumn, match="no time column 'Time': did you mean 'time'"):
        wrong.open(name, position)


def test_changes_of_rows_are_errors_unless_they_are_skipped(kind: Kind) -> None:
    kind.append(numbers(0))
    strict = opened(kind.source(every=0.0))
    lenient = opened(kind.source(every=0.0, changes="skip"))
    assert drained(strict) == drained(lenient) == [0, 1, 2]
    kind.delete("time = 1")
    kind.append(numbers(10))
    with pytest.raises(TableFailed, match=r"deletes or changes rows.* changes='skip'"):
        drained(strict)
    assert drained(lenient) == [10, 11, 12]
    assert sorted(drained(opened(kind.source(end=True)))) == [0, 2, 10, 11, 12]


def test_a_table_must_be_there(kind: Kind) -> None:
    with pytest.raises(GraphError, match=r"there is no .* table"):
        kind.source().partitions(1)


def test_files_that_were_only_rewritten_are_not_read_again(tmp_path: Path) -> None:
    kind = delta_kind(str(tmp_path))
    for first in (0, 10):
        kind.append(numbers(first))
    reader = opened(kind.source(every=0.0, start=0))
    assert drained(reader) == [0, 1, 2, 10, 11, 12]
    assert DeltaTable(tmp_path).optimize.compact()["numFilesAdded"] == 1
    kind.append(numbers(20))
    assert drained(reader) == [20, 21, 22]


def test_columns_that_a_delta_table_got_later_are_null_before(tmp_path: Path) -> None:
    kind = delta_kind(str(tmp_path))
    kind.append(numbers(0, 1))
    reader = opened(kind.source(every=0.0))
    assert batch_of(reader).schema.names == ["time"]
    kind.append(numbers(10, 1, word=["a"]))
    assert batch_of(reader).to_pylist() == [{"time": 10, "word": "a"}]
    whole = [
        row for batch in iter(opened(kind.source(end=True)).read, None) for row in batch.to_pylist()
    ]
    assert whole == [{"time": 0, "word": None}, {"time": 10, "word": "a"}]


def test_versions_that_were_cleaned_up_are_an_error(tmp_path: Path) -> None:
    kind = delta_kind(str(tmp_path))
    kind.append(numbers(0))
    reader = opened(kind.source(every=0.0))
    drained(reader)
    for first in (10, 20, 30):
        kind.append(numbers(first))
    DeltaTable(tmp_path).create_checkpoint()
    for version in range(3):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    again = kind.source(every=0.0).open("0/1", reader.position)
    with pytest.raises(TableFailed, match=r"version 1 of .* was cleaned up"):
        again.read()
    # One that is open lists the log now and then only.
    with pytest.raises(TableFailed, match=r"version 1 of .* was cleaned up"):
        _ = [drained(reader) for _ in range(100)]


def test_files_that_vacuum_deleted_are_an_error(tmp_path: Path) -> None:
    kind = delta_kind(str(tmp_path))
    kind.append(numbers(0))
    position = kind.source().partitions(1)["0/1"]
    kind.delete("time = 1")
    DeltaTable(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(TableFailed, match="has VACUUM deleted it"):
        kind.source().open("0/1", position).read()


def test_snapshots_that_expired_are_an_error(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/db", "warehouse": f"file://{tmp_path}"}
    place = sinks.Iceberg("tests.rows", catalog).table
    for first in (0, 10, 20, 30):
        place.create(numbers(0).schema).append(numbers(first))
    table = place.load()
    assert table is not None
    ids = [each.snapshot_id for each in table.snapshots()]
    source = sources.Iceberg("tests.rows", catalog, start=ids[1], every=0.0)
    position = source.partitions(1)["0/1"]
    reader = source.open("0/1", position)
    assert drained(reader) == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    reader.close()
    expiring = table.maintenance.expire_snapshots()
    for each in ids[:3]:
        expiring = expiring.by_id(each)
    expiring.commit()
    reader = source.open("0/1", position)
    with pytest.raises(TableFailed, match=r"snapshot number 2 .* has expired"):
        reader.read()
    reader.close()
    with pytest.raises(GraphError, match="has no snapshot 7"):
        sources.Iceberg("tests.rows", catalog, start=7).partitions(1)
    place.close()


def test_values_of_partition_columns_come_back(tmp_path: Path) -> None:
    kind = delta_kind(str(tmp_path))
    values = {
        "text": ["a b/c=%é", None],
        "day": [date(2024, 5, 1), None],
        "at": pa.array(
            [datetime(2024, 5, 1, 9, 0, 0, 5, tzinfo=UTC), None], pa.timestamp("us", "UTC")
        ),
        "local": pa.array([datetime(2024, 5, 1, 9), None], pa.timestamp("us")),
        "flag": [True, None],
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        "n": pa.array([-7, None], pa.int16()),
    }
    table = numbers(0, 2, **values)
    commit(kind.sink(partition_by=list(values)), table)
    expected = sorted(table.to_pylist(), key=repr)
    assert sorted(kind.rows(), key=repr) == expected
    for start in ("earliest", 0):
        reader = opened(kind.source(end=True, start=start))
        found = [row for batch in iter(reader.read, None) for row in batch.to_pylist()]
        assert sorted(found, key=repr) == expected


def test_partitions_that_cannot_be_are_errors(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("bytes", pa.binary()), ("text", pa.string())])
    with pytest.raises(GraphError, match="output 'rows' has no column 'm' to partition"):
        sinks.Delta(tmp_path, partition_by=["m"]).begin("rows", schema)
    with pytest.raises(GraphError, match="cannot be partitioned by column 'bytes'"):
        sinks.Delta(tmp_path, partition_by=["bytes"]).begin("rows", schema)
    sink = sinks.Delta(tmp_path, partition_by=["text"])
    sink.begin("rows", schema)
    with pytest.raises(BatchError, match="column 'text' of output 'rows' has an empty text"):
        commit(sink, pa.table({"n": [1], "text": [""]}))
    with pytest.raises(GraphError, match=r"is partitioned by \['text'\], and not by \['n'\]"):
        sinks.Delta(tmp_path, partition_by=["n"]).begin("rows", schema)


def test_readers_skip_files_by_their_statistics(tmp_path: Path) -> None:
    sink = sinks.Delta(tmp_path)
    commit(sink, EVERY_TYPE)
    [stats] = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist()
    assert (stats["num_records"], stats["null_count.big"], stats["max.big"]) == (2, 1, 2**63 - 1)
    assert stats["min.day"] == date(2024, 5, 1)
    # Rounded to milliseconds, away from the values between.
    assert stats["min.local"] == datetime(1969, 1, 1)
    assert stats["max.local"] == datetime(1969, 1, 1, 0, 0, 0, 1000)


def test_bytes_are_no_partitions(tmp_path: Path) -> None:
    rows = pa.table({"n": [1], "bytes": pa.array([b"a"])})
    write_deltalake(tmp_path, rows, partition_by=["bytes"])
    with pytest.raises(GraphError, match="cannot be partitioned by column 'bytes'"):
        sinks.Delta(tmp_path).begin("rows", rows.schema)
    with pytest.raises(GraphError, match="cannot be partitioned by column 'bytes'"):
        commit(sinks.Delta(tmp_path), rows)
    with pytest.raises(TableFailed, match="partitioned by a column of bytes cannot be read"):
        check_source(sources.Delta(tmp_path, end=True))


def test_the_end_of_time_has_no_bound_in_statistics(tmp_path: Path) -> None:
    rows = pa.table({"until": [datetime.max, datetime(2024, 5, 1)]})
    commit(sinks.Delta(tmp_path), rows)
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["until"].to_pylist()) == [
        datetime(2024, 5, 1),
        datetime.max,
    ]


def test_other_transactions_of_a_delta_table_stay(tmp_path: Path) -> None:
    from deltalake import Transaction

    marks = CommitProperties(app_transactions=[Transaction("theirs", 5)])
    write_deltalake(tmp_path, numbers(0), commit_properties=marks)
    commit(sinks.Delta(tmp_path), numbers(10), 3, files=Files("/nowhere"))
    table = DeltaTable(tmp_path)
    found = [table.transaction_version(name) for name in ("theirs", "jeton-q-rows")]
    assert found == [5, 3]


# In a bucket


@pytest.fixture
def bucket() -> Iterator[str]:
    """A bucket that is reached with settings as a Spark session has them."""
    before = store_settings.current()
    with s3_server() as endpoint:
        store_settings.use(settings_of(endpoint))
        yield BUCKET
        store_settings.use(before)


def test_delta_tables_in_a_bucket(bucket: str) -> None:
    path, files = f"s3a://{bucket}/tables/rows", Files("/nowhere")
    sink = sinks.Delta(path)
    for version in (1, 2):
        for _ in range(2):
            commit(sink, numbers(version * 10), version, files=files)
    sink.roll_back(SinkContext("q", 2, files=files), 1)
    assert check_source(sources.Delta(path, end=True)) == 3
    assert "hush" not in repr((sink, vars(sink)))


def test_iceberg_tables_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    warehouse = f"s3://{bucket}/tables"
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/db", "warehouse": warehouse}
    sink = sinks.Iceberg("tests.rows", catalog)
    for _ in range(2):
        commit(sink, numbers(0), 1, files=Files("/nowhere"))
    assert check_source(sources.Iceberg("tests.rows", catalog, end=True)) == 3
    sink.table.close()
