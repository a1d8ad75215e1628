"""PostgreSQL as a sink, on a real server: promises, types, upserts, other sessions, secrets."""

from __future__ import annotations

import logging
import pickle
import threading
import traceback
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row

from jeton.connectors import sinks
from jeton.connectors.sinks import Delivery, SinkContext
from jeton.connectors.tables import TableFailed
from jeton.core.errors import BatchError, GraphError
from jeton.storage.files import Files
from jeton.testing import check_sink
from tests.connectors.test_tables import EVERY_TYPE
from tests.nan_levels import NAN_LEVELS
from tests.postgres_server import PASSWORD, needs_postgres, postgres_server

pytestmark = needs_postgres


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as dsn:
        yield dsn


@pytest.fixture
def dsn(server: str) -> str:
    """A server with nothing in it."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return server


def rows(dsn: str, table: str = "rows") -> list[dict[str, Any]]:
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        there = connection.execute("SELECT to_regclass(%s) AS it", [table]).fetchone()
        if there is None or there["it"] is None:
            return []
        return connection.execute(f"SELECT * FROM {table}").fetchall()


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn) as connection:
        for each in statements:
            connection.execute(each)


def receive(sink: sinks.Postgres, table: pa.Table, version: int = 1, attempt: int = 1) -> None:
    context = SinkContext("q", attempt, files=Files("/nowhere"))
    sink.receive(table, Delivery(version, context=context))


def test_promises(dsn: str) -> None:
    check_sink(lambda: sinks.Postgres(dsn, "rows"), lambda: rows(dsn))


def test_promises_of_upserts(dsn: str) -> None:
    sink = sinks.Postgres(dsn, "rows", mode="upsert", key=["n", "text"], order_by="time")
    check_sink(sink, lambda: rows(dsn))


def test_values_of_all_types_come_back(dsn: str) -> None:
    sink = sinks.Postgres(dsn, "rows")
    sink.begin("rows", EVERY_TYPE.schema)
    receive(sink, EVERY_TYPE)
    found = sorted(rows(dsn), key=lambda row: row["big"] is None)
    assert found[0] == {
        "time": datetime(2024, 5, 1, 9, tzinfo=UTC),
        "local": datetime(1969, 1, 1, 0, 0, 0, 5),
        "nanos": datetime(1970, 1, 1, 0, 0, 0, 1),
        "day": date(2024, 5, 1),
        "price": Decimal("12.50"),
        "small": -1,
        "unsigned": 2**32 - 1,
        "big": 2**63 - 1,
        "float": float("inf"),
        "flag": True,
        "text": 'a "quoted", line\n',
        "word": "",
        "bytes": b"\x00\xff",
        "list": [1, None],
        "struct": {"a": 1, "b": "x"},
        "map": {"a": 1},
    }
    assert set(found[1].values()) == {None}


def test_types_that_it_lacks_are_errors_at_the_start(dsn: str) -> None:
    with pytest.raises(
        BatchError, match=r"column 'wait' of output 'rows' is of type duration\[s\]"
    ):
        sinks.Postgres(dsn, "rows").begin("rows", pa.schema([("wait", pa.duration("s"))]))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ("n integer", "column 'n' is bigint in the output, and int4 in the table"),
        ("m bigint", "it has no column 'n'"),
        ("n bigint, must text NOT NULL", r"it wants values for \['must'\]"),
        ("n text", "column 'n' is bigint in the output, and text in the table"),
    ],
)
def test_rows_that_do_not_fit_a_table_are_errors(dsn: str, columns: str, text: str) -> None:
    run(dsn, f"CREATE TABLE rows ({columns})")
    with pytest.raises(BatchError, match=text):
        sinks.Postgres(dsn, "rows").begin("rows", pa.schema([("n", pa.int64())]))


def test_a_table_may_have_more_columns_and_wider_types(dsn: str) -> None:
    run(
        dsn,
        "CREATE SCHEMA logs",
        "CREATE TABLE logs.rows (id serial PRIMARY KEY, n numeric, word varchar(3) DEFAULT 'a', "
        "price numeric(12, 3))",
    )
    sink = sinks.Postgres(dsn, "logs.rows")
    table = pa.table({"n": [7], "price": pa.array([Decimal("1.25")], pa.decimal128(9, 2))})
    sink.begin("rows", table.schema)
    receive(sink, table)
    assert rows(dsn, "logs.rows") == [{"id": 1, "n": 7, "word": "a", "price": Decimal("1.250")}]
    wider = pa.schema([("price", pa.decimal128(9, 4))])
    with pytest.raises(BatchError, match=r"column 'price' is numeric\(9, 4\) in the output"):
        sink.begin("rows", wider)


def test_upserts_keep_the_newest_row_of_a_key(dsn: str) -> None:
    last = sinks.Postgres(dsn, "rows", mode="upsert", key=["k"])
    receive(last, pa.table({"k": ["a", "b", "a"], "time": [3, 1, 2]}), 1)
    assert sorted(rows(dsn), key=repr) == [{"k": "a", "time": 2}, {"k": "b", "time": 1}]
    newest = sinks.Postgres(dsn, "rows", mode="upsert", key=["k"], order_by="time")
    receive(newest, pa.table({"k": ["a", "b", "a", "b"], "time": [9, 0, 8, None]}), 2)
    assert sorted(rows(dsn), key=repr) == [{"k": "a", "time": 9}, {"k": "b", "time": 1}]
    only_key = sinks.Postgres(dsn, "keys", mode="upsert", key=["k"])
    receive(only_key, pa.table({"k": ["a", "a"]}), 3)
    assert rows(dsn, "keys") == [{"k": "a"}]


def test_nan_gives_way_to_any_number_in_upserts(dsn: str) -> None:
    sink = sinks.Postgres(dsn, "rows", mode="upsert", key=["k"], order_by="level")
    for version, (levels, newest) in enumerate(NAN_LEVELS, 1):
        numbers = list(range(10 * version, 10 * version + len(levels)))
        level = pa.array(levels, pa.float64(), from_pandas=False)
        receive(sink, pa.table({"k": ["a"] * len(levels), "level": level, "n": numbers}), version)
        assert [row["n"] for row in rows(dsn)] == [newest], version


def test_nulls_in_keys_are_errors_unless_they_are_the_same(dsn: str) -> None:
    keys = pa.array(["a", None, None])
    for distinct, name in (("", "several"), ("NULLS NOT DISTINCT", "one")):
        run(dsn, f"CREATE TABLE {name} (k text, n bigint, UNIQUE {distinct} (k))")
        sink = sinks.Postgres(dsn, name, mode="upsert", key=["k"])
        if name == "several":
            with pytest.raises(BatchError, match=r"key columns \['k'\] have nulls"):
                receive(sink, pa.table({"k": keys, "n": [1, 2, 3]}))
            continue
        receive(sink, pa.table({"k": keys, "n": [1, 2, 3]}))
        receive(sink, pa.table({"k": keys, "n": [4, 5, 6]}), 2)
        assert rows(dsn, "one") == [{"k": "a", "n": 4}, {"k": None, "n": 6}]


def test_columns_may_have_any_names(dsn: str) -> None:
    row = {"select": 1, "cpu %": 2, "%s": 3, "{}": 4, 'a "b"': 5, "Über": 6}
    for version, (mode, key) in enumerate((("append", []), ("upsert", ["cpu %"])), 1):
        sink = sinks.Postgres(dsn, mode, mode=mode, key=key)  # type: ignore[arg-type]
        sink.begin("rows", pa.Table.from_pylist([row]).schema)
        receive(sink, pa.Table.from_pylist([row]), version)
        assert rows(dsn, mode) == [row]


def test_upserts_need_a_key_with_an_index(dsn: str) -> None:
    with pytest.raises(GraphError, match="mode='upsert', which needs a key="):
        sinks.Postgres(dsn, "rows", mode="upsert")
    with pytest.raises(GraphError, match="mode='upsert', which needs a key="):
        sinks.Postgres(dsn, "rows", key=["k"])
    with pytest.raises(GraphError, match="must be 'append' or 'upsert'"):
        sinks.Postgres(dsn, "rows", mode="replace")  # type: ignore[arg-type]
    run(dsn, "CREATE TABLE rows (k text, n bigint)")
    sink = sinks.Postgres(dsn, "rows", mode="upsert", key=["k"])
    with pytest.raises(TableFailed, match="no unique or exclusion constraint"):
        sink.begin("rows", pa.schema([("k", pa.string()), ("n", pa.int64())]))
    with pytest.raises(GraphError, match=r"output 'rows' has no columns \['k'\] for key="):
        sink.begin("rows", pa.schema([("n", pa.int64())]))


def test_a_version_that_was_written_is_not_withdrawn(dsn: str) -> None:
    sink = sinks.Postgres(dsn, "rows")
    receive(sink, pa.table({"n": [1]}), 2)
    with pytest.raises(TableFailed, match=r"rows of version 2 .* UPDATE jeton_versions SET"):
        sink.roll_back(SinkContext("q", 2, files=Files("/nowhere")), 1)
    run(dsn, "UPDATE jeton_versions SET version = 1 WHERE query = 'q'")
    sink.roll_back(SinkContext("q", 2, files=Files("/nowhere")), 1)


def test_a_suspended_driver_in_a_transaction_is_ended(dsn: str) -> None:
    sink = sinks.Postgres(dsn, "rows")
    receive(sink, pa.table({"n": [1]}), 1)
    inside, over, failed = threading.Event(), threading.Event(), []

    class Suspended(sinks.Postgres):
        """Stops between its rows and the end of its transaction, as a paused driver may."""

        def receive(self, table: pa.Table, delivery: Delivery) -> None:
            with self._session(_session_of(delivery.context)) as session:
                session.locked(delivery.context)
                session.mark(delivery.context, 2)
                session.write(table)
                inside.set()
                over.wait(30)

    def work() -> None:
        try:
            receive(Suspended(dsn, "rows"), pa.table({"n": [2]}), 2)
        except TableFailed as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(30)
    sink.roll_back(SinkContext("q", 2, files=Files("/nowhere")), 1)
    over.set()
    thread.join()
    assert len(failed) == 1
    assert rows(dsn) == [{"n": 1}]
    with pytest.raises(TableFailed, match=r"attempt 2 at output 'rows' .* superseded"):
        receive(sink, pa.table({"n": [3]}), 3, attempt=1)


def _session_of(context: SinkContext) -> str:
    from jeton.connectors.sinks.postgres import _name

    return _name(context, context.attempt)


def test_two_queries_create_the_same_table_at_once(dsn: str) -> None:
    failed = []

    def work(number: int) -> None:
        try:
            context = SinkContext(f"q{number}", files=Files("/nowhere"))
            sink = sinks.Postgres(dsn, "rows")
            sink.receive(pa.table({"n": [number]}), Delivery(1, context=context))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    assert sorted(row["n"] for row in rows(dsn)) == [0, 1, 2, 3]


def test_errors_of_the_server_name_the_column(dsn: str) -> None:
    run(dsn, "CREATE TABLE rows (word uuid)")
    with pytest.raises(TableFailed, match=r"invalid input syntax for type uuid.* column word"):
        receive(sinks.Postgres(dsn, "rows"), pa.table({"word": ["x"]}))


def test_the_password_is_nowhere(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    sink = sinks.Postgres(dsn, "rows")
    seen = [repr(sink), str(sink)]
    wrong = dsn.replace("@", "-wrong@")
    for bad in (
        wrong,
        wrong.replace("127.0.0.1", "127.0.0.1:1"),
        f"pass{PASSWORD}",
        f"x={PASSWORD}",
    ):
        with pytest.raises((TableFailed, GraphError)) as caught:
            sinks.Postgres(bad, "rows").begin("rows", None)
        seen.append("".join(traceback.format_exception(caught.value)))
    assert PASSWORD not in "".join(seen) + caplog.text
    # It does not travel to workers.
    assert PASSWORD.encode() not in pickle.dumps(sink.at_workers())


def test_single_precision_stays_the_same_number_in_a_wider_column(dsn: str) -> None:
    values = pa.array([0.1, 1e-45, 3.4e38], pa.float32())
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE rows (wide float8, narrow float4)")
        given = pa.table({"wide": values, "narrow": values})
        sinks.Postgres(dsn, "rows").receive(given, Delivery())
        found = connection.execute("SELECT wide, narrow::float8 FROM rows").fetchall()
    assert found == [(each, each) for each in values.to_pylist()]
