"""Where no compiled code can be kept, everything works all the same, after one line in the log."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import jeton

SOURCE = Path(jeton.__file__).parent
RUN = """
import jeton as jt
flow = jt.Flow("counts")
flow.output("counts", flow.input("words").key_by("word").running().count())
words = {"time": [0, 1, 2], "word": ["to", "be", "to"]}
print(flow.run({"words": words})["counts"]["count"].to_pylist())
"""
NOWHERE = {
    "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
    "NUMBA_CACHE_DIR": "/proc/nowhere",
}
"""Numba finds no folder of its own to write to."""
IMPORT = """
import jeton as jt
flow = jt.Flow("same")
flow.output("out", flow.input("in"))
print(flow.run({"in": {"time": [0], "n": [7]}})["out"]["n"].to_pylist())
"""


def start(code: str, temporary: Path, settings: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent), "TMPDIR": str(temporary), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.strip(), err


pytestmark = pytest.mark.skipif(
    not hasattr(os, "getuid") or not Path("/proc").exists(), reason="needs /proc"
)


def test_compiled_code_goes_to_a_private_folder(tmp_path: Path) -> None:
    # Two at once, as the tasks of an executor are.
    for process in [start(RUN, tmp_path, NOWHERE) for _ in range(2)]:
        out, err = ended(process)
        assert out == "[1, 1, 2]"
        assert err.count("compiled code is kept in") == 1
    [folder] = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.rglob("*.nbc"))


def test_a_folder_of_others_is_not_used(tmp_path: Path) -> None:
    # Who can write to it could have us run anything.
    (tmp_path / f"jeton-compiled-{os.getuid()}").mkdir()
    (tmp_path / f"jeton-compiled-{os.getuid()}").chmod(0o777)
    out, err = ended(start(IMPORT, tmp_path, NOWHERE))
    assert out == "[7]"
    assert err.count("compiled code stays in memory") == 1


def test_packages_in_a_zip_file_run(tmp_path: Path) -> None:
    # As Spark brings them to executors, with spark.submit.pyFiles.
    packed = tmp_path / "jeton.zip"
    with zipfile.ZipFile(packed, "w") as file:
        for source in SOURCE.rglob("*.py"):
            file.write(source, source.relative_to(SOURCE.parent))
    settings = {"PYTHONPATH": str(packed), "NUMBA_CACHE_DIR": "", "HOME": "/proc/nowhere"}
    out, _ = ended(start(IMPORT, tmp_path, settings))
    assert out == "[7]"


def test_files_that_cannot_be_read_are_made_anew(tmp_path: Path) -> None:
    code = """
from jeton.columns import compiled
from tests.setup.compiled_loop import twice
print(twice(21), compiled._warned())
"""
    root = Path(__file__).parents[2]
    settings = {
        "PYTHONPATH": f"{SOURCE.parent}{os.pathsep}{root}",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    for _ in range(2):
        out = ended(start(code, tmp_path, settings))[0]
        assert out.startswith("42")
        for file in tmp_path.rglob("*twice*.nb?"):
            file.write_bytes(b"torn")
    assert "cannot be read" in out
