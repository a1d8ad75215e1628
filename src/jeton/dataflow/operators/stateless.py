"""What stateless operators share: each batch becomes another at the same times or later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jeton.core.tokens import TimestampToken
from jeton.dataflow.batch import Batch
from jeton.dataflow.operators.unary import Unary
from jeton.dataflow.pacts import Pact
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class StatelessBase(Unary):
    """Gives operators a way to apply one function to each batch."""

    def _stateless(
        self, change: Callable[[Batch], Batch], name: str, pact: Pact | None = None
    ) -> Stream:
        def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
            token.drop()

            def step(input: Input, output: Output) -> None:
                for ref, batch in input:
                    output.session(ref).give(change(batch))

            return step

        return self.unary(build, name=name, pact=pact)
