"""The frame of benchmarks: options that make no sense, help, JSON, exit codes, processes."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from typing import Annotated

import pytest

from jeton import cli
from jeton.cli.versions import modules
from jeton.errors import JetonError
from jeton_evaluation.bench.harness import OR_ZERO, Line, OptionError, Say, child_line, command
from jeton_evaluation.bench.runs import machine
from jeton_evaluation.commands import BENCHMARKS


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["operators", "--rounds", "0"], "--rounds: '0' is not a whole number above zero"),
        (["operators", "--batches", "-1"], "--batches: '-1' is not a whole number above zero"),
        (["operators", "--rounds", "inf"], "'inf' is not a whole number above zero"),
        (["progress", "--advances", "many"], "'many' is not a whole number above zero"),
        (["spark", "--rows", "1.5"], "'1.5' is not a whole number above zero"),
        (["checkpoints", "--keys", "1e4,few"], "'few' is not a whole number above zero"),
        (["checkpoints", "--changed", "1,2000"], "of a thousand keys, 2000 cannot change"),
        (["start_up", "--only", "flink"], "no case begins with 'flink'"),
        (["streaming", "--rows", "0"], "'0' is not a whole number above zero"),
        (["streaming", "--peers", "flow,flink"], "there is no 'flink': choose from flow,"),
        (["skew", "--only", "mode"], "no aggregate begins with 'mode'"),
        (["skew", "--share", "2"], "a key cannot have 2 of the records"),
        (["wordcount", "--rate", "0"], "--rate: '0' is not a number above zero"),
        (["wordcount", "--quantum", "70"], "coarser than 2**30"),
        (["wordcount", "--warm-up", "-1"], "'-1' is not a number, zero or more"),
        (["chain", "--length", "0"], "--length: '0' is not a whole number above zero"),
        (["nexmark", "--query", "q99"], "choose from q0, q1"),
        (["verbs", "--events", "10"], "a round of 10 events has not one batch of 32,768"),
        (["verbs", "--query"], "--query: expected at least one argument"),
        (["memory", "--records", "10"], "a hundredth of 10 records is less than one"),
        (["large_batches", "--times", "0.001"], "less than one burst of records"),
        (["migrate", "--workers", "1"], "--workers is at least 2"),
        (["migrate", "--out", "/no/such/folder"], "there is no folder /no/such"),
        (["kafka", "--records", "1e6"], "keeps at most 200000 records"),
        (["inspect", "--batch", "64,few"], "'few' is not a whole number above zero"),
        (["sweep", "--only", "lunch"], "there is no part lunch: choose from wordcount,"),
        (["peers", "--only", "flink"], "no system is called flink"),
        (["traffic", "--mechanisms", "gossip"], "there is no mechanism 'gossip'"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_runs(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", *argv])
    assert stop.value.code == 2
    shown = capsys.readouterr()
    assert complaint in shown.err
    assert not shown.out


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_says_how_a_benchmark_measures(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", name, "--help"])
    assert stop.value.code == 0
    about = importlib.import_module(f"jeton_evaluation.bench.{name}").__doc__
    assert about is not None
    assert about.strip() in capsys.readouterr().out


def count(
    say: Say,
    upto: Annotated[int, "how far", OR_ZERO] = 2,
    names: Annotated[list[str], "what"] = ["a", "b"],  # noqa: B006
) -> Generator[Line, None, int]:
    """Yield numbers; the exit code is how many."""
    for number in range(upto):
        say(f"number {number}")
        yield {"number": number}
    return upto


def test_lines_are_printed_as_text_or_json_and_the_last_word_is_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main = command(count)
    assert main([]) == 2
    assert capsys.readouterr().out == "number 0\nnumber 1\n"
    assert main(["--json"]) == 2
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"number": 0, "modules": modules()},
        {"number": 1, "modules": modules()},
    ]
    assert main(["--upto", "0"]) == 0
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "(default: a b)" in capsys.readouterr().out


def test_all_lines_of_a_list_say_whether_modules_are_compiled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def numbers(say: Say) -> list[Line]:
        return [{"number": 0}, {"number": 1}]

    assert command(numbers)(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == [{"number": number, "modules": modules()} for number in (0, 1)]
    assert machine()["modules"] == modules() in ("python", "compiled")


def test_a_process_that_fails_says_why_in_one_line() -> None:
    with pytest.raises(JetonError, match=r"spill --one lots --keys 10: .*'lots'"):
        child_line("jeton_evaluation.bench.spill", "--one", "lots", "--keys", 10)


def test_an_option_error_while_it_runs_is_one_too(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(say: Say) -> Iterator[Line]:
        yield {"n": 1}
        raise OptionError("not like this")

    with pytest.raises(SystemExit) as stop:
        command(refuse)([])
    assert stop.value.code == 2
    assert "not like this" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["operators", "--rounds", "1000"], ["inspect"]])
def test_control_c_ends_a_benchmark_and_its_processes_quietly(argv: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "jeton.cli", "bench", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A runner of tests in the background may have Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        os.killpg(child.pid, signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert (child.returncode, said) == (130, "jeton bench: interrupted\n")
