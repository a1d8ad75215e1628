"""All sinks keep their promises, and `check_sink` finds those that do not."""

from __future__ import annotations

import io
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jeton.connectors import sinks
from jeton.connectors.sinks import Delivery, Sink, SinkContext, Writer
from jeton.testing import NotConformant, check_sink


def test_parquet(tmp_path: Path) -> None:
    check_sink(sinks.Parquet(tmp_path, rows=2), lambda: _rows_in(tmp_path))


def _rows_in(folder: Path) -> list[dict[str, Any]]:
    files = folder.glob("part-*")
    return [row for path in files for row in pq.read_table(path).to_pylist()]


def test_memory() -> None:
    memory = sinks.Memory()
    check_sink(memory, lambda: memory.table() or [])


def test_callback() -> None:
    taken: dict[Any, pa.Table] = {}

    def take(table: pa.Table, delivery: Delivery) -> None:
        context = delivery.context
        taken[context.query, context.output, delivery.version, delivery.number] = table

    sink = sinks.Callback(take, delivery=True)
    # The function takes each table once, so that rows are there once.
    sink.guarantee = "exactly once"
    with pytest.raises(NotConformant, match="after versions 3 to 5 were withdrawn"):
        check_sink(sink, lambda: _all(taken.values()))
    taken.clear()
    sink.guarantee = "at least once"
    check_sink(sink, lambda: _all(taken.values()))


def _all(tables: Any) -> list[dict[str, Any]]:
    return [row for table in tables for row in table.to_pylist()]


def test_foreach_batch() -> None:
    taken: list[tuple[pa.Table, int | None]] = []
    sink = sinks.ForeachBatch(lambda table, version: taken.append((table, version)))
    check_sink(sink, lambda: _all(table for table, _ in taken))
    assert [version for _, version in taken] == [1, 1, 3]
    assert taken[0][0].equals(taken[1][0])
    assert taken[0][0].num_rows == 6, "the rows of both workers"


def test_console() -> None:
    text = io.StringIO()
    check_sink(sinks.Console(file=text), lambda: [_row(line) for line in _lines(text)])
    assert "rows: 3 rows, version 1\n" in text.getvalue()


def _lines(text: io.StringIO) -> list[str]:
    return [line for line in text.getvalue().splitlines() if line[:1] == " " or line[:1].isdigit()]


def _row(line: str) -> dict[str, Any]:
    time, n, *words = line.split()
    return {"time": int(time), "n": int(n), "text": " ".join(words)}


class Lines:
    """A server that collects the lines that others send."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]
        self._lock = threading.Condition()
        self._lines: list[bytes] = []
        self._open = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self.server.accept()
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()
        except OSError:
            return

    def _read(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            for line in file:
                with self._lock:
                    self._lines.append(line)
                    self._lock.notify_all()

    def await_rows(self, count: int) -> list[Any]:
        """The rows, as soon as there are that many."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self._lines) >= count, 30)
            return [json.loads(line) for line in self._lines]

    def close(self) -> None:
        self.server.close()


def test_socket() -> None:
    lines = Lines()
    # Rows of two tables, of one more, and of that again.
    due = iter([0, 6, 12, 12])
    check_sink(sinks.Socket("127.0.0.1", lines.port), lambda: lines.await_rows(next(due)))
    lines.close()


# Server-sent events


@contextmanager
def events(url: str, last: str | None = None) -> Iterator[Iterator[tuple[str, Any]]]:
    """The ids and the data of the events of a stream."""
    headers = {} if last is None else {"Last-Event-ID": last}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as stream:

        def found() -> Iterator[tuple[str, Any]]:
            name = ""
            for line in stream:
                if line.startswith(b"id: "):
                    name = line[4:].strip().decode()
                elif line.startswith(b"data: "):
                    yield name, json.loads(line[6:])

        yield found()


