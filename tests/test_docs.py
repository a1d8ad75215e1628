"""The code in README and docs runs, block after block, as a reader would run it."""

import re
from pathlib import Path
from typing import Any

import pytest

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
