"""Watermarks: minima over senders and inputs, one token, late records, order in-band."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.helpers import held, load, operator, seeded, stamped
from tests.idioms.marking import counting, send, times

import jeton as jt
from jeton.errors import GraphError
from jeton.idioms.watermark_ports import MarkWriter
from jeton.idioms.watermark_sources import marks_from_frontier, marks_from_times
from jeton.idioms.watermarks import (
    Forward,
    ForwardLink,
    MarkedStream,
    unmarked,
    watermark_chain,
    watermark_operator,
)
from jeton_evaluation.programs.window_mean import marked_window_mean
from jeton_evaluation.programs.word_count import marked_word_count


def test_an_operator_holds_one_token_at_its_watermark() -> None:
    with counting(workers=2) as run:
        for worker in range(2):
            send(run, worker, 3, 8, 9)
        name = "word count, watermarks-x"
        # One for each worker, whatever waits; the late output holds none at all.
        assert held(run, name) == {9: 2}
        assert held(run, name, output=1) == {}
        send(run, 0, 20)
        assert held(run, name) == {9: 2}
        send(run, 1, 15)
        assert held(run, name) == {15: 2}
        assert times(run, "counts") == [3, 3, 8, 8, 9, 9]
        run.finish()
        assert held(run, name) == {}


def test_what_fires_is_the_mark_and_not_the_frontier() -> None:
    """The source lets its token go on without a mark: only the system learns of it.

    A moved frontier does not even invoke the operator.
    """
    moves: list[Any] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        writer = MarkWriter(token, info)

        def step(output: jt.Output) -> None:
            if not moves:
                output.session(token).give(n=1)
                moves.append(info.activator)
            elif len(moves) == 1:
                token.downgrade(50)
                moves.append("moved")
            elif len(moves) == 2:
                writer.advance(output, 50)
                moves.append("marked")
            else:
                writer.close(output)

        return step

    flow = jt.Flow("silent")
    source = flow.source(build)
    counts = marked_word_count(MarkedStream(source), key="n")
    flow.output("counts", unmarked(counts))
    source.probe("source")
    with flow.open() as run:
        run.run_to_rest()
        before = operator(run, "word count, watermarks-x").invocations
        moves[0].activate()
        run.run_to_rest()
        assert run.probe("source").frontier == jt.Antichain([50])
        assert operator(run, "word count, watermarks-x").invocations == before
        assert run.results()["counts"].num_rows == 0
        moves[0].activate()
        run.run_to_rest()
        assert run.results()["counts"].num_rows == 1
        moves[0].activate()
        run.finish()


def test_the_minimum_over_the_senders_of_an_exchange() -> None:
    with counting(workers=3) as run:
        send(run, 0, 10)
        send(run, 1, 20)
        assert times(run, "counts") == []
        send(run, 2, 15)
        assert times(run, "counts") == []
        send(run, 0, 30)
        assert times(run, "counts") == [10]
        assert run.finish()["counts"]["count"].to_pylist() == [1, 2, 3, 4]
        assert times(run, "late") == []


def test_a_pipeline_asks_its_own_worker_only() -> None:
    flow = jt.Flow("pipeline")
    marked = marks_from_times(flow.input("words"), 0)
    flow.output("counts", unmarked(marked_word_count(marked, key="n")))
    with flow.open(workers=2) as run:
        send(run, 0, 10, 12)
        assert times(run, "counts") == [10]
        assert held(run, "word count, watermarks-x") == {jt.START_OF_TIME: 1, 12: 1}


@seeded
def test_the_minimum_over_inputs(seed: int | None) -> None:
    flow = jt.Flow("two inputs")
    inputs = [marks_from_times(flow.input(name), 0) for name in ("words", "others")]
    both = watermark_operator(inputs, Forward, pacts=[jt.Exchange("n")], late="pass")
    flow.output("counts", unmarked(marked_word_count(both, key="n", pact=jt.Exchange("n"))))
    with flow.open(workers=2, seed=seed) as run:
        for worker in range(2):
            send(run, worker, 5, 9)
        assert times(run, "counts") == []
        for worker in range(2):
            run.input("others", worker).send({"time": [7], "n": [1]})
        run.run_to_rest()
        assert times(run, "counts") == [5, 5]
        for worker in range(2):
            run.input("others", worker).close()
        run.run_to_rest()
        assert times(run, "counts") == [5, 5, 7, 7]
        assert run.finish()["counts"]["count"].to_pylist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("seed", range(60))
def test_marks_do_not_overtake_data(seed: int) -> None:
    """Each worker sends in order, so nothing may be late, over however many exchanges."""
    random = Random(seed)
    workers = random.randint(2, 4)
    flow = jt.Flow("in order")
    marked = marks_from_times(flow.input("words"), 0)
    for _ in range(random.randint(0, 2)):
        pact = random.choice([None, jt.Exchange("word"), jt.Exchange("n"), jt.Gather()])
        marked = watermark_operator([marked], Forward, pacts=[pact], late="pass")
    counts = marked_word_count(marked, key="n", pact=jt.Exchange("n"))
    assert counts.late is not None
    flow.output("counts", unmarked(counts))
    flow.output("late", counts.late)
    with flow.open(workers=workers, seed=seed) as run:
        clocks = [0] * workers
        for _ in range(15):
            worker = random.randrange(workers)
            some = sorted(clocks[worker] + random.randint(0, 9) for _ in range(3))
            clocks[worker] = some[-1]
            words = [random.choice("abc") for _ in some]
            rows = {"time": some, "n": [random.randint(0, 5) for _ in some], "word": words}
            run.input("words", worker).send(rows)
            for _ in range(random.randint(0, 5)):
                run.turn()
        result = run.finish()
    assert result["late"].num_rows == 0
    assert result["counts"].num_rows == 45


class InOrder:
    """Sorts by time; what is behind it sees its results before the mark."""

    def __init__(self, info: jt.OperatorInfo) -> None:
        self.waiting = jt.state.RecordQueue(info.kind, ["n"])
        info.keep(self.waiting, name=f"waiting {len(info.kept)}")

    def on_data(self, batch: jt.Batch) -> jt.Batch | None:
        self.waiting.push(None, batch)
        return None

    def on_mark(self, mark: int | None) -> jt.Batch | None:
        return self.waiting.take(mark)


class Alone:
    """A link as an operator of its own."""

    def __init__(self, info: jt.OperatorInfo, build: Any) -> None:
        self.link = build(info)
        if not info.kept:
            info.keep_nothing()

    def on_data(self, port: int, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
        made = self.link.on_data(batch)
        if made is not None:
            output.session(ref).give(made)

    def on_mark(self, mark: int | None, token: jt.TimestampToken, output: jt.Output) -> None:
        made = self.link.on_mark(mark)
        if made is not None:
            output.session(token).give(made)


class Odd(ForwardLink):
    """Passes on records with an odd number."""

    def on_data(self, batch: jt.Batch) -> jt.Batch | None:
        return batch.filter(batch["n"] % 2 == 1)


@pytest.mark.parametrize("seed", range(30))
def test_a_chain_is_its_links_as_operators(seed: int) -> None:
    random = Random(seed)
    links: list[Any] = [InOrder, ForwardLink, Odd]
    builds = [random.choice(links) for _ in range(random.randint(1, 5))]
    pact = random.choice([None, jt.Exchange("n")])
    flow = jt.Flow("chained")
    numbers = marks_from_times(flow.input("numbers"), 6)
    chained = watermark_chain(numbers, builds, pact=pact)
    alone = numbers
    for place, build in enumerate(builds):
        pacts = [pact if place == 0 else None]
        late = "aside" if place == 0 else "pass"
        alone = watermark_operator(
            [alone],
            lambda info, build=build: Alone(info, build),  # type: ignore[misc]
            pacts=pacts,
            late=late,  # type: ignore[arg-type]
        )
        if place == 0:
            assert alone.late is not None
            flow.output("late alone", alone.late)
    assert chained.late is not None
    flow.output("late", chained.late)
    flow.output("chained", unmarked(chained))
    flow.output("alone", unmarked(alone))
    rows = [{"time": 2 * n + random.randint(0, 9), "n": random.randint(0, 9)} for n in range(60)]
    snapshot = None
    tables: dict[str, list[Any]] = {name: [] for name in flow.outputs}
    for half in (rows[:30], rows[30:]):
        workers = random.randint(1, 3)
        with flow.open(workers=workers, seed=seed, restore=snapshot) as run:
            for row in half:
                run.input("numbers", random.randrange(workers)).send(
                    {name: [value] for name, value in row.items()}
                )
                for _ in range(random.randint(0, 3)):
                    run.turn()
            run.run_to_rest()
            if half is not rows[30:] and snapshot is None:
                snapshot = run.snapshot()
                found = run.results()
            else:
                found = run.finish()
            for name, kept in tables.items():
                kept += found[name].to_pylist()
    key = lambda row: (row["time"], row["n"])  # noqa: E731
    assert sorted(tables["chained"], key=key) == sorted(tables["alone"], key=key)
    assert sorted(tables["late"], key=key) == sorted(tables["late alone"], key=key)


def test_a_chain_needs_a_link() -> None:
    with pytest.raises(GraphError, match="a chain has one link or more"):
        watermark_chain(marks_from_frontier(jt.Flow("empty").input("n")), [])


def test_a_window_is_late_only_once_it_is_closed() -> None:
    flow = jt.Flow("windows")
    marked = marks_from_times(flow.input("words"), 0)
    means = marked_window_mean(marked, 10, key="n", value="n", pact=jt.Exchange("n"))
    assert means.late is not None
    flow.output("means", unmarked(means))
    flow.output("late", means.late)
    with flow.open() as run:
        for time in (8, 3, 10, 9, 12, 10):
            send(run, 0, time)
        result = run.finish()
    assert stamped(result["late"]) == [(9, 1)]
    assert stamped(result["means"], "mean") == [(10, 1.0), (20, 1.0)]


def test_marks_from_a_frontier_are_exact() -> None:
    """Whatever the order of the data, nothing is late."""
    for seed in range(20):
        random = Random(seed)
        flow = jt.Flow("exact")
        counts = marked_word_count(
            marks_from_frontier(flow.input("words")), key="n", pact=jt.Exchange("n")
        )
        assert counts.late is not None
        flow.output("counts", unmarked(counts))
        flow.output("late", counts.late)
        table = {"time": [random.randint(0, 20) for _ in range(20)], "n": [1, 2] * 10}
        result = flow.run({"words": table}, workers=3, seed=seed)
        assert (result["counts"].num_rows, result["late"].num_rows) == (20, 0)


def test_the_last_time_of_all_is_no_exception() -> None:
    flow = jt.Flow("end")
    marked = marks_from_frontier(flow.input("words"))
    flow.output("counts", unmarked(marked_word_count(marked, key="n", pact=jt.Exchange("n"))))
    table = {"time": [jt.END_OF_TIME, 0], "n": [1, 1]}
    assert flow.run({"words": table}, workers=2)["counts"]["count"].to_pylist() == [1, 2]


def test_what_makes_no_sense_is_refused() -> None:
    flow = jt.Flow("refused")
    with pytest.raises(GraphError, match="cannot trail the data by -1"):
        marks_from_times(flow.input("a"), -1)
    with pytest.raises(GraphError, match="cannot be used inside a loop"):
        marks_from_frontier(flow.input("b").enter(flow.loop()))
    with pytest.raises(GraphError, match=r"give one or more \[operator 'mine'"):
        watermark_operator([], Forward, name="mine")


def test_times_may_be_below_zero() -> None:
    flow = jt.Flow("below zero", time=jt.IntegerTimes(minimum=-100))
    counts = marked_word_count(marks_from_times(flow.input("words"), 30), key="n")
    assert counts.late is not None
    flow.output("counts", unmarked(counts))
    flow.output("late", counts.late)
    with flow.open() as run:
        for time in (-50, -75, -10, -45):
            send(run, 0, time)
        assert times(run, "counts") == [-75, -50]
        assert times(run, "late") == [-45]
        run.finish()


def test_what_is_behind_knows_its_columns() -> None:
    flow = jt.Flow("known")
    schema = {"n": int, "word": str}
    words = marks_from_times(flow.input("words", schema=schema), 0)
    others = marks_from_frontier(flow.input("others", schema=schema))
    assert (
        unmarked(words).schema
        == unmarked(others).schema
        == pa.schema({"n": pa.int64(), "word": pa.string()})
    )
    both = watermark_operator([words, others], Forward, schema={"m": float})
    assert both.late is not None
    assert both.late.schema == unmarked(words).schema
    assert unmarked(both).schema == pa.schema({"m": pa.float64()})
    counts = marked_word_count(words, key="word", pact=jt.Exchange("word"))
    means = marked_window_mean(words, 10, key="word", value="n")
    assert unmarked(counts).schema == pa.schema(
        {"n": pa.int64(), "word": pa.string(), "count": pa.int64()}
    )
    assert unmarked(means).schema == pa.schema({"word": pa.string(), "mean": pa.float64()})
    with pytest.raises(GraphError, match="'wrd'"):
        marked_word_count(words, key="wrd")


def test_an_operator_that_puts_nothing_aside_needs_no_state() -> None:
    flow = jt.Flow("restarted")
    marked = marks_from_times(flow.input("words"), 0)
    marked = watermark_operator([marked], Forward, pacts=[jt.Exchange("n")])
    flow.output("out", unmarked(marked_word_count(marked, key="n")))
    with flow.open(workers=2) as run:
        send(run, 0, 5, 9)
        snapshot = run.snapshot()
    with flow.open(workers=3, restore=snapshot) as run:
        assert run.finish()["out"]["count"].to_pylist() == [1, 2]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_example(workers: int) -> None:
    example = load("watermarks")
    values: dict[tuple[int, str], list[float]] = {}
    for ts, room, degrees in zip(*example.READINGS.values(), strict=True):
        values.setdefault((ts // 10 * 10 + 10, room), []).append(degrees)
    # No worker is idle, and nothing is further behind than what marks allow for.
    result = example.averages().run({"readings": example.READINGS}, workers=workers, seed=1)
    found = {(row["ts"], row["room"]): row["mean"] for row in result["means"].to_pylist()}
    assert found == {window: sum(some) / len(some) for window, some in values.items()}
    assert result["late"].num_rows == 0
