"""`jeton bench streaming`: the part that needs no Spark."""

from __future__ import annotations

import json

import pytest

from jeton.bench import streaming


def test_the_cost_of_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    assert streaming.main(["--json", "--rows", "", "--state", "2e4"]) == 0
    [cost] = json.loads(capsys.readouterr().out)["state"]
    assert cost["keys"] == 20_000
    assert 16 <= cost["whole"]["bytes_per_key"] < 24, "a key, a count and a bin"
    in_few = cost["1% in 8 bins"]["bytes_per_key"]
    assert in_few < cost["1% changed"]["bytes_per_key"] < cost["whole"]["bytes_per_key"]
    for what in ("whole", "1% changed", "1% in 8 bins"):
        assert 0 < cost[what]["pause_s"] < cost[what]["total_s"]
