"""The open-loop harness: every record is offered, emitted and measured."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jeton as jt
from jeton.cli import main
from jeton_evaluation.bench import chain, wordcount
from jeton_evaluation.bench.experiment import Host, in_words, search, trial
from jeton_evaluation.bench.histogram import Histogram
from jeton_evaluation.bench.open_loop import Due, Load, measure, offer

SHORT = Load(rate=200_000, seconds=0.3, warm_up=0.1, cool_down=0.05, noise=0.01, give_up=30)


@given(st.integers(10**9, 10**14), st.floats(1.0, 1e6), st.integers(0, 20), st.integers(0, 10**9))
def test_records_before_a_time_are_counted_as_their_times_say(
    began: int, interval: float, log2: int, later: int
) -> None:
    mask = -(1 << log2)
    due = Due(began & mask, interval, mask)
    limit = (began + later) & mask
    count = due.count_before(limit)
    assert count == 0 or due.time(count - 1) < limit
    assert due.time(count) >= limit


@pytest.mark.parametrize("mechanism", ["tokens", "notifications", "watermarks-x", "watermarks-p"])
@pytest.mark.parametrize("workers", [1, 2])
def test_word_count_offers_and_answers_every_record(mechanism: Any, workers: int) -> None:
    load = Load(**{**vars(SHORT), "rate": 20_000.0, "quantum": 1 << 16})
    result = wordcount.program(load, mechanism, keys=100).run(workers=workers)
    reports = [json.loads(text) for text in result["report"]["report"].to_pylist()]
    assert len(reports) == workers
    assert not any(report["dnf"] for report in reports)
    offered = sum(report["offered"] for report in reports)
    assert offered == sum(report["rows_out"] for report in reports)
    assert offered == pytest.approx(20_000 * 0.45 * workers, rel=0.05)
    weighed = Histogram.from_json(*(report["latencies"] for report in reports)).count
    assert weighed == pytest.approx(20_000 * 0.3 * workers, rel=0.02)


def test_a_stage_that_delays_shows_in_the_latencies() -> None:
    def slow(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        """Emits a record when the frontier is 50 ms beyond it."""
        waiting = jt.state.RecordQueue(info.kind)
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                waiting.push(ref, batch)
            now = input.frontier.only
            limit = jt.Antichain([] if now is None else [max(now - 50_000_000, 0)])
            for time, batch in waiting.pop(limit):
                output.session(waiting.right_for(time)).give(batch)
            waiting.settle()

        return step

    def make(due: Due, first: int, count: int, worker: int) -> jt.Batch:
        times = np.array([due.time(position) for position in range(first, first + count)])
        return jt.Batch.trusted({"n": np.arange(count)}, times)

    def program(load: Load) -> jt.Flow:
        flow = jt.Flow("slow")
        measure(flow, offer(flow, load, make).unary_frontier(slow), load)
        return flow

    load = Load(**{**vars(SHORT), "rate": 10_000.0})
    line = trial(program, load, Host(1), {"mechanism": "tokens"})
    assert line["p50_ms"] >= 49
    assert line["achieved_per_worker"] == pytest.approx(10_000, rel=0.02)


def test_a_record_that_takes_too_long_is_a_run_that_did_not_finish() -> None:
    load = Load(**{**vars(SHORT), "give_up": 1e-9})
    line = trial(lambda load: chain.program(load, "tokens", 2), load, Host(1), {})
    assert line["dnf"]


def test_the_search_ends_at_a_rate_that_is_sustained() -> None:
    # Whatever is due is made at once, so the limit must be set by the verdict itself.
    asked = []

    def program(load: Load) -> jt.Flow:
        asked.append(load.rate)
        give_up = 1e-9 if load.rate > 100_000 else 30
        return chain.program(Load(**{**vars(load), "give_up": give_up}), "tokens", 2)

    load = Load(**{**vars(SHORT), "rate": 40_000.0, "seconds": 0.1})
    lines: list[dict[str, Any]] = []
    best = search(program, load, Host(1), {"mechanism": "tokens"}, lines.append)
    assert max(asked) > 100_000 >= best["rate_per_worker"] >= 70_000
    assert best["sustained"]
    assert all(in_words(line, "records") for line in lines)


@pytest.mark.parametrize("name", ["wordcount", "chain"])
def test_the_command_prints_one_line_of_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--host in-process --workers 1 --rate 1e4 --seconds 0.2 --warm-up 0.1 --json"
    assert main(["bench", name, *options.split()]) == 0
    [line] = capsys.readouterr().out.splitlines()
    reported = json.loads(line)
    wanted = {
        *("experiment", "mechanism", "host", "workers", "rate_per_worker", "achieved_per_worker"),
        *("p50_ms", "p99_ms", "p999_ms", "max_ms", "dnf", "rss_mb", "progress_messages"),
        *("answers_p50_ms", "noise_p999_ms", "length" if name == "chain" else "quantum_log2"),
    }
    assert wanted <= reported.keys()