def test_events_reach_all_readers_and_those_that_come_back() -> None:
    sink = sinks.ServerSentEvents(keep=4)
    with events(sink.url) as first, events(sink.url) as second:
        sink.receive(pa.table({"n": [1, 2]}), Delivery(version=1))
        assert [next(first) for _ in range(2)] == [("1.0.0", {"n": 1}), ("1.0.1", {"n": 2})]
        assert next(second) == ("1.0.0", {"n": 1})
        sink.receive(pa.table({"n": [3, 4, 5]}), Delivery(version=2))
        assert next(first) == ("2.0.0", {"n": 3})
    with events(sink.url, "2.0.0") as back:
        assert next(back) == ("2.0.1", {"n": 4})
    with events(sink.url) as late:
        assert [next(late)[0] for _ in range(4)] == ["1.0.1", "2.0.0", "2.0.1", "2.0.2"]
    sink.close()


def test_an_event_is_one_line_whatever_its_text_has() -> None:
    row = {"text": "a\u2028b\x85c\r\nd"}
    sink = sinks.ServerSentEvents()
    sink.receive(pa.table({"text": [row["text"], "no\u2029control characters"]}), Delivery())
    sink.receive(pa.table({"text": ["x\u2028y"]}), Delivery())
    with events(sink.url) as found:
        assert [next(found)[1]["text"] for _ in range(3)][::2] == [row["text"], "x\u2028y"]
    sink.close()


def test_events_need_their_token() -> None:
    sink = sinks.ServerSentEvents(token="secret")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(sink.url.replace("secret", "guess"))
    sink.receive(pa.table({"n": [1]}), Delivery())
    with events(sink.url) as found:
        assert next(found)[1] == {"n": 1}
    sink.close()


def test_events_keep_their_promises() -> None:
    sink = sinks.ServerSentEvents()
    # Those of the first version come twice.
    due = iter([0, 6, 15, 15])

    def read_back() -> list[Any]:
        with events(sink.url) as found:
            return [next(found)[1] for _ in range(next(due))]

    check_sink(sink, read_back)
    sink.close()


# What check_sink finds


class Stored(Sink):
    """A sink in memory that does everything right, unless ``wrong`` says otherwise."""

    visible: dict[tuple[str, int, int, str], pa.Table]

    def __init__(self, path: Path, wrong: str = "") -> None:
        self.path = path
        self.wrong = wrong
        self.committed: set[tuple[Any, ...]] = set()
        path.mkdir(exist_ok=True)

    def open(self, context: SinkContext) -> Writer:
        return StoredWriter(self, context)

    def commit(self, context: SinkContext, version: int, staged: Sequence[Any]) -> None:
        known = (context.query, context.output, version)
        if self.wrong == "knows" and known not in self.committed:
            self.committed.add(known)
            for name in staged:
                data = (self.path / f"hidden-{name}").read_bytes()
                (self.path / f"{name}-{len(list(self.path.iterdir()))}").write_bytes(data)
            return
        for name in staged if self.wrong != "knows" else ():
            hidden, visible = self.path / f"hidden-{name}", self.path / name
            if self.wrong == "repeats" and visible.exists():
                (self.path / f"{name}-again").write_bytes(visible.read_bytes())
            if hidden.exists():
                hidden.rename(visible)
        if self.wrong == "loses" and staged:
            (self.path / staged[-1]).unlink(missing_ok=True)

    def roll_back(self, context: SinkContext, version: int) -> None:
        if self.wrong == "no rollback":
            return
        for path in list(self.path.iterdir()):
            hidden = path.name.startswith("hidden-")
            query, attempt, made, _ = path.name.removeprefix("hidden-").split(":")
            if self.wrong != "others" and query != context.query:
                continue
            if self.wrong != "newer" and int(attempt) >= context.attempt:
                continue
            if hidden or int(made) > version:
                path.unlink()

    def clean(self, context: SinkContext, staged: Sequence[Any]) -> None:
        for path in self.path.glob("hidden-*") if self.wrong == "cleans" else ():
            path.unlink()

    def read_back(self) -> list[dict[str, Any]]:
        paths = [path for path in self.path.iterdir() if not path.name.startswith("hidden-")]
        return _all(pq.read_table(path) for path in paths)


