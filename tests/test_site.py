"""The documentation site builds, and none of its links leads nowhere."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
from tools.docs import dead_links
from tools.environments import PYTHONS

ROOT = Path(__file__).parent.parent
PUBLIC = [
    "jeton",
    "jeton.connectors.formats",
    "jeton.connectors.sinks",
    "jeton.connectors.sources",
    "jeton.errors",
    "jeton.spark",
    "jeton.state",
    "jeton.testing",
]
"""The modules whose names in ``__all__`` are public."""


def test_the_site_builds() -> None:
    built = subprocess.run(
        [sys.executable, ROOT / "tools" / "docs.py"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert (ROOT / "build" / "site" / "index.html").exists()


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<h1 id="here">Other</h1>')
    (tmp_path / "index.html").write_text(
        '<a href="other.html#here">a</a><a href="https://example.com/">b</a><a href="#">c</a>'
        '<a href="nowhere.html">d</a><a href="other.html#there">e</a><img src="no.png">'
    )
    assert list(dead_links(tmp_path)) == [
        "index.html: nowhere.html does not exist",
        "index.html: other.html#there is not in that page",
        "index.html: no.png does not exist",
    ]


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in map(str, pages) if page not in navigation] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    """A page of docs/api shows the name itself, or the module that has it."""
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    names = {f"{module}.{name}" for name in import_module(module).__all__}
    assert module in shown or names - shown - {f"{module}.errors", f"{module}.state"} == set()


def test_every_idiom_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "api" / "idioms.md").read_text()
    for path in (ROOT / "docs" / "idioms").glob("*.md"):
        for module in re.findall(
            r"^from (jeton\.idioms\.\w+) import", path.read_text(), re.MULTILINE
        ):
            assert f"::: {module}\n" in page


def test_every_dependency_has_its_reason() -> None:
    """docs/dependencies.md names each package that pyproject.toml does."""
    page = (ROOT / "docs" / "dependencies.md").read_text()
    for file in (ROOT / "pyproject.toml", ROOT / "evaluation" / "pyproject.toml"):
        config = tomllib.loads(file.read_text())
        wanted = [
            *config["project"]["dependencies"],
            *chain(*config["project"]["optional-dependencies"].values()),
            *chain(*config.get("dependency-groups", {}).values()),
        ]
        names = {re.split(r"[\[<>=]", each)[0] for each in wanted} - {"jeton"}
        assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_supported_pythons_agree() -> None:
    """Classifiers, the tools and README name the same versions."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    tested = tuple(
        f"3.{each.removeprefix(prefix)}" for each in config["classifiers"] if prefix in each
    )
    assert tested == PYTHONS
    assert config["requires-python"] == f">={tested[0]}"
    named = f"{', '.join(tested[:-1])} and {tested[-1]}"
    for page in (ROOT / "README.md", ROOT / "docs" / "howto" / "install.md"):
        assert f"Python {tested[0]} or newer" in page.read_text()
        assert f"{named} are tested" in page.read_text()
