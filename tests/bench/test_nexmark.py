"""NEXMark under an open-loop load: every event is offered when it is due, answered and measured."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jeton.cli import main
from jeton_evaluation import nexmark
from jeton_evaluation.bench.experiment import Host, trial
from jeton_evaluation.bench.histogram import Histogram
from jeton_evaluation.bench.nexmark import Share, config_of, program
from jeton_evaluation.bench.open_loop import Load, Trial
from jeton_evaluation.nexmark import queries

SHORT = Load(
    rate=20_000, seconds=0.3, warm_up=0.1, cool_down=0.05, noise=0.01, give_up=60, at_once=70
)
"""With small messages, so that the source is behind at times."""


@given(
    st.integers(1, 10**7),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 10**7),
    st.integers(0, 10**12),
)
def test_events_before_a_time_are_counted_as_their_times_say(
    rate: int, workers: int, worker: int, later: int, began: int
) -> None:
    config = config_of(rate, began)
    share = Share(config, nexmark.Generator(config, part=worker % workers, parts=workers))
    count = share.count_before(began + later)
    assert count == 0 or share.time(count - 1) < began + later
    assert share.time(count) >= began + later


def test_the_shares_are_all_events() -> None:
    config = config_of(1e6, 77)
    schema = config.schema("bids", ["auction", "price"])
    made: list[tuple[int, ...]] = []
    for part in range(3):
        share = Share(config, nexmark.Generator(config, part=part, parts=3))
        batch = share.make("bids", 0, share.count_before(1077), schema)
        assert batch.names == ("auction", "price")
        made += zip(batch.times, batch["auction"], batch["price"], strict=True)
    whole = nexmark.Generator(config).make("bids", 0, 1000, columns=["auction", "price"])
    assert sorted(made) == sorted(zip(*whole.values(), strict=True))


@pytest.mark.parametrize("rate", [1e5, 1e6, 8e6])
def test_auctions_are_open_for_half_a_second(rate: float) -> None:
    auctions = nexmark.Generator(config_of(rate, 0)).make("auctions", 0, 200_000, ["expires"])
    lengths = auctions["expires"] - auctions["ts"]
    assert lengths.mean() == pytest.approx(500_000, rel=0.05)


@pytest.mark.parametrize(
    ("query", "mechanism", "workers"),
    [(name, how, 2) for name in queries.names() for how in queries.get(name).mechanisms]
    + [(name, how, 1) for name in ("q4", "q7") for how in queries.get(name).mechanisms],
)
def test_every_event_is_offered_and_answered(query: str, mechanism: Any, workers: int) -> None:
    result = program(SHORT, query, mechanism).run(workers=workers)
    reports = [json.loads(text) for text in result["report"]["report"].to_pylist()]
    assert len(reports) == workers
    assert not any(report["dnf"] for report in reports)
    began = {report["began"] for report in reports}
    assert len(began) == 1, "all begin together"
    offered = sum(report["offered"] for report in reports)
    assert offered == pytest.approx(20_000 * 0.45 * workers, rel=0.01)
    weighed = Histogram.from_json(*(report["latencies"] for report in reports)).count
    assert weighed == pytest.approx(20_000 * 0.3 * workers, rel=0.02)
    # Whatever came out, and when: as many rows as the query has of these events.
    config = config_of(20_000 * workers, *began)
    asked = queries.get(query)
    tables = nexmark.tables(config, offered, columns=asked.columns)
    answer = asked.flow(config).run(tables)["result"]
    assert sum(report["rows_out"] for report in reports) == answer.num_rows > 0


def test_latencies_are_in_nanoseconds_for_any_unit() -> None:
    run = Trial(Load(rate=1000, unit=1000, quantum=1, warm_up=0, seconds=1))
    run.begin(5_000_000)
    assert run.end - run.began == 1_500_000
    run.completed(run.began + 500_000, now=(run.began + 600_000) * 1000)
    assert run.latencies.count == 500
    least, most = run.latencies.quantiles_ms((0.001, 1.0))
    assert least == pytest.approx(100, rel=0.02)
    assert most == pytest.approx(600, rel=0.02)


def test_a_line_says_which_query_it_is_about() -> None:
    about = {"experiment": "nexmark", "query": "q4", "mechanism": "tokens"}
    line = trial(lambda load: program(load, "q4", "tokens"), SHORT, Host(1), about)
    assert line["query"] == "q4"
    assert line["achieved_per_worker"] == pytest.approx(20_000, rel=0.02)


def test_the_command_prints_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--host in-process --workers 1 --rate 1e4 --seconds 0.2 --warm-up 0.1 --json"
    assert main(["bench", "nexmark", "--query", "q7", *options.split()]) == 0
    [line] = capsys.readouterr().out.splitlines()
    reported = json.loads(line)
    assert (reported["experiment"], reported["query"], reported["mechanism"]) == (
        "nexmark",
        "q7",
        "library",
    )


def test_the_command_refuses_a_mechanism_that_a_query_does_not_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "nexmark", "--query", "q3", "--mechanism", "notifications"])
    assert "q3 can be had with tokens only" in capsys.readouterr().err
