"""SessionChains: the open sessions of each key, in order of time.

Sessions are *nodes* of doubly linked chains in arrays, one chain for each key, walked from its
latest session backwards: records that come in order find their session at once, others as far back
as they are late.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jeton.columns import compiled as nb
from jeton.columns.time_arithmetic import apart
from jeton.state.slot_pool import SlotPool, grown

Nodes = npt.NDArray[np.int64]

_START, _LAST, _KEY, _BEFORE, _AFTER = range(5)


class SessionChains:
    """Stretches of time by key, joined where they are closer than ``gap``.

    >>> chains = SessionChains(10)
    >>> def one(*values):
    ...     return np.array(values)
    >>> chains.insert(one(0, 0), one(0, 15), one(0, 15))[0]  # two sessions of key 0
    array([1, 0])
    >>> nodes, new, kept, gone = chains.insert(one(0), one(8), one(8))  # a bridge between them
    >>> nodes, new, kept, gone
    (array([0]), array([], dtype=int64), array([0]), array([1]))
    >>> chains.starts(nodes), chains.lasts(nodes)
    (array([0]), array([15]))
    """

    def __init__(self, gap: int) -> None:
        self._gap = gap
        # A row each for start, last time, key, the session before and the one after.
        self._nodes = np.zeros((5, 512), dtype=np.int64)
        self._pool = SlotPool(words=0)
        self._latest = np.full(256, -1, dtype=np.int64)

    def insert(self, keys: Nodes, starts: Nodes, lasts: Nodes) -> tuple[Nodes, Nodes, Nodes, Nodes]:
        """Add stretches, sorted by key and time and at least a gap apart.

        Returns the node of each stretch; the stretches that opened a new session; and pairs of
        sessions which the stretches have bridged: one that stays, one that has become part of it.
        The latter's nodes are free again.
        """
        self._reserve(len(keys), int(keys.max()) + 1 if len(keys) else 0)
        free, state = self._pool.free, self._pool.state
        nodes, new, kept, gone = _insert(
            self._nodes, free, state, self._latest, self._gap, keys, starts, lasts
        )
        self._pool.release(gone)
        return nodes, new, kept, gone

    def remove(self, nodes: Nodes) -> Nodes:
        """Forget sessions; returns the keys that have none left."""
        empty: Nodes = _remove(self._nodes, self._latest, nodes)
        self._pool.release(nodes)
        return empty

    def starts(self, nodes: Nodes) -> Nodes:
        """The times of the first records of some sessions."""
        starts: Nodes = self._nodes[_START, nodes]
        return starts

    def lasts(self, nodes: Nodes) -> Nodes:
        """The times of the last records of some sessions."""
        lasts: Nodes = self._nodes[_LAST, nodes]
        return lasts

    def of(self, keys: Nodes) -> Nodes:
        """The sessions of some keys."""
        known = keys[keys < len(self._latest)]
        nodes: Nodes = _of(self._nodes, self._latest, known)
        return nodes

    @property
    def size(self) -> int:
        """One more than the greatest node there can be."""
        return self._nodes.shape[1]

    def _reserve(self, nodes: int, keys: int) -> None:
        self._pool.reserve(nodes)
        if len(self._pool.free) > self.size:
            self._nodes = np.vstack([grown(row, len(self._pool.free)) for row in self._nodes])
        if keys > len(self._latest):
            latest = np.full(max(keys, 2 * len(self._latest)), -1, dtype=np.int64)
            latest[: len(self._latest)] = self._latest
            self._latest = latest


@nb.njit(cache=True)
def _insert(nodes, free, state, latest, gap, keys, starts, lasts):  # type: ignore[no-untyped-def]
    start, last, key_of, before, after = nodes[0], nodes[1], nodes[2], nodes[3], nodes[4]
    count = len(keys)
    found = np.empty(count, np.int64)
    new = np.empty(count, np.int64)
    kept = np.empty(nodes.shape[1], np.int64)
    gone = np.empty(nodes.shape[1], np.int64)
    opened = joined = 0
    key = np.int64(-1)
    here = later = np.int64(-1)
    # Backwards, so that each chain is walked once: `here` is the session to compare with, `later`
    # the one after it.
    for i in range(count - 1, -1, -1):
        if keys[i] != key:
            key = keys[i]
            here, later = latest[key], np.int64(-1)
        while here >= 0 and apart(start[here], lasts[i], gap):
            later, here = here, before[here]
        if here >= 0 and not apart(starts[i], last[here], gap):
            start[here] = min(start[here], starts[i])
            last[here] = max(last[here], lasts[i])
            other = before[here]
            while other >= 0 and not apart(start[here], last[other], gap):
                start[here] = min(start[here], start[other])
                kept[joined], gone[joined] = here, other
                joined += 1
                other = before[other]
            before[here] = other
            if other >= 0:
                after[other] = here
        else:
            if state[1] > 0:
                state[1] -= 1
                node = free[state[1]]
            else:
                node = state[0]
                state[0] += 1
            start[node], last[node], key_of[node] = starts[i], lasts[i], key
            before[node], after[node] = here, later
            if here >= 0:
                after[here] = node
            if later >= 0:
                before[later] = node
            else:
                latest[key] = node
            here = node
            new[opened] = i
            opened += 1
        found[i] = here
    return found, new[:opened], kept[:joined].copy(), gone[:joined].copy()


@nb.njit(cache=True)
def _of(nodes, latest, keys):  # type: ignore[no-untyped-def]
    before = nodes[3]
    count = 0
    for key in keys:
        node = latest[key]
        while node >= 0:
            count += 1
            node = before[node]
    found = np.empty(count, np.int64)
    count = 0
    for key in keys:
        node = latest[key]
        while node >= 0:
            found[count] = node
            count += 1
            node = before[node]
    return found


@nb.njit(cache=True)
def _remove(nodes, latest, gone):  # type: ignore[no-untyped-def]
    key_of, before, after = nodes[2], nodes[3], nodes[4]
    empty = np.empty(len(gone), np.int64)
    emptied = 0
    for node in gone:
        earlier, later = before[node], after[node]
        if earlier >= 0:
            after[earlier] = later
        if later >= 0:
            before[later] = earlier
        else:
            latest[key_of[node]] = earlier
            if earlier < 0:
                empty[emptied] = key_of[node]
                emptied += 1
    return empty[:emptied].copy()
