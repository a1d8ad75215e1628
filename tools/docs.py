"""Build the documentation site: `make docs`.

Pages are written for two readers: a browser of this repository, for whom ``../examples/joins.py``
is a file, and the site. So the pages are copied to build/docs first; there, each example and each
source file that a page links to becomes a page, and links to it lead to that page. At the end all
links of the site are followed, those to pictures and files too, which the builder does not check.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
SOURCE = re.compile(r"\]\((?:\.\./)+((?:examples|src)/[\w/]+)\.py\)")


def main() -> int:
    """Build it, and return the exit code: links that lead nowhere are errors."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    # On the site, index.html is the page that README.md becomes.
    (PAGES / "evaluation" / "index.html").rename(PAGES / "evaluation" / "report.html")
    evaluation = PAGES / "evaluation" / "README.md"
    evaluation.write_text(evaluation.read_text().replace("`index.html`", "[This](report.html)", 1))
    sources = set((ROOT / "examples").rglob("*.py"))
    for page in PAGES.rglob("*.md"):
        up = "../" * (len(page.relative_to(PAGES).parts) - 1)
        text = page.read_text()
        sources |= {ROOT / f"{name}.py" for name in SOURCE.findall(text)}
        page.write_text(SOURCE.sub(rf"]({up}\1.md)", text))
    for source in sorted(sources):
        page = PAGES / source.relative_to(ROOT).with_suffix(".md")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_listing(source))
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    if code := subprocess.call(command, cwd=ROOT):
        return code
    dead = list(dead_links(SITE))
    print(*dead, sep="\n", end="\n" if dead else "")
    return int(bool(dead))


def _listing(path: Path) -> str:
    """The page of a Python file: its doc string, then its code."""
    source = path.read_text()
    title, _, rest = (ast.get_docstring(ast.parse(source)) or path.stem).partition("\n")
    return f"# {title.rstrip('.')}\n\n{rest.strip()}\n\n```python\n{source}```\n"


class _Links(HTMLParser):
    """The places that a page has, and those that it leads to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the attributes of one element."""
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value and tag != "base":
                self.links.append(value)


def dead_links(site: Path) -> Iterator[str]:
    """Each link of a site that leads to no file, or to no place in its page."""
    pages = {path: _Links(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # served at any address, with links from the root
        for link in page.links:
            to = urlsplit(link)
            if to.scheme or to.netloc:
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(target)
            if not target.exists():
                yield f"{path.relative_to(site)}: {link} does not exist"
            elif to.fragment and known and unquote(to.fragment) not in known.ids:
                yield f"{path.relative_to(site)}: {link} is not in that page"


if __name__ == "__main__":
    sys.exit(main())
