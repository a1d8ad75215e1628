"""`make matrix`: which cells it runs, and how it counts."""

from __future__ import annotations

import sys
from pathlib import Path

from tools import matrix
from tools.environments import ROOT, find_pythons
from tools.matrix import Cell, Outcome, choose, counts, locked, parse, table

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_all_combinations_or_one_change_at_a_time() -> None:
    options, tests = parse(["--pyspark", "4.0", "newest", "--", "-k", "batch"])
    assert tests == ["-k", "batch"]
    assert len(choose(options, ["3.11", "3.12"])) == 2 * 2 * 2 * 2
    options, _ = parse(["--quick", "--pyspark", "4.0", "newest"])
    assert choose(options, ["3.11", "3.12"]) == [
        Cell("4.0", "3.11", "classic", "on"),
        Cell("newest", "3.11", "classic", "on"),
        Cell("newest", "3.11", "classic", "off"),
        Cell("newest", "3.11", "connect", "on"),
        Cell("newest", "3.12", "classic", "on"),
    ]
    assert choose(options, []) == []


def test_a_python_that_is_not_there_is_left_out() -> None:
    assert list(find_pythons([RUNNING, "3.4"])) == [RUNNING]


def test_outcomes_are_counted(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert counts(report) == (0, 0, 0)
    suite = '<testsuite tests="9" failures="1" errors="1" skipped="2"/>'
    report.write_text(f"<testsuites>{suite}</testsuites>")
    assert counts(report) == (5, 2, 2)
    *_, last = table([(Cell("4.0", "3.11", "connect", "off"), Outcome("4.0.5", 5, 2, 2, 61.4))])
    assert last == "| 4.0.5 | 3.11 | connect | off | 5 | 2 | 2 | 61 |"


def test_the_lock_serves_for_all_but_pyspark() -> None:
    names = {requirement.partition("==")[0] for requirement in locked()}
    assert {"numpy", "pytest", "hatchling"} <= names
    assert not {"pyspark", "py4j"} & names


def test_the_tests_of_each_cell_exist() -> None:
    assert all((ROOT / test).exists() for tests in matrix.TESTS.values() for test in tests)
