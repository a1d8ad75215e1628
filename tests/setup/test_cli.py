"""The `jeton` command, as far as it needs no Spark."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jeton import cli
from jeton_evaluation.commands import BENCHMARKS


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"jeton {version('jeton')}\nmodules: Python\n"


def test_version_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"jeton {version('jeton')}\n"


@pytest.mark.parametrize("module", ["jeton", "jeton.cli"])
def test_python_dash_m_is_the_command(module: str) -> None:
    command = [sys.executable, "-m", module, "version"]
    said = subprocess.check_output(command, text=True)
    assert said == f"jeton {version('jeton')}\nmodules: Python\n"


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["version", "--nonsense"], ["bench"]])
def test_what_it_does_not_understand_is_an_error(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2


@pytest.mark.parametrize("name", ["bench", "nexmark"])
def test_without_the_evaluation_it_says_how_to_install_it(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "entry_points", lambda group: [])
    with pytest.raises(SystemExit) as stop:
        cli.main([name, "wordcount"])
    assert stop.value.code == 2
    assert "pip install ./evaluation" in capsys.readouterr().err


class Broken:
    """An entry point whose module is not there."""

    name = "mine"

    def load(self) -> Any:
        raise ModuleNotFoundError("No module named 'mine'")


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["version"]], ids=" ".join)
def test_a_command_that_cannot_be_imported_leaves_the_others(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "entry_points", lambda group: [Broken()])
    try:
        code = cli.main(argv)
    except SystemExit as stop:
        code = cast(int, stop.code)
    found = capsys.readouterr()
    assert code == 0
    assert "jeton" in found.out
    assert "the command 'mine' is left out: ModuleNotFoundError" in found.err
    with pytest.raises(SystemExit) as wrong:
        cli.main(["mine"])
    assert wrong.value.code == 2


def test_help_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    text = capsys.readouterr().out
    assert [name for name in BENCHMARKS if name not in text] == []


def test_a_benchmark_reads_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sequence[str]] = []
    monkeypatch.setitem(BENCHMARKS, "mine", "a benchmark")
    monkeypatch.setitem(
        sys.modules, "jeton_evaluation.bench.mine", SimpleNamespace(main=seen.append)
    )
    assert cli.main(["bench", "mine", "--json", "--rate", "5", "--help"]) == 0
    assert seen == [["--json", "--rate", "5", "--help"]]


def test_an_output_that_nobody_reads_on_ends_a_command_without_a_word() -> None:
    command = [sys.executable, "-m", "jeton.cli", "bench", "sweep", "--list"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_there(name: str) -> None:
    assert callable(import_module(f"jeton_evaluation.bench.{name}").main)
