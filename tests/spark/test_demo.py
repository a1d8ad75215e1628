"""`jeton demo` from the outside: what it prints, and how little else."""

import json
import os
import re
import subprocess
import sys

import pytest


def test_demo_tells_what_it_ran_on() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jeton", "demo"],
        env={**os.environ, "JETON_INSPECT": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "window ending at 10: 1.5" in done.stdout
    assert "rows are those of Spark SQL" in done.stdout
    assert "rows of the first seconds are out" in done.stdout
    assert f"Python {sys.version.split()[0]}" in done.stdout
    # The JVM itself writes such lines about Spark's options, before anybody can tell it not to.
    noise = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: ")]
    [link] = noise
    assert re.fullmatch(r"jeton: query 'bids by second' is at http://127\.0\.0\.1:\d+/\S+/", link)


@pytest.mark.long
def test_demo_prints_one_record_as_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jeton", "demo", "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    record = json.loads(done.stdout)
    assert (record["workers"], record["right"]) == (2, True)
    assert "window ending at 10: 1.5" in done.stderr
