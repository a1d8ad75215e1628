"""Channels: how an operator's output reaches the inputs that it feeds, here and elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from jeton.columns.batch import Batch
from jeton.core.times import Time
from jeton.dataflow.pacts import Pact, Router
from jeton.dataflow.plan import SourcePort
from jeton.progress.protocol import Outbox
from jeton.runtime.network import Network
from jeton.state.bins import Placement


def from_time(batch: Batch, at: int) -> npt.NDArray[np.bool_]:
    """The records at or after a time of the outermost scope."""
    times = batch.times if batch.times.ndim == 1 else batch.times[:, 0]
    later: npt.NDArray[np.bool_] = times >= at
    return later


class Receiving(Protocol):
    """The end of a channel on this worker."""

    def receive_message(self, location: int, time: Time, batch: Batch) -> None:
        """A message arrives at an input."""
        ...


class Channel:
    """From an output to an input on the same worker."""

    __slots__ = ("_crossings", "_here", "_outbox", "_time_name", "location")

    def __init__(
        self, here: Receiving, outbox: Outbox, location: int, source: SourcePort, time_name: str
    ) -> None:
        self._here = here
        self._outbox = outbox
        self._crossings = source.crossings
        self._time_name = time_name
        self.location = location

    def push(self, time: Time, batch: Batch) -> None:
        """Deliver a batch, and count it as under way."""
        if self._crossings or batch.time_name != self._time_name:
            time, batch = self._translate(time, batch)
        self._outbox.add((self.location, time), +1)
        self._here.receive_message(self.location, time, batch)

    def _translate(self, time: Time, batch: Batch) -> tuple[Time, Batch]:
        """The batch as it is seen behind the borders between the two scopes."""
        times = batch.times
        for crossing in self._crossings:
            times = crossing.translate(times)
            time = crossing.summary.apply(time)
        return time, batch.at(times, time).named(self._time_name)


class RoutedChannel(Channel):
    """From an output to an input on any worker, as a pact decides."""

    __slots__ = (
        "_announced", "_counted", "_network", "_pact", "_route", "_worker", "_workers",
    )  # fmt: skip

    def __init__(
        self,
        here: Receiving,
        outbox: Outbox,
        location: int,
        source: SourcePort,
        time_name: str,
        pact: Pact,
        network: Network,
        placement: Placement,
    ) -> None:
        super().__init__(here, outbox, location, source, time_name)
        self._pact = pact
        self._worker = outbox.worker
        self._route = pact.router(placement, self._worker)
        self._network = network
        self._workers = placement.workers
        self._counted: tuple[npt.NDArray[np.int64], Router] | None = None
        self._announced: set[tuple[object, ...]] | None = set() if pact.announces else None

    def push(self, time: Time, batch: Batch) -> None:
        """Deliver each part where it belongs, and count each as under way."""
        if self._crossings or batch.time_name != self._time_name:
            time, batch = self._translate(time, batch)
        parts = self._route(batch)
        if self._announced is not None and self._is_new(batch, self._announced):
            parts = self._announce(batch, parts)
        for worker, part in parts:
            if worker == self._worker:
                self._outbox.add((self.location, time), +1)
                self._here.receive_message(self.location, time, part)
            else:
                self._outbox.add_at(worker, (self.location, time), +1)
                self._network.send_message(worker, self.location, time, part)

    def reroute(self, placement: Placement, before: Placement | None = None, at: int = 0) -> None:
        """Route by other owners of bins; records earlier than ``at`` still by those ``before``."""
        if not self._pact.by_bins:
            return
        self.stop_counting()
        late = self._pact.router(placement, self._worker)
        if before is None:
            self._route = late
            return
        early = self._pact.router(before, self._worker)

        def route(batch: Batch) -> Iterator[tuple[int, Batch]]:
            later = from_time(batch, at)
            if later.all():
                yield from late(batch)
            elif not later.any():
                yield from early(batch)
            else:
                yield from early(batch.filter(~later))
                yield from late(batch.filter(later))

        self._route = route

    def count(self, counts: npt.NDArray[np.int64]) -> None:
        """Count the records of each bin from now on, until `stop_counting`."""
        self.stop_counting()
        if self._pact.by_bins:
            pact, route = self._pact, self._route

            def counting(batch: Batch) -> Iterator[tuple[int, Batch]]:
                counts[:] += np.bincount(pact.bins(batch, len(counts)), minlength=len(counts))
                return route(batch)

            self._counted = counts, route
            self._route = counting

    def stop_counting(self) -> npt.NDArray[np.int64] | None:
        """Count no more; returns the counts, if there are any."""
        if self._counted is None:
            return None
        counts, self._route = self._counted
        self._counted = None
        return counts

    def _is_new(self, batch: Batch, known: set[tuple[object, ...]]) -> bool:
        """Whether a batch is the first with columns of its types."""
        columns = self._pact.announced(batch)
        types = [c.dtype if isinstance(c, np.ndarray) else c.type for c in columns.values()]
        layout = (*columns, *types)
        if layout in known:
            return False
        known.add(layout)
        return True

    def _announce(
        self, batch: Batch, parts: Iterable[tuple[int, Batch]]
    ) -> Iterator[tuple[int, Batch]]:
        """The parts of a batch, and an empty one for all others."""
        left = set(range(self._workers))
        for worker, part in parts:
            left.discard(worker)
            yield worker, part
        for worker in sorted(left):
            yield worker, batch.slice(0, 0)
