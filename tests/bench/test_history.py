"""The history of costs: lines are added, and what became slower is named."""

import json
from pathlib import Path

import pytest

from jeton_evaluation.bench import history


def test_a_line_is_added_and_slower_operators_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "history.jsonl"
    small = ["--file", str(file), "--batch", "64", "--batches", "2", "--rounds", "1"]
    assert history.main(small) == 0
    first = json.loads(file.read_text())
    assert set(first["costs"]) >= {"interval join by key", "tumbling mean by key"}

    better = {name: cost / 1000 for name, cost in first["costs"].items()}
    file.write_text((json.dumps(first | {"costs": better}) + "\n") * 5)
    assert history.main([*small, "--dry-run"]) == 1
    assert "interval join by key: " in capsys.readouterr().out
    assert len(file.read_text().splitlines()) == 5
