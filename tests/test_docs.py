"""The code in README and docs runs, block after block, as a reader would run it."""

import re
from pathlib import Path
from typing import Any

import pytest

import jeton as jt
from jeton.columns.operations import Dates, Operations, Text
from jeton.dataflow.builder import OperatorBuilder
from jeton.dataflow.grouped import Rolling, Running, Sessions, Windows
from jeton.dataflow.scope import Loop
from jeton.runtime.result import Probe
from jeton.spark import Frames, Query, StreamingFrames

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, *, spark: bool) -> list[str]:
    """The Python blocks of a page; those for a Spark session open with ``# spark``."""
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in found if spark or not block.startswith("# spark")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_a_page_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page, spark=False):
        exec(compile(block, f"<{page.name}>", "exec"), names)


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
