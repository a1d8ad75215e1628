"""filter: keep the records for which a condition holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jeton.dataflow.batch import Batch
from jeton.dataflow.operators.stateless import StatelessBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class Filter(StatelessBase):
    """Adds `filter` to streams."""

    def filter(self, condition: Callable[[Batch], Any], *, name: str = "filter") -> Stream:
        """Keep the records for which ``condition(batch)``, a mask, is true.

        >>> import jeton as jt
        >>> flow = jt.Flow("large")
        >>> flow.output("large", flow.input("n").filter(lambda batch: batch["n"] > 2))
        >>> flow.run({"n": {"time": [0, 0, 1], "n": [1, 3, 5]}})["large"]["n"].to_pylist()
        [3, 5]
        """
        return self._stateless(lambda batch: batch.filter(condition(batch)), name)
