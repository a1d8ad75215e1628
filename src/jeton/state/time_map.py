"""TimeMap: values by time, taken out in order once a frontier has passed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from jeton.core.antichain import Antichain
from jeton.core.times import Product, Time, sort_key

V = TypeVar("V")


class TimeMap(Generic[V]):
    """A map from times to values, ordered by time.

    Windows, pending work, anything that waits for its time to be complete: put it in, and take
    out all that a frontier has passed, no matter how far it jumped.

    >>> waiting = TimeMap()
    >>> for time, value in [(20, "late"), (10, "early"), (30, "never")]:
    ...     waiting[time] = value
    >>> list(waiting.pop_before(Antichain([25])))
    [(10, 'early'), (20, 'late')]
    >>> len(waiting)
    1
    """

    __slots__ = ("_heap", "_values")

    def __init__(self) -> None:
        self._values: dict[Time, V] = {}
        # Integers only: partially ordered times have no least one, so those are searched.
        self._heap: list[int] = []

    def get_or(self, time: Time, make: Callable[[], V]) -> V:
        """The value at ``time``, made if there is none."""
        try:
            return self._values[time]
        except KeyError:
            value = self[time] = make()
            return value

    def pop_before(
        self, *frontiers: Antichain, inclusive: bool = False
    ) -> Iterator[tuple[Time, V]]:
        """Take out, in order of time, all that every one of the frontiers has passed.

        With ``inclusive``, a frontier need only have passed all times before: as for the end of
        a window, which the window does not contain.
        """
        values = self._values
        if not values:
            return
        if not self._heap:
            for time in sorted(values, key=sort_key):
                if inclusive:
                    waits = any(frontier.less_than(time) for frontier in frontiers)
                else:
                    waits = any(frontier.less_equal(time) for frontier in frontiers)
                if not waits:
                    yield time, values.pop(time)
            return
        heap = self._heap
        limits = [time for frontier in frontiers if (time := frontier.only) is not None]
        limit = min(limits) if limits else None
        while heap:
            least = heap[0]
            if limit is not None and (least > limit or (least == limit and not inclusive)):
                return
            heappop(heap)
            if least in values:
                yield least, values.pop(least)

    def least(self) -> list[Time]:
        """Times that include the least ones; just the least where times are integers."""
        heap = self._heap
        while heap and heap[0] not in self._values:
            heappop(heap)
        return heap[:1] if heap else list(self._values)

    def __getitem__(self, time: Time) -> V:
        return self._values[time]

    def __setitem__(self, time: Time, value: V) -> None:
        if (
            time not in self._values
            and not isinstance(time, Product)
            and hasattr(time, "__index__")
        ):
            heappush(self._heap, time)
        self._values[time] = value

    def __delitem__(self, time: Time) -> None:
        del self._values[time]
        # Or times that are set and deleted again and again would pile up.
        if len(self._heap) > 2 * len(self._values) + 64:
            self._heap[:] = self._values
            heapify(self._heap)

    def __contains__(self, time: object) -> bool:
        return time in self._values

    def __iter__(self) -> Iterator[Time]:
        """The times, in order."""
        return iter(sorted(self._values, key=sort_key))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"TimeMap({{{', '.join(f'{t!r}: {self._values[t]!r}' for t in self)}}})"
