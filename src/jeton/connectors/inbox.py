"""Inbox: rows on their way to a sink at the driver, in a query without checkpoints."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pyarrow as pa

from jeton.connectors.sinks import Delivery, DriverSink, SinkContext
from jeton.connectors.sinks.driver_sink import SinkFailed, hand_over
from jeton.core.errors import summary


class Inbox:
    """Rows on their way to a sink at the driver, without checkpoints; a thread hands them over.

    `put` never waits: the workers bound the number of rows, since each sends more only after
    ``taken`` has acknowledged earlier ones.
    """

    def __init__(
        self,
        sink: DriverSink,
        context: SinkContext,
        failed: Callable[[SinkFailed], None],
    ) -> None:
        self._sink = sink
        self._delivery = Delivery(context=context)
        self._failed = failed
        self.waiting = context.waiting
        self._queue: queue.SimpleQueue[tuple[pa.Table, Callable[[], object]] | None] = (
            queue.SimpleQueue()
        )
        name = f"jeton-sink-{context.output}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, table: pa.Table, taken: Callable[[], object]) -> None:
        """Have rows handed over, and call ``taken`` then."""
        self.waiting.add(table.num_rows)
        self._queue.put((table, taken))

    def end(self, timeout: float | None) -> None:
        """Wait until the sink has taken everything, or has failed, or time is up."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                table, taken = item
                with self.waiting.taking():
                    hand_over(self._sink, table, self._delivery)
                taken()
        except SinkFailed as error:
            self._failed(error)
        except BaseException as error:
            failure = SinkFailed(
                f"rows could not be handed to the sink of output "
                f"{self._delivery.context.output!r}: {summary(error)}"
            )
            failure.__cause__ = error
            self._failed(failure)
