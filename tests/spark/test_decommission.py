"""Executors that a cluster manager wants back: queries leave them before they are gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_query_leaves_a_decommissioned_executor_and_comes_back(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.decommissioned", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    # It has gone on from checkpoints of its own, and no worker was lost.
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts == {"restarts": 0, "after": 0}, done.stderr[-5000:]
    assert "will leave: it goes on elsewhere with 2 of 3 workers" in done.stderr
    assert "goes back to 3 workers" in done.stderr
