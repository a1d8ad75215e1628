"""Testing: checks that the author of a source or of a sink runs on it.

A query relies on a few promises of its connectors: that a reader gives the same records again from
any position, that rows appear when their version is committed, once, and that an attempt which was
given up does no harm. `check_source` and `check_sink` try them, and raise `NotConformant` with the
first one that is broken.

>>> import tempfile
>>> import pyarrow.parquet as pq
>>> from jeton.connectors import sinks, sources
>>> check_source(sources.Rate(1e6, lambda positions: {"n": positions}, limit=500, most=50))
500
>>> folder = tempfile.mkdtemp()
>>> check_sink(sinks.Parquet(folder), lambda: pq.read_table(folder))
"""

from __future__ import annotations

import json
import pickle
import tempfile
import time as clock
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns.tables import as_table
from jeton.connectors.sinks import DriverSink, Sink, SinkContext, Writer
from jeton.connectors.sources import Reader, Source
from jeton.storage.files import Files

__all__ = ["NotConformant", "check_sink", "check_source"]

Connector = TypeVar("Connector", Source, Sink)


class NotConformant(AssertionError):
    """A source or a sink has broken a promise that queries rely on."""


def check_source(
    source: Source,
    *,
    workers: int = 2,
    rows: int | None = None,
    time: str = "time",
    replays: int = 8,
    timeout: float = 30.0,
) -> int:
    """Check a source: its partitions, their positions, and that they are read again the same.

    Each partition is read to its end; for a source without one, until it has given ``rows`` rows,
    which it must have. Then it is read again from ``replays`` of its positions, by copies of the
    source, as workers get them, and also while another reader is open. Nothing may be written to
    the source meanwhile. ``time`` is the time column. Returns the number of rows read.

    >>> from jeton.connectors.sources import Batches
    >>> check_source(Batches(lambda partition, partitions: [{"time": [1]}, {"time": [2]}]))
    4
    >>> import random
    >>> check_source(Batches(lambda partition, partitions: [{"n": [random.random()]}] * 3))
    Traceback (most recent call last):
    jeton.testing.NotConformant: partition '0/2' gives other records from position None ...
    """
    limit, unused = clock.monotonic() + timeout, _shipped(source)
    partitions = _json(source.partitions(workers), "the partitions")
    if not isinstance(partitions, dict) or not partitions:
        raise NotConformant(f"partitions() returned {partitions!r}, not names with positions")
    new = dict(_json(source.discover(tuple(partitions)), "new partitions"))
    if known := sorted(set(new) & set(partitions)):
        raise NotConformant(f"discover() returned partitions that are known already: {known}")
    partitions |= new
    total = 0
    for name, start in partitions.items():
        read = _Reading(source, name, start, time, rows, limit)
        read.finish()
        total += len(read.rows)
        for at in _spread(len(read.positions), replays):
            read.check_again(_shipped(unused), at)
        read.check_two_at_once()
    return total


def check_sink(
    sink: Sink | Callable[[], Sink],
    read_back: Callable[[], Any],
    *,
    rows: Callable[[int], pa.Table] | None = None,
) -> None:
    """Check a sink: what is visible when, and what remains after attempts that were given up.

    ``read_back`` returns all rows that a reader of the sink sees now, in any order: a table, or a
    list of dictionaries. It must be empty at first. ``rows`` makes the table number *n*, of which
    no two may share a row; by default they have the columns ``time``, ``n`` and ``text``.

    A sink that promises rows *exactly once* must hide them until their version is committed, show
    them once however often it is, and withdraw versions that are given up, or refuse to. One that
    promises them *at least once* must show them all.

    Instead of a sink, give a function that makes one: then each attempt at the query has its own,
    as after the driver died. Otherwise attempts have copies, where the sink can be copied.

    >>> from jeton.connectors.sinks import Memory
    >>> memory = Memory()
    >>> check_sink(memory, lambda: memory.table() or [])
    """
    with tempfile.TemporaryDirectory(prefix="jeton-check-") as folder:
        stores = Files(f"{folder}/checked"), Files(f"{folder}/other")
        check = _SinkCheck(sink, read_back, rows or _numbered_rows, *stores)
        check.expect("before anything is written")
        if check.guarantee == "exactly once":
            check.check_exactly_once()
        else:
            check.check_at_least_once()


# Sources


