"""Mechanisms: by what a program's operators know that a time is complete."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from jeton.errors import GraphError

Mechanism: TypeAlias = Literal["tokens", "notifications", "watermarks-x", "watermarks-p"]
"""Tokens and frontiers; Naiad's notifications, one time for each invocation; Flink's watermarks
in-band, broadcast at every exchange (x) or handed down pipelines on each worker (p)."""

MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)


def check_mechanism(name: str) -> None:
    """Refuse a name that is none of the mechanisms.

    >>> check_mechanism("tokens")
    >>> check_mechanism("barriers")
    Traceback (most recent call last):
        ...
    jeton.core.errors.GraphError: there is no mechanism 'barriers': choose one of tokens, ...
    """
    if name not in MECHANISMS:
        raise GraphError(f"there is no mechanism {name!r}: choose one of {', '.join(MECHANISMS)}")
