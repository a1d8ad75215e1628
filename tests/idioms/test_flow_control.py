"""Flow control: on any schedule, what is under way stays within its limit and all arrives."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

import jeton as jt
from jeton.errors import BatchError, GraphError, OperatorFailed, SnapshotError
from jeton.idioms.flow_control import flat_map_bounded
from jeton_evaluation.bench import memory

Columns = dict[str, Any]


class Meter:
    """Counts records as they are let into a region and as they get to its end, by origin."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sent: Counter[int] = Counter()
        self.retired: Counter[int] = Counter()
        self.pulled = 0
        self.most = 0
        self.most_pulled = 0

    def produce(self, batch: jt.Batch) -> Iterator[Columns]:
        """The numbers below each ``n``, in pieces of 7."""
        for n in batch["n"].tolist():
            for start in range(0, n, 7):
                numbers = np.arange(start, min(start + 7, n))
                self.pulled += len(numbers)
                self.most_pulled = max(self.most_pulled, self.pulled - self.retired.total())
                yield {"n": np.full(len(numbers), n), "i": numbers}

    def begin(self, token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                self.sent[info.worker] += len(batch)
                self.most = max(self.most, self.sent[info.worker] - self.retired[info.worker])
                origin = np.full(len(batch), info.worker)
                output.session(ref).give(batch.with_columns({"origin": origin}))

        return step

    def end(self, batch: jt.Batch) -> jt.Batch:
        self.retired.update(batch["origin"].tolist())
        return batch.select("n", "i")

    def region(self, made: jt.Stream) -> jt.Stream:
        """Through an exchange and an operator that holds each round until it is complete."""
        moved = made.unary(self.begin).exchange("i")
        return moved.unary_frontier(hold_rounds).map(lambda batch: self.end(batch).columns)


def hold_rounds(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
    waiting = jt.state.RecordQueue(info.kind)
    info.keep(waiting, token)
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            waiting.push(ref, batch)
        for time, batch in waiting.pop(input.frontier):
            output.session(waiting.right_for(time)).give(batch)
        waiting.settle()

    return step


def expected(asked: Columns, time: str = "time") -> Counter[tuple[int, int, int]]:
    return Counter(
        (at, n, i) for at, n in zip(asked[time], asked["n"], strict=True) for i in range(n)
    )


def found(table: Any, time: str = "time") -> Counter[tuple[int, int, int]]:
    return Counter((row[time], row["n"], row["i"]) for row in table.to_pylist())


@pytest.mark.parametrize("limit", [1, 3, 10, 64])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_never_more_than_the_limit_is_under_way(workers: int, limit: int) -> None:
    for seed in range(5):
        random = Random(seed)
        asked = {
            "time": [random.randrange(5) for _ in range(7)],
            "n": [random.choice([0, 1, 5, 5 * min(limit, 6)]) for _ in range(7)],
        }
        meter = Meter(limit)
        flow = jt.Flow("bounded")
        flow.output(
            "made", flat_map_bounded(flow.input("asked"), meter.produce, meter.region, limit=limit)
        )
        result = flow.run({"asked": asked}, workers=workers, seed=seed)
        assert found(result["made"]) == expected(asked)
        assert meter.most <= limit
        # Every worker may have pulled one piece that it could not send yet.
        assert meter.most_pulled <= workers * (limit + 7)
        assert not result.leaks


def test_the_room_is_used() -> None:
    meter = Meter(40)
    flow = jt.Flow("bounded")
    made = flat_map_bounded(flow.input("asked"), meter.produce, meter.region, limit=40)
    flow.output("made", made)
    flow.run({"asked": {"time": [0], "n": [1000]}})
    assert meter.most == 40


def test_a_late_request_at_an_open_time_finds_its_way() -> None:
    # Most room is taken at time 2, which is still open, by what is produced; then more is asked for
    # at time 2, which must not hold up what it waits for.
    meter = Meter(8)
    flow = jt.Flow("open")
    made = flat_map_bounded(flow.input("asked"), meter.produce, meter.region, limit=8)
    flow.output("made", made)
    for seed in [None, *range(8)]:
        with flow.open(workers=2, seed=seed) as run:
            run.input("asked", 0).advance_to(2)
            run.input("asked", 1).advance_to(2)
            run.input("asked", 0).send({"time": [2], "n": [7]})
            run.run_to_rest()
            for worker in (0, 1, 0):
                run.input("asked", worker).send({"time": [2, 3], "n": [20, 9]})
                run.run_to_rest()
            result = run.finish()
        asked = {"time": [2] + [2, 3] * 3, "n": [7] + [20, 9] * 3}
        assert found(result["made"]) == expected(asked)


def test_an_open_time_lets_the_limit_through_and_then_waits_for_its_end() -> None:
    meter = Meter(8)
    flow = jt.Flow("open")
    made = flat_map_bounded(flow.input("asked"), meter.produce, meter.region, limit=8)
    flow.output("made", made)
    with flow.open() as run:
        run.input("asked").advance_to(0)
        run.input("asked").send({"time": [0], "n": [100]})
        run.run_to_rest()
        assert meter.sent.total() == 8
        with pytest.raises(SnapshotError, match="records at 0 are half produced"):
            run.snapshot()
        run.input("asked").advance_to(1)
        run.run_to_rest()
        assert meter.retired.total() == 100
        run.snapshot()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_inside_a_loop_where_times_are_incomparable(workers: int) -> None:
    # Each number asks for all smaller ones, round after round: n gives 2**n - 1 of them.
    def below(batch: jt.Batch) -> Iterator[Columns]:
        for n in batch["n"].tolist():
            yield {"n": np.arange(n)}

    def spread(made: jt.Stream) -> jt.Stream:
        return made.exchange("n").unary_frontier(hold_rounds)

    for seed in range(4):
        flow = jt.Flow("smaller")
        loop = flow.loop()
        again = loop.feedback()
        numbers = flow.input("numbers").enter(loop).concat(again.stream)
        made = flat_map_bounded(numbers, below, spread, limit=4)
        again.connect(made)
        flow.output("all", made.leave())
        asked = {"time": [0, 1, 1, 2], "n": [5, 3, 4, 6]}
        result = flow.run({"numbers": asked}, workers=workers, seed=seed)
        counts = Counter(result["all"]["time"].to_pylist())
        assert counts == {0: 2**5 - 1, 1: 2**3 - 1 + 2**4 - 1, 2: 2**6 - 1}


@pytest.mark.parametrize("control", [True, False])
def test_the_benchmark_computes_the_same_either_way(control: bool) -> None:
    assert memory.measure(300_000, workers=2, control=control)["records"] == 300_000


@pytest.mark.long
def test_memory_does_not_grow_with_what_is_produced(capsys: pytest.CaptureFixture[str]) -> None:
    memory.main(["--json", "--records", "100000000"])
    rows = json.loads(capsys.readouterr().out)
    peak = {(row["flow_control"], row["records"]): row["peak_mb"] for row in rows}
    assert peak["with", 100_000_000] < 2 * peak["with", 10_000_000] < 100
    assert peak["without", 10_000_000] > 5 * peak["without", 1_000_000] > 50


def test_batches_and_empty_pieces_may_be_produced() -> None:
    def twice(batch: jt.Batch) -> Sequence[jt.Batch | Columns]:
        return [batch, {}, {"n": []}, batch.with_columns({"n": -batch["n"]})]

    flow = jt.Flow("twice")
    flow.output("all", flat_map_bounded(flow.input("n", time="at"), twice, lambda s: s, limit=1))
    rows = flow.run({"n": {"at": [7, 8], "n": [1, 2]}})["all"].to_pylist()
    assert sorted((row["at"], row["n"]) for row in rows) == [(7, -1), (7, 1), (8, -2), (8, 2)]


def test_an_error_while_producing_says_where() -> None:
    def fail(batch: jt.Batch) -> Iterator[Columns]:
        yield {"n": [1] * 10}
        raise ValueError("no more")

    flow = jt.Flow("fails")
    flat_map_bounded(flow.input("n"), fail, lambda made: made, limit=4)
    with pytest.raises(OperatorFailed, match="ValueError while producing: no more") as caught:
        flow.run({"n": {"time": [7], "n": [1]}})
    assert caught.value.time == 7
    assert caught.value.operator == "flat_map_bounded.faucet"


def test_produce_sees_the_times_of_the_records_as_they_came() -> None:
    """Each batch has one exact time, and what came in one message of that time."""
    seen: list[Any] = []

    def see(batch: jt.Batch) -> Sequence[jt.Batch]:
        seen.append((batch.times.tolist(), batch["n"].tolist()))
        return [batch]

    flow = jt.Flow("seen")
    loop = flow.loop()
    numbers = flow.input("n")
    flow.output("all", flat_map_bounded(numbers, see, lambda made: made, limit=2))
    inner = flat_map_bounded(numbers.enter(loop), see, lambda made: made, limit=2)
    flow.output("looped", inner.leave())
    with flow.open() as run:
        run.input("n").send({"time": [5, 6, 5], "n": [1, 2, 3]})
        run.run_to_rest()
        run.input("n").send({"time": [5], "n": [4]})
        result = run.finish()
    plain = [([5, 5], [1, 3]), ([5], [4]), ([6], [2])]
    looped = [([[time, 0] for time in times], numbers) for times, numbers in plain]
    assert sorted(seen, key=str) == sorted([*plain, *looped], key=str)
    for name in ("all", "looped"):
        found = sorted((row["time"], row["n"]) for row in result[name].to_pylist())
        assert found == [(5, 1), (5, 3), (5, 4), (6, 2)]


@pytest.mark.parametrize(
    ("produced", "says"),
    [
        ({"n": [1]}, "produce gave a value of type dict.*yield columns"),
        (None, "produce gave nothing.*yield columns"),
        ([5], "yielded a value of type int, not columns: yield columns"),
        ([{"n": 5}], "yielded a value of type int as column 'n': yield columns"),
        ([{"n": "abc"}], "yielded a value of type str as column 'n': yield columns"),
    ],
)
def test_what_is_not_produced_in_columns_is_refused(produced: Any, says: str) -> None:
    flow = jt.Flow("wrong")
    flat_map_bounded(flow.input("n"), lambda batch: produced, lambda made: made, limit=4)
    with pytest.raises(BatchError, match=says):
        flow.run({"n": {"time": [7], "n": [1]}})


def test_the_benchmark_takes_sizes_as_people_write_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    memory.main(["--one", "with", "--records", "1e5"])
    assert json.loads(capsys.readouterr().out)["records"] == 100_000
    with pytest.raises(SystemExit):
        memory.main(["--one", "with", "--records", "1.5"])
    assert "'1.5' is not a whole number" in capsys.readouterr().err


def test_what_makes_no_sense_is_refused() -> None:
    flow = jt.Flow("wrong")
    numbers = flow.input("n")
    with pytest.raises(GraphError, match="lets nothing through"):
        flat_map_bounded(numbers, lambda batch: [], lambda made: made, limit=0)
    with pytest.raises(GraphError, match="a stream of its own scope"):
        flat_map_bounded(numbers, lambda batch: [], lambda made: made.leave(), limit=1)
