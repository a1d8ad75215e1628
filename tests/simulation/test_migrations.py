"""Random migrations under random schedules: rows are those of a run in which nothing moves.

Flows are made of every operator that keeps state by key, the state moves between workers at random
times, in steps of any size, and runs go on from snapshots on any number of workers in between. The
checker looks at every frontier at every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.simulation.test_breakpoints import halved

import jeton as jt
from jeton.errors import SnapshotError, TimeError
from jeton.idioms.arrangement import arrange
from jeton.idioms.lookup_join import lookup_join
from jeton.runtime.in_process import Run
from jeton.state.snapshot import Snapshot

KEYS = 9
CHUNKS = 12
SPAN = 5
"""Times in each chunk."""

Rows = Counter[tuple[Any, ...]]
Step = Callable[[jt.Input, jt.Output], None]


# Flows


def alarm(count: int, row: dict[str, Any], timers: Any) -> tuple[int, list[Any]]:
    timers.at(row["time"] + row["n"] % 7 + 1)
    return count + 1, []


def ring(count: int, key: dict[str, Any], timers: Any) -> tuple[int, list[Any]]:
    return count, [{"count": count}]


def summed(total: int, row: dict[str, Any]) -> tuple[int, list[Any]]:
    return total + row["n"], [{"total": total + row["n"]}]


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


def reached(numbers: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
    """All numbers that can be reached by halving, each once for each time: state in a loop."""
    seen = numbers.key_by("k", "n").distinct()
    return seen.filter(jt.col("n") > 0).with_columns(n=lambda batch: batch["n"] // 2), seen


def random_flow(random: Random, names: list[str] | None = None) -> tuple[jt.Flow, list[str]]:
    flow = jt.Flow("moving", bins=256)
    schema = {"k": "int64", "n": "int64"}
    left, right = flow.input("left", schema=schema), flow.input("right", schema=schema)
    a, b = left.key_by("k"), right.key_by("k")

    def looked_up() -> jt.Stream:
        return lookup_join(left, arrange(right, "k", upsert=random.random() < 0.5))

    choices: dict[str, Callable[[], jt.Stream]] = {
        "tumbling": lambda: a.tumbling(random.choice([4, 8])).sum("n"),
        "sliding": lambda: b.sliding(6, every=3).max("n"),
        "sessions": lambda: a.session_window(2).count(),
        "until": lambda: left.with_columns(end=lambda x: x.times + x["n"] % 5).key_by("k")
        .until("end").count(),
        "each time": lambda: left.concat(right).key_by("k").each_time().count(),
        "collected": lambda: a.tumbling(6).collect("n").map(ordered_lists),
        "running": lambda: a.running(ordered=True).sum("n"),
        "unordered": lambda: b.running().count(),
        "rolling": lambda: a.rolling(5).sum("n"),
        "rolling rows": lambda: a.rolling(rows=3).sum("n"),
        "interval join": lambda: a.interval_join(b, -2, 2),
        "outer interval join": lambda: a.interval_join(b, -1, 2, how="full"),
        "asof join": lambda: a.asof_join(b),
        "join": lambda: a.join(b),
        "top": lambda: left.concat(right).key_by("k").tumbling(9).top_k(2, "n"),
        "distinct": lambda: left.key_by("k", "n").distinct(),
        "deduplicate": lambda: a.deduplicate(within=3),
        "stateful map": lambda: a.stateful_map(summed, 0),
        "timers": lambda: b.stateful_map(alarm, 0, on_timer=ring),
        "lookup join": looked_up,
        "loop": lambda: left.iterate(halved).key_by("n").tumbling(5).count(),
        "distinct in a loop": lambda: left.iterate(reached),
        "user operator": lambda: left.unary_frontier(greatest, pact=jt.Exchange("k")),
        "pipeline": lambda: a.running(ordered=True).count().unary_frontier(greatest),
        "later pipeline": lambda: left.delay(lambda x: x.times + 7).key_by("k").running().count()
        .unary_frontier(greatest),
        "delayed": lambda: left.delay(lambda x: x.times + 7).key_by("k").tumbling(4).sum("n"),
        "all together": lambda: left.key_by().tumbling(5).sum("n"),
        "two in a row": lambda: a.tumbling(4).sum("n").key_by("sum").running(ordered=True).count(),
        "text": lambda: left.with_columns(word=lambda x: [f"word {k}" for k in x["k"]])
        .key_by("word").session_window(3).sum("n"),
    }  # fmt: skip
    names = names or random.sample(list(choices), random.randint(1, 3))
    for name in names:
        flow.output(name, choices[name]())
    return flow, names


def ordered_lists(batch: jt.Batch) -> jt.Batch:
    lists = pa.array([sorted(each) for each in batch["collect"].to_list()], pa.list_(pa.int64()))
    return batch.with_columns({"collect": lists})


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


def unmoved(flow: jt.Flow, seed: int) -> dict[str, Rows]:
    whole: dict[str, dict[str, list[int]]] = {}
    for tables in chunks(seed):
        for name, table in tables.items():
            found = whole.setdefault(name, {"time": [], "k": [], "n": []})
            for column, values in table.items():
                found[column] += values
    return {name: counted(name, table) for name, table in flow.run(whole).items()}


@dataclass
class MovingRun:
    """A flow whose state moves at random, and that is restarted from snapshots at random."""

    seed: int
    names: list[str] | None = None
    facts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.flow, self.names = random_flow(self.random, self.names)
        self.rows: dict[str, Rows] = {name: Counter() for name in self.flow.outputs}

    def run(self) -> None:
        """Send all chunks, with restarts in between."""
        random = self.random
        run = self.open(None)
        restarts = random.choice([0.0, 0.05, 0.2])
        for at, tables in enumerate(chunks(self.seed)):
            for name, table in tables.items():
                self.send(run, name, table)
            self.migrate(run, at * SPAN)
            # A time that is complete at once finds messages on their way.
            to = random.choice([at, at + 1]) * SPAN
            for name in tables:
                for worker in range(len(run.workers)):
                    run.input(name, worker).advance_to(to)
            for _ in range(random.choice([0, 3, 30, 300])):
                run.turn()
            if random.random() < restarts:
                run = self.restarted(run)
        self.end(run, run.finish())
        assert self.rows == unmoved(self.flow, self.seed)

    def open(self, restore: Snapshot | None) -> Run:
        random = self.random
        workers = random.choice([2, 2, 3, 4])
        if restore is not None and restore.placement is not None and random.random() < 0.6:
            workers = restore.placement.workers
            self.facts["restored with moved bins"] += 1
        return self.flow.open(workers=workers, seed=random.randrange(1 << 30), restore=restore)

    def restarted(self, run: Run) -> Run:
        """Another run that goes on from a snapshot; the same if there can be none now."""
        run.run_to_rest()
        if run.migration is not None:
            self.facts["no snapshot while state moves"] += 1
            with pytest.raises(SnapshotError, match="wait for the migration"):
                run.snapshot()
            return run
        try:
            snapshot = run.snapshot()
        except SnapshotError as error:
            if "needs loops at rest" not in str(error):
                raise
            return run
        self.end(run, run.results())
        self.facts["restarts"] += 1
        return self.open(snapshot)

    def end(self, run: Run, result: Any) -> None:
        assert run.migration is None
        assert not result.leaks
        for name, table in result.items():
            self.rows[name] += counted(name, table)
        run.close()

    def send(self, run: Run, name: str, table: dict[str, list[int]]) -> None:
        workers = len(run.workers)
        for worker in range(workers):
            part = {column: values[worker::workers] for column, values in table.items()}
            if part["time"]:
                run.input(name, worker).send(part)

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
            run.migrate(moves, at=at, plan=plan)
        except TimeError as error:
            if at is None or "has passed" not in str(error):
                raise
            self.facts["passed"] += 1
        else:
            self.facts["migrations"] += 1
            self.facts[str(plan)] += 1


def campaign(seeds: range, names: list[str] | None = None) -> Counter[str]:
    facts: Counter[str] = Counter()
    for seed in seeds:
        moving = MovingRun(seed, names)
        try:
            moving.run()
        except BaseException as error:
            error.add_note(f"seed {seed}: {moving.names}")
            raise
        facts += moving.facts
        assert moving.names is not None
        facts.update(f"flow: {name}" for name in moving.names)
    return facts


def test_state_that_moves_gives_the_rows_of_a_run_in_which_it_stays() -> None:
    facts = campaign(range(25))
    assert facts["migrations"] > 40, facts
    for fact in ("restarts", "restored with moved bins", "fluid", "passed"):
        assert facts[fact] > 0, facts


@pytest.mark.parametrize("name", ["delayed", "later pipeline", "distinct in a loop"])
def test_records_that_are_sent_early_and_loops(name: str) -> None:
    assert campaign(range(8), [name])["migrations"] > 10


@pytest.mark.long
@pytest.mark.parametrize("start", range(100, 1100, 100))
def test_a_thousand_seeds(start: int) -> None:
    facts = campaign(range(start, start + 100))
    print(dict(facts))
    assert facts["migrations"] > 100
