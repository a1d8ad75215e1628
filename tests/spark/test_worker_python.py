"""A session with a Python that cannot run flows is refused before a task fails."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jeton.errors import GraphError
from jeton.spark.worker_python import problem_with, require_same_python

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


def python(folder: Path, answer: str, code: int = 0) -> str:
    """A program that answers as a Python would."""
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\necho '{answer}'\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


def context(master: str, executable: str, **conf: str) -> Any:
    return SimpleNamespace(
        master=master, pythonExec=executable, getConf=lambda: {"spark.submit.pyFiles": "", **conf}
    )


def test_another_version_is_refused(tmp_path: Path) -> None:
    found = python(tmp_path, "3.9")
    with pytest.raises(GraphError) as caught:
        require_same_python(context("local[2]", found))
    assert str(caught.value) == (
        f"Spark runs Python tasks with {found!r}, which is Python 3.9, while this program runs "
        f"with Python {OWN}: set PYSPARK_PYTHON={sys.executable} before the session starts, or use "
        "jeton.spark.local_session(), which does that"
    )


@pytest.mark.parametrize("package", ["jeton", "pyarrow"])
def test_a_python_without_packages_is_refused(package: str, tmp_path: Path) -> None:
    found = python(tmp_path, f"{OWN} {package}")
    with pytest.raises(GraphError, match=f"which has no package {package}: set PYSPARK_PYTHON="):
        require_same_python(context("local[2]", found))


def test_jeton_may_be_shipped(tmp_path: Path) -> None:
    assert problem_with(python(tmp_path, f"{OWN} jeton"), "jeton.zip") is None
    problem = problem_with(python(tmp_path, f"{OWN} jeton numba"), "jeton.zip")
    assert problem is not None
    assert problem.endswith("which has no package numba")


def test_a_python_that_does_not_start_is_refused(tmp_path: Path) -> None:
    problem = problem_with(python(tmp_path, "", code=1))
    assert problem is not None
    assert problem.endswith("which does not start (it says nothing)")


def test_a_python_that_is_not_there_is_refused() -> None:
    with pytest.raises(GraphError, match="'no-such-python', which does not exist"):
        require_same_python(context("local", "no-such-python"))


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]"])
def test_executors_elsewhere_are_not_asked(master: str) -> None:
    require_same_python(context(master, "no-such-python"))


def test_our_own_python_is_fine() -> None:
    require_same_python(context("local[2]", sys.executable))
