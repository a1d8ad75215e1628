"""Which Python `tools/setup.py` chooses, with shell scripts in the place of real ones."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SETUP = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "setup.py"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that is all of the PATH, on a machine whose setup runs on a Python that is gone."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    return tmp_path


def add(
    machine: Path, name: str, minor: int, *, ensurepip: bool = True, pip: str | None = None
) -> str:
    """Put a Python on the machine's PATH that answers the probe and can do nothing else."""
    version = [int(part) for part in (pip or "0").split(".")]
    answer = json.dumps([str(machine / name), [3, minor], ensurepip, version])
    (machine / name).write_text(f"#!/bin/sh\necho '{answer}'\n")
    (machine / name).chmod(0o755)
    return str(machine / name)


def choose(asked: str | None = None) -> str:
    path: str = SETUP["choose_python"](asked).path
    return path


def test_the_newest_wins(machine: Path) -> None:
    add(machine, "python3", 11)
    newest = add(machine, "python3.13", 13)
    add(machine, "python3.12", 12)
    assert choose() == newest


def test_one_too_old_and_a_stub_that_fails_are_passed_over(machine: Path) -> None:
    add(machine, "python3", 9)
    (machine / "python3.13").write_text("#!/bin/sh\nexit 127\n")
    (machine / "python3.13").chmod(0o755)
    good = add(machine, "python3.12", 12)
    assert choose() == good


def test_one_that_the_lock_does_not_know_is_passed_over(machine: Path) -> None:
    add(machine, "python3", SETUP["NEWEST"][1] + 1)
    good = add(machine, "python3.11", 11)
    assert choose() == good


def test_pip_can_stand_in_for_ensurepip(machine: Path) -> None:
    add(machine, "python3.13", 13, ensurepip=False)
    good = add(machine, "python3.12", 12, ensurepip=False, pip="22.3")
    assert choose() == good


def test_one_asked_for_is_taken(machine: Path) -> None:
    add(machine, "python3.13", 13)
    asked = add(machine, "my-python", 11)
    assert choose(asked) == asked


def test_says_what_to_install_if_all_are_too_old(machine: Path) -> None:
    old = add(machine, "python3", 9)
    with pytest.raises(SystemExit, match="make setup PYTHON=") as stop:
        choose()
    assert f"needs Python 3.11 to 3.14; found: {old} (3.9)" in str(stop.value)


def test_says_what_to_install_if_neither_ensurepip_nor_pip_is_there(machine: Path) -> None:
    add(machine, "python3", 12, ensurepip=False, pip="20.0")
    with pytest.raises(SystemExit, match=r"apt install python3\.12-venv"):
        choose()


def test_the_probe_knows_this_python() -> None:
    python = SETUP["probe"](sys.executable)
    assert python.version == sys.version_info[:2]
    assert python.path == str(Path(sys.executable).resolve())
