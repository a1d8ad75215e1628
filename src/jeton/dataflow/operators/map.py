"""map: columns to columns, a whole batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jeton.columns.batch import Batch
from jeton.columns.kernel import Kernel
from jeton.core.errors import BatchError
from jeton.dataflow.operators.stateless import StatelessBase, require_function

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
        require_function(function, name, "columns")

        def change(batch: Batch) -> Batch:
            made = function(batch)
            if isinstance(made, Batch):
                return made
            if isinstance(function, Kernel):
                made = {function.__name__: made}
            if not isinstance(made, Mapping):
                raise BatchError(
                    f"map needs a function that returns columns, as {{name: values}}, or a batch: "
                    f"this one returned a {type(made).__name__}"
                )
            return batch.select().with_columns(made)

        return self._stateless(change, name, schema=self._schema_after(change, name))
