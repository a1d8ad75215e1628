"""map: columns to columns, a whole batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jeton.dataflow.batch import Batch
from jeton.dataflow.kernel import Kernel
from jeton.dataflow.operators.stateless import StatelessBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class Map(StatelessBase):
    """Adds `map` to streams."""

    def map(
        self, function: Callable[[Batch], Mapping[str, Any] | Batch] | Kernel, *, name: str = "map"
    ) -> Stream:
        """New columns from each batch; records keep their times.

        ``function`` takes a batch and returns its new columns, each as long as the batch. A
        kernel makes one column, which has the kernel's name.

        >>> import jeton as jt
        >>> flow = jt.Flow("lengths")
        >>> words = flow.input("words")
        >>> flow.output("doubled", words.map(lambda batch: {"twice": batch["n"] * 2}))
        >>> flow.run({"words": {"time": [4], "n": [21]}})["doubled"].to_pylist()
        [{'time': 4, 'twice': 42}]
        """

        def change(batch: Batch) -> Batch:
            made = function(batch)
            if isinstance(made, Batch):
                return made
            if isinstance(function, Kernel):
                made = {function.__name__: made}
            return batch.select().with_columns(made)

        return self._stateless(change, name, schema=self._schema_after(change, name))
