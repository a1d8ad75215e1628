"""`jeton simulate`: the same rows under any schedule, or the seed that shows it is not so."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jeton.cli import main
from jeton.cli.simulation import Seen, Simulation, random_tables
from tests.cli.flows_by_name import make_averages, make_stamped, make_unrestorable
from tests.cli.test_run import Terminal

FLOWS = str(Path(__file__).with_name("flows_by_name.py"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "flows_by_name", raising=False)


def simulate(flow: str, *arguments: str) -> int:
    return main(["simulate", f"{FLOWS}:{flow}", *arguments])


def summary(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_all_schedules_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("averages", "--seeds", "15", "--rows", "40", "--json") == 0
    found = summary(capsys)
    assert (found["seeds"], found["workers"], found["failed"]) == (15, 3, None)
    assert found["restores"] > 3
    assert found["checks"] > 100
    assert simulate("averages", "--seeds", "5", "--rows", "40", "--no-restores", "--json") == 0
    assert summary(capsys)["restores"] == 0


def test_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("make_averages", "--seed", "3", "--rows", "20", "--workers", "2") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("averages: the same rows under 1 schedule of 2 workers, with ")
    assert printed.err == ""


def test_the_first_seed_that_differs_can_be_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--seeds", "50", "--rows", "20", "--no-restores"]
    assert simulate("make_arrivals", *arguments, "--json") == 1
    first = summary(capsys)
    assert first["failed"]["outputs"]["seen"]["missing"]
    assert first["failed"]["seed"] == first["seeds"]
    assert main([*shlex.split(first["failed"]["command"])[1:], "--json"]) == 1
    again = summary(capsys)
    assert again["seeds"] == 0
    assert again["failed"] == first["failed"]
    assert simulate("make_arrivals", *arguments) == 1
    said = capsys.readouterr().err
    assert f"arrivals: seed {first['seeds']} differs" in said
    assert first["failed"]["command"] in said


def test_state_that_a_restore_loses_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"time": [0] * 30, "n": [n % 5 for n in range(30)]})
    pq.write_table(table, "numbers.parquet")
    arguments = ["--input", "numbers=numbers.parquet", "--seeds", "20"]
    assert simulate("make_forgetful", *arguments, "--no-restores") == 0
    capsys.readouterr()
    assert simulate("make_forgetful", *arguments, "--json") == 1
    failed = summary(capsys)["failed"]
    assert failed["restores"] > 0
    assert failed["outputs"]["once"]["unexpected"]
    assert failed["outputs"]["once"]["missing"] == []
    assert simulate("make_forgetful", *arguments) == 1
    assert "--no-restores tells whether schedules alone do it" in capsys.readouterr().err


def test_a_flow_that_cannot_be_restored_is_run_as_it_is() -> None:
    table = pa.table({"time": list(range(30)), "n": list(range(30))})
    simulation = Simulation(make_unrestorable, {"numbers": table}, 3)
    expected = simulation.plain()
    seen = [simulation.run(seed) for seed in range(20)]
    assert all(each.rows == expected for each in seen)
    assert sum(each.restores for each in seen) < 20


def test_an_error_under_a_schedule_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: Simulation, seed: int) -> Seen:
        return Seen({}, error="OperatorFailed: ValueError: no price")

    monkeypatch.setattr(Simulation, "run", run)
    assert simulate("averages", "--seeds", "3") == 1
    said = capsys.readouterr().err
    assert "averages: seed 0 failed" in said
    assert "ValueError: no price" in said


def test_a_flow_that_fails_anyway(capsys: pytest.CaptureFixture[str]) -> None:
    Path("numbers.csv").write_text("time,n\n1,2\n")
    assert simulate("make_failing", "--input", "numbers=numbers.csv") == 1
    assert "jeton simulate: error: ValueError: no price" in capsys.readouterr().err


def test_random_rows_need_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("make_failing") == 2
    assert "add --input numbers=PATH" in capsys.readouterr().err


def test_random_rows_follow_the_schema() -> None:
    flow = make_stamped()
    [table] = random_tables(flow, ["clicks"], 50).values()
    assert table.num_rows == 50
    assert table.schema.names == ["at", "page", "seconds"]
    assert pa.types.is_timestamp(table.schema.field("at").type)
    again = random_tables(flow, ["clicks"], 50)["clicks"]
    assert table.equals(again), "the same for each seed"
    simulation = Simulation(make_stamped, {"clicks": table}, 3)
    expected = simulation.plain()
    assert sum(expected["counts"].values()) > 7
    seen = [simulation.run(seed) for seed in range(10)]
    assert all(each.rows == expected for each in seen)
    assert any(each.restores for each in seen)


def test_rows_are_compared_as_multisets() -> None:
    table = pa.table({"ts": [1, 1], "sensor": ["a", "a"], "value": [40.0, float("nan")]})
    twice = pa.concat_tables([table, table])
    rows = Simulation(make_averages, {"readings": twice}, 1).plain()
    assert rows["high"] == Counter({(("sensor", "a"), ("ts", 1)): 2})
    assert rows["means"] == Counter({(("mean", "NaN"), ("sensor", "a"), ("ts", 10)): 1})


def test_a_terminal_gets_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert simulate("averages", "--seeds", "4", "--rows", "10") == 0
    assert "4/4" in terminal.text or "0/4" in terminal.text
