"""Compiled modules: they can be compiled, and do what the Python modules do."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tools.compiled import MODULES, ROOT, compile_into

TESTS = ("tests/conformance", "tests/core", "tests/dataflow/test_loops.py")
LOADED = """
import importlib, sys
for name in sys.argv[1:]:
    file = importlib.import_module(name).__file__
    assert file.endswith(".so"), f"{name} is {file}"
"""


@pytest.mark.skipif(
    shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="compiling needs a C compiler and Python's headers",
)
def test_the_conformance_tests_pass_with_compiled_modules(tmp_path: Path) -> None:
    """`make compiled` runs all others."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    compile_into(tmp_path / "src", optimised=False)
    path = os.pathsep.join(map(str, (tmp_path / "src", ROOT / "evaluation")))
    environment = os.environ | {"PYTHONPATH": path}
    names = [f"jeton.{module.replace('/', '.')}" for module in MODULES]
    subprocess.run([sys.executable, "-c", LOADED, *names], env=environment, check=True)
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout[-5000:] + tests.stderr[-1000:]


def test_no_compiled_module_has_a_generator_that_must_end() -> None:
    """A compiled generator that is left early does not run its `finally`, or its `with`."""
    for module in MODULES:
        tree = ast.parse((ROOT / "src/jeton" / f"{module}.py").read_text())
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                inside = list(ast.walk(function))
                yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in inside)
                ends = any(
                    isinstance(node, ast.With) or (isinstance(node, ast.Try) and node.finalbody)
                    for node in inside
                )
                assert not (yields and ends), f"{module}.{function.name}"
