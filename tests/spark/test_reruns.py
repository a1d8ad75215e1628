"""Spark runs parts of a stage again and keeps others: no row is lost or doubled between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.reruns import OUTPUTS, Damage, Seen, batch, stream

ROOT = Path(__file__).parents[2]


def check(seen: Seen, outputs: Sequence[str]) -> None:
    assert seen.lost == seen.doubled == dict.fromkeys(outputs, 0)
    assert all(seen.rows.values())
    assert not seen.wrong
    assert seen.damage
    assert seen.runs > seen.batches, "nothing was run again"


def test_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    damage = Damage(spark, ["files", "blocks"])
    seen = stream(spark, tmp_path, damage, slots=4, batches=3)
    check(seen, [*OUTPUTS, "held"])


def test_batch(spark: SparkSession) -> None:
    damage = Damage(spark, ["files"])
    check(batch(spark, damage, slots=4, outputs=["mixed"]), ["mixed"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("master", "kinds"),
    [
        ("local[6]", ["files", "blocks"]),
        ("local[8]", ["files", "blocks"]),
        ("local-cluster[2,2,1024]", ["executor"]),
    ],
)
@pytest.mark.parametrize("way", ["stream", "batch"])
def test_sessions_of_other_sizes(master: str, kinds: list[str], way: str) -> None:
    program = [sys.executable, "-m", "tests.faults.reruns", master, way, *kinds]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(program, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    seen = Seen(**json.loads(done.stdout.splitlines()[-1]))
    check(seen, [*OUTPUTS, "held"] if way == "stream" else OUTPUTS)