class _Reading:
    """One partition, read once from its start, with the position after each read."""

    def __init__(
        self, source: Source, name: str, start: Any, time: str, rows: int | None, limit: float
    ) -> None:
        self._source = source
        self._name = name
        self._time = time
        self._most = rows
        self._limit = limit
        self.rows: list[str] = []
        self.positions: list[tuple[Any, int]] = [(start, 0)]
        """Positions, and the number of rows before each."""

    def finish(self) -> None:
        """Read the partition, and check what its reader says of itself."""
        with closing(self._open(self.positions[0][0])) as reader:
            if reader.position is None:
                raise NotConformant(
                    f"partition {self._name!r} has no position, so that a query which reads it "
                    "cannot take checkpoints"
                )
            self.positions.append((self._position(reader), 0))
            while not self._is_enough(self.rows):
                floor = reader.floor
                found = self._next(reader)
                if found is None:
                    break
                if floor is not None:
                    self._check_floor(floor, found)
                self.rows += _texts(found)
                self.positions.append((self._position(reader), len(self.rows)))
                if reader.ended:
                    break
            if reader.ended and reader.read() is not None:
                raise NotConformant(f"partition {self._name!r} has records after its end")

    def check_again(self, source: Source, at: int) -> None:
        """From a position, the same records come again, in another process."""
        position, before = self.positions[at]
        with closing(source.open(self._name, position)) as reader:
            self._compare(self._drained(reader, before), before, position)

    def check_two_at_once(self) -> None:
        """Two readers at the same place do not take records from each other."""
        position, before = self.positions[len(self.positions) // 2]
        with closing(self._open(position)) as first, closing(self._open(position)) as second:
            found: tuple[list[str], list[str]] = ([], [])
            readers = [first, second]
            while readers:
                for reader in list(readers):
                    into = found[0 if reader is first else 1]
                    records = None
                    if not self._is_enough(self.rows[:before] + into):
                        records = self._next(reader)
                    into += [] if records is None else _texts(records)
                    if records is None or reader.ended:
                        readers.remove(reader)
        for each in found:
            self._compare(each, before, position)

    def _drained(self, reader: Reader, before: int) -> list[str]:
        found: list[str] = []
        while not self._is_enough(self.rows[:before] + found):
            records = self._next(reader)
            if records is None:
                break
            found += _texts(records)
            if reader.ended:
                break
        return found

    def _compare(self, found: list[str], before: int, position: Any) -> None:
        expected = self.rows[before:]
        if self._is_enough(self.rows[:before] + found):
            # Both may have read some records more than necessary.
            most = min(len(found), len(expected))
            found, expected = found[:most], expected[:most]
        if found != expected:
            both = zip(found, expected, strict=False)
            where = next((f": {now}, and was {was}" for now, was in both if now != was), "")
            raise NotConformant(
                f"partition {self._name!r} gives other records from position {position!r} than "
                f"when it was read first, {len(found)} instead of {len(expected)}{where}"
            )

    def _open(self, position: Any) -> Reader:
        return self._source.open(self._name, position)

    def _position(self, reader: Reader) -> Any:
        return _json(reader.position, f"the position of partition {self._name!r}")

    def _is_enough(self, rows: list[str]) -> bool:
        return self._most is not None and len(rows) >= self._most

    def _next(self, reader: Reader) -> pa.Table | None:
        """The next records, waiting for them; ``None`` at the end."""
        while True:
            found = reader.read()
            table = None if found is None else as_table(found)
            if table is not None and table.num_rows:
                return table
            if reader.ended:
                return None
            if clock.monotonic() > self._limit:
                raise NotConformant(
                    f"partition {self._name!r} has not ended in time: give check_source the "
                    "number of rows= that it has, or a longer timeout="
                )
            ready = reader.ready_at
            clock.sleep(0.001 if ready is None else min(max(ready - clock.monotonic(), 0.0), 0.05))

    def _check_floor(self, floor: int, table: pa.Table) -> None:
        if self._time not in table.column_names:
            raise NotConformant(
                f"partition {self._name!r} promises times from {floor} on, but its records have no "
                f"column {self._time!r}: give check_source the name of the time column, time="
            )
        times = table.column(self._time)
        least = pc.min(times if pa.types.is_integer(times.type) else times.cast(pa.int64())).as_py()
        if least is not None and least < floor:
            raise NotConformant(
                f"partition {self._name!r} promised no more records before {floor}, and gave one "
                f"at {least}"
            )


def _spread(count: int, most: int) -> list[int]:
    """At most some of the first ``count`` numbers, with the first and the last.

    >>> _spread(10, 4), _spread(2, 4)
    ([0, 3, 6, 9], [0, 1])
    """
    if count <= most:
        return list(range(count))
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)})


# Sinks


