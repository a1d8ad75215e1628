"""Flows of every operator that keeps state by key, whose state moves at random, and that crash.

State moves between workers at random times, in steps of any size. Runs go on from snapshots on any
number of workers: from the present one, or after a crash from an earlier one, with the rows that
were out by then and the records that came since. The checker looks at every frontier at every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from tests.simulation.test_breakpoints import halved

import jeton as jt
from jeton.errors import SnapshotError, TimeError
from jeton.idioms.arrangement import arrange
from jeton.idioms.intervals import batch_intervals
from jeton.idioms.lookup_join import lookup_join
from jeton.idioms.map_async import map_async
from jeton.idioms.notifications import Notificator, unary_notify
from jeton.idioms.priority import schedule
from jeton.runtime.in_process import Run
from jeton.state.snapshot import Snapshot

KEYS: Final = 9
CHUNKS: Final = 12
SPAN: Final = 5
"""Times in each chunk."""
CRASHES: Final = 3
"""The most crashes of one run."""
FIRST: Final = datetime(2024, 3, 30, tzinfo=UTC)
"""Where times are timestamps, time 0; clocks change in Europe a day later."""
STAMPS: Final = pa.timestamp("ms", "UTC")

Rows = Counter[tuple[Any, ...]]
Step = Callable[[jt.Input, jt.Output], None]
Choices = dict[str, Callable[[], jt.Stream]]
"""Streams to choose from, by name."""


# Flows


def alarm(count: int, row: dict[str, Any], timers: Any) -> tuple[int, list[Any]]:
    timers.after(row["n"] % 7 + 1)
    return count + 1, []


def alarm_in_hours(count: int, row: dict[str, Any], timers: Any) -> tuple[int, list[Any]]:
    timers.after(f"{row['n'] % 7 + 1}h")
    return count + 1, []


def ring(count: int, key: dict[str, Any], timers: Any) -> tuple[int, list[Any]]:
    return count, [{"count": count}]


def summed(total: int, row: dict[str, Any]) -> tuple[int, list[Any]]:
    return total + row["n"], [{"total": total + row["n"]}]


def both(key: dict[str, Any], left: jt.Batch, right: jt.Batch) -> dict[str, int]:
    return {"left": sum(left["n"].tolist()), "right": sum(right["n"].tolist())}


async def ask(row: dict[str, Any]) -> dict[str, Any]:
    return {"k": row["k"], "double": 2 * row["n"]}


def greatest(token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
    """An operator in user code: the greatest number of each key so far, in order of time."""
    most = jt.state.KeyedValues[int]()
    waiting = jt.state.RecordQueue(info.kind, ["k"])
    info.keep(waiting, token, name="waiting")
    info.keep(most)
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            waiting.push(ref, batch)
        for time, batch in waiting.pop(input.frontier):
            order = np.lexsort((batch.column("n"), batch.times))
            for row in order.tolist():
                key = (int(batch["k"][row]),)
                value = max(int(batch["n"][row]), most.get(key, 0))
                most[key] = value
                at = int(batch.times[row])
                output.session(waiting.right_for(time), at).give(k=key[0], most=value)
        waiting.settle()

    return step


def closing(token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
    """An operator in user code: sums that wait for ends of their own, as `KeyedTimes`."""
    open_sums = jt.state.KeyedTimes[list[int]](info.kind)
    info.keep(open_sums, token)
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            for row in batch.rows():
                end = row["time"] + row["n"] % 9
                open_sums.get_or(ref, end, row["k"], lambda: [0])[0] += row["n"]
        for end, k, total in open_sums.pop_before(input.frontier):
            output.session(open_sums.right_for(end), end).give(k=k, total=total[0])
        open_sums.settle()

    return step


class SumOfTimes:
    """A vertex of Naiad's: sums of each key and time, with a notification for each time."""

    def __init__(self, notificator: Notificator, info: jt.OperatorInfo) -> None:
        self.notificator = notificator
        self.sums = jt.state.KeyedValues[dict[int, int]]()
        info.keep(self.sums)

    def on_receive(self, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
        for time, part in batch.by_time():
            self.notificator.notify_at(ref, time, key=[part["k"]])
            for k, n in zip(part["k"].tolist(), part["n"].tolist(), strict=True):
                sums = self.sums.get_or(k, dict)
                sums[time] = sums.get(time, 0) + n

    def on_notify(self, token: jt.TimestampToken, output: jt.Output) -> None:
        for k, sums in self.sums.items():
            if token.time in sums:
                output.session(token).give(k=k, total=sums.pop(token.time))


def reached(numbers: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
    """All numbers that can be reached by halving, each once for each time: state in a loop."""
    seen = numbers.key_by("k", "n").distinct()
    return seen.filter(jt.col("n") > 0).with_columns(n=lambda batch: batch["n"] // 2), seen


def ordered_lists(batch: jt.Batch) -> jt.Batch:
    lists = pa.array([sorted(each) for each in batch["collect"].to_list()], pa.list_(pa.int64()))
    return batch.with_columns({"collect": lists})


def of_integers(left: jt.Stream, right: jt.Stream, random: Random) -> Choices:
    """Every operator with state by key, in a flow whose times are integers."""
    a, b = left.key_by("k"), right.key_by("k")
    either = left.concat(right).key_by("k")
    how: Any = random.choice(["inner", "left", "right", "full"])
    return {
        "tumbling": lambda: a.tumbling(random.choice([4, 8])).sum("n"),
        "sliding": lambda: b.sliding(6, every=3).max("n"),
        "sessions": lambda: a.session_window(2).count(),
        "sessions of own gaps": lambda: left.with_columns(gap=lambda x: x["n"] % 4 + 1)
        .key_by("k").session_window(gap_column="gap").sum("n"),
        "until": lambda: left.with_columns(end=lambda x: x.times + x["n"] % 5).key_by("k")
        .until("end").count(),
        "each time": lambda: either.each_time().count(),
        "collected": lambda: a.tumbling(6).collect("n").map(ordered_lists),
        "statistics": lambda: a.tumbling(6).aggregate(
            count=jt.agg.count(), mean=jt.agg.mean("n"), median=jt.agg.median("n"),
            different=jt.agg.count_distinct("n"), about=jt.agg.approx_count_distinct("n"),
        ),
        "reduced": lambda: a.sliding(8, every=4).reduce("n", max),
        "folded": lambda: b.tumbling(8).fold("n", 0, lambda total, n: total + n),
        "windows of distinct": lambda: left.key_by("k", "n").tumbling(6).distinct(),
        "running": lambda: a.running(ordered=True).sum("n"),
        "running statistics": lambda: a.running(ordered=True).aggregate(
            most=jt.agg.max("n"), mean=jt.agg.mean("n"), different=jt.agg.count_distinct("n")
        ),
        "unordered": lambda: b.running().count(),
        "rolling": lambda: a.rolling(5).sum("n"),
        "rolling rows": lambda: a.rolling(rows=3).sum("n"),
        "interval join": lambda: a.interval_join(b, -2, 2, how=how),
        "later interval join": lambda: a.interval_join(b, 1, 6, how=how),
        "asof join": lambda: a.asof_join(b, tolerance=random.choice([None, 6])),
        "join": lambda: a.join(b, how=how),
        "cogroup": lambda: a.cogroup(b, both),
        "group join": lambda: left.with_columns(end=lambda x: x.times + x["n"] % 7).key_by("k")
        .group_join(b, until="end", where=jt.col("n_right") % 3 != jt.col("n") % 3)
        .aggregate(count=jt.agg.count(), mean=jt.agg.mean("n"), last=jt.agg.last("n")),
        "top of a group join": lambda: left.with_columns(end=lambda x: x.times + x["n"] % 7)
        .key_by("k").group_join(b, until="end").top("n"),
        "panes": lambda: b.sliding(9, every=3).count(),
        "top of all": lambda: left.key_by().tumbling(6).top_k(2, "n", ties=True),
        "top": lambda: either.tumbling(9).top_k(2, "n"),
        "distinct": lambda: left.key_by("k", "n").distinct(),
        "deduplicate": lambda: a.deduplicate(within=random.choice([None, 3])),
        "stateful map": lambda: a.stateful_map(summed, 0),
        "state with a ttl": lambda: a.stateful_map(summed, 0, ttl=4),
        "timers": lambda: b.stateful_map(alarm, 0, on_timer=ring, ttl=random.choice([None, 5])),
        "lookup join": lambda: lookup_join(left, arrange(right, "k", upsert=how == "left")),
        "two lookups": lambda: two_lookups(left, right),
        "intervals": lambda: batch_intervals(left, "k"),
        "schedule": lambda: schedule(left, at=lambda x: x.times + x["n"] % 11, key=["k"]),
        "notifications": lambda: unary_notify(left, SumOfTimes, pact=jt.Exchange("k")),
        "calls": lambda: map_async(left, ask, pact=jt.Exchange("k")),
        "loop": lambda: left.iterate(halved).key_by("n").tumbling(5).count(),
        "distinct in a loop": lambda: left.iterate(reached),
        "user operator": lambda: left.unary_frontier(greatest, pact=jt.Exchange("k")),
        "user windows": lambda: a.unary_frontier(closing),
        "pipeline": lambda: a.running(ordered=True).count().unary_frontier(greatest),
        "later pipeline": lambda: left.delay(lambda x: x.times + 7).key_by("k").running().count()
        .unary_frontier(greatest),
        "delayed": lambda: left.delay(lambda x: x.times + 7).key_by("k").tumbling(4).sum("n"),
        "all together": lambda: left.key_by().tumbling(5).sum("n"),
        "two in a row": lambda: a.tumbling(4).sum("n").key_by("sum").running(ordered=True).count(),
        "text": lambda: left.with_columns(word=lambda x: [f"word {k}" for k in x["k"]])
        .key_by("word").session_window(3).sum("n"),
    }  # fmt: skip


def two_lookups(left: jt.Stream, right: jt.Stream) -> jt.Stream:
    """Two operators that share one arrangement."""
    index = arrange(right, "k")
    return lookup_join(left, index).concat(lookup_join(left.filter(jt.col("n") > 20), index))


def of_timestamps(left: jt.Stream, right: jt.Stream, random: Random) -> Choices:
    """Operators with sizes in hours and by the calendar, in a flow whose times are timestamps."""
    a, b = left.key_by("k"), right.key_by("k")
    zone = random.choice([None, "Europe/Berlin", "America/New_York"])
    return {
        "days": lambda: a.tumbling("1 day", zone=zone).sum("n"),
        "weeks": lambda: a.tumbling("1 week", zone=zone).count(),
        "sliding days": lambda: a.sliding("3 days", every="1 day", zone="Europe/Berlin").sum("n"),
        "hours": lambda: b.tumbling("6h").max("n"),
        "sessions of hours": lambda: a.session_window("2h").count(),
        "interval join of hours": lambda: a.interval_join(b, "-2h", "3h", how="full"),
        "deduplicate hours": lambda: a.deduplicate(within="5h"),
        "timers in hours": lambda: b.stateful_map(alarm_in_hours, 0, on_timer=ring, ttl="9h"),
    }


def random_flow(random: Random, names: list[str] | None = None) -> tuple[jt.Flow, list[str]]:
    flow = jt.Flow("moving", bins=256)
    stamped = random.random() < 0.2 if names is None else names[0] in TIMESTAMPED
    types = {"k": "int64", "n": "int64"}
    schema = {"time": STAMPS, **types} if stamped else types
    left, right = flow.input("left", schema=schema), flow.input("right", schema=schema)
    choices = (of_timestamps if stamped else of_integers)(left, right, random)
    names = names or random.sample(list(choices), random.randint(1, 3))
    for name in names:
        flow.output(name, choices[name]())
    return flow, names


def _names(of: Callable[[jt.Stream, jt.Stream, Random], Choices]) -> tuple[str, ...]:
    flow = jt.Flow("names")
    return tuple(of(flow.input("left"), flow.input("right"), Random(0)))


INTEGERS: Final = _names(of_integers)
TIMESTAMPED: Final = _names(of_timestamps)


# Runs


def chunks(seed: int) -> list[dict[str, dict[str, list[int]]]]:
    """Records of both inputs, in steps of time."""
    random = Random(f"chunks {seed}")
    made = []
    for at in range(CHUNKS):
        tables = {}
        for name in ("left", "right"):
            rows = range(random.randrange(8))
            times = [at * SPAN + random.randrange(SPAN) for _ in rows]
            numbers = [random.randrange(1, 40) for _ in rows]
            keys = [random.randrange(KEYS) for _ in rows]
            tables[name] = {"time": times, "k": keys, "n": numbers}
        made.append(tables)
    return made


def counted(name: str, table: pa.Table) -> Rows:
    if name == "unordered":
        # Which record has which count depends on when they came.
        table = table.select(["k", "count"])
    names = sorted(table.column_names)
    values = [[_plain(value) for value in table.column(each).to_pylist()] for each in names]
    return Counter(zip(*values, strict=True))


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclass
class Kept:
    """A snapshot that a crash goes back to, with the rows that were out by then."""

    snapshot: Snapshot | None
    chunk: int
    """The first chunk that is not in it."""
    rows: dict[str, Rows]


@dataclass
class MovingRun:
    """A flow whose state moves at random, and that goes on from snapshots at random."""

    seed: int
    names: list[str] | None = None
    spills: bool = False
    """Whether workers have so little memory that state goes to disk."""
    facts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.flow, self.names = random_flow(self.random, self.names)
        self.stamped = self.names[0] in TIMESTAMPED
        self.rows: dict[str, Rows] = {name: Counter() for name in self.flow.outputs}
        """The rows of runs that have ended in good order."""

    def run(self) -> None:
        """Send all chunks, with restarts and crashes in between."""
        random = self.random
        run = self.open(None)
        restarts, crashes = (random.choice([0.0, 0.05, 0.2]) for _ in range(2))
        data, at = chunks(self.seed), 0
        kept = Kept(None, 0, self._rows_of(None))
        while at < CHUNKS:
            for name, table in data[at].items():
                self.send(run, name, table)
            self.migrate(run, at * SPAN)
            # A time that is complete at once finds messages on their way.
            to = self.time(random.choice([at, at + 1]) * SPAN)
            for name in data[at]:
                for worker in range(len(run.workers)):
                    run.input(name, worker).advance_to(to)
            for _ in range(random.choice([0, 3, 30, 300])):
                run.turn()
            at += 1
            if random.random() < max(restarts, crashes):
                snapshot = self.snapshot(run)
                if snapshot is not None:
                    kept = Kept(snapshot, at, self._rows_of(run))
                    if random.random() < restarts:
                        self.end(run, run.results())
                        self.facts["restarts"] += 1
                        run = self.open(snapshot)
            if random.random() < crashes and self.facts["crashes"] < CRASHES:
                self.facts["crashes"] += 1
                self.facts["crashes while state moves"] += run.migration is not None
                run.close()
                self.rows, at = dict(kept.rows), kept.chunk
                run = self.open(kept.snapshot)
        self.end(run, run.finish())
        assert self.rows == self.unmoved()

    def unmoved(self) -> dict[str, Rows]:
        """The rows of the flow on one worker, where nothing moves and nothing crashes."""
        whole: dict[str, dict[str, list[int]]] = {}
        for tables in chunks(self.seed):
            for name, table in tables.items():
                found = whole.setdefault(name, {"time": [], "k": [], "n": []})
                for column, values in table.items():
                    found[column] += values
        tables = {name: self.table(columns) for name, columns in whole.items()}
        return {name: counted(name, table) for name, table in self.flow.run(tables).items()}

    def table(self, columns: dict[str, list[int]]) -> Any:
        """Records as the flow takes them: with hours of two days on which clocks change."""
        if not self.stamped:
            return columns
        return {**columns, "time": pa.array([self.time(t) for t in columns["time"]], STAMPS)}

    def time(self, time: int) -> Any:
        """A time as the flow has it."""
        return FIRST + timedelta(hours=time) if self.stamped else time

    def open(self, restore: Snapshot | None) -> Run:
        random = self.random
        workers = random.choice([2, 2, 3, 4])
        if restore is not None and restore.placement is not None and random.random() < 0.6:
            workers = restore.placement.workers
            self.facts["restored with moved bins"] += 1
        return self.flow.open(
            workers=workers,
            seed=random.randrange(1 << 30),
            restore=restore,
            memory_budget=self.budget(),
        )

    def budget(self) -> int | None:
        """The memory of a worker: if it is bounded, so little that most state is on disk."""
        return self.random.choice([1 << 11, 1 << 12, 1 << 14]) if self.spills else None

    def snapshot(self, run: Run) -> Snapshot | None:
        """A snapshot; nothing if there can be none now."""
        run.run_to_rest()
        if run.migration is not None:
            self.facts["no snapshot while state moves"] += 1
            with pytest.raises(SnapshotError, match="wait for the migration"):
                run.snapshot()
            return None
        try:
            return run.snapshot()
        except SnapshotError as error:
            if "needs loops at rest" not in str(error):
                raise
            return None

    def end(self, run: Run, result: Any) -> None:
        assert run.migration is None
        assert not result.leaks
        self.facts["brought back"] += sum(
            operator.spill.brought_back
            for worker in run.workers
            for operator in worker.operators
            if operator.spill is not None
        )
        self.rows = self._rows_of(run, result)
        run.close()

    def _rows_of(self, run: Run | None, result: Any = None) -> dict[str, Rows]:
        """The rows of runs before, and those of this one so far."""
        found = {name: Counter(rows) for name, rows in self.rows.items()}
        if run is not None:
            for name, table in (run.results() if result is None else result).items():
                found[name] += counted(name, table)
        return found

    def send(self, run: Run, name: str, table: dict[str, list[int]]) -> None:
        workers = len(run.workers)
        for worker in range(workers):
            part = {column: values[worker::workers] for column, values in table.items()}
            if part["time"]:
                run.input(name, worker).send(self.table(part))

    def migrate(self, run: Run, now: int) -> None:
        random = self.random
        if run.migration is not None or random.random() < 0.4:
            return
        workers = len(run.workers)
        bins = random.sample(range(256), random.choice([1, 16, 128, 256]))
        moves = {bin: random.randrange(workers) for bin in bins}
        at = random.choice([None, None, now + random.randrange(12)])
        small = at is None and len(moves) <= 16
        plans: list[str | int] = ["fluid", 3] if small else ["all_at_once"]
        plan = random.choice(plans)
        try:
            run.migrate(moves, at=None if at is None else self.time(at), plan=plan)
        except TimeError as error:
            if at is None or "has passed" not in str(error):
                raise
            self.facts["passed"] += 1
        else:
            self.facts["migrations"] += 1
            self.facts[str(plan)] += 1


def campaign(
    seeds: Iterable[int],
    names: list[str] | None = None,
    *,
    spills: bool = False,
    kind: type[MovingRun] = MovingRun,
) -> Counter[str]:
    """Run some seeds; returns how often what has happened."""
    facts: Counter[str] = Counter()
    for seed in seeds:
        moving = kind(seed, names, spills)
        try:
            moving.run()
        except BaseException as error:
            error.add_note(f"seed {seed}: {moving.names}")
            raise
        facts += moving.facts
        assert moving.names is not None
        facts.update(f"flow: {name}" for name in moving.names)
    return facts
