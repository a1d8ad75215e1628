"""The report's page around its body, and how a figure is put into it."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Final

from jeton_evaluation.bench.panels import GRID, INK

PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Jeton: evaluation</title>
<style>
:root { --ink: #1b1b1d; --paper: #ffffff; --grid: #d4d4d8; --soft: #f4f4f5; --quiet: #5b5b63;
        --holds: #00694d; --fails: #a34700; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ea; --paper: #16171a; --grid: #3a3b41; --soft: #1f2024; --quiet: #a5a5ad;
          --holds: #45c9a0; --fails: #f08c3c; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; color: var(--ink);
       background: var(--paper); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 1rem 0 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
.lead { font-size: 1.1rem; }
.wide, figure, pre { overflow-x: auto; }
figure { margin: 1.2rem 0 2rem; }
figure svg { display: block; width: 100%; height: auto; min-width: 30rem; max-width: 52rem; }
figcaption { color: var(--quiet); font-size: .9rem; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: left; vertical-align: top;
         border-bottom: 1px solid var(--grid); }
th { position: sticky; top: 0; background: var(--soft); font-weight: 600; }
.claims td:first-child, .goals td:first-child { min-width: 14rem; }
.claims td:last-child, .goals td:last-child { min-width: 14rem; color: var(--quiet); }
.nexmark td, .traffic td:nth-child(n + 4), .memory td { text-align: right; white-space: nowrap; }
.holds { color: var(--holds); font-weight: 600; }
.fails { color: var(--fails); font-weight: 600; }
.unknown { color: var(--quiet); }
pre { background: var(--soft); padding: .8rem; border-radius: .3rem; font-size: .85rem; }
</style>
</head>
<body>
<h1>Jeton: evaluation</h1>
<p>Each run offers load at its rate whether or not the system keeps up, and notes for each record
how long after its due time it was complete. A run in which something takes more than a second did
not finish (DNF). Bands are the machine's own noise: how long a loop that does nothing was kept from
running. The code, the runs and the rules behind each verdict are in the repository.</p>
<!-- body -->
</body>
</html>
"""


def inline(path: Path, caption: str) -> str:
    """A figure's drawing as a part of the page: in the page's colours, with ids of its own."""
    drawing = path.read_text()
    drawing = drawing[drawing.index("<svg") :]
    drawing = drawing.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    # Ids must not clash with those of the page's other figures.
    drawing = re.sub(r'\b(id=")', rf"\g<1>{path.stem}.", drawing)
    drawing = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{path.stem}.", drawing)
    drawing = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawing, count=1)
    drawing = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawing, count=1)
    for drawn, meant in ((INK, "var(--ink)"), (GRID, "var(--grid)"), ("#ffffff", "var(--paper)")):
        drawing = drawing.replace(drawn, meant)
    return drawing