class StoredWriter(Writer):
    def __init__(self, sink: Stored, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._tables: list[pa.Table] = []
        self._last: Path | None = None

    def write(self, table: pa.Table) -> None:
        if self._sink.wrong == "appends" and self._last is not None and self._last.exists():
            pq.write_table(pa.concat_tables([pq.read_table(self._last), table]), self._last)
            return
        self._tables.append(table)
        if self._sink.wrong == "at once":
            pq.write_table(table, self._sink.path / f"x:1:1:{id(table)}")

    def stage(self, version: int) -> list[Any]:
        context, names = self._context, []
        for at, table in enumerate(self._tables):
            attempt = 1 if self._sink.wrong == "attempts" else context.attempt
            output = "" if self._sink.wrong == "outputs" else context.output
            name = f"{context.query}:{attempt}:{version}:{context.worker}-{at}-{output}"
            hidden = "" if self._sink.wrong == "staged" else "hidden-"
            self._last = self._sink.path / f"{hidden}{name}"
            pq.write_table(table, self._last)
            names.append(name)
        self._tables = []
        return [set(names)] if self._sink.wrong == "json" else names

    def close(self) -> None:
        if self._sink.wrong == "closing" and self._tables:
            pq.write_table(self._tables[0], self._sink.path / "checked:1:1:closed")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("at once", "while rows are only written"),
        ("staged", "while rows are staged and not committed"),
        ("json", "what was staged cannot be kept as JSON"),
        ("loses", "after a version is committed"),
        ("repeats", "after it was committed again"),
        ("knows", "after it was committed again, by attempt 2"),
        ("outputs", "after another output in the same place was committed 1 times"),
        ("closing", "after a writer was closed"),
        ("no rollback", "after the first attempt, which was superseded, tried to commit"),
        ("newer", "after the second attempt committed, while the first one rolled back"),
        ("attempts", "while the first one rolled back and staged rows"),
        ("appends", "and rows of the next version were written"),
        ("cleans", "after another query in the same place committed"),
        ("others", "after another query in the same place committed"),
    ],
)
def test_a_sink_that_breaks_a_promise_is_found(tmp_path: Path, wrong: str, text: str) -> None:
    right = Stored(tmp_path / "right")
    check_sink(right, right.read_back)
    sink = Stored(tmp_path / "wrong", wrong)
    with pytest.raises(NotConformant, match=text):
        check_sink(sink, sink.read_back)


def test_a_sink_that_only_its_driver_knows_is_found() -> None:
    visible: list[dict[str, Any]] = []

    class Remembers(sinks.DriverSink):
        guarantee = "exactly once"

        def __init__(self) -> None:
            self.taken: set[tuple[Any, ...]] = set()
            self.lock = threading.Lock()

        def receive(self, table: pa.Table, delivery: Delivery) -> None:
            context = delivery.context
            name = (context.query, context.output, delivery.version, delivery.number)
            if name not in self.taken:
                self.taken.add(name)
                visible.extend(table.to_pylist())

        def roll_back(self, context: SinkContext, version: int) -> None:
            if any(taken[1] == context.output and taken[2] > version for taken in self.taken):
                raise ValueError("it has more")
            super().roll_back(context, version)

    sink = Remembers()
    check_sink(sink, lambda: visible)
    visible.clear()
    with pytest.raises(NotConformant, match="after it was committed again, by attempt 2"):
        check_sink(Remembers, lambda: visible)


def test_a_sink_that_loses_rows_is_found() -> None:
    class Forgetful(sinks.Memory):
        def receive(self, table: pa.Table, delivery: Delivery) -> None:
            if delivery.version != 3:
                super().receive(table, delivery)

    memory = Forgetful()
    with pytest.raises(NotConformant, match="rows of an attempt that failed were written again"):
        check_sink(memory, lambda: memory.table() or [])


def test_a_sink_that_cannot_travel_is_found(tmp_path: Path) -> None:
    class Held(sinks.Parquet):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.lock = threading.Lock()

    with pytest.raises(NotConformant, match="cannot be sent to workers"):
        check_sink(Held(tmp_path), lambda: [])
