"""Six programs that newcomers wrote, each in less than 40 lines, with what they print."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers import EXAMPLES

PROGRAMS = EXAMPLES / "programs"

PRINTED = {
    "alerts": ["['A at 12:00:00']", "['A at 12:00:14', 'A at 12:00:29']"],
    "enrich": [
        "until 3600, Basel: 1",
        "until 3600, Lyon: 1",
        "until 7200, Basel: 1",
        "unknown: ['eve']",
    ],
    "five_minute_join": ["paid: [(1, 8.5)]", "unpaid: [2, 3]"],
    "long_lived_count": [
        "|  be|    1|",
        "|  be|    2|",
        "| not|    1|",
        "|  or|    1|",
        "|  to|    1|",
        "|  to|    2|",
    ],
    "sessions_to_parquet": [
        "|2024-05-06 10:00:50| ann|2024-05-06 10:00:05|     2|",
        "|2024-05-06 10:02:20| bob|2024-05-06 10:01:40|     2|",
        "|2024-05-06 10:01:30|2024-05-06 10:00:15| ann|",
    ],
    "stuck_token": [
        "the flow came to rest but is not complete: 'latest' holds 2 tokens at 3 on worker 0, "
        "retained at examples/programs/stuck_token.py:16: latest[key] = ref.retain()"
    ],
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_program_prints_what_it_should(name: str) -> None:
    path = PROGRAMS / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert [line for line in PRINTED[name] if line not in lines] == [], done.stdout
    assert len(path.read_text().splitlines()) < 40


def test_all_programs_are_run() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == PRINTED.keys()
