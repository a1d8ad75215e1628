"""`jeton bench checkpoints`: what changed is less than what there is."""

from __future__ import annotations

import json

import pytest

from jeton_evaluation.bench import checkpoints


def test_the_cost_of_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoints.main(["--json", "--keys", "2e4", "--changed", "10", "--rounds", "1"]) == 0
    [cost] = json.loads(capsys.readouterr().out)
    assert cost["keys"] == 20_000
    found = {(line["way"], line["what"]): line for line in cost["checkpoints"]}
    for way in checkpoints.WAYS:
        assert 16 <= found[way, "complete"]["bytes"] / 20_000 < 24, "a key, a count and a bin"
        assert 0 < found[way, "complete"]["pause_s"] < found[way, "complete"]["total_s"]
        assert found[way, "restore"]["total_s"] > 0
    changed = {way: found[way, "1% changed"]["bytes"] for way in checkpoints.WAYS}
    assert changed["changes"] < changed["groups"] / 10
