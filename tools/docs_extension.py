"""An extension of the documentation site: it shows examples as code, and no internals.

Markdown takes ``>>>`` for a quotation: each example is fenced before it is rendered. Members that
an editor does not offer, since the library's classes leave them out of ``dir``, have no place on
the site either.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import griffe


class ForReaders(griffe.Extension):
    """Fences examples, and removes the members that completions do not offer."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one doc string."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Remove the internals of a class."""
        found = getattr(import_module(cls.module.path), cls.name, None)
        modules = {base.__module__ for base in getattr(found, "__mro__", ())}
        internal = {n for m in modules for n in getattr(import_module(m), "_INTERNAL", ())}
        for name in internal & set(cls.members):
            del cls.members[name]


def fenced(text: str) -> str:
    r"""The text with a fence around each example: from ``>>>`` to the next blank line.

    >>> fenced("One.\n\n>>> 1 + 1\n2\n\nTwo.").splitlines()
    ['One.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'Two.']
    """
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.lstrip().startswith(">>>"):
            inside = True
            lines.append("```pycon")
        elif inside and not line.strip():
            inside = False
            lines.append("```")
        lines.append(line)
    if inside:
        lines.append("```")
    return "\n".join(lines)
