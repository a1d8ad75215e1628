"""branch: split a stream in two by a condition on its records or their times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jeton.core.tokens import TimestampToken
from jeton.dataflow.batch import Batch
from jeton.dataflow.plan import OperatorInfo, Step
from jeton.dataflow.ports import Input, Output
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class Branch(StreamBase):
    """Adds `branch` to streams."""

    def branch(
        self, condition: Callable[[Batch], Any], *, name: str = "branch"
    ) -> tuple[Stream, Stream]:
        """The records for which ``condition(batch)`` is false, and those for which it is true.

        >>> import jeton as jt
        >>> flow = jt.Flow("halves")
        >>> before, after = flow.input("n").branch(lambda batch: batch.times >= 5)
        >>> flow.output("after", after)
        >>> flow.run({"n": {"time": [4, 5, 6], "n": [1, 2, 3]}})["after"]["n"].to_pylist()
        [2, 3]
        """
        builder = self.operator(name)
        builder.input(self)
        builder.output()
        builder.output()

        def build(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
            while tokens:
                tokens.pop().drop()

            def step(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
                for ref, batch in inputs[0]:
                    mask = np.asarray(condition(batch), dtype=bool)
                    outputs[0].session(ref).give(batch.filter(~mask))
                    outputs[1].session(ref).give(batch.filter(mask))

            return step

        no, yes = builder.build(build, notify="never")
        return no, yes
