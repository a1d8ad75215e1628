"""broadcast: every record to every worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jeton.dataflow.operators.stateless import StatelessBase
from jeton.dataflow.pacts import Broadcast

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class Broadcasts(StatelessBase):
    """Adds `broadcast` to streams."""

    def broadcast(self, *, name: str = "broadcast") -> Stream:
        """Every record on every worker, so as many times as there are workers.

        >>> import jeton as jt
        >>> flow = jt.Flow("rules")
        >>> flow.output("rules", flow.input("rules").broadcast())
        >>> flow.run({"rules": {"time": [0], "limit": [5]}}, workers=3)["rules"].num_rows
        3
        """
        return self._stateless(lambda batch: batch, name, pact=Broadcast(), schema=self.schema)
