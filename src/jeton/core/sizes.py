"""Sizes: numbers of bytes as people write them."""

from __future__ import annotations

import re
from typing import Any, Final

from jeton.core.checks import described
from jeton.core.errors import GraphError

_UNITS: Final = {
    unit: factor
    for power, name in enumerate("kmgt", start=1)
    for unit, factor in (
        (name, 1 << 10 * power),
        (f"{name}b", 1 << 10 * power),
        (f"{name}ib", 1 << 10 * power),
    )
} | {"": 1, "b": 1}


def bytes_of(size: Any, what: str) -> int:
    """A number of bytes from an integer, or from text such as ``"2GB"``.

    As in Spark, a kilobyte has 1024 bytes.

    >>> bytes_of("2GB", "memory_budget="), bytes_of("1.5 MiB", "memory_budget="), bytes_of(4096, "")
    (2147483648, 1572864, 4096)
    >>> bytes_of("lots", "memory_budget=")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: memory_budget= is a number of bytes, such as 2147483648 or...
    """
    found: float | None = None
    if isinstance(size, int) and not isinstance(size, bool):
        found = size
    elif isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", size)
        if match is not None and match[2].lower() in _UNITS:
            found = float(match[1]) * _UNITS[match[2].lower()]
    if found is None or found < 1:
        raise GraphError(
            f'{what} is a number of bytes, such as 2147483648 or "2GB", not {described(size)}'
        )
    return int(found)


def in_bytes(size: float) -> str:
    """A number of bytes for people.

    >>> in_bytes(2147483648), in_bytes(1500), in_bytes(12)
    ('2.0 GB', '1.5 kB', '12 bytes')
    """
    for power, name in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if size >= 1 << 10 * power:
            return f"{size / (1 << 10 * power):.1f} {name}"
    return f"{int(size)} bytes"
