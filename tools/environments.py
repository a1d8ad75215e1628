"""Environments for checks on other versions: which Pythons there are, and how to fill them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
"""The versions that are supported."""


def find_pythons(wanted: Sequence[str]) -> dict[str, str]:
    """The Pythons of this machine, on the PATH or of pyenv, by their versions."""
    found: dict[str, str] = {}
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    probe = "import ensurepip, sys; print(*sys.version_info[:2], sep='.')"
    for version in wanted:
        candidates = [shutil.which(f"python{version}")]
        candidates += sorted(map(str, versions.glob(f"{version}.*/bin/python")), reverse=True)
        for candidate in filter(None, candidates):
            # A version manager's stub may be on the PATH without the version behind it.
            done = subprocess.run([candidate, "-c", probe], capture_output=True, text=True)
            if done.stdout.strip() == version:
                found[version] = candidate
                break
        else:
            print(f"there is no Python {version} here", flush=True)
    return found


def make(folder: Path, python: str) -> str:
    """Make an empty environment; returns its Python."""
    subprocess.check_call([python, "-m", "venv", "--clear", folder])
    return str(folder / "bin" / "python")


def install(python: str, *what: str) -> None:
    """Install into the environment of a Python, with uv where there is one, else with pip."""
    beside = Path(sys.executable).with_name("uv")
    uv = shutil.which("uv") or (str(beside) if beside.exists() else None)
    command = (
        [uv, "pip", "install", "--quiet", "--python", python]
        if uv
        # PySpark comes as source: an old pip would run its setup.py in the environment itself.
        else [python, "-m", "pip", "install", "--quiet", "--use-pep517"]
    )
    # Behind a mirror, pip warns once for each package.
    done = subprocess.run([*command, *what], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n", flush=True)
        done.check_returncode()
