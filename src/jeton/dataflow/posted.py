"""Outputs in the hands of threads outside their worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jeton.columns.batch import Batch
from jeton.core.errors import JetonError, OperatorFailed
from jeton.core.times import Time
from jeton.dataflow.ports import Output


class PostedOutput(Output):
    """An output used from outside its worker: what is sent reaches it in its next step.

    Sending and the acts of activating tokens go the same way, so they keep their order.
    """

    __slots__ = ("_post", "_real")

    def __init__(self, real: Output, post: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(real.book, real.time_name, real.units)
        self._real = real
        self._post = post

    def send(self, time: Time, batch: Batch) -> None:
        """Have the worker send a batch."""

        def act() -> None:
            try:
                self._real.send(time, batch)
            except JetonError as error:
                error.located(operator=self.book.operator, time=time)
                raise
            except Exception as error:
                failed = OperatorFailed.because(error, "sending from it")
                failed.located(operator=self.book.operator, time=time)
                raise failed from error

        self._post(act)

    def add_row(self, session_time: Time, time: Time, values: Mapping[str, Any]) -> None:
        """Send a single row at once: there is no end of an invocation to wait for."""
        super().add_row(session_time, time, values)
        self.flush()
