"""exchange: move records to the worker that owns their key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jeton.columns.batch import Batch
from jeton.dataflow.operators.stateless import StatelessBase
from jeton.dataflow.pacts import Exchange

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class Exchanges(StatelessBase):
    """Adds `exchange` to streams."""

    def exchange(self, *key: str | Callable[[Batch], Any], name: str = "exchange") -> Stream:
        """The same records, each on the worker that owns its key.

        The key is one or more columns, or a function from a batch to integers. Keyed operators
        do this on their own; it is for operators of your own that come several in a row.

        >>> import jeton as jt
        >>> flow = jt.Flow("moved")
        >>> flow.output("moved", flow.input("words").exchange("word"))
        >>> words = {"time": [0, 1, 2], "word": list("aba")}
        >>> flow.run({"words": words}, workers=3)["moved"]["word"].to_pylist()
        ['a', 'b', 'a']
        """
        return self._stateless(lambda batch: batch, name, pact=Exchange(*key), schema=self.schema)
