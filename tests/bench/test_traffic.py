"""Traffic: counts are those of real workers, and extrapolated counts are exact too."""

import json

import numpy as np
import pytest

import jeton as jt
from jeton.cli import main
from jeton.errors import JetonError
from jeton.idioms.watermark_ports import MARK
from jeton.mesh.wire import Encoder
from jeton.progress.protocol import ProgressBatch
from jeton_evaluation.bench import traffic
from jeton_evaluation.bench.traffic import Case, simulate


def test_a_chain_of_any_length_costs_one_batch_for_each_pair() -> None:
    for length in (2, 20):
        line = Case("chain", "tokens", 6, length).line()
        assert line["progress_batches"] == 6 * 5
        assert line["progress_changes"] == 2 * 6 * 5  # the old time and the new
        assert line["marks"] == line["data_messages"] == 0


def test_marks_go_from_everyone_to_everyone_at_every_link() -> None:
    for length in (2, 7):
        line = Case("chain", "watermarks-x", 4, length).line()
        assert line["marks"] == length * 4 * 3
        assert line["data_messages"] == 0
        assert line["bytes"] > Case("chain", "tokens", 4, length).line()["bytes"]


def test_a_word_count_sends_its_records_with_any_mechanism() -> None:
    lines = [Case("wordcount", each, 5).line() for each in traffic.COMPARED]
    assert len({line["data_messages"] for line in lines}) == 1
    assert lines[0]["data_messages"] > 0
    assert [line["marks"] for line in lines] == [0, 0, 5 * 4]


def test_relays_take_fewer_batches_and_bytes() -> None:
    """Each member sends one batch, a relay two to each other and three to each of its members."""
    direct, relayed = (Case("chain", each, 49, 3).line() for each in ("tokens", traffic.RELAYED))
    assert direct["progress_batches"] == 49 * 48
    assert relayed["progress_batches"] == 42 + 2 * 7 * 6 + 3 * 42
    assert relayed["bytes"] < direct["bytes"] / 8
    assert relayed["simulated"]


def test_thousands_of_workers_are_simulated_through_relays() -> None:
    line = Case("wordcount", traffic.RELAYED, 1000).line()
    assert line["simulated"]
    assert line["data_messages"] > 900
    assert line["progress_batches"] < 1000 * 999 / 50


@pytest.mark.parametrize("workers", [2, 9, 33])
@pytest.mark.parametrize("program", ["wordcount", "chain"])
def test_what_workers_seal_is_what_they_send(program: traffic.Program, workers: int) -> None:
    case = Case(program, "tokens", workers, 4)
    assert traffic.count_sealed(case) == simulate(case)


@pytest.mark.parametrize("mechanism", ["tokens", "watermarks-x"])
def test_large_sizes_are_extrapolated_from_smaller_ones(
    monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    [_, case] = [each for each in traffic.cases([12], [3]) if each.mechanism == mechanism]
    simulated = case.line()
    monkeypatch.setattr(traffic, "AFFORDABLE", 1)
    monkeypatch.setattr(traffic, "SMALLER", (3, 5))
    counted = case.line()
    assert simulated["simulated"]
    assert not counted["simulated"]
    assert {**counted, "simulated": True} == simulated


def test_counts_out_of_proportion_are_not_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "AFFORDABLE", 1)
    monkeypatch.setattr(traffic, "SMALLER", (3, 8))
    with pytest.raises(JetonError, match="too large"):
        Case("wordcount", "watermarks-x", 50).line()


def test_marks_of_a_word_count_that_cannot_be_counted_are_left_out() -> None:
    found = [(case.mechanism, case.workers) for case in traffic.cases([8, 4096], [2])[:5]]
    expected = [(each, 8) for each in traffic.COMPARED]
    assert found == [*expected, ("tokens", 4096), (traffic.RELAYED, 4096)]


def test_sealed_batches_that_are_not_those_sent_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(traffic, "AFFORDABLE", 1)
    monkeypatch.setattr(traffic, "SMALLER", (3,))
    monkeypatch.setattr(traffic, "simulate", lambda case: traffic.Count(1, 1, 0, 0))
    with pytest.raises(JetonError, match="what workers seal is not what they send"):
        Case("wordcount", "tokens", 50).line()


def test_bytes_are_those_of_the_wire() -> None:
    changes = tuple(((location, 5), 1) for location in range(3))
    [batch] = Encoder().progress(ProgressBatch(0, 0, changes))
    assert len(batch) == traffic.BATCH_BYTES + 3 * traffic.CHANGE_BYTES
    named = ProgressBatch(0, 0, changes, named=(((7, (4, 5)), 1), ((8, (4, 5)), 1)))
    [batch] = Encoder().progress(named)
    assert len(batch) == (traffic.BATCH_BYTES + 5 * traffic.CHANGE_BYTES + 2 * traffic.NAME_BYTES)
    encoder = Encoder()
    mark = jt.Batch.trusted({MARK: np.array([4])}, np.array([9]), "time", 9)
    encoder.message(0, 9, mark)  # the layout goes once
    assert sum(map(len, encoder.message(0, 9, mark))) == traffic.MARK_BYTES


def test_only_the_second_time_is_counted() -> None:
    """The first time includes the drops of the initial tokens."""
    count = simulate(Case("chain", "tokens", 3, 10))
    assert count.changes == 2 * count.batches


def test_the_command_prints_a_table_or_lines(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["bench", "traffic", "--workers", "2,3", "--lengths", "2,4"]
    assert main(options) == 0
    rows = capsys.readouterr().out.splitlines()
    assert main([*options, "--json"]) == 0
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    # Both programs on both sizes, and the longer chain on the smaller.
    assert len(lines) == len(rows) - 2 == 3 * (2 + 2 + 1)
    assert {line["experiment"] for line in lines} == {"traffic"}
