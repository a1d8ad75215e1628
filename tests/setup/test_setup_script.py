"""Which Python `tools/setup.py` chooses, with shell scripts in the place of real ones."""

import ast
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


def test_an_old_python_can_read_it() -> None:
    """One that is too old starts it too, and is told so: not a parenthesis that it cannot read."""
    source = (Path(__file__).parents[2] / "tools" / "setup.py").read_text()
    ast.parse(source, feature_version=(3, 6))


def test_the_probe_knows_this_python() -> None:
    python = SETUP["probe"](sys.executable)
    assert python.version == sys.version_info[:2]
    assert python.path == str(Path(sys.executable).resolve())


def installer(folder: Path, last: str) -> str:
    """A script in the place of pip, behind a mirror that lacks some packages."""
    script = folder / "pip"
    script.write_text(
        "#!/bin/sh\n"
        "for name in numpy pyarrow; do\n"
        "  echo \"WARNING: Location 'file:///mirror/$name' is ignored: "
        'it is neither a file nor a directory." >&2\n'
        '  echo "Collecting $name==1.0"\n'
        "done\n"
        "echo 'Installing collected packages: numpy, pyarrow'\n"
        f"{last}\n"
    )
    script.chmod(0o755)
    return str(script)


def test_an_installer_that_warns_for_each_package_is_quiet(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "setup.log"
    SETUP["follow"]([installer(tmp_path, "exit 0")], 2, str(log))
    assert capfd.readouterr() == ("setup: all packages are here, unpacking them\n", "")
    assert log.read_text().count("WARNING") == 2


def test_an_installer_that_fails_shows_its_error_and_where_the_rest_is(tmp_path: Path) -> None:
    log = tmp_path / "setup.log"
    command = installer(tmp_path, "echo 'ERROR: no space left' >&2; exit 1")
    with pytest.raises(SystemExit) as stop:
        SETUP["follow"]([command], 2, str(log))
    text = str(stop.value)
    assert "ERROR: no space left" in text
    assert "WARNING: Location" not in text
    assert text.endswith(f"All its lines are in {log}")
    assert "WARNING: Location" in log.read_text()


def test_the_packages_of_the_lock_are_counted() -> None:
    assert SETUP["count_packages"]("requirements-java.lock") == 1