class _SinkCheck:
    """A sink, the rows that a reader should see in it, and those that it must not lose."""

    def __init__(
        self,
        sink: Sink | Callable[[], Sink],
        read_back: Callable[[], Any],
        rows: Callable[[int], pa.Table],
        files: Files,
        others: Files,
    ) -> None:
        first = sink if isinstance(sink, Sink) else sink()
        self.guarantee = first.guarantee
        self._read_back = read_back
        self._rows = rows
        self._files = files
        self._others = others
        self._made = 0
        self._expected: Counter[str] = Counter()
        # Workers have a copy.
        self._at_workers: Sink = _shipped(first.at_workers())
        # Each attempt may be one of another driver, which knows nothing of the one before.
        make = sink if not isinstance(sink, Sink) else _copies_of(first)
        self._sinks = {1: first} | {attempt: make() for attempt in (2, 3)}

    # What is checked

    def check_exactly_once(self) -> None:
        """All promises of a sink that commits with checkpoints."""
        first = self._context(1)
        writers = [self._open(first, worker) for worker in range(2)]
        tables = [self._write(writer) for writer in writers]
        self.expect("while rows are only written")
        staged = self._stage(writers, 1)
        self.expect("while rows are staged and not committed")
        self._commit(first, 1, staged, again=False)
        self._now_visible(tables)
        self.expect("after a version is committed")
        for attempt in (1, 2):
            self._commit(self._context(attempt), 1, staged)
            self.expect(f"after it was committed again, by attempt {attempt}")
        self._check_other_output()
        self._sinks[1].clean(first, staged)
        self.expect("after what was staged for it was cleaned up")

        self._write(writers[0])
        abandoned = self._stage(writers[:1], 2)
        self._write(writers[0])
        writers[0].close()
        self.expect("after a writer was closed, with rows that were not committed")
        second = self._context(2)
        self._sinks[2].roll_back(second, 1)
        self.expect("after what the first attempt left was rolled back")
        with suppress(Exception):
            self._commit(first, 2, abandoned)
        self.expect("after the first attempt, which was superseded, tried to commit")

        writer = self._open(second, 1)
        tables = [self._write(writer), self._write(writer)]
        self._act_late(writers[1])
        staged = self._stage([writer], 3)
        self._act_late(writers[1])
        following = [self._write(writer)]
        self._commit(second, 3, staged, again=False)
        self._now_visible(tables)
        self.expect(
            "after the second attempt committed, while the first one rolled back and staged rows, "
            "and rows of the next version were written"
        )
        self._sinks[2].clean(second, staged)
        self._commit(second, 4, self._stage([writer], 4), again=False)
        self._now_visible(following)
        self.expect("after the next version was committed")
        self._commit(second, 5, self._stage([writer], 5), again=False)
        writer.close()
        with suppress(Exception):
            writers[1].close()
        self.expect("after a version without rows")
        self._check_others(staged)

        third = self._context(3)
        try:
            self._sinks[3].roll_back(third, 1)
        except Exception:
            self.expect("after it refused to withdraw a version")
        else:
            self._expected.subtract(_counted([*tables, *following]))
            self.expect("after versions 3 to 5 were withdrawn")

    def check_at_least_once(self) -> None:
        """The promises of a sink that may show a row more than once."""
        first = self._context(1)
        writers = [self._open(first, worker) for worker in range(2)]
        tables = [self._write(writer) for writer in writers]
        staged = self._stage(writers, 1)
        self._commit(first, 1, staged)
        self._now_visible(tables)
        self.expect_all("after a version is committed")
        lost = self._write(writers[0])
        abandoned = self._stage(writers[:1], 2)
        for writer in writers:
            writer.close()
        second = self._context(2)
        self._commit(second, 1, staged)
        self._sinks[2].roll_back(second, 1)
        self._sinks[2].clean(second, staged)
        with suppress(Exception):
            self._commit(first, 2, abandoned)
        writer = self._open(second, 0)
        writer.write(lost)
        self._commit(second, 3, self._stage([writer], 3))
        writer.close()
        self._now_visible([lost])
        self.expect_all("after the rows of an attempt that failed were written again")
        self._commit(second, 4, [])
        self.expect_all("after a version without rows")

    def _act_late(self, writer: Writer) -> None:
        """The first attempt, which is superseded, wakes up: driver and worker go on with it."""
        with suppress(Exception):
            self._sinks[1].roll_back(self._context(1), 1)
        with suppress(Exception):
            self._write(writer)
            writer.stage(3)

    def _check_other_output(self) -> None:
        """Another output of the query, with the same versions, is not taken for this one."""
        for attempt in (1, 2):
            context = replace(self._context(attempt), output="other rows")
            if attempt == 1:
                writer = self._open(context, 0)
                table = self._write(writer)
                staged = self._stage([writer], 1)
                writer.close()
                self._now_visible([table])
            self._commit(context, 1, staged, again=attempt > 1)
            self.expect(f"after another output in the same place was committed {attempt} times")

    def _check_others(self, ours: list[Any]) -> None:
        """Another query in the same place, and one without checkpoints, are left alone."""
        other = SinkContext("other", output="rows", files=self._others)
        writer = self._open(other, 0)
        table = self._write(writer)
        staged = self._stage([writer], 9)
        self._sinks[3].roll_back(self._context(3), 5)
        self._sinks[3].clean(self._context(3), ours)
        self._commit(other, 9, staged, again=False)
        writer.close()
        self._now_visible([table])
        self.expect("after another query in the same place committed")
        if not isinstance(self._sinks[1], DriverSink):
            alone = SinkContext("alone-0", output="rows", worker=0)
            writer = self._at_workers.open(alone)
            table = self._write(writer)
            self._at_workers.commit(alone, 1, self._stage([writer], 1))
            writer.close()
            self._now_visible([table])
            self.expect("after a worker committed by itself")

    # How

    def expect(self, when: str) -> None:
        """Exactly the committed rows are visible."""
        seen = self._seen()
        missing, extra = self._expected - seen, seen - self._expected
        if missing or extra:
            raise NotConformant(
                f"{when}, a reader should see {self._expected.total()} rows and sees "
                f"{seen.total()}: {_some(missing)} are missing, {_some(extra)} are too many"
            )

    def expect_all(self, when: str) -> None:
        """All committed rows are visible, once or more, and no row that was not written."""
        seen = self._seen()
        missing = self._expected - seen
        foreign = set(seen) - {text for n in range(self._made) for text in _texts(self._rows(n))}
        if missing or foreign:
            raise NotConformant(
                f"{when}, a reader should see {self._expected.total()} rows or more: "
                f"{_some(missing)} are missing, {_some(Counter(foreign))} were never written"
            )

    def _context(self, attempt: int) -> SinkContext:
        return SinkContext("checked", attempt, output="rows", files=self._files)

    def _open(self, context: SinkContext, worker: int) -> Writer:
        return self._at_workers.open(
            SinkContext(context.query, context.attempt, context.output, worker, context.files)
        )

    def _write(self, writer: Writer) -> pa.Table:
        table = self._rows(self._made)
        self._made += 1
        writer.write(table)
        return table

    def _stage(self, writers: Iterable[Writer], version: int) -> list[Any]:
        staged = [item for writer in writers for item in writer.stage(version)]
        return list(_json(staged, "what was staged"))

    def _commit(
        self, context: SinkContext, version: int, staged: list[Any], *, again: bool = True
    ) -> None:
        context.again = again
        self._sinks[context.attempt].commit(context, version, staged)

    def _now_visible(self, tables: Iterable[pa.Table]) -> None:
        self._expected.update(_counted(tables))

    def _seen(self) -> Counter[str]:
        found = self._read_back()
        return Counter(_texts(as_table(found)) if _has_rows(found) else [])


