"""Migrations in process: errors, placements in snapshots, and records on their way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.core.bookkeeping import Bookkeeping
from jeton.core.tokens import tokens_for
from jeton.errors import GraphError, TimeError
from jeton.runtime import movers


def counts(**inputs: Any) -> jt.Flow:
    flow = jt.Flow("counts", bins=256)
    flow.output("counts", flow.input("words", **inputs).key_by("word").running().count())
    return flow


def everything(run: Any, to: int) -> dict[int, int]:
    return dict.fromkeys(range(256), to)


@pytest.mark.parametrize(
    ("moves", "text"),
    [
        ({256: 0}, "there is no bin 256: there are 256"),
        ({-1: 0}, "there is no bin -1"),
        ({"a": 0}, "there is no bin 'a'"),
        ({0: 2}, "there is no worker 2 for bin 0 to go to"),
        ({0: True}, "there is no worker True"),
        ([0, 1], "needs a dictionary of bins"),
    ],
)
def test_bins_and_workers_that_do_not_exist(moves: Any, text: str) -> None:
    with counts().open(workers=2) as run, pytest.raises(GraphError, match=text):
        run.migrate(moves)


def test_plans_that_do_not_exist() -> None:
    with counts().open(workers=2) as run:
        for plan in ("at once", 0, True, 1.5):
            with pytest.raises(GraphError, match="a plan is"):
                run.migrate({0: 1}, plan=plan)  # type: ignore[arg-type]
        with pytest.raises(GraphError, match="leave at= out"):
            run.migrate({0: 1, 2: 1}, at=5, plan="fluid")


def test_a_plan_may_be_a_number_of_numpy() -> None:
    with counts().open(workers=2) as run:
        run.migrate({0: 1, 2: 1, 4: 1}, plan=np.int64(2))  # type: ignore[arg-type]
        assert run.migration == {"moved": 0, "bins": 3}


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (1.5, "a migration needs a time of the flow, an integer or a timestamp"),
        (datetime(2024, 1, 1), "times of this flow are integers: a migration needs an integer"),
    ],
)
def test_times_that_are_none_of_the_flow(at: Any, text: str) -> None:
    with counts().open(workers=2) as run:
        run.input("words").send({"time": [7], "word": ["a"]})
        with pytest.raises(TimeError, match=text):
            run.migrate({0: 1}, at=at)
        assert run.migration is None


def test_a_time_that_has_passed() -> None:
    with counts().open(workers=2) as run:
        run.input("words").send({"time": [7], "word": ["a"]})
        with pytest.raises(TimeError, match="state cannot move at 7: input 'words' has passed 7"):
            run.migrate({0: 1}, at=7)
        assert run.migration is None
        run.migrate({0: 1}, at=8)


def test_one_at_a_time_and_not_while_paused() -> None:
    with counts().open(workers=2) as run:
        run.pause_at(5)
        with pytest.raises(GraphError, match="the flow is paused"):
            run.migrate({0: 1})
        run.resume()
        run.migrate({0: 1}, at=9)
        with pytest.raises(GraphError, match="moving already"):
            run.migrate({2: 1})
        with pytest.raises(GraphError, match="once the migration is over"):
            run.pause_at(20)
        run.input("words").send({"time": [1, 9], "word": ["a", "a"]})
        assert run.finish()["counts"]["count"].to_pylist() == [1, 2]
        assert run.migration is None


def test_inputs_that_have_ended() -> None:
    with counts().open(workers=2) as run:
        run.finish()
        with pytest.raises(GraphError, match="all inputs have ended"):
            run.migrate({0: 1})


class First(jt.Pact):
    """A pact of a user's own, which knows nothing of bins."""

    def route(self, batch: jt.Batch, workers: int) -> Iterator[tuple[int, jt.Batch]]:
        yield 0, batch

    def __repr__(self) -> str:
        return "First()"


def test_a_pact_that_does_not_follow_bins() -> None:
    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Any:
        info.keep(jt.state.KeyedValues())
        tokens.pop().drop()
        return lambda inputs, outputs: None

    flow = jt.Flow("own")
    builder = flow.operator("mine")
    builder.input(flow.input("one"), First())
    builder.input(flow.input("two"), jt.Exchange("k"))
    builder.output()
    flow.output("out", *builder.build(build))
    with flow.open(workers=2) as run, pytest.raises(GraphError, match=r"come by First\(\)"):
        run.migrate({0: 1})


