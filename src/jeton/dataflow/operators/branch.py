"""branch: split a stream in two by a condition on its records or their times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jeton.dataflow.column_use import use_of
from jeton.dataflow.operators.partition import split
from jeton.dataflow.operators.stateless import Condition, mask_function
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_branch(stream: StreamBase, condition: Condition, *, name: str) -> tuple[Stream, Stream]:
    """Add the operator of `Stream.branch`."""
    mask = mask_function(stream, condition, name)
    no, yes = split(
        stream,
        2,
        lambda batch: mask(batch).astype(np.int64),
        name=name,
        use=use_of(condition),
    )
    return no, yes
