"""delay: move records to later times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jeton.columns import time_columns
from jeton.columns.batch import Batch
from jeton.core.errors import TimeError
from jeton.dataflow.operators.stateless import StatelessBase, require_function

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class Delay(StatelessBase):
    """Adds `delay` to streams."""

    def delay(self, to: Callable[[Batch], Any], *, name: str = "delay") -> Stream:
        """Records at the times ``to(batch)``, none of which may be earlier than it was.

        A record's new time rides with it at once: nothing is held back, since downstream sees
        the frontier and not the order of arrival.

        >>> import jeton as jt
        >>> flow = jt.Flow("later")
        >>> flow.output("later", flow.input("n").delay(lambda batch: batch.times + batch["n"]))
        >>> flow.run({"n": {"time": [0, 0], "n": [5, 2]}})["later"].to_pylist()
        [{'time': 2, 'n': 2}, {'time': 5, 'n': 5}]
        """
        require_function(to, name, "times")
        kind = self.kind

        def change(batch: Batch) -> Batch:
            times = time_columns.as_times(kind, to(batch))
            if len(times) != len(batch):
                raise TimeError(f"delay gave {len(times)} times for {len(batch)} records")
            for index in time_columns.earlier(batch.times, times)[:1]:
                raise TimeError(
                    f"delay would move a record from {time_columns.one(batch.times, index)} "
                    f"back to {time_columns.one(times, index)}"
                )
            return batch.at(times)

        self.learn(to, operator=name)
        return self._stateless(change, name, schema=self.schema)
