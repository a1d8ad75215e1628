"""Records over real sockets of this machine: a webhook, and lines over TCP."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pyarrow as pa
import pytest

from jeton.connectors import sources
from jeton.errors import GraphError, JetonError
from jeton.testing import check_source


def post(url: str, data: Any, **headers: str) -> Any:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
        return json.load(answer)


def test_a_webhook_is_read_again_from_every_position(tmp_path: Path) -> None:
    source = sources.Webhook(0, tmp_path)
    for _ in range(2):
        reader = source.open("requests", None)
        for at in range(5):
            assert post(reader.url, [{"time": at, "n": at}, {"time": at}]) == {"records": 2}
        post(reader.url, b'{"time": 7}\n\n{"time": 8, "n": 1}\n')
        post(reader.url, {"time": 9, "text": "two\nlines, \u00fcml\u00e4ut"})
        reader.close()
    # A server that was killed may have written a part of a line, and has not answered.
    [*_, last] = sorted(tmp_path.iterdir())
    with last.open("ab") as file:
        file.write(b'1234 {"time": 99')
    assert check_source(source, rows=26) == 26


def test_what_came_before_a_failure_is_read_after_it(tmp_path: Path) -> None:
    schema = pa.schema({"time": pa.int64(), "n": pa.int64()})
    source = sources.Webhook(0, tmp_path, received="at").typed(schema, "time")
    reader = source.open("requests", {})
    post(reader.url, {"time": 1, "n": 1})
    first = reader.read()
    assert first is not None
    assert first["n"].to_pylist() == [1]
    position = json.loads(json.dumps(reader.position))
    post(reader.url, {"time": 2, "n": 2, "other": True})
    reader.close()
    again = source.open("requests", position)
    table = again.read()
    assert table is not None
    assert table.column_names == ["time", "n", "at"]
    assert table["n"].to_pylist() == [2]
    assert again.read() is None
    # Files that were read and deleted are forgotten.
    for path in tmp_path.iterdir():
        path.unlink()
    assert again.read() is None
    assert again.position == {}
    again.close()


@pytest.mark.parametrize(
    ("data", "headers", "status"),
    [
        (b"{", {"Authorization": "Bearer secret"}, 422),
        ([1, 2], {"Authorization": "Bearer secret"}, 422),
        ({"time": "soon", "n": 1}, {"Authorization": "Bearer secret"}, 422),
        ([{"time": 1}, {"n": 1}], {"Authorization": "Bearer secret"}, 422),
        ({"time": 1}, {}, 401),
        ({"time": 1}, {"Authorization": "Bearer guess"}, 401),
        ({"time": 1, "x": "x" * 2000}, {"Authorization": "Bearer secret"}, 413),
    ],
)
def test_what_a_webhook_cannot_take_is_refused(
    tmp_path: Path, data: Any, headers: dict[str, str], status: int
) -> None:
    schema = pa.schema({"time": pa.int64(), "n": pa.int64()})
    hook = sources.Webhook(0, tmp_path, path="/in", token="secret", most=1000)
    reader = hook.typed(schema, "time").open("requests", {})
    with pytest.raises(HTTPError) as caught:
        post(reader.url, data, **headers)
    assert caught.value.code == status
    assert json.load(caught.value)["error"]
    assert reader.read() is None
    post(reader.url, {"time": 1, "n": 1}, Authorization="Bearer secret")
    table = reader.read()
    assert table is not None
    assert table.to_pylist() == [{"time": 1, "n": 1}]
    reader.close()


def test_places_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="begins with a slash, unlike 'in'"):
        sources.Webhook(0, tmp_path, path="in")
    with pytest.raises(GraphError, match="appends to files, which 's3://bucket/in' does not"):
        sources.Webhook(0, "s3://bucket/in")


# Lines


def test_lines_are_read_to_the_end_of_the_connection() -> None:
    rows = drained(b'{"time": 1, "n": 1}\n\n{"time": 2,', b' "n": 2}\n{"time": 3, "n": 3}')
    assert rows == [{"time": n, "n": n} for n in (1, 2, 3)]


def test_a_line_that_cannot_be_read_is_an_error_or_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = b'{"time": 1}\nno\n{"time": 2}\n'
    with pytest.raises(JetonError, match=r"line 2 from .* cannot be read: .* b'no'\. To go on"):
        drained(data)
    assert drained(data, skip_bad=True) == [{"time": 1}, {"time": 2}]
    assert "line 2 from" in caplog.text


def test_a_line_without_a_time_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    schema = pa.schema({"time": pa.int64(), "n": pa.int64()})
    data = b'{"time": 1}\n{"n": 7}\n{"time": 2}\n'
    rows = drained(data, skip_bad=True, schema=schema)
    assert [row["time"] for row in rows] == [1, 2]
    assert "line 2 from" in caplog.text
    with pytest.raises(JetonError, match=r"line 2 from .* it has no 'time'"):
        drained(data, schema=schema)


def drained(
    *parts: bytes, schema: pa.Schema | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """What a source reads of a server that sends some bytes, one part after the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        source: sources.Source = sources.Socket("127.0.0.1", server.getsockname()[1], **settings)
        source = source if schema is None else source.typed(schema, "time")
        [(name, position)] = source.partitions(2).items()
        reader = source.open(name, position)
        assert reader.position is None
        found: list[dict[str, Any]] = []
        connection, _ = server.accept()
        try:
            assert reader.read() is None
            for part in parts:
                connection.sendall(part)
            connection.close()
            while not reader.ended:
                table = reader.read()
                found += [] if table is None else table.to_pylist()
        finally:
            reader.close()
            connection.close()
    assert reader.rejected == (1 if settings else 0)
    return found
