"""Kafka, compared with confluent-kafka alone: all variants read and write all records."""

import json

import pytest

from jeton.cli import main


def test_every_variant_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kafka", "--rounds", "1", "--records", "2000", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 7
    assert all(line["rate"] > 0 and line["ratio"] > 0 for line in lines)
    with pytest.raises(SystemExit):
        main(["bench", "kafka", "--records", "1e9"])