def _has_rows(found: Any) -> bool:
    return found is not None and len(found) > 0


def _numbered_rows(number: int) -> pa.Table:
    rows = range(number * 10, number * 10 + 3)
    return pa.table({"time": rows, "n": rows, "text": [f"row {n}" for n in rows]})


def _counted(tables: Iterable[pa.Table]) -> Counter[str]:
    return Counter(text for table in tables for text in _texts(table))


def _texts(table: pa.Table) -> list[str]:
    """Rows as texts, which are equal if the rows are, also where a value is not a number."""
    names = sorted(table.column_names)
    return [repr({name: row[name] for name in names}) for row in table.to_pylist()]


def _some(rows: Counter[str]) -> str:
    return f"{rows.total()} (such as {next(iter(rows))})" if rows else "none"


def _json(value: Any, what: str) -> Any:
    """A value as it is after a restart."""
    try:
        return json.loads(json.dumps(dict(value) if isinstance(value, Mapping) else value))
    except (TypeError, ValueError) as error:
        raise NotConformant(f"{what} cannot be kept as JSON: {error}, in {value!r}") from error


def _shipped(connector: Connector) -> Connector:
    """A source or a sink as workers get it."""
    try:
        from jeton.spark.internals import dumps_by_value
    except ModuleNotFoundError:
        # Without Spark, there are no workers elsewhere.
        return connector
    try:
        copy: Connector = pickle.loads(dumps_by_value(connector))
    except Exception as error:
        raise NotConformant(f"{connector!r} cannot be sent to workers: {error}") from error
    return copy


def _copies_of(sink: Sink) -> Callable[[], Sink]:
    """A function that returns copies of a sink, or the sink itself if it stays at the driver."""
    return (lambda: sink) if isinstance(sink, DriverSink) else (lambda: _shipped(sink))
