"""inspect: look at batches as they pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jeton.columns.batch import Batch
from jeton.dataflow.operators.stateless import StatelessBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class Inspect(StatelessBase):
    """Adds `inspect` to streams."""

    def inspect(self, look: Callable[[Batch], Any] = print, *, name: str = "inspect") -> Stream:
        """Call ``look`` with each batch that passes; the stream goes on unchanged.

        >>> import jeton as jt
        >>> flow = jt.Flow("look")
        >>> _ = flow.input("n").inspect(print)
        >>> _ = flow.run({"n": {"time": [3, 12], "n": [7, 8], "word": ["to", None]}})
        time n word
           3 7 to
          12 8
        """

        def change(batch: Batch) -> Batch:
            look(batch)
            return batch

        return self._stateless(change, name, schema=self.schema)
