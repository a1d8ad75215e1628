"""A change batch: net changes to the counts of things, equal keys summed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")


class ChangeBatch(Generic[K]):
    """Counts that went up and down; changes that cancel out are forgotten at once.

    >>> changes = ChangeBatch([(17, +1), (14, -1)])
    >>> changes.update(17, -1)
    >>> list(changes)
    [(14, -1)]
    """

    __slots__ = ("net",)

    def __init__(self, changes: Iterable[tuple[K, int]] = ()) -> None:
        self.net: dict[K, int] = {}
        """The net changes so far."""
        self.extend(changes)

    def update(self, key: K, delta: int) -> None:
        """Add ``delta`` to the count of ``key``."""
        net = self.net
        total = net.get(key, 0) + delta
        if total:
            net[key] = total
        elif delta:
            del net[key]

    def extend(self, changes: Iterable[tuple[K, int]]) -> None:
        """Add many changes."""
        net = self.net
        for key, delta in changes:
            total = net.get(key, 0) + delta
            if total:
                net[key] = total
            elif delta:
                del net[key]

    def absorb(self, net: dict[K, int]) -> None:
        """Add net changes that were drained from another batch."""
        if self.net:
            self.extend(net.items())
        else:
            self.net = net.copy()

    def drain(self) -> dict[K, int]:
        """Take all net changes out, leaving this batch empty.

        >>> changes = ChangeBatch([("a", 2)])
        >>> changes.drain(), len(changes)
        ({'a': 2}, 0)
        """
        net, self.net = self.net, {}
        return net

    def __len__(self) -> int:
        return len(self.net)

    def __iter__(self) -> Iterator[tuple[K, int]]:
        return iter(self.net.items())

    def __repr__(self) -> str:
        return f"ChangeBatch({list(self.net.items())!r})"
