"""filter: keep the records for which a condition holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jeton.dataflow.operators.stateless import Condition, StatelessBase, mask_function

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class Filter(StatelessBase):
    """Adds `filter` to streams."""

    def filter(self, condition: Condition, *, name: str = "filter") -> Stream:
        """Keep the records for which a condition is true; null counts as false.

        ``condition`` is a function from a batch to booleans, a kernel, or the name of a boolean
        column.

        >>> import jeton as jt
        >>> flow = jt.Flow("large")
        >>> flow.output("large", flow.input("n").filter(lambda batch: batch["n"] > 2))
        >>> flow.run({"n": {"time": [0, 0, 1], "n": [1, 3, 5]}})["large"]["n"].to_pylist()
        [3, 5]
        """
        mask = mask_function(self, condition, name)
        return self._stateless(lambda batch: batch.filter(mask(batch)), name, schema=self.schema)
