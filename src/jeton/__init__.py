"""Jeton: dataflow programs coordinated by timestamp tokens.

>>> import jeton as jt
>>> flow = jt.Flow("hello")
>>> flow.output("out", flow.input("in").map(lambda batch: {"n": batch["n"] + 1}))
>>> flow.run({"in": {"time": [0], "n": [41]}})["out"].to_pylist()
[{'time': 0, 'n': 42}]
"""

from jeton import errors, state
from jeton.columns.batch import Batch, concat
from jeton.columns.compiled import njit
from jeton.columns.expressions import col, when
from jeton.columns.kernel import kernel
from jeton.core.antichain import Antichain
from jeton.core.summaries import IDENTITY, Advance, Summary
from jeton.core.times import END_OF_TIME, START_OF_TIME, IntegerTimes, Product, Timestamp
from jeton.core.tokens import ActivatingToken, TimestampToken, TokenRef
from jeton.dataflow.flow import Flow
from jeton.dataflow.keyed import KeyedStream
from jeton.dataflow.pacts import Broadcast, Exchange, Gather, Pact, Pipeline
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.dataflow.scope import Scope
from jeton.dataflow.stream import Stream
from jeton.runtime.in_process import Run
from jeton.runtime.result import Result
from jeton.state import aggregates as agg

__version__ = "0.1.0"

__all__ = [
    "END_OF_TIME",
    "IDENTITY",
    "START_OF_TIME",
    "ActivatingToken",
    "Advance",
    "Antichain",
    "Batch",
    "Broadcast",
    "Exchange",
    "Flow",
    "Gather",
    "Input",
    "IntegerTimes",
    "KeyedStream",
    "OperatorInfo",
    "Output",
    "Pact",
    "Pipeline",
    "Product",
    "Result",
    "Run",
    "Scope",
    "Stream",
    "Summary",
    "Timestamp",
    "TimestampToken",
    "TokenRef",
    "agg",
    "col",
    "concat",
    "errors",
    "kernel",
    "njit",
    "state",
    "when",
]
