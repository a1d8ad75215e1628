"""branch: split a stream in two by a condition on its records or their times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jeton.core.tokens import TimestampToken
from jeton.dataflow.operators.stateless import Condition, mask_function
from jeton.dataflow.plan import OperatorInfo, Step
from jeton.dataflow.ports import Input, Output
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class Branch(StreamBase):
    """Adds `branch` to streams."""

    def branch(self, condition: Condition, *, name: str = "branch") -> tuple[Stream, Stream]:
        """The records for which a condition is false, and those for which it is true.

        ``condition`` is a function from a batch to booleans, a kernel, or the name of a boolean
        column; null counts as false.

        >>> import jeton as jt
        >>> flow = jt.Flow("halves")
        >>> before, after = flow.input("n").branch(lambda batch: batch.times >= 5)
        >>> flow.output("after", after)
        >>> flow.run({"n": {"time": [4, 5, 6], "n": [1, 2, 3]}})["after"]["n"].to_pylist()
        [2, 3]
        """
        mask_of = mask_function(self, condition, name)
        builder = self.operator(name)
        builder.input(self)
        builder.output(schema=self.schema)
        builder.output(schema=self.schema)

        def build(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
            while tokens:
                tokens.pop().drop()

            def step(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
                for ref, batch in inputs[0]:
                    mask = mask_of(batch)
                    outputs[0].session(ref).give(batch.filter(~mask))
                    outputs[1].session(ref).give(batch.filter(mask))

            return step

        no, yes = builder.build(build, notify="never")
        return no, yes
