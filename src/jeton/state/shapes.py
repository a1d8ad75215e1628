"""Shapes: what a container's state depends on, as text that is kept with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jeton.state.aggregates import Aggregate


def shape_of(
    what: str, key: Sequence[str], aggregates: Mapping[str, Aggregate] | None = None
) -> str:
    """What is kept, by which key, and of which aggregates.

    >>> import jeton as jt
    >>> shape_of("tumbling 10", ["user"], {"best": jt.agg.max("price"), "n": jt.agg.count()})
    'tumbling 10 by user: best=max(price), n=count()'
    """
    by = f" by {', '.join(key)}" if key else ""
    told = ", ".join(f"{n}={a.name}({a.column or ''})" for n, a in (aggregates or {}).items())
    return f"{what}{by}" + (f": {told}" if told else "")
