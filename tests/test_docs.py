"""The code in README and docs runs, block after block, as a reader would run it."""

import linecache
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import jeton as jt
from jeton.cli import BUILT_IN
from jeton.columns.operations import Dates, Operations, Text
from jeton.dataflow.builder import OperatorBuilder
from jeton.dataflow.grouped import GroupJoin, Rolling, Running, Sessions, Windows
from jeton.dataflow.scope import Loop
from jeton.runtime.result import Probe
from jeton.spark import Frames, Query, StreamingFrames

ROOT = Path(__file__).parent.parent
FLAGS = re.MULTILINE | re.DOTALL
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Example(NamedTuple):
    """A Python block of a page, and the output that the page shows below it, if any."""

    code: str
    shown: str | None
    needs_spark: bool
    """Whether it opens with ``# spark``."""


FENCE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n*^```\n(?P<shown>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)


def examples(page: Path) -> list[Example]:
    """The Python blocks of a page; a block without a language right below is the output."""
    return [
        Example(found["code"], found["shown"], found["code"].startswith("# spark"))
        for found in FENCE.finditer(page.read_text() + "\n")
    ]


def run_page(page: Path, capsys: pytest.CaptureFixture[str], *, spark: bool) -> None:
    """Run the blocks of a page as one file, ``app.py``, and compare what they print."""
    names: dict[str, Any] = {"__name__": "__main__"}
    source = ""
    for code, shown, needs_spark in examples(page):
        if needs_spark and not spark:
            continue
        before, source = source.count("\n"), source + code
        # For errors and for `why`, which show the lines of a program.
        linecache.cache["app.py"] = len(source), None, source.splitlines(keepends=True), "app.py"
        capsys.readouterr()
        exec(compile("\n" * before + code, "app.py", "exec"), names)
        if shown is not None:
            printed = [line.rstrip() for line in capsys.readouterr().out.strip("\n").splitlines()]
            expected = [line.rstrip() for line in shown.strip("\n").splitlines()]
            assert len(printed) == len(expected), "\n".join(printed)
            for line, pattern in zip(printed, expected, strict=True):
                assert re.fullmatch(re.escape(pattern).replace("…", ".*"), line), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_a_page_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page(page, capsys, spark=False)


def test_every_block_of_python_is_run() -> None:
    """No other spelling of a block, such as an indented one, escapes the tests."""
    for page in PAGES:
        text = page.read_text()
        fences = re.findall(r"^ *(?:```+|~~~+) *(?:py|python|python3|pycon)\b", text, re.MULTILINE)
        assert len(fences) == len(examples(page)), page


def test_commands_on_pages_exist() -> None:
    """`jeton …` and `make …` on a page name commands and targets that there are."""
    commands = {command.name for command in BUILT_IN} | {"bench", "nexmark"}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        text = page.read_text()
        code = re.findall(r"`([^`\n]+)`", text) + [
            line
            for block in re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", text, FLAGS)
            for line in block.splitlines()
        ]
        for line in code:
            if found := re.match(r"(?:\$ )?(?:jeton|make) ([a-z][a-z_-]+)\b(?![:=.(])", line):
                known = targets if "make " in found[0] else commands
                assert found[1] in known, f"{page.name}: {line}"


PUBLIC = [
    jt.Antichain,
    jt.Batch,
    jt.Flow,
    jt.KeyedStream,
    Loop,
    Probe,
    jt.Run,
    jt.Stream,
    jt.TimestampToken,
    Frames,
    GroupJoin,
    OperatorBuilder,
    Query,
    Rolling,
    Running,
    Sessions,
    StreamingFrames,
    Windows,
]
"""The classes whose objects users have in their hands."""


@pytest.mark.parametrize("owner", PUBLIC, ids=lambda owner: owner.__name__)
def test_every_public_method_is_on_a_page(owner: type) -> None:
    """Methods that completions offer are written as code on some page."""
    pages = "\n".join(page.read_text() for page in PAGES)
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", pages, re.DOTALL))
    own = {name for base in owner.__mro__ if "jeton" in base.__module__ for name in vars(base)}
    blank = dict.__new__(owner) if issubclass(owner, dict) else object.__new__(owner)
    offered = [name for name in dir(blank) if not name.startswith("_")]
    methods = [name for name in offered if name in own]
    assert methods
    assert [name for name in methods if not re.search(rf"\b{name}\b", code)] == []


SECTIONS: dict[str, list[type]] = {
    "Flow": [jt.Flow],
    "Stream": [jt.Stream],
    "KeyedStream": [jt.KeyedStream],
    "Windows": [Windows],
    "Batch": [jt.Batch],
    "Series and expressions": [Operations, Text, Dates],
    "Run": [jt.Run],
    "OperatorBuilder": [OperatorBuilder],
    "TimestampToken": [jt.TimestampToken],
    "Antichain": [jt.Antichain],
    "Query": [Query],
}


@pytest.mark.parametrize("title", SECTIONS)
def test_the_reference_has_all_methods(title: str) -> None:
    """Each method is in the section of its class, in a row of its own or in the text."""
    body = _section(title)
    for owner in SECTIONS[title]:
        own = {name for base in owner.__mro__ if "jeton" in base.__module__ for name in vars(base)}
        offered = {name for name in dir(object.__new__(owner)) if not name.startswith("_")}
        missing = [n for n in sorted(own & offered) if not re.search(rf"`{n}\b", body)]
        assert (owner, missing) == (owner, [])


def test_the_reference_has_all_aggregates() -> None:
    body = _section("Aggregates")
    assert [name for name in dir(jt.agg) if f"`{name}()`" not in body] == []


def _section(title: str) -> str:
    page = (ROOT / "docs" / "reference.md").read_text()
    found = re.search(rf"^### {title}\n.*?(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[0]


def test_completions_offer_no_internals() -> None:
    """The library's own attributes are not among those that an editor offers."""
    flow = jt.Flow("words")
    words = flow.input("words", schema={"word": str})
    assert not {"operators", "handles", "reserve", "add", "unique_name"} & set(dir(flow))
    assert not {"scope", "sources", "learn", "require_columns"} & set(dir(words))
    assert not {"stream", "pact"} & set(dir(words.key_by("word")))
    assert "keyed" not in dir(words.key_by("word").running())
    assert not {"trusted", "bound_from"} & set(dir(jt.Batch({}, times=[])))
    with flow.open() as run:
        assert not {"agents", "network", "checker"} & set(dir(run))
    assert not {"hear", "take_over", "committer"} & set(dir(object.__new__(Query)))
    assert {"input", "explain", "run"} <= set(dir(flow))
    assert {"map", "schema", "late"} <= set(dir(words))


def test_links_of_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_architecture_names_what_exists() -> None:
    """Modules in backticks are there, and so is each ``Class.method``."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for name in re.findall(r"`([\w/.]+)`", page):
        if "/" in name:
            beside = (ROOT, ROOT / "src" / "jeton")
            found = [path for at in beside for path in (at / name, at / f"{name}.py")]
            assert any(path.exists() for path in found), f"no module {name}"
        elif re.fullmatch(r"[A-Z]\w+\.[a-z]\w+", name):
            owner, method = name.split(".")
            body = re.search(rf"^class {owner}\b.*?(?=^\S|\Z)", source, re.MULTILINE | re.DOTALL)
            assert body is not None, f"no class {owner}"
            assert re.search(rf"def {method}\b", body[0]), f"no {name}"
