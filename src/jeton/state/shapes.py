"""Shapes: text that describes a container's state, stored with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jeton.state.aggregates import Aggregate


def shape_of(
    what: str, key: Sequence[str], aggregates: Mapping[str, Aggregate] | None = None
) -> str:
    """The shape of state: its kind, its key and its aggregates.

    >>> import jeton as jt
    >>> shape_of("tumbling 10", ["user"], {"best": jt.agg.max("price"), "n": jt.agg.count()})
    'tumbling 10 by user: best=max(price), n=count()'
    """
    by = f" by {', '.join(key)}" if key else ""
    listed = ", ".join(f"{n}={a.name}({a.column or ''})" for n, a in (aggregates or {}).items())
    return f"{what}{by}" + (f": {listed}" if listed else "")
