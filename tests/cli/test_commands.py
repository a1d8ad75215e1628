"""What all commands have in common: help, examples, JSON, completion, little to import."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path

import pytest

from jeton.cli import main, make_parser, versions
from jeton.runtime import worker

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """All commands of Jeton itself that can be run."""
    inside = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for action in inside:
        for each in action.choices.values():
            yield from commands(each)
    if not inside and parser.add_help:
        yield parser


COMMANDS = {each.prog: each for each in commands(make_parser())}


def test_the_commands() -> None:
    assert list(COMMANDS) == [
        "jeton run",
        "jeton simulate",
        "jeton checkpoint ls",
        "jeton checkpoint show",
        "jeton checkpoint diff",
        "jeton inspect",
        "jeton why",
        "jeton log",
        "jeton package",
        "jeton demo",
        "jeton compile",
        "jeton completion",
        "jeton version",
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_is_understood(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*name.split()[1:], "--help"])
    assert stop.value.code == 0
    _, example = capsys.readouterr().out.split("\nexample:\n")
    for line in example.splitlines():
        words = shlex.split(line, comments=True)
        words = words[: words.index(">")] if ">" in words else words
        assert " ".join(words).startswith(name)
        make_parser().parse_args(words[1:])


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "0 all is well, 1 what was run failed, 2 wrong usage, 130 interrupted" in text


def test_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["jeton"] == version("jeton")
    assert found["pyspark"] == version("pyspark")
    assert found["modules"] == ("python" if worker.__file__.endswith(".py") else "compiled")
    assert main(["version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"jeton {version('jeton')}"
    assert second.lower() == f"modules: {found['modules']}"


@pytest.mark.parametrize(("file", "kind"), [("worker.py", "Python"), ("worker.so", "compiled")])
def test_a_version_says_whether_modules_are_compiled(
    file: str, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ModuleSpec("jeton.runtime.worker", None, origin=f"/jeton/runtime/{file}")
    monkeypatch.setattr(versions, "find_spec", lambda name: found)
    assert main(["version"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"modules: {kind}"


def test_what_is_heavy_is_imported_when_it_is_needed() -> None:
    code = (
        "import sys\nfrom jeton.cli import main\nmain(['version'])\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'pyspark', 'pandas', 'tqdm', 'shtab', 'jeton_evaluation.bench'} "
        "& set(sys.modules)))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.splitlines()[-1] == "[]"


COMPLETED = {
    "jeton ru": "run",
    "jeton checkpoint sh": "show",
    "jeton simulate --see": "--seed --seeds",
    "jeton completion f": "fish",
}


def test_bash_completes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "jeton.bash"
    script.write_text(capsys.readouterr().out)
    lines = [f"source {script}"]
    for line in COMPLETED:
        words = line.split()
        lines += [
            f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1} COMPREPLY=()",
            "_shtab_jeton",
            'echo "$(printf "%s\\n" "${COMPREPLY[@]}" | sort | tr "\\n" " ")"',
        ]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    found = [line.strip() for line in done.stdout.splitlines()]
    assert dict(zip(COMPLETED, found, strict=True)) == COMPLETED


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in COMMANDS:
        assert name.split()[-1] in script
    assert "no-restores" in script


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines after ``$ jeton`` in console blocks are run where the page's files are."""
    text = PAGE.read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "averages", raising=False)
    for name, content in re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", text, re.M | re.S):
        Path(name).write_text(content)
    shown = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ran = 0
    for line, expected in re.findall(r"^\$ jeton (.*)\n((?:[^$].*\n)*)", "".join(shown), re.M):
        assert main(shlex.split(line)) == 0, line
        printed = capsys.readouterr()
        assert printed.out + printed.err == expected, line
        ran += 1
    assert ran >= 3
    monkeypatch.delitem(sys.modules, "averages")


def test_a_demo_without_spark_shows_what_runs_in_process() -> None:
    code = "import sys; sys.modules['pyspark'] = None; from jeton.cli import main; main(['demo'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "window ending at 10: 1.5" in done.stdout
    assert done.stderr == "jeton demo: error: Spark is not installed: pip install 'jeton[spark]'\n"
