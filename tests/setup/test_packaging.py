"""The files that make a clone installable agree with each other."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
DIRECT = {
    "requirements.lock": [
        *PROJECT["dependencies"],
        *PYPROJECT["dependency-groups"]["dev"],
        *(each for name, extra in EXTRAS.items() if name != "java" for each in extra),
    ],
    "requirements-java.lock": EXTRAS["java"],
}


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0]


def locked(lock: str) -> list[str]:
    """The requirements of a lock file, each with its marker and hashes."""
    return re.findall(r"^\w.*==(?:.*\\\n)*.*$", (ROOT / lock).read_text(), re.MULTILINE)


def test_the_installed_version_is_that_of_the_project() -> None:
    assert version("jeton") == PROJECT["version"], "run `make setup`"


@pytest.mark.parametrize("lock", DIRECT)
def test_locks_name_no_host(lock: str) -> None:
    """They must work with whatever registry or mirror pip is set up for."""
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-i|-f|--(?!hash))", text, re.MULTILINE)


@pytest.mark.parametrize("lock", DIRECT)
def test_locks_have_a_hash_for_every_package(lock: str) -> None:
    assert [each for each in locked(lock) if "--hash=sha256:" not in each] == []


@pytest.mark.parametrize("lock", DIRECT)
def test_locks_hold_what_is_asked_for(lock: str) -> None:
    missing = {name_of(each) for each in DIRECT[lock]} - {name_of(each) for each in locked(lock)}
    assert not missing, f"run `make lock`: {lock} lacks {missing}"


def test_every_dependency_is_explained() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text()
    names = {name_of(each) for requirements in DIRECT.values() for each in requirements}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_a_flow_runs_without_spark() -> None:
    """PySpark is an extra: without it, only what needs Spark says what to install."""
    program = """
import sys
sys.modules["pyspark"] = None  # as if it were not installed
import jeton as jt
flow = jt.Flow("counts")
flow.output("counts", flow.input("words").key_by("word").tumbling(10).count())
print(flow.run({"words": {"time": [1, 2], "word": ["a", "a"]}}, workers=2)["counts"].to_pylist())
import jeton.spark
try:
    jeton.spark.local_session()
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "[{'time': 10, 'word': 'a', 'count': 2}]",
        "Spark is not installed: pip install 'jeton[spark]'",
    ], done.stderr