def test_spread_keys_stay() -> None:
    flow = jt.Flow("spread")
    flow.output("sums", flow.input("n").key_by("k", spread=2).tumbling(4).sum("n"))
    text = r"of 'sum-split' come by key_by\(…, spread=2\).*Leave spread= out"
    with flow.open(workers=2) as run, pytest.raises(GraphError, match=text):
        run.migrate({0: 1})


def test_a_snapshot_knows_where_bins_are() -> None:
    flow = counts()
    with flow.open(workers=2) as run:
        run.input("words").send({"time": [1, 1], "word": ["a", "b"]})
        run.migrate(everything(run, 1))
        run.run_to_rest()
        assert run.migration is None
        snapshot = run.snapshot()
    with flow.open(workers=2, restore=snapshot) as run:
        assert run.placement == {0: [], 1: list(range(256))}
        run.input("words").send({"time": [4, 4], "word": ["a", "b"]})
        run.run_to_rest()
        rows = [sum(map(len, worker.handles[flow.handle("output", "counts")]))
                for worker in run.workers]  # fmt: skip
        assert rows == [0, 2]
        assert run.finish()["counts"]["count"].to_pylist() == [2, 2]
    with flow.open(workers=3, restore=snapshot) as run:
        assert [len(bins) for bins in run.placement.values()] == [86, 85, 85]
        run.input("words").send({"time": [4, 4], "word": ["a", "b"]})
        assert run.finish()["counts"]["count"].to_pylist() == [2, 2]


def test_records_before_the_time_stay_and_later_ones_go() -> None:
    seen: list[tuple[int, int]] = []

    def look(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        kept = jt.state.KeyedValues[int]()
        info.keep(kept)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                for time in batch.times.tolist():
                    seen.append((time, info.worker))
                    kept["a"] = kept.get("a", 0) + 1
                output.session(ref).give(batch.with_columns({"n": [kept["a"]] * len(batch)}))

        return step

    flow = jt.Flow("look", bins=256)
    flow.output("out", flow.input("in").unary(look, pact=jt.Exchange("k")))
    for seed in range(10):
        seen.clear()
        with flow.open(workers=2, seed=seed) as run:
            owner = run.workers[0].placement.owners[jt.state.bins_of([pa.array(["a"])])[0] % 256]
            run.migrate(everything(run, 1 - int(owner)), at=5)
            for time in (1, 7, 3, 5, 4, 9):
                run.input("in", time % 2).send({"time": [time], "k": ["a"]})
            result = run.finish()["out"]
        assert sorted(result["n"].to_pylist()) == [1, 2, 3, 4, 5, 6]
        assert {time for time, worker in seen if worker == owner} == {1, 3, 4}
        assert {time for time, worker in seen if worker != owner} == {5, 7, 9}


@pytest.mark.parametrize("plan", ["all_at_once", 16, "fluid"])
def test_records_wait_only_while_state_is_on_its_way(plan: str | int) -> None:
    """The output is at most two turns further behind than without a migration, at any moment."""
    flow = jt.Flow("counts", bins=256)
    flow.output("counts", flow.input("n").key_by("k").running().count().probe("out"))
    with flow.open(workers=2) as run:
        behind: list[int] = []
        calm = turn = 0
        while not calm or run.migration is not None:
            turn += 1
            for worker in range(2):
                end = run.input("n", worker)
                end.send({"time": [turn] * 20, "k": [turn * k * 7 % 100 for k in range(20)]})
                end.advance_to(turn + 1)
            if turn == 30:
                calm = max(behind[10:])
                bins = run.placement[0][::4]
                run.migrate(dict.fromkeys(bins, 1), plan=plan)
            run.turn()
            reached = run.probe("out").frontier.only
            assert reached is not None
            behind.append(turn + 1 - int(reached))
        assert max(behind[10:]) <= calm + 2
        assert run.finish()["counts"].num_rows == turn * 40


def test_tokens_are_not_looked_for_while_state_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To look for them takes as long as there are objects in the process."""
    looks = 0

    def counted(books: Iterable[Bookkeeping]) -> list[tuple[Bookkeeping, jt.TimestampToken]]:
        nonlocal looks
        looks += 1
        return tokens_for(books)

    monkeypatch.setattr(movers, "tokens_for", counted)
    flow = jt.Flow("counts", bins=256)
    flow.output("counts", flow.input("words").key_by("word").tumbling(5).count())
    with flow.open(workers=6, seed=1, check=False) as run:
        run.migrate({bin: bin // 40 % 6 for bin in range(256)})
        for worker in range(6):
            run.input("words", worker).send({"time": [1, 7], "word": [worker, 8]})
            run.input("words", worker).advance_to(6)
        run.run_to_rest()
        assert run.migration is None
    assert looks <= 3 * 6
